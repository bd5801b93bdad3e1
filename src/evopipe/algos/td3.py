"""Twin delayed deep deterministic policy gradient.

Fujimoto, van Hoof & Meger, "Addressing function approximation error in actor-critic methods", ICML 2018.

Two critics regress on y = r + γ (1 − terminated) min(Q₁⁻, Q₂⁻)(s′, a′), a′ = μ⁻(s′) + clipped noise; the actor climbs
Q₁(s, μ(s)) once in `policy_delay` updates, and the targets follow then. Actions are tanh(·) in [−1, 1], which the
environment stretches to its bounds, in targets as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field

from evopipe.core import health, optim
from evopipe.core.networks import Net, action_value, action_values, encode, forward, interleave
from evopipe.core.optim import Adam
from evopipe.core.population import Widths, moments, parameters, row, share_encoder
from evopipe.ops.noise import Noise, exploration
from evopipe.ops.policy import or_random
from evopipe.ops.value import clipped_double_target
from evopipe.rng import Stream
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import AlgoConfig, Evolve, hyper
from evopipe.types import Batch, Learned, Spaces

PAPER = "https://arxiv.org/abs/1802.09477"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous",)


class Config(AlgoConfig):
    """Hyper-parameters of TD3."""

    lr_actor: float = hyper(
        1e-3, doc="learning rate of the actor's Adam", raising="faster, less stable", evolvable=True, gt=0, le=1
    )
    lr_critic: float = hyper(
        1e-3, doc="learning rate of the critic's Adam", raising="faster, less stable", evolvable=True, gt=0, le=1
    )
    batch_size: int = hyper(
        128, doc="transitions an update", raising="steadier gradients, slower updates", evolvable=True, ge=1, le=65536
    )
    learn_step: int = hyper(
        1, doc="steps of the member between two updates", unit="environment steps", raising="fewer updates, faster",
        evolvable=True, ge=1, le=65536,
    )  # fmt: skip
    gamma: float = hyper(0.99, doc="discount", raising="looks further ahead", evolvable=True, ge=0, le=1)
    tau: float = hyper(5e-3, doc="share of the online networks mixed into the targets", evolvable=True,
        raising="targets follow faster, less stable", ge=0, le=1)  # fmt: skip
    grad_clip: float = hyper(
        10.0, doc="largest gradient norm", raising="larger steps let through", evolvable=True, gt=0
    )
    policy_delay: int = hyper(
        2, doc="critic updates for one of the actor and the targets", raising="slower, steadier actor", ge=1, le=1000
    )
    target_noise: float = hyper(
        0.2, doc="standard deviation of the noise on target actions", raising="smoother targets", ge=0, le=10
    )
    target_clip: float = hyper(0.5, doc="largest such noise", raising="smoother targets", ge=0, le=2)
    noise: Noise = hyper("gaussian", doc="exploration noise: `gaussian`, or `ou` (Ornstein-Uhlenbeck)")
    noise_sd: float = hyper(0.1, doc="standard deviation of the noise", raising="explores more", ge=0, le=10)
    ou_theta: float = hyper(0.15, doc="how fast Ornstein-Uhlenbeck noise returns to 0", raising="less correlated",
        ge=0.05, le=1)  # fmt: skip
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
    actor_target: Net = parameters("actor")
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    critics_target: Net = parameters("critic_1", "critic_2")
    actor_adam: Adam = moments("actor")
    critics_adam: Adam = moments("critic_1", "critic_2")
    updates: torch.Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network."""
    o, a = spaces.observations, spaces.actions
    found = {"actor": Widths(o, a), "critic_1": Widths(o + a, 1), "critic_2": Widths(o + a, 1)}
    return share_encoder(found, o) if cfg.share_encoder else found


def init(cfg: Config, nets: Mapping[str, Net]) -> State:
    """Start from fresh networks; the targets are copies."""
    actor, critics = nets["actor"], interleave(nets["critic_1"], nets["critic_2"])
    updates = torch.zeros(len(actor.values), device=actor.values.device)
    adams = (Adam.start(actor), Adam.start(critics))
    return State(*optim.start_encoder(nets), actor, actor.copy(), critics, critics.copy(), *adams, updates)


def period(cfg: Config) -> int:
    """Return after how many updates their pattern repeats."""
    return cfg.policy_delay


def explore(cfg: Config, step: int) -> float:
    """Return the chance of a uniform action after `step` environment steps of a member."""
    return float(step < cfg.random_steps)


def greedy(cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Return μ(s): obs `[P, E, O]` → `[P, E, A]` in [−1, 1]."""
    with torch.no_grad():
        return torch.tanh(forward(state.actor, encode(state.encoder, obs)))


def act(
    cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor, epsilon: torch.Tensor, draw: Stream
) -> torch.Tensor:
    """Return μ(s) and noise, clipped; with chance epsilon `[P]` a uniform action: obs `[P, E, O]` → `[P, E, A]`."""
    mean = greedy(cfg, state, obs, legal)
    drawn = exploration(cfg.noise, draw, (mean.shape[1], mean.shape[2]), cfg.noise_sd, cfg.ou_theta)
    return or_random(mean + drawn, epsilon, draw.part(1))


def loss(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, draw: Stream
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each member's loss of both critics `[P]` and each transition's error `[P, B]`; hp values are `[P]`."""
    with torch.no_grad():
        drawn = draw.normal(batch.action[0].numel()).view(batch.action.shape)
        blur = (cfg.target_noise * drawn).clamp(-cfg.target_clip, cfg.target_clip)
        x_t = encode(state.encoder_target, batch.next_obs)
        action_t = (torch.tanh(forward(state.actor_target, x_t)) + blur).clamp(-1.0, 1.0)
        q1_t, q2_t = action_values(state.critics_target, x_t, action_t).unbind(dim=1)
        y = clipped_double_target(batch.reward, batch.discount, q1_t, q2_t)  # [P, B]
    errors = action_values(state.critics, encode(state.encoder, batch.obs), batch.action) - y[:, None]  # [P, 2, B]
    losses = (batch.weight[:, None] * errors.square()).sum(dim=(1, 2))
    return losses, errors.detach().abs().mean(dim=1)


def actor_loss(state: State, batch: Batch) -> torch.Tensor:
    """Return −Q₁(s, μ(s)), weighted, of each member `[P]`."""
    with torch.no_grad():
        x = encode(state.encoder, batch.obs)
    action = torch.tanh(forward(state.actor, x))
    return -(batch.weight * action_value(state.critics.pair[0], x, action)).sum(dim=1)


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
    if turn == cfg.policy_delay - 1:
        actor = (state.actor, state.actor_adam, hp["lr_actor"])
        healthy = optim.descend(actor_loss(state, batch), healthy, hp["grad_clip"], actor)
        optim.polyak(state.encoder_target, state.encoder, hp["tau"] * healthy)
        optim.polyak(state.critics_target, state.critics, hp["tau"] * healthy)
        optim.polyak(state.actor_target, state.actor, hp["tau"] * healthy)
    return Learned(replace(state, updates=state.updates + healthy), losses.detach(), healthy, errors)
