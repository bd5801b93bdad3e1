"""Deep deterministic policy gradient.

Lillicrap et al., "Continuous control with deep reinforcement learning", ICLR 2016.

The critic regresses on y = r + γ (1 − terminated) Q⁻(s′, μ⁻(s′)); the actor maximises Q(s, μ(s)). Actions are tanh(·)
in [−1, 1], which the environment stretches to its bounds, in targets as well. As in TD3, the actor and the targets are
updated once in `policy_delay` updates; the paper has 1.
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
from evopipe.core.structure import Widths, share_encoder
from evopipe.native.update import take
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1509.02971"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous",)
COMPILED = True


class Config(AlgoConfig):
    """Hyper-parameters of deep deterministic policy gradient (DDPG; Lillicrap et al., 2016).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_actor: _actor_critic.ActorRate = 1e-3
    lr_critic: _actor_critic.CriticRate = 1e-3
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 5e-3
    grad_clip: _hyper.GradientClip = 10.0
    policy_delay: _actor_critic.PolicyDelay = 1
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
    critic: Net = parameters("critic", trainable=True)
    critic_target: Net = parameters("critic")
    actor_adam: optim.Adam = moments("actor")
    critic_adam: optim.Adam = moments("critic")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    o, a = spaces.observations, spaces.actions
    return share_encoder({"actor": Widths(o, a), "critic": Widths(o + a, 1)}, o, cfg.share_encoder)


def init(cfg: Config, nets: Nets) -> State:
    actor, critic = nets["actor"], nets["critic"]
    return State(*optim.start_encoder(nets), actor, actor.copy(), critic, critic.copy(), *optim.start(actor, critic))


explore, greedy, act = _actor_critic.explore, _actor_critic.greedy, _actor_critic.act
choice, recipe = _actor_critic.choice, partial(_actor_critic.recipe, "critic")


def _q_values(cfg: Config, state: State, obs: Tensor, action: Tensor) -> Tensor:
    with torch.no_grad():
        return action_value(state.critic, forward(state.encoder, obs), action)


answers = _actor_critic.of_own_action(greedy, _q_values)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        x_t = forward(state.encoder_target, batch.next_obs)
        y = batch.reward + batch.discount * action_value(
            state.critic_target, x_t, torch.tanh(forward(state.actor_target, x_t))
        )
    errors = action_value(state.critic, forward(state.encoder, batch.obs), batch.action) - y
    return (batch.weight * errors * errors).sum(dim=1), errors.detach()


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    if (learned := take(recipe(cfg, state, hp, batch), batch, healthy, draw, turn)) is not None:
        return learned
    climbs = turn == cfg.policy_delay - 1
    climb = partial(_actor_critic.actor_loss, state, "critic", batch) if climbs else None
    return _actor_critic.learn(state, "critic", hp, healthy, loss(cfg, state, hp, batch), climb)
