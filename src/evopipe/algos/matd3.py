"""Multi-agent twin delayed deep deterministic policy gradient.

Ackermann, Gabler, Osa & Sugiyama, "Reducing overestimation bias in multi-agent domains using double centralized
critics", 2019.

Every agent k has an actor, which reads the agent's own observation oₖ, and two critics, which read all observations o
and all actions a. Both regress on

    yₖ = rₖ + γ (1 − terminatedₖ) min(Qₖ₁⁻, Qₖ₂⁻)(o′, a′),   a′ⱼ = μ⁻ⱼ(o′ⱼ) + clipped noise;

once in `policy_delay` updates, actor k maximises Qₖ₁(o, a₁, …, μₖ(oₖ), …, a_K), with the others' actions as they were
taken, and the targets are updated. Continuous actions are tanh(·) in [−1, 1], which the environment stretches to its
bounds. Discrete ones are drawn from a softmax, while learning and, in place of noise, in targets, and get a
straight-through Gumbel-softmax gradient.

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

PAPER = "https://arxiv.org/abs/1910.01465"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous")
COMPILED = True
MASKED_LOSS = True
TEAM = True


class Config(AlgoConfig):
    """Hyper-parameters of MATD3, TD3 for teams with centralised critics (Ackermann et al., 2019).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_actor: _actor_critic.ActorRate = 1e-3
    lr_critic: _actor_critic.CriticRate = 3e-3
    batch_size: _hyper.BatchSize = 256
    learn_step: _hyper.LearnStep = 16
    gamma: _hyper.Discount = 0.95
    tau: _hyper.TargetShare = 1e-2
    grad_clip: _hyper.GradientClip = 0.5
    policy_delay: _actor_critic.PolicyDelay = 2
    target_noise: _actor_critic.TargetNoise = 0.2
    target_clip: _actor_critic.TargetNoiseLimit = 0.5
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
    critics: Net = parameters("critics", trainable=True)
    critics_target: Net = parameters("critics")
    actor_adam: optim.Adam = moments("actor")
    critics_adam: optim.Adam = moments("critics")
    updates: Tensor = row()  # [P] float32


def init(cfg: Config, nets: Nets) -> State:
    actor, critics = nets["actor"], nets["critics"]
    return State(actor, actor.copy(), critics, critics.copy(), *optim.start(actor, critics))


networks = partial(_central.networks, critics=2)
explore, greedy, act = _actor_critic.explore, _central.greedy, _central.act
answers, signals = _central.answers("critics"), partial(_central.signals, "critics")
loss, update = partial(_central.loss, "critics"), partial(_central.update, "critics")
