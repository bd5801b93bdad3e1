"""CrossQ: soft actor-critic without target networks, whose critics are batch-renormalised.

Bhatt, Palenicek et al., "CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
simplicity", ICLR 2024; Ioffe, "Batch renormalization: towards reducing minibatch dependence in batch-normalized
models", 2017.

Two critics read (s, a) and (s′, a′) in one forward pass, a′ drawn from the policy, and normalise the inputs of every
layer by the statistics of both together, corrected by the running ones (batch renormalisation). They regress on
y = r + γ (1 − terminated) (min(Q₁, Q₂)(s′, a′) − α log π(a′|s′)), through which no gradient flows. Critics are `wider`
times as wide as the actor, in the paper 8 times. In every third update (`policy_delay`) the actor maximises
E[min(Q₁, Q₂)(s, a) − α log π(a|s)], for which the critics normalise by the running statistics, and α learns as in SAC.
Actor and critics learn by Adam with β₁ = 0.5. Running statistics are part of the critics' parameters, so that they are
saved, cloned and mutated with them. The actor has no batch renormalisation here; `network.layer_norm` normalises its
layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from evopipe.algos import Answers, _actor_critic, _hyper
from evopipe.algos._actor_critic import action_value
from evopipe.core import optim, renorm
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths
from evopipe.ops import distributions as ops
from evopipe.ops.policy import likeliest, or_random
from evopipe.ops.value import twin_loss
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1902.05605"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous",)


class Config(AlgoConfig):
    """Hyper-parameters of CrossQ."""

    lr_actor: _actor_critic.ActorRate = 1e-3
    lr_critic: _actor_critic.CriticRate = 1e-3
    lr_alpha: Annotated[float, _hyper.rate("Adam for the temperature", "entropy reaches its target sooner")] = 1e-3
    beta1: float = hyper(0.5, doc="β₁ of Adam for actor and critics", raising="later gradients", gt=0, le=0.999)
    batch_size: _hyper.BatchSize = 128
    learn_step: _hyper.LearnStep = 1
    policy_delay: int = hyper(3, doc="critic updates for each of the actor", raising="slower actor", ge=1, le=1000)
    gamma: _hyper.Discount = 0.99
    grad_clip: _hyper.GradientClip = 10.0
    wider: int = hyper(4, doc="width of the critics, as a multiple of `network`", raising="more capacity", ge=1, le=64)
    renorm_rate: float = hyper(0.01, doc="share of a minibatch in running statistics", raising="faster", gt=0, le=1)
    renorm_after: int = hyper(100_000, doc="first updates, with plain batch normalisation in the critics",
        unit="updates", raising="longer plain batch normalisation", ge=0, le=10**12)  # fmt: skip
    alpha: float = hyper(0.2, doc="initial temperature, weight of the entropy", raising="explores more", gt=0, le=100)
    learn_alpha: bool = hyper(True, doc="whether the temperature is learned, so that the entropy nears its target")
    target_entropy: float | Literal["auto"] = hyper("auto", doc="entropy target; `auto`: −A for A action components",
        unit="nats", raising="explores more")  # fmt: skip
    random_steps: _actor_critic.RandomSteps = 1_000
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _actor_critic.RANGES


@dataclass(frozen=True)
class State:
    actor: Net = parameters("actor", trainable=True)
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    actor_adam: optim.Adam = moments("actor")
    critics_adam: optim.Adam = moments("critic_1", "critic_2")
    log_alpha: Tensor = row()  # [P]
    log_alpha_adam: Tensor = row()  # [P, 3], see ScalarAdam
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return the input and output width of every network, by name.

    The actor's outputs are mean and log standard deviation.
    """
    o, a = spaces.observations, spaces.actions
    critic = Widths(o + a, 1, widen=cfg.wider, renorm=True)
    return {"actor": Widths(o, 2 * a), "critic_1": critic, "critic_2": critic}


def init(cfg: Config, nets: Nets) -> State:
    actor, critics = nets["actor"], Net.interleave(nets["critic_1"], nets["critic_2"])
    actor_adam, critics_adam, updates = optim.start(actor, critics)
    log_alpha = updates + math.log(cfg.alpha)
    return State(actor, critics, actor_adam, critics_adam, log_alpha, optim.ScalarAdam.start(log_alpha), updates)


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
    with torch.no_grad():
        return or_random(ops.squashed_draw(*ops.with_noise(forward(state.actor, obs), draw)), epsilon, draw.part(1))


def _chances(cfg: Config, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> ops.Distribution:
    return ops.distribution(cfg.spaces, *ops.mean_and_deviation(_actor_critic.output(cfg, state, obs)), squash=True)


def answers(cfg: Config) -> Answers:
    return Answers(q_values=_actor_critic.q_values, chances=_chances)


def _joint(cfg: Config, state: State, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor, list[Any]]:
    """Return the critics' losses `[P]`, errors `[P, B]`, and the views of the one forward pass of both."""
    with torch.no_grad():
        action, log_pi = ops.squashed_gaussian(*ops.with_noise(forward(state.actor, batch.next_obs), draw))
    views = renorm.training(state.critics, (batch.weight > 0).repeat(1, 2), state.updates >= cfg.renorm_after)
    both = torch.cat((batch.obs, batch.next_obs), dim=1), torch.cat((batch.action, action), dim=1)
    q, q_next = action_value(state.critics, *both, views).chunk(2, dim=-1)  # [P, 2, B]
    v_next = q_next.detach().amin(dim=1) - state.log_alpha.exp()[:, None] * log_pi
    losses, errors = twin_loss(q - torch.addcmul(batch.reward, batch.discount, v_next)[:, None], batch.weight)
    return 0.5 * losses, errors, views


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    return _joint(cfg, state, batch, draw)[:2]


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    losses, errors, views = _joint(cfg, state, batch, draw)
    limit, critics = hp["grad_clip"], (state.critics, state.critics_adam, hp["lr_critic"])
    healthy = optim.descend(losses, healthy & state.actor.finite, limit, critics, beta1=cfg.beta1)
    renorm.renew(state.critics, views, cfg.renorm_rate, healthy)
    if turn == cfg.policy_delay - 1:
        action, log_pi = ops.squashed_gaussian(*ops.with_noise(forward(state.actor, batch.obs), draw.part(1)))
        q = action_value(state.critics.frozen, batch.obs, action).amin(dim=1)
        climbed = (batch.weight * (state.log_alpha.exp()[:, None] * log_pi - q)).sum(dim=1)
        actor = state.actor, state.actor_adam, hp["lr_actor"]
        healthy = optim.descend(climbed, healthy, limit, actor, beta1=cfg.beta1)
        if cfg.learn_alpha:
            aim = -float(cfg.spaces.actions) if cfg.target_entropy == "auto" else cfg.target_entropy
            optim.learn_temperature(state, hp["lr_alpha"], batch.weight, -log_pi.detach(), aim, healthy)
    state.updates.add_(healthy)
    return Learned(losses.detach(), healthy, errors)
