"""What both neural bandits have in common: one network f(x; θ) → reward over arms' inputs, and how sure it is of them.

An update adds to S, which the algorithms' files define, as many arms as were chosen since the last update, each the
mean of some rows of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

import torch

from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Structure, Widths
from evopipe.errors import ParamsError
from evopipe.ops.policy import best_legal
from evopipe.schema.declare import hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

COUNTED = 8  # rows of a batch whose gradients are taken one by one

Contexts = Annotated[Literal["shared", "rows"], hyper(
    doc="what an arm's input is: `shared`, the observation in the arm's own place among zeros; `rows`, its part of an "
    "observation that holds one for each arm")]  # fmt: skip
Exploration = Annotated[float, hyper(doc="ν, how much the width counts", raising="explores more", ge=0,
    le=1e3)]  # fmt: skip
Ridge = Annotated[float, hyper(doc="λ, what the sums of squared gradients begin with", raising="is surer at the start",
    gt=0, le=1e9)]  # fmt: skip
Decay = Annotated[float, hyper(doc="weight of the squared distance from the first weights, halved",
    raising="stays nearer to them", ge=0, le=1e3)]  # fmt: skip


@dataclass(frozen=True)
class State:
    q: Net = parameters("q", trainable=True)
    start: Net = parameters("q")  # as it began
    adam: optim.Adam = moments("q")
    seen: optim.Adam = moments("q")  # `square`: S, `steps`: how many arms were chosen; its mean is not used
    updates: Tensor = row()  # [P] float32


def networks(cfg: Any, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of the network, which reads one arm's input.

    Raises:
        ParamsError: an observation cannot be divided by the arms.
    """
    o, a = spaces.observations, spaces.actions
    if cfg.contexts == "rows" and o % a:
        raise ParamsError(f"contexts: an observation of {o} numbers has no row for each of {a} arms: take shared")
    return {"q": Widths(o // a if cfg.contexts == "rows" else o * a, 1)}


def init(cfg: Any, nets: Nets) -> State:
    q = nets["q"]
    adam, updates = optim.start(q)
    return State(q, q.copy(), adam, optim.Adam.start(q), updates)


def explore(cfg: Any, step: int) -> float:
    """Return the probability of a random arm: 0, the width explores."""
    return 0.0


def arms(cfg: Any, obs: Tensor) -> Tensor:
    """Return every arm's input: obs `[P, E, O]` → `[P, E, A, I]`."""
    count = cfg.spaces.actions
    if cfg.contexts == "rows":
        return obs.view(*obs.shape[:-1], count, -1)
    place = torch.eye(count, dtype=obs.dtype, device=obs.device)
    found: Tensor = (place[:, :, None] * obs[..., None, None, :]).flatten(-2)
    return found


def values(cfg: Any, state: State, obs: Tensor) -> Tensor:
    """Return every arm's expected reward: obs `[P, E, O]` → `[P, E, A]`."""
    with torch.no_grad():
        x = arms(cfg, obs)
        found: Tensor = forward(state.q, x.flatten(1, 2))[..., 0].unflatten(1, x.shape[1:3])
        return found


def greedy(cfg: Any, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Choose the arms with the highest expected reward: obs `[P, E, O]` → `[P, E]` int64."""
    return best_legal(values(cfg, state, obs), legal)


def gradients(net: Net, x: Tensor) -> Tensor:
    """Return the gradient of every output by every parameter: x `[P, n, I]` → `[P, n, N]`.

    Each input has a copy of its member's parameters, so that one way back gives all gradients apart.
    """
    members, n = x.shape[:2]
    copies = Net(_repeated(net.structure, n), net.values.repeat_interleave(n, dim=0), trainable=True)
    with torch.enable_grad():
        optim.backward(forward(copies, x.detach().flatten(0, 1)[:, None])[:, 0, 0], copies)
    return copies.grad.view(members, n, -1)


_known: WeakKeyDictionary[Structure, dict[int, Structure]] = WeakKeyDictionary()


def _repeated(structure: Structure, times: int) -> Structure:
    """Return a structure with so many copies of each member side by side; made once for each number."""
    made = _known.setdefault(structure, {})
    if times not in made:
        made[times] = structure.repeat(times)
    return made[times]


def width(cfg: Any, state: State, obs: Tensor) -> Tensor:
    """Return σ of every arm: obs `[P, E, O]` → `[P, E, A]`."""
    x = arms(cfg, obs)
    g = gradients(state.q, x.flatten(1, 2))  # [P, E · A, N]
    square: Tensor = (g.square() / (cfg.ridge + state.seen.square[:, None])).sum(dim=-1)
    found: Tensor = square.sqrt().unflatten(1, x.shape[1:3])
    return found


def loss(cfg: Any, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return ½ Σ w (f − r)² + ½ d |θ − θ₀|² of each member, and f − r of each transition."""
    errors = forward(state.q, _chosen(cfg, batch))[..., 0] - batch.reward
    own, first = (_leaves(net.views) for net in (state.q, state.start))
    far = sum((one - begun).square().flatten(1).sum(dim=1) for one, begun in zip(own, first, strict=True))
    return 0.5 * ((batch.weight * errors.square()).sum(dim=1) + cfg.decay * far), errors.detach()


def _leaves(views: Any) -> list[Tensor]:
    """Return all tensors of a network's views."""
    if isinstance(views, Mapping):
        views = [*views.values()]
    return [leaf for view in views for leaf in _leaves(view)] if isinstance(views, tuple | list) else (
        [] if views is None else [views])  # fmt: skip


def _chosen(cfg: Any, batch: Batch) -> Tensor:
    """Return the inputs of the arms that were chosen, `[P, B, I]`."""
    x = arms(cfg, batch.obs)
    return x.gather(2, batch.action[..., None, None].expand(*batch.action.shape, 1, x.shape[-1]))[:, :, 0]


def update(cfg: Any, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Any, turn: int) -> Learned:
    """Descend on `loss`, then count the arms that were chosen since the last update, `hp["learn_step"]` of them."""
    losses, errors = loss(cfg, state, hp, batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.q, state.adam, hp["lr"]))
    state.updates.add_(healthy)
    some = slice(COUNTED)
    few = replace(batch, obs=batch.obs[:, some], action=batch.action[:, some])
    weight = batch.weight[:, some]
    mean = (weight[..., None] * gradients(state.q, _chosen(cfg, few)).square()).sum(dim=1)
    mean = mean / weight.sum(dim=1, keepdim=True).clamp(min=1e-12)
    known = (healthy > 0) & mean.isfinite().all(dim=1)
    state.seen.square.add_(torch.where(known[:, None], hp["learn_step"][:, None] * mean, 0.0))
    state.seen.steps.add_(hp["learn_step"] * known)
    return Learned(losses.detach(), healthy, errors)
