"""TD3+BC: twin delayed deep deterministic policy gradient that stays close to a dataset.

Fujimoto & Gu, "A minimalist approach to offline reinforcement learning", NeurIPS 2021.

Two critics regress on y = r + γ (1 − terminated) min(Q₁⁻, Q₂⁻)(s′, a′), a′ = μ⁻(s′) + clipped noise. Once in
`policy_delay` updates, the actor maximises λ Q₁(s, μ(s)) − |μ(s) − a|² / A with λ = α / mean |Q₁(s, μ(s))| over the
member's own batch, and the targets are updated. α = 0 is behaviour cloning. Actions are tanh(·) in [−1, 1], which the
environment stretches to its bounds. The paper normalises observations by the dataset's mean and deviation:
`train.normalise.observations: true` does that, and is off by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from evopipe.algos import _actor_critic, _hyper
from evopipe.algos._actor_critic import action_value
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.native.update import take
from evopipe.ops.policy import noisy
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/2106.06860"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous",)
COMPILED = True


class Config(AlgoConfig):
    """Hyper-parameters of TD3 with behaviour cloning (TD3+BC; Fujimoto & Gu, 2021).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_actor: _actor_critic.ActorRate = 3e-4
    lr_critic: _actor_critic.CriticRate = 3e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 5e-3
    grad_clip: _hyper.GradientClip = 10.0
    alpha: float = hyper(2.5, doc="weight of the critic, relative to imitation of the dataset; 0: behaviour cloning",
        raising="further from the dataset's actions", evolvable=True, ge=0, le=1000)  # fmt: skip
    policy_delay: _actor_critic.PolicyDelay = 2
    target_noise: _actor_critic.TargetNoise = 0.2
    target_clip: _actor_critic.TargetNoiseLimit = 0.5
    noise_sd: _actor_critic.NoiseDeviation = 0.1
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(
        lr_actor=(1e-4, 1e-2), lr_critic=(1e-4, 1e-2), batch_size=(32, 512), alpha=(0.1, 20.0)
    )


@dataclass(frozen=True)
class State:
    actor: Net = parameters("actor", trainable=True)
    actor_target: Net = parameters("actor")
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    critics_target: Net = parameters("critic_1", "critic_2")
    actor_adam: optim.Adam = moments("actor")
    critics_adam: optim.Adam = moments("critic_1", "critic_2")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    critic = Widths(spaces.observations + spaces.actions, 1)
    return {"actor": Widths(spaces.observations, spaces.actions), "critic_1": critic, "critic_2": critic}


def init(cfg: Config, nets: Nets) -> State:
    actor, critics = nets["actor"], Net.interleave(nets["critic_1"], nets["critic_2"])
    return State(actor, actor.copy(), critics, critics.copy(), *optim.start(actor, critics))


def explore(cfg: Config, step: int) -> float:
    return 0.0  # noise explores


greedy = _actor_critic.best


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    return noisy(greedy(cfg, state, obs, legal), epsilon, draw, cfg.noise_sd)


answers = _actor_critic.of_own_action(greedy)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    return _actor_critic.clipped_double_loss(state, hp, batch, draw, batch.obs, batch.next_obs)


def _actor_loss(state: State, hp: Hyper, batch: Batch) -> Tensor:
    """Return |μ(s) − a|² / A − λ Q₁(s, μ(s)), weighted, of each member `[P]`."""
    action = torch.tanh(forward(state.actor, batch.obs))  # [P, B, A]
    q = action_value(state.critics.pair[0], batch.obs, action)  # [P, B]
    scale = hp["alpha"] / (batch.weight * q.detach().abs()).sum(dim=1).clamp(min=1e-6)  # λ, [P]
    away = (action - batch.action).square().mean(dim=-1)
    return (batch.weight * (away - scale[:, None] * q)).sum(dim=1)


recipe = partial(_actor_critic.recipe, "critics", close=True)


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    if (learned := take(recipe(cfg, state, hp, batch), batch, healthy, draw, turn)) is not None:
        return learned
    climbs = turn == cfg.policy_delay - 1
    climb = partial(_actor_loss, state, hp, batch) if climbs else None
    return _actor_critic.learn(state, "critics", hp, healthy, loss(cfg, state, hp, batch, draw), climb)
