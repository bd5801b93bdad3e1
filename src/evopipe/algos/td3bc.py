"""TD3+BC: twin delayed deep deterministic policy gradient that stays close to a dataset.

Fujimoto & Gu, "A minimalist approach to offline reinforcement learning", NeurIPS 2021.

Two critics regress on y = r + γ (1 − terminated) min(Q₁⁻, Q₂⁻)(s′, a′), a′ = μ⁻(s′) + clipped noise. Once in
`policy_delay` updates the actor climbs λ Q₁(s, μ(s)) − |μ(s) − a|² / A, λ = α / mean |Q₁(s, μ(s))| over the member's
own batch, and the targets follow. α = 0 is behaviour cloning. Actions are tanh(·) in [−1, 1], which the environment
stretches to its bounds. (The paper normalises observations by the dataset's mean and deviation: here
`train.normalise.observations: true` does, and is off by default.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field

from evopipe.core import health, optim
from evopipe.core.networks import Net, action_value, action_values, forward, interleave
from evopipe.core.optim import Adam
from evopipe.core.population import Widths, moments, parameters, row
from evopipe.ops.noise import gaussian
from evopipe.ops.policy import or_random
from evopipe.ops.value import clipped_double_target
from evopipe.rng import Stream
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import AlgoConfig, Evolve, hyper
from evopipe.types import Batch, Learned, Spaces

PAPER = "https://arxiv.org/abs/2106.06860"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("continuous",)


class Config(AlgoConfig):
    """Hyper-parameters of TD3+BC."""

    lr_actor: float = hyper(
        3e-4, doc="learning rate of the actor's Adam", raising="faster, less stable", evolvable=True, gt=0, le=1
    )
    lr_critic: float = hyper(
        3e-4, doc="learning rate of the critics' Adam", raising="faster, less stable", evolvable=True, gt=0, le=1
    )
    batch_size: int = hyper(
        128, doc="transitions an update", raising="steadier gradients, slower updates", evolvable=True, ge=1, le=65536
    )
    learn_step: int = hyper(
        1, doc="steps of the member between two updates", unit="steps", raising="fewer updates, faster",
        evolvable=True, ge=1, le=65536,
    )  # fmt: skip
    gamma: float = hyper(0.99, doc="discount", raising="looks further ahead", evolvable=True, ge=0, le=1)
    tau: float = hyper(5e-3, doc="share of the online networks mixed into the targets", evolvable=True,
        raising="targets follow faster, less stable", ge=0, le=1)  # fmt: skip
    grad_clip: float = hyper(
        10.0, doc="largest gradient norm", raising="larger steps let through", evolvable=True, gt=0
    )
    alpha: float = hyper(
        2.5, doc="weight of the critic against the dataset's actions; 0: behaviour cloning",
        raising="further from the dataset's actions", evolvable=True, ge=0, le=1000,
    )  # fmt: skip
    policy_delay: int = hyper(
        2, doc="critic updates for one of the actor and the targets", raising="slower, steadier actor", ge=1, le=1000
    )
    target_noise: float = hyper(
        0.2, doc="standard deviation of the noise on target actions", raising="smoother targets", ge=0, le=10
    )
    target_clip: float = hyper(0.5, doc="largest such noise", raising="smoother targets", ge=0, le=2)
    noise_sd: float = hyper(
        0.1, doc="standard deviation of the noise on actions while it learns online", raising="explores more", ge=0,
        le=10,
    )  # fmt: skip
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="architecture that members start from")
    evolve: dict[str, Evolve] = Field(
        default_factory=lambda: {
            "lr_actor": Evolve(min=1e-4, max=1e-2),
            "lr_critic": Evolve(min=1e-4, max=1e-2),
            "batch_size": Evolve(min=32, max=512),
            "alpha": Evolve(min=0.1, max=20.0),
        },
        description="which hyper-parameters the `rl_hp` mutation may change, and how far",
    )


@dataclass(frozen=True)
class State:
    """Everything that learns, one row a member."""

    actor: Net = parameters("actor", trainable=True)
    actor_target: Net = parameters("actor")
    critics: Net = parameters("critic_1", "critic_2", trainable=True)
    critics_target: Net = parameters("critic_1", "critic_2")
    actor_adam: Adam = moments("actor")
    critics_adam: Adam = moments("critic_1", "critic_2")
    updates: torch.Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network."""
    critic = Widths(spaces.observations + spaces.actions, 1)
    return {"actor": Widths(spaces.observations, spaces.actions), "critic_1": critic, "critic_2": critic}


def init(cfg: Config, nets: Mapping[str, Net]) -> State:
    """Start from fresh networks; the targets are copies."""
    actor, critics = nets["actor"], interleave(nets["critic_1"], nets["critic_2"])
    updates = torch.zeros(len(actor.values), device=actor.values.device)
    adams = (Adam.start(actor), Adam.start(critics))
    return State(actor, actor.copy(), critics, critics.copy(), *adams, updates)


def period(cfg: Config) -> int:
    """Return after how many updates their pattern repeats."""
    return cfg.policy_delay


def explore(cfg: Config, step: int) -> float:
    """Return the chance of a uniform action: 0, noise explores."""
    return 0.0


def greedy(cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Return μ(s): obs `[P, E, O]` → `[P, E, A]` in [−1, 1]."""
    with torch.no_grad():
        return torch.tanh(forward(state.actor, obs))


def act(
    cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor, epsilon: torch.Tensor, draw: Stream
) -> torch.Tensor:
    """Return μ(s) and noise, clipped; with chance epsilon `[P]` a uniform action: obs `[P, E, O]` → `[P, E, A]`."""
    mean = greedy(cfg, state, obs, legal)
    return or_random(mean + gaussian(draw, (mean.shape[1], mean.shape[2]), cfg.noise_sd), epsilon, draw.part(1))


def loss(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, draw: Stream
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each member's loss of both critics `[P]` and each transition's error `[P, B]`; hp values are `[P]`."""
    with torch.no_grad():
        drawn = draw.normal(batch.action[0].numel()).view(batch.action.shape)
        blur = (cfg.target_noise * drawn).clamp(-cfg.target_clip, cfg.target_clip)
        action_t = (torch.tanh(forward(state.actor_target, batch.next_obs)) + blur).clamp(-1.0, 1.0)
        q1_t, q2_t = action_values(state.critics_target, batch.next_obs, action_t).unbind(dim=1)
        y = clipped_double_target(batch.reward, batch.discount, q1_t, q2_t)  # [P, B]
    errors = action_values(state.critics, batch.obs, batch.action) - y[:, None]  # [P, 2, B]
    losses = (batch.weight[:, None] * errors.square()).sum(dim=(1, 2))
    return losses, errors.detach().abs().mean(dim=1)


def actor_loss(state: State, hp: Mapping[str, torch.Tensor], batch: Batch) -> torch.Tensor:
    """Return |μ(s) − a|² / A − λ Q₁(s, μ(s)), weighted, of each member `[P]`."""
    action = torch.tanh(forward(state.actor, batch.obs))  # [P, B, A]
    q = action_value(state.critics.pair[0], batch.obs, action)  # [P, B]
    scale = hp["alpha"] / (batch.weight * q.detach().abs()).sum(dim=1).clamp(min=1e-6)  # λ, [P]
    away = (action - batch.action).square().mean(dim=-1)
    return (batch.weight * (away - scale[:, None] * q)).sum(dim=1)


def update(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, healthy: torch.Tensor, draw: Stream,
    turn: int = 0,
) -> Learned:  # fmt: skip
    """Learn from one batch; hp values and healthy are `[P]`."""
    losses, errors = loss(cfg, state, hp, batch, draw)
    optim.backward(losses, state.critics)
    norms = optim.clip_gradients(state.critics, hp["grad_clip"])
    healthy = healthy & health.of_parameters(state.actor)  # its own loss may come later
    healthy = health.after_backward(healthy, losses, norms)
    optim.step(state.critics, state.critics_adam, hp["lr_critic"], healthy)
    if turn == cfg.policy_delay - 1:
        climb = actor_loss(state, hp, batch)
        optim.backward(climb, state.actor)
        norm = optim.clip_gradients(state.actor, hp["grad_clip"])
        healthy = health.after_backward(healthy, climb, norm)
        optim.step(state.actor, state.actor_adam, hp["lr_actor"], healthy)
        optim.polyak(state.critics_target, state.critics, hp["tau"] * healthy)
        optim.polyak(state.actor_target, state.actor, hp["tau"] * healthy)
    return Learned(replace(state, updates=state.updates + healthy), losses.detach(), healthy, errors)
