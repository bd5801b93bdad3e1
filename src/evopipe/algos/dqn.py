"""Deep Q-network, double by default.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt, Guez & Silver, "Deep
reinforcement learning with double Q-learning", AAAI 2016.

With y = r + γ (1 − terminated) Q⁻(s′, a*), where a* maximises Q (double) or Q⁻ (not), the loss of a member is the
weighted mean over its batch of ℓ(Q(s, a) − y), ℓ Huber or ½ e².
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field

from evopipe.core import health, optim
from evopipe.core.networks import Net, forward
from evopipe.core.optim import Adam
from evopipe.core.population import Widths, moments, parameters, row
from evopipe.ops.policy import epsilon_greedy
from evopipe.ops.value import masked_argmax, pick, q_target, regression_loss
from evopipe.rng import Stream
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import AlgoConfig, Evolve, hyper
from evopipe.types import Batch, Learned, Spaces

PAPER = "https://doi.org/10.1038/nature14236"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)


class Config(AlgoConfig):
    """Hyper-parameters of DQN."""

    lr: float = hyper(5e-4, doc="learning rate of Adam", raising="faster, less stable", evolvable=True, gt=0, le=1)
    batch_size: int = hyper(
        128, doc="transitions an update", raising="steadier gradients, slower updates", evolvable=True, ge=1, le=65536
    )
    learn_step: int = hyper(
        1, doc="steps of the member between two updates", unit="environment steps", raising="fewer updates, faster",
        evolvable=True, ge=1, le=65536,
    )  # fmt: skip
    gamma: float = hyper(0.99, doc="discount", raising="looks further ahead", evolvable=True, ge=0, le=1)
    tau: float = hyper(1e-2, doc="soft target: share of the online network mixed in at each update", evolvable=True,
        raising="targets follow faster, less stable", ge=0, le=1)  # fmt: skip
    grad_clip: float = hyper(
        10.0, doc="largest gradient norm", raising="larger steps let through", evolvable=True, gt=0
    )
    double: bool = hyper(True, doc="double Q-learning: the online network chooses the bootstrap action")
    loss: Literal["huber", "mse"] = hyper("huber", doc="regression loss of the temporal-difference error")
    target: Literal["soft", "hard"] = hyper(
        "soft", doc="soft: mix by `tau`; hard: copy every `target_interval` updates"
    )
    target_interval: int = hyper(
        250,
        doc="updates between two hard copies",
        unit="updates",
        raising="targets follow later, more stable",
        ge=1,
        le=10**9,
    )
    eps_start: float = hyper(1.0, doc="exploration at the start", raising="more random actions early", ge=0, le=1)
    eps_end: float = hyper(0.05, doc="exploration at the end", raising="more random actions later", ge=0, le=1)
    eps_schedule: Literal["linear", "exponential"] = hyper("linear", doc="how ε goes from start to end")
    eps_steps: int = hyper(
        10_000, doc="steps of the member until ε reaches its end", unit="environment steps", raising="explores longer",
        ge=1, le=10**12,
    )  # fmt: skip
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="architecture that members start from")
    evolve: dict[str, Evolve] = Field(
        default_factory=lambda: {
            "lr": Evolve(min=6.25e-5, max=1e-2),
            "batch_size": Evolve(min=32, max=512),
            "learn_step": Evolve(min=1, max=8),
        },
        description="which hyper-parameters the `rl_hp` mutation may change, and how far",
    )


@dataclass(frozen=True)
class State:
    """Everything that learns, one row a member."""

    q: Net = parameters("q", trainable=True)
    target: Net = parameters("q")
    adam: Adam = moments("q")
    updates: torch.Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network."""
    return {"q": Widths(spaces.observations, spaces.actions)}


def init(cfg: Config, nets: Mapping[str, Net]) -> State:
    """Start from fresh networks; the target is a copy."""
    q = nets["q"]
    return State(q=q, target=q.copy(), adam=Adam.start(q), updates=torch.zeros(len(q.values), device=q.values.device))


def explore(cfg: Config, step: int) -> float:
    """Return ε after `step` environment steps of a member."""
    done = min(1.0, step / cfg.eps_steps)
    if cfg.eps_schedule == "linear":
        return cfg.eps_start + done * (cfg.eps_end - cfg.eps_start)
    start, end = max(cfg.eps_start, 1e-8), max(cfg.eps_end, 1e-8)
    return float(start * (end / start) ** done)


def values(cfg: Config, state: State, obs: torch.Tensor) -> torch.Tensor:
    """Return Q(s, ·): obs `[P, E, O]` → `[P, E, A]`."""
    with torch.no_grad():
        return forward(state.q, obs)


def act(
    cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor, epsilon: torch.Tensor, draw: Stream
) -> torch.Tensor:
    """Choose actions: obs `[P, E, O]`, legal `[P, E, A]`, epsilon `[P]` → `[P, E]` int64.

    A member whose values are not finite still gets a legal action.
    """
    q = torch.nan_to_num(values(cfg, state, obs))
    u = draw.uniform(2 * obs.shape[1]).view(-1, 2, obs.shape[1])
    return epsilon_greedy(q, legal, epsilon, u[:, 0], u[:, 1])


def greedy(cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Choose the best legal actions: obs `[P, E, O]`, legal `[P, E, A]` or None where all are → `[P, E]` int64."""
    return masked_argmax(torch.nan_to_num(values(cfg, state, obs)), legal)


def loss(cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each member's loss `[P]` and each transition's error `[P, B]`; hp values are `[P]`."""
    with torch.no_grad():
        target_t = forward(state.target, batch.next_obs)  # [P, B, A]
        selector_t = forward(state.q, batch.next_obs) if cfg.double else target_t
        y = q_target(batch.reward, batch.discount, target_t, selector_t, batch.next_legal)  # [P, B]
    q_tm1 = pick(forward(state.q, batch.obs), batch.action)
    losses = (batch.weight * regression_loss(q_tm1, y, cfg.loss == "huber")).sum(dim=1)
    return losses, (q_tm1 - y).detach()


def update(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, healthy: torch.Tensor, draw: Stream,
    turn: int = 0,
) -> Learned:  # fmt: skip
    """Learn from one batch; hp values and healthy are `[P]`."""
    losses, errors = loss(cfg, state, hp, batch)
    optim.backward(losses, state.q)
    norms = optim.clip_gradients(state.q, hp["grad_clip"])
    healthy = health.after_backward(healthy, losses, norms)
    optim.step(state.q, state.adam, hp["lr"], healthy)
    updates = state.updates + healthy
    mixed = hp["tau"] if cfg.target == "soft" else (updates % cfg.target_interval == 0).float()
    optim.polyak(state.target, state.q, mixed * healthy)
    return Learned(replace(state, updates=updates), losses.detach(), healthy, errors)
