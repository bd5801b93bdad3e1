"""Multi-agent deep deterministic policy gradient.

Lowe et al., "Multi-agent actor-critic for mixed cooperative-competitive environments", NeurIPS 2017.

Every agent k has an actor, which reads the agent's own observation oₖ, and a critic, which reads all observations o and
all actions a. With the target actors μ⁻, critics regress on

    yₖ = rₖ + γ (1 − terminatedₖ) Qₖ⁻(o′, μ⁻₁(o′₁), …, μ⁻_K(o′_K)),

and actor k maximises Qₖ(o, a₁, …, μₖ(oₖ), …, a_K), with the others' actions as they were taken. Continuous actions are
tanh(·) in [−1, 1], which the environment stretches to its bounds. Discrete ones are drawn from a softmax, while
learning and in targets, and get a straight-through Gumbel-softmax gradient.

An absent agent does not count in its own loss; critics read zeros for its observation and action. Qₖ⁻(o′, …) reads the
agents that act next, and zeros for the others. Only if agent k was truncated at this step does Qₖ⁻ read other agents:
those that were truncated together with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from evopipe.algos import _actor_critic, _central, _hyper
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Tensor

PAPER = "https://arxiv.org/abs/1706.02275"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous")
COMPILED = True
MASKED_LOSS = True
TEAM = True


class Config(AlgoConfig):
    """Hyper-parameters of MADDPG, DDPG for teams with centralised critics (Lowe et al., 2017).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_actor: _actor_critic.ActorRate = 1e-3
    lr_critic: _actor_critic.CriticRate = 3e-3
    batch_size: _hyper.BatchSize = 256
    learn_step: _hyper.LearnStep = 16
    gamma: _hyper.Discount = 0.95
    tau: _hyper.TargetShare = 1e-2
    grad_clip: _hyper.GradientClip = 0.5
    policy_delay: _actor_critic.PolicyDelay = 1
    temperature: _central.Temperature = 1.0
    output_penalty: _central.OutputPenalty = 1e-3
    noise: _actor_critic.Noise = "gaussian"
    noise_sd: _actor_critic.NoiseDeviation = 0.1
    ou_theta: _actor_critic.NoiseReturn = 0.15
    random_steps: _actor_critic.RandomSteps = 1_000
    share: _hyper.Share = "none"
    groups: _hyper.Groups = _hyper.BY_NAME
    score: _hyper.Score = "sum"
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


def init(cfg: Config, nets: Nets) -> State:
    actor, critic = nets["actor"], nets["critic"]
    return State(actor, actor.copy(), critic, critic.copy(), *optim.start(actor, critic))


networks, explore, greedy, act = _central.networks, _actor_critic.explore, _central.greedy, _central.act
answers, signals = _central.answers("critic"), partial(_central.signals, "critic")
loss, update = partial(_central.loss, "critic"), partial(_central.update, "critic")
