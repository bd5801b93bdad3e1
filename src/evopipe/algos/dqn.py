"""Deep Q-network, double by default.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt, Guez & Silver, "Deep
reinforcement learning with double Q-learning", AAAI 2016.

With y = r + γ (1 − terminated) Q⁻(s′, a*), where a* maximises Q (double) or Q⁻ (not), the loss of a member is the
weighted mean over its batch of ℓ(Q(s, a) − y), ℓ Huber or ½ e².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from evopipe.algos import _hyper
from evopipe.core import optim
from evopipe.core.forward import forward
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets
from evopipe.core.structure import Widths
from evopipe.ops.policy import best_legal, epsilon_greedy
from evopipe.ops.value import pick, q_target, regression_loss
from evopipe.rng import Stream
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces

if TYPE_CHECKING:
    from torch import Tensor

PAPER = "https://doi.org/10.1038/nature14236"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)


class Config(AlgoConfig):
    """Hyper-parameters of DQN."""

    lr: _hyper.Rate = 5e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 1e-2
    grad_clip: _hyper.GradientClip = 10.0
    double: _hyper.DoubleQ = True
    loss: _hyper.RegressionLoss = "huber"
    target: Literal["soft", "hard"] = hyper("soft",
        doc="soft: mix by `tau`; hard: copy every `target_interval` updates")  # fmt: skip
    target_interval: int = hyper(250, doc="updates between two hard copies", unit="updates",
        raising="targets follow later, more stable", ge=1, le=10**9)  # fmt: skip
    eps_start: _hyper.EpsilonStart = 1.0
    eps_end: _hyper.EpsilonEnd = 0.05
    eps_schedule: Literal["linear", "exponential"] = hyper("linear", doc="how ε goes from start to end")
    eps_steps: _hyper.EpsilonSteps = 10_000
    network: _hyper.Network = NetworkConfig()
    evolve: _hyper.Evolving = _hyper.ranges(lr=(6.25e-5, 1e-2), batch_size=(32, 512), learn_step=(1, 8))


@dataclass(frozen=True)
class State:
    """Everything that learns, one row a member."""

    q: Net = parameters("q", trainable=True)
    target: Net = parameters("q")
    adam: optim.Adam = moments("q")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network."""
    return {"q": Widths(spaces.observations, spaces.actions)}


def init(cfg: Config, nets: Nets) -> State:
    """Start from fresh networks; the target is a copy."""
    q = nets["q"]
    return State(q, q.copy(), *optim.start(q))


def explore(cfg: Config, step: int) -> float:
    """Return ε after `step` environment steps of a member."""
    done = min(1.0, step / cfg.eps_steps)
    if cfg.eps_schedule == "linear":
        return cfg.eps_start + done * (cfg.eps_end - cfg.eps_start)
    start, end = max(cfg.eps_start, 1e-8), max(cfg.eps_end, 1e-8)
    return float(start * (end / start) ** done)


def values(cfg: Config, state: State, obs: Tensor) -> Tensor:
    """Return Q(s, ·): obs `[P, E, O]` → `[P, E, A]`."""
    with torch.no_grad():
        return forward(state.q, obs)


def greedy(cfg: Config, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Choose the best legal actions: obs `[P, E, O]`, legal `[P, E, A]` or None where all are → `[P, E]` int64."""
    return best_legal(values(cfg, state, obs), legal)


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Choose the best legal actions, with chance epsilon `[P]` any: obs `[P, E, O]`, legal `[P, E, A]` → `[P, E]`."""
    return epsilon_greedy(values(cfg, state, obs), legal, epsilon, draw)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return each member's loss `[P]` and each transition's error `[P, B]`; hp values are `[P]`."""
    with torch.no_grad():
        target_t = forward(state.target, batch.next_obs)  # [P, B, A]
        selector_t = forward(state.q, batch.next_obs) if cfg.double else target_t
        y = q_target(batch.reward, batch.discount, target_t, selector_t, batch.next_legal)  # [P, B]
    q_tm1 = pick(forward(state.q, batch.obs), batch.action)
    losses = (batch.weight * regression_loss(q_tm1, y, cfg.loss == "huber")).sum(dim=1)
    return losses, (q_tm1 - y).detach()


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int = 0) -> Learned:
    """Learn from one batch; hp values and healthy are `[P]`."""
    losses, errors = loss(cfg, state, hp, batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.q, state.adam, hp["lr"]))
    state.updates.add_(healthy)
    mixed = hp["tau"] if cfg.target == "soft" else (state.updates % cfg.target_interval == 0).float()
    optim.polyak(state.target, state.q, mixed * healthy)
    return Learned(losses.detach(), healthy, errors)
