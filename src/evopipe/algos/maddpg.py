"""Multi-agent deep deterministic policy gradient.

Lowe et al., "Multi-agent actor-critic for mixed cooperative-competitive environments", NeurIPS 2017.

Every agent k has an actor, which reads the agent's own observation oₖ, and a critic, which reads all observations o and
all actions a. With μ⁻ the actors that follow, critics regress on

    yₖ = rₖ + γ (1 − terminatedₖ) Qₖ⁻(o′, μ⁻₁(o′₁), …, μ⁻_K(o′_K)),

and actor k climbs Qₖ(o, a₁, …, μₖ(oₖ), …, a_K), the others' actions as they were taken. Continuous actions are tanh(·)
in [−1, 1], which the environment stretches to its bounds. Discrete ones are drawn from a softmax, while learning and in
targets, and get their gradient through a Gumbel-softmax, straight through. An agent that is gone leaves its loss; in
critics its action counts as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evopipe.algos import _actor_critic, _central, _hyper, _team
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets
from evopipe.core.structure import Widths
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1706.02275"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous")
MASKED_LOSS = True
TEAM = True


class Config(AlgoConfig):
    """Hyper-parameters of MADDPG."""

    lr_actor: _hyper.ActorRate = 1e-3
    lr_critic: _hyper.CriticRate = 3e-3
    batch_size: _hyper.BatchSize = 256
    learn_step: _hyper.LearnStep = 16
    gamma: _hyper.Discount = 0.95
    tau: _hyper.TargetShare = 1e-2
    grad_clip: _hyper.GradientClip = 0.5
    policy_delay: _hyper.PolicyDelay = 1
    temperature: _central.Temperature = 1.0
    output_penalty: _central.OutputPenalty = 1e-3
    noise: _hyper.Noise = "gaussian"
    noise_sd: _hyper.NoiseDeviation = 0.1
    ou_theta: _hyper.NoiseReturn = 0.15
    random_steps: _hyper.RandomSteps = 1_000
    share: _team.Share = "none"
    groups: _team.Groups = _team.BY_NAME
    score: _team.Score = "sum"
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _central.RANGES


@dataclass(frozen=True)
class State:
    actor: Net = parameters("actor", trainable=True)
    actor_target: Net = parameters("actor")
    critic: Net = parameters("critic", trainable=True)
    critic_target: Net = parameters("critic")
    actor_adam: optim.Adam = moments("actor")
    critic_adam: optim.Adam = moments("critic")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    return _central.networks(cfg, spaces)


def init(cfg: Config, nets: Nets) -> State:
    actor, critic = nets["actor"], nets["critic"]
    return State(actor, actor.copy(), critic, critic.copy(), *optim.start(actor, critic))


explore, greedy, act = _actor_critic.explore, _central.greedy, _central.act
answers = _central.answers("critic")


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    return _loss(cfg, state, _central.Steps.of(cfg, batch), draw)


def _loss(cfg: Config, state: State, steps: _central.Steps, draw: Stream) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        action_t = _central.next_actions(cfg, state.actor_target, steps, draw)
    return _central.critics_loss(cfg, state.critic, state.critic_target, steps, action_t)


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    climbs = turn == cfg.policy_delay - 1
    if (learned := _central.whole_update(cfg, state, "critic", hp, batch, healthy, draw, climbs)) is not None:
        return learned
    steps = _central.Steps.of(cfg, batch)
    if not cfg.spaces.continuous:
        healthy = healthy & state.actor_target.finite  # an action does not tell what it was drawn from

    def climb() -> Tensor:
        return _central.actor_loss(cfg, state.actor, state.critic.frozen, steps, draw.part(1))

    found = _loss(cfg, state, steps, draw)
    return _actor_critic.learn(state, "critic", hp, healthy, found, climb if climbs else None)
