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
from evopipe.core.networks import Net, NetworkConfig, action_value, forward
from evopipe.core.optim import Adam
from evopipe.core.population import Widths, moments, parameters, row
from evopipe.ops.noise import Noise, exploration
from evopipe.ops.policy import or_random
from evopipe.ops.value import clipped_double_target
from evopipe.rng import Stream
from evopipe.types import AlgoConfig, Batch, Evolve, Learned, Spaces, hyper

PAPER = "https://arxiv.org/abs/1802.09477"
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

    actor: Net = parameters("actor", trainable=True)
    actor_target: Net = parameters("actor")
    critic_1: Net = parameters("critic_1", trainable=True)
    critic_2: Net = parameters("critic_2", trainable=True)
    critic_1_target: Net = parameters("critic_1")
    critic_2_target: Net = parameters("critic_2")
    actor_adam: Adam = moments("actor")
    critic_1_adam: Adam = moments("critic_1")
    critic_2_adam: Adam = moments("critic_2")
    updates: torch.Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network."""
    critic = Widths(spaces.observations + spaces.actions, 1)
    return {"actor": Widths(spaces.observations, spaces.actions), "critic_1": critic, "critic_2": critic}


def init(cfg: Config, nets: Mapping[str, Net]) -> State:
    """Start from fresh networks; the targets are copies."""
    actor, one, two = nets["actor"], nets["critic_1"], nets["critic_2"]
    adams = (Adam.start(actor), Adam.start(one), Adam.start(two))
    updates = torch.zeros(len(actor.values), device=actor.values.device)
    return State(actor, actor.copy(), one, two, one.copy(), two.copy(), *adams, updates)


def period(cfg: Config) -> int:
    """Return after how many updates their pattern repeats."""
    return cfg.policy_delay


def explore(cfg: Config, step: int) -> float:
    """Return the chance of a uniform action after `step` environment steps of a member."""
    return float(step < cfg.random_steps)


def greedy(cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Return μ(s): obs `[P, E, O]` → `[P, E, A]` in [−1, 1]."""
    with torch.no_grad():
        return torch.tanh(forward(state.actor, obs))


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
        action_t = (torch.tanh(forward(state.actor_target, batch.next_obs)) + blur).clamp(-1.0, 1.0)
        q1_t, q2_t = (
            action_value(net, batch.next_obs, action_t) for net in (state.critic_1_target, state.critic_2_target)
        )
        y = clipped_double_target(batch.reward, batch.discount, q1_t, q2_t)  # [P, B]
    errors = [action_value(net, batch.obs, batch.action) - y for net in (state.critic_1, state.critic_2)]
    losses = (batch.weight * (errors[0].square() + errors[1].square())).sum(dim=1)
    return losses, (0.5 * (errors[0].abs() + errors[1].abs())).detach()


def actor_loss(state: State, batch: Batch) -> torch.Tensor:
    """Return −Q₁(s, μ(s)), weighted, of each member `[P]`."""
    action = torch.tanh(forward(state.actor, batch.obs))
    return -(batch.weight * action_value(state.critic_1.frozen, batch.obs, action)).sum(dim=1)


def update(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, healthy: torch.Tensor, draw: Stream,
    turn: int = 0,
) -> Learned:  # fmt: skip
    """Learn from one batch; hp values and healthy are `[P]`."""
    critics = ((state.critic_1, state.critic_1_adam), (state.critic_2, state.critic_2_adam))
    losses, errors = loss(cfg, state, hp, batch, draw)
    optim.backward(losses, state.critic_1, state.critic_2)
    norms = [optim.clip_gradients(net, hp["grad_clip"]) for net, _ in critics]
    healthy = healthy & health.of_parameters(state.actor)  # its own loss may come later
    healthy = health.after_backward(healthy, losses, norms[0] + norms[1])
    for net, adam in critics:
        optim.step(net, adam, hp["lr_critic"], healthy)
    if turn == cfg.policy_delay - 1:
        climb = actor_loss(state, batch)
        optim.backward(climb, state.actor)
        norm = optim.clip_gradients(state.actor, hp["grad_clip"])
        healthy = health.after_backward(healthy, climb, norm)
        optim.step(state.actor, state.actor_adam, hp["lr_actor"], healthy)
        optim.polyak(state.critic_1_target, state.critic_1, hp["tau"] * healthy)
        optim.polyak(state.critic_2_target, state.critic_2, hp["tau"] * healthy)
        optim.polyak(state.actor_target, state.actor, hp["tau"] * healthy)
    return Learned(replace(state, updates=state.updates + healthy), losses.detach(), healthy, errors)
