"""Randomized ensembled double Q-learning: soft actor-critic with an ensemble of critics.

Chen, Wang, Zhou & Ross, "Randomized ensembled double Q-learning: learning fast without a model", ICLR 2021.

N critics regress on one target, y = r + γ (1 − terminated) (min Qᵢ⁻(s′, a′) − α log π(a′|s′)). The minimum is over M of
the N target critics, which each update draws anew for all of a member's minibatch; a′ is drawn from the policy. The
actor maximises Q̄(s, a) − α log π(a|s), where Q̄ is the mean of all N critics. The actor, and α as in SAC, learn in every
`policy_delay`-th update; target critics follow in every one. In the paper N is 10, M is 2, and a step of the
environment has 20 updates of the critics and one of the actor: `train.replay.updates: 20` and `policy_delay: 20`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import model_validator

from evopipe.algos import Answers, _actor_critic, _hyper
from evopipe.algos._actor_critic import action_value
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.ops import distributions as ops
from evopipe.ops.policy import likeliest, or_random
from evopipe.ops.value import least_of_some, twin_loss
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/2101.05982"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous",)
CRITICS = tuple(f"critic_{k}" for k in range(1, 21))
"""The names of critics; a configuration has the first of them."""


class Config(AlgoConfig):
    """Hyper-parameters of randomized ensembled double Q-learning (REDQ; Chen et al., 2021).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_actor: _actor_critic.ActorRate = 3e-4
    lr_critic: _actor_critic.CriticRate = 1e-3
    lr_alpha: Annotated[float, _hyper.rate("Adam for the temperature", "entropy reaches its target sooner")] = 1e-3
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    policy_delay: int = hyper(1, doc="critic updates for each of the actor", raising="slower actor", ge=1, le=1000)
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 5e-3
    grad_clip: _hyper.GradientClip = 10.0
    critics: int = hyper(10, doc="number of critics", raising="steadier values, slower updates", ge=2, le=len(CRITICS))
    subset: int = hyper(2, doc="number of target critics, drawn in each update, whose minimum is the target",
        raising="lower values, less overestimation", ge=1, le=len(CRITICS))  # fmt: skip
    alpha: float = hyper(0.2, doc="initial temperature, weight of the entropy", raising="explores more", gt=0, le=100)
    learn_alpha: bool = hyper(True, doc="whether the temperature is learned, so that the entropy nears its target")
    target_entropy: float | Literal["auto"] = hyper("auto", doc="entropy target; `auto`: −A for A action components",
        unit="nats", raising="explores more")  # fmt: skip
    random_steps: _actor_critic.RandomSteps = 1_000
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _actor_critic.RANGES

    @model_validator(mode="after")
    def _subset_is_one(self) -> Config:
        if self.subset > self.critics:
            raise ValueError(f"subset ({self.subset}) must not be above critics ({self.critics})")
        return self


@dataclass(frozen=True)
class State:
    actor: Net = parameters("actor", trainable=True)
    critics: Net = parameters(*CRITICS, trainable=True)
    critics_target: Net = parameters(*CRITICS)
    actor_adam: optim.Adam = moments("actor")
    critics_adam: optim.Adam = moments(*CRITICS)
    log_alpha: Tensor = row()  # [P]
    log_alpha_adam: Tensor = row()  # [P, 3], see ScalarAdam
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return the input and output width of every network, by name.

    The actor's outputs are mean and log standard deviation.
    """
    o, a = spaces.observations, spaces.actions
    return {"actor": Widths(o, 2 * a)} | dict.fromkeys(CRITICS[: cfg.critics], Widths(o + a, 1))


def init(cfg: Config, nets: Nets) -> State:
    actor, critics = nets["actor"], Net.interleave(*(nets[name] for name in CRITICS[: cfg.critics]))
    *adams, updates = optim.start(actor, critics)
    log_alpha = (updates + cfg.alpha).log()
    rows: tuple[Tensor, ...] = log_alpha, optim.ScalarAdam.start(log_alpha), updates
    return State(actor, critics, critics.copy(), *adams, *rows)


explore = _actor_critic.explore


def greedy(cfg: Config, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the greedy actions, the tanh of the policy's mean: obs `[P, E, O]` → `[P, E, A]` in [−1, 1].

    There are P members with E environments each. `legal` has no effect, because actions are continuous.
    """
    return likeliest(_actor_critic.output(cfg, state, obs)[..., : cfg.spaces.actions], legal, continuous=True)


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Sample actions from the policy, or with probability ε uniformly: obs `[P, E, O]` → `[P, E, A]`.

    epsilon (ε) is `[P]` for P members with E environments each; `draw` is the stream of random numbers. `legal` has no
    effect, because actions are continuous.
    """
    out = _actor_critic.output(cfg, state, obs)
    return or_random(ops.squashed_draw(*ops.with_noise(out, draw)), epsilon, draw.part(1))


def _chances(cfg: Config, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> ops.Distribution:
    return ops.distribution(cfg.spaces, *ops.mean_and_deviation(_actor_critic.output(cfg, state, obs)), squash=True)


def _q_values(cfg: Config, state: State, obs: Tensor, action: Tensor) -> Tensor:
    return action_value(state.critics.frozen, obs, action).mean(dim=1)


def answers(cfg: Config) -> Answers:
    return Answers(q_values=_q_values, chances=_chances)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        action, log_pi = ops.squashed_gaussian(*ops.with_noise(forward(state.actor, batch.next_obs), draw))
        q_next = action_value(state.critics_target, batch.next_obs, action)  # [P, N, B]
        least = least_of_some(q_next, draw.part(2).uniform(cfg.critics), cfg.subset)
        y = torch.addcmul(batch.reward, batch.discount, least - state.log_alpha.exp()[:, None] * log_pi)
    losses, errors = twin_loss(action_value(state.critics, batch.obs, batch.action) - y[:, None], batch.weight)
    return 0.5 * losses, errors


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    # The minimum is over a few critics, so that it does not show what is no number in the others.
    healthy = healthy & state.actor.finite & state.critics_target.finite.view(-1, cfg.critics).all(dim=1)
    losses, errors = loss(cfg, state, hp, batch, draw)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], (state.critics, state.critics_adam, hp["lr_critic"]))
    if turn == cfg.policy_delay - 1:
        action, log_pi = ops.squashed_gaussian(*ops.with_noise(forward(state.actor, batch.obs), draw.part(1)))
        q = action_value(state.critics.frozen, batch.obs, action).mean(dim=1)
        climbed = (batch.weight * (state.log_alpha.exp()[:, None] * log_pi - q)).sum(dim=1)
        healthy = optim.descend(climbed, healthy, hp["grad_clip"], (state.actor, state.actor_adam, hp["lr_actor"]))
        if cfg.learn_alpha:
            aim = -float(cfg.spaces.actions) if cfg.target_entropy == "auto" else cfg.target_entropy
            optim.learn_temperature(state, hp["lr_alpha"], batch.weight, -log_pi.detach(), aim, healthy)
    optim.polyak(state.critics_target, state.critics, hp["tau"] * healthy)
    state.updates.add_(healthy)
    return Learned(losses.detach(), healthy, errors)
