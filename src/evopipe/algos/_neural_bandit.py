"""What both neural bandits have in common: one network f(x; θ) → reward of an arm, and its uncertainty.

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
    doc="input of an arm: `shared`, zeros but for the observation in the arm's place; `rows`, the arm's own part of "
    "an observation with one part for each arm")]  # fmt: skip
Exploration = Annotated[float, hyper(doc="weight ν of a prediction's uncertainty", raising="explores more", ge=0,
    le=1e3)]  # fmt: skip
Ridge = Annotated[float, hyper(doc="λ, initial value of the sums of squared gradients", raising="explores less early",
    gt=0, le=1e9)]  # fmt: skip
Decay = Annotated[float, hyper(doc="weight of half the squared distance from the initial weights",
    raising="stays nearer to the initial weights", ge=0, le=1e3)]  # fmt: skip


@dataclass(frozen=True)
class State:
    q: Net = parameters("q", trainable=True)
    start: Net = parameters("q")  # as it began
    adam: optim.Adam = moments("q")
    seen: optim.Adam = moments("q")  # `square`: S, `steps`: how many arms were chosen; its mean is not used
    updates: Tensor = row()  # [P] float32


def networks(cfg: Any, spaces: Spaces) -> dict[str, Widths]:
    """Return the input and output width of the only network, `q`, which reads one arm's input and returns the expected
    reward.

    Raises:
        ParamsError: an observation cannot be divided by the number of arms.
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
    """Return the probability of a uniformly random arm: 0 at every `step`, because the algorithm explores by its
    uncertainty."""
    return 0.0


def arms(cfg: Any, obs: Tensor) -> Tensor:
    """Return the network's input for every arm (action), `[P, E, A, I]`.

    `obs` is `[P, E, O]`. P counts members, E observations of each, A arms, and I the numbers of an input. If
    `cfg.contexts` is `rows`, an observation consists of one input per arm. Otherwise an arm's input is A · O numbers:
    the observation in the arm's place, and zeros elsewhere.
    """
    count = cfg.spaces.actions
    if cfg.contexts == "rows":
        return obs.view(*obs.shape[:-1], count, -1)
    place = torch.eye(count, dtype=obs.dtype, device=obs.device)
    found: Tensor = (place[:, :, None] * obs[..., None, None, :]).flatten(-2)
    return found


def values(cfg: Any, state: State, obs: Tensor) -> Tensor:
    """Return the expected reward f(x; θ) of every arm, without gradient, `[P, E, A]`.

    `obs` is `[P, E, O]`. P counts members, E observations of each, A arms (actions). `cfg` is the algorithm's
    configuration.
    """
    with torch.no_grad():
        x = arms(cfg, obs)
        found: Tensor = forward(state.q, x.flatten(1, 2))[..., 0].unflatten(1, x.shape[1:3])
        return found


def greedy(cfg: Any, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the legal arms with the highest expected reward, `[P, E]` int64.

    `obs` is `[P, E, O]`, for P members with E environments each. `legal` is `[P, E, A]` bool for A arms, or None if all
    arms are legal. `cfg` is the algorithm's configuration.
    """
    return best_legal(values(cfg, state, obs), legal)


def gradients(net: Net, x: Tensor) -> Tensor:
    """Return the gradients of the network's outputs with respect to all N parameters, `[P, n, N]`.

    `x` `[P, n, I]` holds n inputs of I numbers for each of P members. The result has one gradient per input: each input
    has a copy of its member's parameters, so that one backward pass gives all gradients separately.
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
    """Return the uncertainty σ(x) of every arm's expected reward, `[P, E, A]`.

    There are P members, E observations `obs` `[P, E, O]` for each, and A arms. σ²(x) = Σⱼ gⱼ(x)² / (λ + Sⱼ). Here g is
    the gradient of the network's output, and λ is `cfg.ridge`. Sⱼ is the sum of gⱼ² over the arms chosen so far, which
    `state.seen` holds.
    """
    x = arms(cfg, obs)
    g = gradients(state.q, x.flatten(1, 2))  # [P, E · A, N]
    square: Tensor = (g.square() / (cfg.ridge + state.seen.square[:, None])).sum(dim=-1)
    found: Tensor = square.sqrt().unflatten(1, x.shape[1:3])
    return found


def loss(cfg: Any, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return each member's loss `[P]`, and the error f − r of each transition `[P, B]`, for B transitions of P members.

    The loss is ½ Σ w (f − r)² + ½ d |θ − θ₀|²: f is the expected and r the received reward, w the transition's weight,
    d `cfg.decay`, θ the parameters, and θ₀ the initial parameters.
    """
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
    """Take one gradient step on `loss`, in place, and update the sums S in `state.seen`, from which `width` computes
    the uncertainty.

    `learn_step` arms were chosen since the last update. For each of them, the same vector is added to S: the mean of g²
    over the minibatch's first 8 rows (`COUNTED`), where g is the gradient of the network's output. Return the losses
    `[P]`, which members are still healthy (all their numbers are finite), and the errors `[P, B]`.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        batch: a minibatch of B transitions of P members.
        healthy: `[P]` bool, the members that learn.
        draw, turn: have no effect.
    """
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
