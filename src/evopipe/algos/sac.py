"""Soft actor-critic, for continuous and discrete actions, with a learned temperature.

Haarnoja et al., "Soft actor-critic algorithms and applications", 2018 (continuous); Christodoulou, "Soft actor-critic
for discrete action settings", 2019.

Two critics regress on y = r + γ (1 − terminated) V⁻(s′), V⁻(s′) = E[min(Q₁⁻, Q₂⁻)(s′, a′) − α log π(a′|s′)]; the actor
climbs E[min(Q₁, Q₂)(s, a) − α log π(a|s)]; log α follows the entropy's distance from its target. The expectations are
one draw of a tanh-squashed Gaussian where actions are continuous, exact sums over the legal ones where they are
discrete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field

from evopipe.core import health, optim
from evopipe.core.networks import Net, action_values, encode, forward, forward_each, interleave
from evopipe.core.optim import Adam, ScalarAdam
from evopipe.core.population import Widths, moments, parameters, row, share_encoder
from evopipe.ops.distributions import LOG_STD_MAX, LOG_STD_MIN, masked_log_softmax, squashed_gaussian
from evopipe.ops.policy import or_random, random_legal
from evopipe.ops.value import masked_argmax, pick
from evopipe.rng import Stream
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import AlgoConfig, Evolve, hyper
from evopipe.types import Batch, Learned, Spaces

PAPER = "https://arxiv.org/abs/1812.05905"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous", "discrete")
MASKED_LOSS = True


class Config(AlgoConfig):
    """Hyper-parameters of SAC."""

    lr_actor: float = hyper(
        3e-4, doc="learning rate of the actor's Adam", raising="faster, less stable", evolvable=True, gt=0, le=1
    )
    lr_critic: float = hyper(
        1e-3, doc="learning rate of the critics' Adam", raising="faster, less stable", evolvable=True, gt=0, le=1
    )
    lr_alpha: float = hyper(
        1e-3, doc="learning rate of the temperature's Adam", raising="entropy reaches its target sooner",
        evolvable=True, gt=0, le=1,
    )  # fmt: skip
    batch_size: int = hyper(
        128, doc="transitions an update", raising="steadier gradients, slower updates", evolvable=True, ge=1, le=65536
    )
    learn_step: int = hyper(
        1, doc="steps of the member between two updates", unit="environment steps", raising="fewer updates, faster",
        evolvable=True, ge=1, le=65536,
    )  # fmt: skip
    gamma: float = hyper(0.99, doc="discount", raising="looks further ahead", evolvable=True, ge=0, le=1)
    tau: float = hyper(5e-3, doc="share of the online critics mixed into the targets", evolvable=True,
        raising="targets follow faster, less stable", ge=0, le=1)  # fmt: skip
    grad_clip: float = hyper(
        10.0, doc="largest gradient norm", raising="larger steps let through", evolvable=True, gt=0
    )
    alpha: float = hyper(0.2, doc="temperature at the start", raising="explores more", gt=0, le=100)
    learn_alpha: bool = hyper(True, doc="whether the temperature is learned")
    target_entropy: float | Literal["auto"] = hyper(
        "auto", unit="nats", raising="explores more",
        doc="entropy that the temperature aims at; `auto`: −A, or 0.6 log of how many discrete actions are legal",
    )  # fmt: skip
    random_steps: int = hyper(
        1_000, doc="first steps of the member, with uniform actions", unit="environment steps",
        raising="explores longer at first", ge=0, le=10**12,
    )  # fmt: skip
    share_encoder: bool = hyper(
        False, doc="one encoder, trained by the critics' loss alone, under heads of one hidden layer at least"
    )
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="architecture that members start from")
    evolve: dict[str, Evolve] = Field(
        default_factory=lambda: {
            "lr_actor": Evolve(min=1e-4, max=1e-2),
            "lr_critic": Evolve(min=1e-4, max=1e-2),
            "batch_size": Evolve(min=32, max=512),
            "learn_step": Evolve(min=1, max=8),
        },
        description="which hyper-parameters the `rl_hp` mutation may change, and how far",
    )


@dataclass(frozen=True)
class State:
    """Everything that learns, one row a member."""

    encoder: Net | None = parameters("encoder", trainable=True)  # None where every network has its own
    encoder_target: Net | None = parameters("encoder")
    encoder_adam: Adam | None = moments("encoder")
    actor: Net = parameters("actor", trainable=True)
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    critics_target: Net = parameters("critic_1", "critic_2")
    actor_adam: Adam = moments("actor")
    critics_adam: Adam = moments("critic_1", "critic_2")
    log_alpha: torch.Tensor = row()  # [P]
    log_alpha_adam: torch.Tensor = row()  # [P, 3], see ScalarAdam
    updates: torch.Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network: mean and log-deviation, or a logit for each action."""
    o, a = spaces.observations, spaces.actions
    critic = Widths(o + a, 1) if spaces.continuous else Widths(o, a)
    found = {"actor": Widths(o, 2 * a if spaces.continuous else a), "critic_1": critic, "critic_2": critic}
    return share_encoder(found, o) if cfg.share_encoder else found


def init(cfg: Config, nets: Mapping[str, Net]) -> State:
    """Start from fresh networks; the targets are copies."""
    actor, critics = nets["actor"], interleave(nets["critic_1"], nets["critic_2"])
    zeros = torch.zeros(len(actor.values), device=actor.values.device)
    return State(
        *optim.start_encoder(nets), actor, critics, critics.copy(), Adam.start(actor), Adam.start(critics),
        zeros + math.log(cfg.alpha), ScalarAdam.start(zeros), zeros.clone(),
    )  # fmt: skip


def explore(cfg: Config, step: int) -> float:
    """Return the chance of a uniform action after `step` environment steps of a member."""
    return float(step < cfg.random_steps)


def gaussian(state: State, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and log standard deviation before squashing: x `[P, B, …]`, see `encode` → `[P, B, A]` each."""
    mean, log_std = forward(state.actor, x).chunk(2, dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def greedy(cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Return the mode: obs `[P, E, O]` → `[P, E, A]` in [−1, 1], or `[P, E]` int64, the likeliest legal action."""
    with torch.no_grad():
        x = encode(state.encoder, obs)
        if cfg.spaces.continuous:
            return torch.tanh(gaussian(state, x)[0])
        return masked_argmax(torch.nan_to_num(forward(state.actor, x)), legal)


def act(
    cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor, epsilon: torch.Tensor, draw: Stream
) -> torch.Tensor:
    """Draw from the policy, with chance epsilon `[P]` uniformly: obs `[P, E, O]` → `[P, E, A]`, or `[P, E]` int64."""
    with torch.no_grad():
        x = encode(state.encoder, obs)
        if cfg.spaces.continuous:
            mean, log_std = gaussian(state, x)
            action, _ = squashed_gaussian(mean, log_std, draw.normal(mean[0].numel()).view(mean.shape))
            return or_random(action, epsilon, draw.part(1))
        log_pi = masked_log_softmax(torch.nan_to_num(forward(state.actor, x)), legal)
        u = draw.uniform(log_pi[0].numel() + 2 * obs.shape[1]).float()
        pick_u, choose_u, gumbel_u = u.split([obs.shape[1], obs.shape[1], log_pi[0].numel()], dim=1)
        drawn = masked_argmax(log_pi - torch.log(-torch.log(gumbel_u.view(log_pi.shape).clamp(1e-20, 1 - 1e-7))), legal)
        return torch.where(pick_u < epsilon[:, None], random_legal(choose_u, legal), drawn)


def loss(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, draw: Stream
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each member's loss of both critics `[P]` and each transition's error `[P, B]`; hp values are `[P]`."""
    with torch.no_grad():
        y = torch.addcmul(batch.reward, batch.discount, soft_value(cfg, state, batch, draw))
    x = encode(state.encoder, batch.obs)
    if cfg.spaces.continuous:
        values = action_values(state.critics, x, batch.action)  # [P, 2, B]
    else:
        values = pick(forward_each(state.critics, x), batch.action[:, None].expand(-1, 2, -1))
    errors = values - y[:, None]
    losses = 0.5 * (batch.weight[:, None] * errors.square()).sum(dim=(1, 2))
    return losses, errors.detach().abs().mean(dim=1)


def soft_value(cfg: Config, state: State, batch: Batch, draw: Stream) -> torch.Tensor:
    """Return V⁻(s′) `[P, B]`."""
    alpha = state.log_alpha.exp()[:, None]
    x, x_t = encode(state.encoder, batch.next_obs), encode(state.encoder_target, batch.next_obs)
    if cfg.spaces.continuous:
        mean, log_std = gaussian(state, x)
        action, log_pi = squashed_gaussian(mean, log_std, draw.normal(mean[0].numel()).view(mean.shape))
        return action_values(state.critics_target, x_t, action).amin(dim=1) - alpha * log_pi
    log_pi = masked_log_softmax(forward(state.actor, x), batch.next_legal)
    least = forward_each(state.critics_target, x_t).amin(dim=1)
    return expected(log_pi, least - alpha[..., None] * log_pi)


def expected(log_pi: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return Σ π(a) values(a), `[…, A]` → `[…]`; an action of probability 0 counts nothing whatever its value."""
    pi = log_pi.exp()
    return (pi * torch.where(pi > 0, values, 0.0)).sum(dim=-1)  # so: the gradient of 0 · ∞ is no number


def actor_loss(cfg: Config, state: State, batch: Batch, draw: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Return E[α log π − min Q], weighted, of each member `[P]`, and the entropy of each state `[P, B]`."""
    alpha = state.log_alpha.exp()[:, None]
    with torch.no_grad():
        x = encode(state.encoder, batch.obs)
    if cfg.spaces.continuous:
        mean, log_std = gaussian(state, x)
        action, log_pi = squashed_gaussian(mean, log_std, draw.normal(mean[0].numel()).view(mean.shape))
        least = torch.minimum(*action_values(state.critics.frozen, x, action).unbind(dim=1))
        return (batch.weight * (alpha * log_pi - least)).sum(dim=1), -log_pi.detach()
    log_pi = masked_log_softmax(forward(state.actor, x), batch.legal)
    with torch.no_grad():
        least = forward_each(state.critics, x).amin(dim=1)
    losses = (batch.weight * expected(log_pi, alpha[..., None] * log_pi - least)).sum(dim=1)
    return losses, -expected(log_pi, log_pi).detach()


def aim(cfg: Config, legal: torch.Tensor | None = None) -> float | torch.Tensor:
    """Return the entropy that the temperature aims at, of each state `[P, B]` where actions are masked."""
    if cfg.target_entropy != "auto":
        return cfg.target_entropy
    actions = cfg.spaces.actions
    if cfg.spaces.continuous:
        return -float(actions)
    return 0.6 * math.log(actions) if legal is None else 0.6 * legal.sum(dim=-1).clamp(min=1).log()


def update(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, healthy: torch.Tensor, draw: Stream,
    turn: int = 0,
) -> Learned:  # fmt: skip
    """Learn from one batch; hp values and healthy are `[P]`."""
    critics = (state.critics, state.critics_adam, hp["lr_critic"])
    encoder = (state.encoder, state.encoder_adam, hp["lr_critic"])
    healthy = healthy & health.of_parameters(state.actor)  # its own loss may come later
    losses, errors = loss(cfg, state, hp, batch, draw)
    healthy = optim.descend(losses, healthy, hp["grad_clip"], critics, encoder)

    climb, entropy = actor_loss(cfg, state, batch, draw.part(1))
    actor = (state.actor, state.actor_adam, hp["lr_actor"])
    healthy = optim.descend(climb, healthy, hp["grad_clip"], actor)

    log_alpha, alpha_adam = state.log_alpha, state.log_alpha_adam
    if cfg.learn_alpha:
        # The gradient of the temperature's loss.
        surplus = (batch.weight * (entropy - aim(cfg, batch.legal))).sum(dim=1)
        log_alpha, alpha_adam = ScalarAdam.step(log_alpha, alpha_adam, surplus, hp["lr_alpha"], healthy)
    optim.polyak(state.encoder_target, state.encoder, hp["tau"] * healthy)
    optim.polyak(state.critics_target, state.critics, hp["tau"] * healthy)
    state = replace(state, log_alpha=log_alpha, log_alpha_adam=alpha_adam, updates=state.updates + healthy)
    return Learned(state, losses.detach(), healthy, errors)
