"""Behaviour cloning of discrete actions: the baseline that learning from a dataset must beat.

Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NeurIPS 1988; Bain & Sammut, "A framework for
behavioural cloning", 1995.

The loss of a member is the weighted mean over its batch of −log π(a|s), π a softmax: supervised learning of what the
dataset did. Rewards, next observations and discounts are not read. (For continuous actions: `bc_continuous`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field

from evopipe.core import health, optim
from evopipe.core.networks import Net, NetworkConfig, forward
from evopipe.core.optim import Adam
from evopipe.core.population import Widths, moments, parameters, row
from evopipe.ops.policy import epsilon_greedy
from evopipe.ops.value import masked_argmax, pick
from evopipe.rng import Stream
from evopipe.types import AlgoConfig, Batch, Evolve, Learned, Spaces, hyper

PAPER = "https://proceedings.neurips.cc/paper/1988/hash/812b4ba287f5ee0bc9d43bbf5bbe87fb-Abstract.html"
POLICY = "actor"
ACTIONS = ("discrete",)
OFFLINE_ONLY = True


class Config(AlgoConfig):
    """Hyper-parameters of behaviour cloning, discrete actions."""

    lr: float = hyper(1e-3, doc="learning rate of Adam", raising="faster, less stable", evolvable=True, gt=0, le=1)
    batch_size: int = hyper(
        128, doc="transitions an update", raising="steadier gradients, slower updates", evolvable=True, ge=1, le=65536
    )
    learn_step: int = hyper(
        1, doc="steps of the member between two updates", unit="steps", raising="fewer updates, faster",
        evolvable=True, ge=1, le=65536,
    )  # fmt: skip
    grad_clip: float = hyper(
        10.0, doc="largest gradient norm", raising="larger steps let through", evolvable=True, gt=0
    )
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="architecture that members start from")
    evolve: dict[str, Evolve] = Field(
        default_factory=lambda: {"lr": Evolve(min=1e-4, max=1e-2), "batch_size": Evolve(min=32, max=512)},
        description="which hyper-parameters the `rl_hp` mutation may change, and how far",
    )


@dataclass(frozen=True)
class State:
    """Everything that learns, one row a member."""

    actor: Net = parameters("actor", trainable=True)
    adam: Adam = moments("actor")
    updates: torch.Tensor = row()  # [P] float32


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    """Return input and output width of every network: a logit for each action."""
    return {"actor": Widths(spaces.observations, spaces.actions)}


def init(cfg: Config, nets: Mapping[str, Net]) -> State:
    """Start from fresh networks."""
    actor = nets["actor"]
    return State(actor, Adam.start(actor), torch.zeros(len(actor.values), device=actor.values.device))


def explore(cfg: Config, step: int) -> float:
    """Return the chance of a random action, were it to act while it learns."""
    return 0.05


def logits(state: State, obs: torch.Tensor) -> torch.Tensor:
    """Return log π(·|s) up to a constant: obs `[P, E, O]` → `[P, E, A]`, finite numbers."""
    with torch.no_grad():
        return torch.nan_to_num(forward(state.actor, obs))


def act(
    cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor, epsilon: torch.Tensor, draw: Stream
) -> torch.Tensor:
    """Choose the likeliest legal action, with chance epsilon `[P]` a random one: obs `[P, E, O]` → `[P, E]` int64."""
    u = draw.uniform(2 * obs.shape[1]).view(-1, 2, obs.shape[1])
    return epsilon_greedy(logits(state, obs), legal, epsilon, u[:, 0], u[:, 1])


def greedy(cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Choose the likeliest legal action: obs `[P, E, O]`, legal `[P, E, A]` or None where all are → `[P, E]` int64."""
    return masked_argmax(logits(state, obs), legal)


def loss(cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch) -> torch.Tensor:
    """Return each member's loss `[P]`; hp values are `[P]`."""
    log_pi = forward(state.actor, batch.obs).log_softmax(dim=-1)  # [P, B, A]
    return -(batch.weight * pick(log_pi, batch.action)).sum(dim=1)


def update(
    cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch, healthy: torch.Tensor, draw: Stream,
    turn: int = 0,
) -> Learned:  # fmt: skip
    """Learn from one batch; hp values and healthy are `[P]`."""
    losses = loss(cfg, state, hp, batch)
    optim.backward(losses, state.actor)
    norms = optim.clip_gradients(state.actor, hp["grad_clip"])
    healthy = health.after_backward(healthy, losses, norms)
    optim.step(state.actor, state.adam, hp["lr"], healthy)
    return Learned(replace(state, updates=state.updates + healthy), losses.detach(), healthy)
