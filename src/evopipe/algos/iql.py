"""Implicit Q-learning: learns from a dataset without ever needing the value of an action that is not in it.

Kostrikov, Nair & Levine, "Offline reinforcement learning with implicit Q-learning", ICLR 2022.

V regresses on Q⁻ = min(Q₁⁻, Q₂⁻)(s, a) with the expectile loss |τ − 1(Q⁻ < V)| (Q⁻ − V)², by which it follows the
better of the dataset's actions (eq. 5). Q₁ and Q₂ regress on r + γ (1 − terminated) V(s′) (eq. 6). The actor imitates
the dataset with weights exp(β (Q⁻ − V)), at most `weight_limit` (eq. 7). β = 0 is behaviour cloning.

For discrete actions, log π(a|s) is that of a softmax over the legal actions. For continuous ones it is −½ |μ(s) − a|²,
a Gaussian with fixed deviation around μ = tanh(·) in [−1, 1], which the environment stretches to its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from evopipe.algos import Answers, _actor_critic, _hyper
from evopipe.algos._actor_critic import of_taken
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.ops.distributions import masked_log_softmax
from evopipe.ops.policy import epsilon_greedy, noisy
from evopipe.ops.value import expectile_loss, pick
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/2110.06169"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous", "discrete")
MASKED_LOSS = True


class Config(AlgoConfig):
    """Hyper-parameters of implicit Q-learning (Kostrikov et al., 2022).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr_actor: _actor_critic.ActorRate = 3e-4
    lr_critic: Annotated[float, _hyper.rate("Adam for Q and V")] = 3e-4
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    gamma: _hyper.Discount = 0.99
    tau: _hyper.TargetShare = 5e-3
    grad_clip: _hyper.GradientClip = 10.0
    expectile: float = hyper(0.7, doc="expectile τ of Q over the dataset's actions that V learns; 0.5: their mean",
        raising="V goes from the mean of these actions to the best", evolvable=True, gt=0, lt=1)  # fmt: skip
    beta: float = hyper(3.0, doc="β of the weights exp(β (Q − V)) by which actions are imitated; 0: behaviour cloning",
        unit="1 / return", raising="imitates the best actions only", evolvable=True, ge=0, le=1000)  # fmt: skip
    weight_limit: float = hyper(100.0, doc="upper limit of imitation weights", raising="few actions count more", gt=0)
    epsilon: _hyper.Epsilon = 0.05
    noise_sd: _actor_critic.NoiseDeviation = 0.1
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(
        lr_actor=(1e-4, 1e-2), lr_critic=(1e-4, 1e-2), batch_size=(32, 512), beta=(0.01, 20.0)
    )


@dataclass(frozen=True)
class State:
    actor: Net = parameters("actor", trainable=True)
    value: Net = parameters("value", trainable=True)
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    critics_target: Net = parameters("critic_1", "critic_2")
    actor_adam: optim.Adam = moments("actor")
    value_adam: optim.Adam = moments("value")
    critics_adam: optim.Adam = moments("critic_1", "critic_2")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return the input and output width of every network, by name.

    The actor's outputs are the mean action, or a logit for each discrete action.
    """
    o, a = spaces.observations, spaces.actions
    critic = Widths(o + a, 1) if spaces.continuous else Widths(o, a)
    return {"actor": Widths(o, a), "value": Widths(o, 1), "critic_1": critic, "critic_2": critic}


def init(cfg: Config, nets: Nets) -> State:
    actor, value, critics = nets["actor"], nets["value"], Net.interleave(nets["critic_1"], nets["critic_2"])
    return State(actor, value, critics, critics.copy(), *optim.start(actor, value, critics))


def explore(cfg: Config, step: int) -> float:
    return cfg.epsilon


greedy = _actor_critic.best


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return the greedy actions, each of which is replaced by a random action with probability ε.

    Continuous actions that are not replaced get Gaussian noise.

    obs is `[P, E, O]` (P members, E environments each), legal `[P, E, A]` bool, epsilon (ε) `[P]`; `draw` is the stream
    of random numbers. The result is `[P, E, A]` for continuous actions, else `[P, E]` int64.
    """
    if cfg.spaces.continuous:
        return noisy(greedy(cfg, state, obs, legal), epsilon, draw, cfg.noise_sd)
    return epsilon_greedy(_actor_critic.output(cfg, state, obs), legal, epsilon, draw)


def _value(cfg: Config, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Tensor:
    with torch.no_grad():
        return forward(state.value, obs).squeeze(-1)


def answers(cfg: Config) -> Answers:
    """Return the functions by which an exported policy computes V(s), Q(s, a) and the probabilities of actions.

    For continuous actions there are no probabilities, because the fixed standard deviation of the policy serves only to
    weight the loss.
    """
    return Answers(_value, _actor_critic.q_values, None if cfg.spaces.continuous else _actor_critic.chances)


def _log_policy(cfg: Config, state: State, batch: Batch) -> Tensor:
    """Return log π(a|s) of the dataset's actions up to a constant, `[P, B]`."""
    out = forward(state.actor, batch.obs)
    if cfg.spaces.continuous:
        return -0.5 * (torch.tanh(out) - batch.action).square().sum(dim=-1)
    return pick(masked_log_softmax(out, batch.legal), batch.action)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of V and Q `[P]`, the loss of the actor `[P]`, and each transition's error `[P, B]`.

    There are B transitions of P members. A transition's error is the mean of the absolute TD errors of both Q networks.
    No network gets a gradient from another network's loss.
    """
    value = forward(state.value, batch.obs).squeeze(-1)  # [P, B]
    with torch.no_grad():
        q_minus = of_taken(cfg, state.critics_target, batch.obs, batch.action).amin(dim=1)
        y = torch.addcmul(batch.reward, batch.discount, forward(state.value, batch.next_obs).squeeze(-1))
        imitate = (hp["beta"][:, None] * (q_minus - value)).exp().clamp(max=cfg.weight_limit)
    errors = of_taken(cfg, state.critics, batch.obs, batch.action) - y[:, None]
    each = expectile_loss(q_minus - value, hp["expectile"][:, None]) + errors.square().sum(dim=1)
    values, actor = ((batch.weight * x).sum(dim=1) for x in (each, -imitate * _log_policy(cfg, state, batch)))
    return values, actor, errors.detach().abs().mean(dim=1)


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    learners = (
        (state.value, state.value_adam, hp["lr_critic"]),
        (state.critics, state.critics_adam, hp["lr_critic"]),
        (state.actor, state.actor_adam, hp["lr_actor"]),
    )
    values, actor, errors = loss(cfg, state, hp, batch)
    losses = values + actor
    healthy = optim.descend(losses, healthy, hp["grad_clip"], *learners)
    optim.polyak(state.critics_target, state.critics, hp["tau"] * healthy)
    state.updates.add_(healthy)
    return Learned(values.detach(), healthy, errors)
