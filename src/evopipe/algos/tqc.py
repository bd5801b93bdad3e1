"""Truncated quantile critics.

Kuznetsov et al., "Controlling overestimation bias with truncated mixture of continuous distributional quantile
critics", ICML 2020.

M critics give N quantiles θ(s, a) each. Targets are yᵢ = r + γ (1 − terminated) (z₍ᵢ₎ − α log π(a′|s′)), where z are
the target critics' quantiles of (s′, a′) pooled and sorted, without the largest d M. Each critic's loss is the mean
over its quantiles and the targets of the quantile Huber loss with threshold 1; a member's is their sum. The actor
maximises Q(s, a) − α log π(a|s), where Q is the mean of all quantiles of all critics. α is learned as in SAC. The
error of a transition is how far a critic's mean lies from the mean of its targets.
"""

from __future__ import annotations

import math
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
from evopipe.ops import signals as told
from evopipe.ops.policy import likeliest, or_random
from evopipe.ops.quantiles import quantile_huber_loss
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/2005.04269"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous",)
CRITICS = tuple(f"critic_{k}" for k in range(1, 11))
"""The names of critics; a configuration has the first of them."""


class Config(AlgoConfig):
    """Hyper-parameters of truncated quantile critics (TQC; Kuznetsov et al., 2020).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_actor: _actor_critic.ActorRate = 3e-4
    lr_critic: _actor_critic.CriticRate = 1e-3
    lr_alpha: Annotated[float, _hyper.rate("Adam for the temperature", "entropy reaches its target sooner")] = 1e-3
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 5e-3
    grad_clip: _hyper.GradientClip = 10.0
    critics: int = hyper(2, doc="number of critics; 5 in the paper", raising="steadier values, slower updates",
        ge=2, le=len(CRITICS))  # fmt: skip
    quantiles: int = hyper(25, doc="number of quantiles of each critic", raising="finer; time grows with the square",
        ge=2, le=1000)  # fmt: skip
    dropped: int = hyper(2, doc="quantiles per critic, the largest of all critics, that targets leave out",
        raising="lower values, less overestimation", ge=0, le=999)  # fmt: skip
    alpha: float = hyper(0.2, doc="initial temperature, weight of the entropy", raising="explores more", gt=0, le=100)
    learn_alpha: bool = hyper(True, doc="whether the temperature is learned, so that the entropy nears its target")
    target_entropy: float | Literal["auto"] = hyper("auto",
        doc="entropy target; `auto`: −A for A action components", unit="nats", raising="explores more")  # fmt: skip
    random_steps: _actor_critic.RandomSteps = 1_000
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _actor_critic.RANGES

    @model_validator(mode="after")
    def _some_are_left(self) -> Config:
        if self.dropped >= self.quantiles:
            raise ValueError(f"dropped ({self.dropped}) must be below quantiles ({self.quantiles})")
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

    The actor's outputs are mean and log standard deviation, a critic's outputs are its quantiles.
    """
    o, a = spaces.observations, spaces.actions
    return {"actor": Widths(o, 2 * a)} | dict.fromkeys(CRITICS[: cfg.critics], Widths(o + a, cfg.quantiles))


def init(cfg: Config, nets: Nets) -> State:
    actor, critics = nets["actor"], Net.interleave(*(nets[name] for name in CRITICS[: cfg.critics]))
    *adams, updates = optim.start(actor, critics)
    log_alpha = updates + math.log(cfg.alpha)
    rows: tuple[Tensor, ...] = log_alpha, optim.ScalarAdam.start(log_alpha), updates
    return State(actor, critics, critics.copy(), *adams, *rows)


explore = _actor_critic.explore


def greedy(cfg: Config, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the greedy actions, the tanh of the policy's mean, `[P, E, A]` in [−1, 1].

    `obs` is `[P, E, O]`, for P members with E environments each. `legal` has no effect, because actions are continuous.
    """
    with torch.no_grad():
        return likeliest(forward(state.actor, obs)[..., : cfg.spaces.actions], legal, continuous=True)


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Sample actions from the policy; with probability ε, draw uniformly instead.

    obs is `[P, E, O]` for P members with E environments each, epsilon (ε) `[P]`; `draw` is the stream of random
    numbers. `legal` has no effect, because actions are continuous. The result is `[P, E, A]`.
    """
    with torch.no_grad():
        return or_random(ops.squashed_draw(*ops.with_noise(forward(state.actor, obs), draw)), epsilon, draw.part(1))


def _chances(cfg: Config, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> ops.Distribution:
    with torch.no_grad():
        out = torch.nan_to_num(forward(state.actor, obs))
    return ops.distribution(cfg.spaces, *ops.mean_and_deviation(out), squash=True)


def _mean(theta: Tensor) -> Tensor:
    """Return Q `[P, B]`, the mean of all quantiles `[P, M, B, N]`."""
    return theta.mean(dim=-1).mean(dim=1)


def _q_values(cfg: Config, state: State, obs: Tensor, action: Tensor) -> Tensor:
    with torch.no_grad():
        return _mean(action_value(state.critics, obs, action))


def answers(cfg: Config) -> Answers:
    return Answers(q_values=_q_values, chances=_chances)


def target(cfg: Config, state: State, batch: Batch, draw: Stream) -> Tensor:
    """Return the target quantiles y of each transition in rising order, for B transitions of P members.

    The quantiles of all target critics are pooled: N quantiles of each of M critics. The d · M largest are left out,
    where d is `cfg.dropped`. The result is `[P, B, (N − d) · M]`.
    """
    with torch.no_grad():
        action, log_pi = ops.squashed_gaussian(*ops.with_noise(forward(state.actor, batch.next_obs), draw))
        theta = action_value(state.critics_target, batch.next_obs, action)  # [P, M, B, N]
        pooled = (
            theta.transpose(1, 2).flatten(2).sort(dim=-1).values[..., : (cfg.quantiles - cfg.dropped) * cfg.critics]
        )
        z = pooled - (state.log_alpha.exp()[:, None] * log_pi)[..., None]
        return torch.addcmul(batch.reward[..., None], batch.discount[..., None], z)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    y = target(cfg, state, batch, draw)[:, None]
    theta = action_value(state.critics, batch.obs, batch.action)  # [P, M, B, N]
    losses = (batch.weight[:, None] * quantile_huber_loss(theta, y)).sum(dim=(1, 2)) / cfg.quantiles
    return losses, (theta.detach().mean(dim=-1) - y.mean(dim=-1)).abs().mean(dim=1)


def signals(cfg: Config, state: State, batch: Batch) -> dict[str, Tensor]:
    """Return training metrics `[P]` of each of P members on a minibatch, by name.

    For each transition, the lowest and the highest quantile of all critics are found. The two metrics are the means of
    these numbers over the minibatch.
    """
    theta = action_value(state.critics, batch.obs, batch.action)
    ends = told.means(batch.weight, theta.amin(dim=(1, 3)), theta.amax(dim=(1, 3))).unbind(dim=1)
    return dict(zip(("losses/quantile_low", "losses/quantile_high"), ends, strict=True))


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    entropies: list[Tensor] = []

    def climb() -> Tensor:
        action, log_pi = ops.squashed_gaussian(*ops.with_noise(forward(state.actor, batch.obs), draw.part(1)))
        entropies.append(-log_pi.detach())
        q = _mean(action_value(state.critics.frozen, batch.obs, action))
        return (batch.weight * (state.log_alpha.exp()[:, None] * log_pi - q)).sum(dim=1)

    # What is no number is sorted to the top, which targets may leave out.
    healthy = healthy & state.critics_target.finite.view(-1, cfg.critics).all(dim=1)
    learned = _actor_critic.learn(state, "critics", hp, healthy, loss(cfg, state, hp, batch, draw), climb)
    if cfg.learn_alpha:
        aim = -float(cfg.spaces.actions) if cfg.target_entropy == "auto" else cfg.target_entropy
        optim.learn_temperature(state, hp["lr_alpha"], batch.weight, entropies[0], aim, learned.healthy)
    return learned
