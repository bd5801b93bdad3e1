"""Soft actor-critic, for continuous and discrete actions, with a learned temperature.

Haarnoja et al., "Soft actor-critic algorithms and applications", 2018 (continuous); Christodoulou, "Soft actor-critic
for discrete action settings", 2019.

Two critics regress on y = r + γ (1 − terminated) V⁻(s′), V⁻(s′) = E[min(Q₁⁻, Q₂⁻)(s′, a′) − α log π(a′|s′)]. The actor
maximises E[min(Q₁, Q₂)(s, a) − α log π(a|s)]. log α moves by the distance of the entropy from its target. For
continuous actions the expectations are estimated by one draw of a tanh-squashed Gaussian; for discrete actions they are
exact sums over the legal ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from evopipe.algos import Answers, _actor_critic, _hyper
from evopipe.algos._actor_critic import action_value, of_taken
from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, forward
from evopipe.core.structure import Widths, share_encoder
from evopipe.native import actor_critic as native
from evopipe.native import build
from evopipe.native.ticks import Choice
from evopipe.native.update import Learners, Recipe, take
from evopipe.ops import distributions as ops
from evopipe.ops.policy import likeliest, or_random, sampled_or_random
from evopipe.ops.value import twin_loss
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Batch, Hyper, Learned, Spaces, Tensor

PAPER = "https://arxiv.org/abs/1812.05905"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous", "discrete")
COMPILED = True
MASKED_LOSS = True


class Config(AlgoConfig):
    """Hyper-parameters of soft actor-critic (SAC; Haarnoja et al., 2018).

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
    alpha: float = hyper(0.2, doc="initial temperature, weight of the entropy", raising="explores more", gt=0, le=100)
    learn_alpha: bool = hyper(True, doc="whether the temperature is learned, so that the entropy nears its target")
    target_entropy: float | Literal["auto"] = hyper("auto",
        doc="target of the entropy; `auto`: −A for A action components, 0.6 log n for n legal discrete actions",
        unit="nats", raising="explores more")  # fmt: skip
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
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    critics_target: Net = parameters("critic_1", "critic_2")
    actor_adam: optim.Adam = moments("actor")
    critics_adam: optim.Adam = moments("critic_1", "critic_2")
    log_alpha: Tensor = row()  # [P]
    log_alpha_adam: Tensor = row()  # [P, 3], see ScalarAdam
    updates: Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return the input and output width of every network, by name.

    The actor's outputs are mean and log standard deviation of continuous actions, or logits of discrete actions.
    """
    o, a = spaces.observations, spaces.actions
    critic = Widths(o + a, 1) if spaces.continuous else Widths(o, a)
    found = {"actor": Widths(o, 2 * a if spaces.continuous else a), "critic_1": critic, "critic_2": critic}
    return share_encoder(found, o, cfg.share_encoder)


def init(cfg: Config, nets: Nets) -> State:
    actor, critics = nets["actor"], Net.interleave(nets["critic_1"], nets["critic_2"])
    *adams, updates = optim.start(actor, critics)
    log_alpha = updates + math.log(cfg.alpha)
    rows: tuple[Tensor, ...] = log_alpha, optim.ScalarAdam.start(log_alpha), updates
    return State(*optim.start_encoder(nets), actor, critics, critics.copy(), *adams, *rows)


explore = _actor_critic.explore


def greedy(cfg: Config, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the greedy actions, for obs `[P, E, O]` of P members with E environments each.

    Continuous actions are the tanh of the policy's mean, `[P, E, A]` in [−1, 1]. Discrete actions are the most likely
    legal ones, `[P, E]` int64; legal is `[P, E, A]` bool, or None if all are legal.
    """
    with torch.no_grad():
        out = forward(state.actor, forward(state.encoder, obs))
    return likeliest(out[..., : cfg.spaces.actions], legal, cfg.spaces.continuous)


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Sample actions from the policy; with probability ε, draw uniformly instead.

    obs is `[P, E, O]` for P members with E environments each, legal `[P, E, A]` bool, epsilon (ε) `[P]`; `draw` is the
    stream of random numbers. The result is `[P, E, A]` for continuous actions, else `[P, E]` int64.
    """
    with torch.no_grad():
        x = forward(state.encoder, obs)
        if cfg.spaces.continuous:
            return or_random(ops.squashed_draw(*ops.with_noise(forward(state.actor, x), draw)), epsilon, draw.part(1))
        log_pi = ops.masked_log_softmax(torch.nan_to_num(forward(state.actor, x)), legal)
        return sampled_or_random(log_pi, legal, epsilon, draw)


def _chances(cfg: Config, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> ops.Distribution:
    with torch.no_grad():
        out = torch.nan_to_num(forward(state.actor, forward(state.encoder, obs)))
    if not cfg.spaces.continuous:
        return ops.distribution(cfg.spaces, out, None, legal)
    return ops.distribution(cfg.spaces, *ops.mean_and_deviation(out), squash=True)


def answers(cfg: Config) -> Answers:
    return Answers(q_values=_actor_critic.q_values, chances=_chances)


def loss(cfg: Config, state: State, hp: Hyper, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        y = torch.addcmul(batch.reward, batch.discount, _soft_value(cfg, state, batch, draw))
    x = forward(state.encoder, batch.obs)
    losses, errors = twin_loss(of_taken(cfg, state.critics, x, batch.action) - y[:, None], batch.weight)
    return 0.5 * losses, errors


def _soft_value(cfg: Config, state: State, batch: Batch, draw: Stream) -> Tensor:
    """Return V⁻(s′) `[P, B]`."""
    alpha = state.log_alpha.exp()[:, None]
    x, x_t = forward(state.encoder, batch.next_obs), forward(state.encoder_target, batch.next_obs)
    if cfg.spaces.continuous:
        action, log_pi = ops.squashed_gaussian(*ops.with_noise(forward(state.actor, x), draw))
        return action_value(state.critics_target, x_t, action).amin(dim=1) - alpha * log_pi
    log_pi = ops.masked_log_softmax(forward(state.actor, x), batch.next_legal)
    least = forward(state.critics_target, x_t).amin(dim=1)
    return ops.expected(log_pi, least - alpha[..., None] * log_pi)


def _actor_loss(cfg: Config, state: State, batch: Batch, draw: Stream) -> tuple[Tensor, Tensor]:
    """Return E[α log π − min Q], weighted, of each member `[P]`, and the entropy of each state `[P, B]`."""
    alpha = state.log_alpha.exp()[:, None]
    with torch.no_grad():
        x = forward(state.encoder, batch.obs)
    if cfg.spaces.continuous:
        action, log_pi = ops.squashed_gaussian(*ops.with_noise(forward(state.actor, x), draw))
        least = torch.minimum(*action_value(state.critics.frozen, x, action).unbind(dim=1))
        return (batch.weight * (alpha * log_pi - least)).sum(dim=1), -log_pi.detach()
    log_pi = ops.masked_log_softmax(forward(state.actor, x), batch.legal)
    with torch.no_grad():
        least = forward(state.critics, x).amin(dim=1)
    losses = (batch.weight * ops.expected(log_pi, alpha[..., None] * log_pi - least)).sum(dim=1)
    return losses, -ops.expected(log_pi, log_pi).detach()


def _aim(cfg: Config, legal: Tensor | None = None) -> float | Tensor:
    """Return the entropy that the temperature aims at, of each state `[P, B]` where actions are masked."""
    if cfg.target_entropy != "auto":
        return cfg.target_entropy
    actions = cfg.spaces.actions
    if cfg.spaces.continuous:
        return -float(actions)
    return 0.6 * math.log(actions) if legal is None else 0.6 * legal.sum(dim=-1).clamp(min=1).log()


def recipe(cfg: Config, state: State, hp: Hyper, batch: Batch) -> Recipe | None:
    if not build.serve_wholly(batch.obs) or state.encoder is not None:
        return None
    continuous, by_legal = cfg.spaces.continuous, not cfg.spaces.continuous and cfg.target_entropy == "auto"
    of, aim = Learners.of(state, "critics"), 0.6 if by_legal else float(_aim(cfg))
    job = native.sac_job(of, state, hp, batch, not continuous, cfg.learn_alpha, aim, by_legal)
    noise = cfg.spaces.actions if continuous else 0
    return None if job is None else Recipe("sac_update", of, job, noise, own_noise=continuous)


def choice(cfg: Config, state: State) -> Choice | None:
    return Choice(state.actor, "squashed") if cfg.spaces.continuous and state.encoder is None else None


def update(cfg: Config, state: State, hp: Hyper, batch: Batch, healthy: Tensor, draw: Stream, turn: int) -> Learned:
    if (learned := take(recipe(cfg, state, hp, batch), batch, healthy, draw, turn)) is not None:
        return learned
    entropies: list[Tensor] = []

    def climb() -> Tensor:
        climbed, entropy = _actor_loss(cfg, state, batch, draw.part(1))
        entropies.append(entropy)
        return climbed

    learned = _actor_critic.learn(state, "critics", hp, healthy, loss(cfg, state, hp, batch, draw), climb)
    if cfg.learn_alpha:
        aim = _aim(cfg, batch.legal)
        optim.learn_temperature(state, hp["lr_alpha"], batch.weight, entropies[0], aim, learned.healthy)
    return learned
