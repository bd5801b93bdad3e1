"""Expected SARSA with a replay memory.

van Seijen et al., "A theoretical and empirical analysis of expected Sarsa", ADPRL 2009.

With π ε-greedy in Q⁻ and y = r + γ (1 − terminated) Σₐ π(a | s′) Q⁻(s′, a), the loss of a member is the weighted mean
over its batch of ½ (Q(s, a) − y)². All members learn at once: tensors have a leading axis P.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evopipe.algos import _hyper
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.ops.policy import best_legal, epsilon_greedy
from evopipe.ops.value import pick
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://doi.org/10.1109/ADPRL.2009.4927542"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)


class Config(AlgoConfig):
    """Hyper-parameters of expected SARSA."""

    lr: _hyper.Rate = 5e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 1e-2
    grad_clip: _hyper.GradientClip = 10.0
    epsilon: float = hyper(
        0.1, doc="chance of a random action, also in the target", raising="explores more", evolvable=True, ge=0, le=1
    )
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(lr=(6.25e-5, 1e-2), epsilon=(0.01, 0.3))


@dataclass(frozen=True)
class State:
    q: Net = parameters("q", trainable=True)
    target: Net = parameters("q")
    adam: optim.Adam = moments("q")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    return {"q": Widths(spaces.observations, spaces.actions)}


def init(cfg: Config, nets: Nets) -> State:
    q = nets["q"]
    return State(q, q.copy(), *optim.start(q))


def values(cfg: Config, state: State, obs: Tensor) -> Tensor:
    with torch.no_grad():
        return forward(state.q, obs)  # [P, E, A]


def greedy(cfg: Config, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    return best_legal(values(cfg, state, obs), legal)


def explore(cfg: Config, step: int) -> float:
    return cfg.epsilon


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    return epsilon_greedy(values(cfg, state, obs), legal, epsilon, draw)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        q_t = forward(state.target, batch.next_obs)  # [P, B, A]
        legal = torch.ones_like(q_t, dtype=torch.bool) if batch.next_legal is None else batch.next_legal
        best = q_t.masked_fill(~legal, -torch.inf).amax(dim=2)
        average = (q_t * legal).sum(dim=2) / legal.sum(dim=2).clamp(min=1)
        epsilon = hp["epsilon"][:, None]
        y = batch.reward + batch.discount * ((1 - epsilon) * best + epsilon * average)
    errors = pick(forward(state.q, batch.obs), batch.action) - y  # [P, B]
    return (batch.weight * 0.5 * errors.square()).sum(dim=1), errors.detach()


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    losses, errors = loss(cfg, state, hp, batch)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.q, state.adam, hp["lr"]))
    state.updates.add_(healthy)
    optim.polyak(state.target, state.q, hp["tau"] * healthy)
    return Learned(losses.detach(), healthy, errors)
