"""Conservative Q-learning for discrete actions, to learn from a dataset.

Kumar, Zhou, Tucker & Levine, "Conservative Q-learning for offline reinforcement learning", NeurIPS 2020, CQL(H).

With y = r + γ (1 − terminated) Q⁻(s′, a*), where a* maximises Q (double) or Q⁻ (not), the loss of a member is the
weighted mean over its batch of ℓ(Q(s, a) − y) + α (log Σ exp Q(s, ·) − Q(s, a)), ℓ Huber or ½ e². The second term
lowers the values of all legal actions and raises that of the dataset's own, so that an action that the data does not
know is not believed to be good. α = 0 is deep Q-learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from evopipe.algos import _hyper
from evopipe.core import optim
from evopipe.core.forward import forward
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets
from evopipe.core.structure import Widths
from evopipe.ops.policy import best_legal, epsilon_greedy
from evopipe.ops.value import conservative_gap, pick, q_target, regression_loss
from evopipe.rng import Stream
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces

if TYPE_CHECKING:
    from torch import Tensor

PAPER = "https://arxiv.org/abs/2006.04779"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)
MASKED_LOSS = True


class Config(AlgoConfig):
    """Hyper-parameters of conservative Q-learning."""

    lr: _hyper.Rate = 5e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 5e-3
    grad_clip: _hyper.GradientClip = 10.0
    alpha: float = hyper(1.0, doc="weight of the conservative term; 0: plain deep Q-learning",
        raising="closer to the dataset's actions", evolvable=True, ge=0, le=1000)  # fmt: skip
    double: _hyper.DoubleQ = True
    loss: _hyper.RegressionLoss = "huber"
    epsilon: _hyper.Epsilon = 0.05
    network: _hyper.Network = NetworkConfig()
    evolve: _hyper.Evolving = _hyper.ranges(lr=(6.25e-5, 1e-2), batch_size=(32, 512), alpha=(0.05, 5.0))


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
    """Return the chance of a random action, the same at every step of a member."""
    return cfg.epsilon


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
    q = forward(state.q, batch.obs)  # [P, B, A]
    q_tm1 = pick(q, batch.action)
    gap = conservative_gap(q, batch.action, batch.legal)
    each = regression_loss(q_tm1, y, cfg.loss == "huber") + hp["alpha"][:, None] * gap
    return (batch.weight * each).sum(dim=1), (q_tm1 - y).detach()


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int = 0) -> Learned:
    """Learn from one batch; hp values and healthy are `[P]`."""
    losses, errors = loss(cfg, state, hp, batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.q, state.adam, hp["lr"]))
    optim.polyak(state.target, state.q, hp["tau"] * healthy)
    state.updates.add_(healthy)
    return Learned(losses.detach(), healthy, errors)
