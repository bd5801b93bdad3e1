"""Twin delayed deep deterministic policy gradient.

Fujimoto, van Hoof & Meger, "Addressing function approximation error in actor-critic methods", ICML 2018.

Two critics regress on y = r + γ (1 − terminated) min(Q₁⁻, Q₂⁻)(s′, a′), a′ = μ⁻(s′) + clipped noise. Once in
`policy_delay` updates, the actor maximises Q₁(s, μ(s)), and the targets are updated. Actions are tanh(·) in [−1, 1],
which the environment stretches to its bounds, in targets as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from evopipe.algos import _actor_critic, _hyper
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths, share_encoder
from evopipe.native.update import take
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1802.09477"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous",)
COMPILED = True


class Config(AlgoConfig):
    """Hyper-parameters of twin delayed deep deterministic policy gradient (TD3; Fujimoto et al., 2018).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_actor: _actor_critic.ActorRate = 1e-3
    lr_critic: _actor_critic.CriticRate = 1e-3
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 5e-3
    grad_clip: _hyper.GradientClip = 10.0
    policy_delay: _actor_critic.PolicyDelay = 2
    target_noise: _actor_critic.TargetNoise = 0.2
    target_clip: _actor_critic.TargetNoiseLimit = 0.5
    noise: _actor_critic.Noise = "gaussian"
    noise_sd: _actor_critic.NoiseDeviation = 0.1
    ou_theta: _actor_critic.NoiseReturn = 0.15
    random_steps: _actor_critic.RandomSteps = 1_000
    share_encoder: _actor_critic.SharedEncoder = False
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _actor_critic.RANGES


@dataclass(frozen=True)
class State:
    encoder: Net | None = parameters("encoder", trainable=True)  # None where every network has its own
    encoder_target: Net | None = parameters("encoder")
    encoder_adam: optim.Adam | None = moments("encoder")
    actor: Net = parameters("actor", trainable=True)
    actor_target: Net = parameters("actor")
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    critics_target: Net = parameters("critic_1", "critic_2")
    actor_adam: optim.Adam = moments("actor")
    critics_adam: optim.Adam = moments("critic_1", "critic_2")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    o, a = spaces.observations, spaces.actions
    found = {"actor": Widths(o, a), "critic_1": Widths(o + a, 1), "critic_2": Widths(o + a, 1)}
    return share_encoder(found, o, cfg.share_encoder)


def init(cfg: Config, nets: Nets) -> State:
    actor, critics = nets["actor"], Net.interleave(nets["critic_1"], nets["critic_2"])
    return State(*optim.start_encoder(nets), actor, actor.copy(), critics, critics.copy(), *optim.start(actor, critics))


explore, greedy, act = _actor_critic.explore, _actor_critic.greedy, _actor_critic.act
choice, recipe = _actor_critic.choice, partial(_actor_critic.recipe, "critics")
answers = _actor_critic.of_own_action(greedy)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        x_t = forward(state.encoder_target, batch.next_obs)
    return _actor_critic.clipped_double_loss(state, hp, batch, draw, forward(state.encoder, batch.obs), x_t)


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    if (learned := take(recipe(cfg, state, hp, batch), batch, healthy, draw, turn)) is not None:
        return learned
    climbs = turn == cfg.policy_delay - 1
    climb = partial(_actor_critic.actor_loss, state, "critics", batch) if climbs else None
    return _actor_critic.learn(state, "critics", hp, healthy, loss(cfg, state, hp, batch, draw), climb)
