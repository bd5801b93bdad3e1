"""Behaviour cloning: the baseline that learning from a dataset must beat.

Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NeurIPS 1988; Bain & Sammut, "A framework for
behavioural cloning", 1995.

Supervised learning of what the dataset did. The loss of a member is a weighted mean over its batch: where actions are
discrete of −log π(a|s), π a softmax; where they are continuous of |μ(s) − a|² / A, μ = tanh(·) in [−1, 1], which the
environment stretches to its bounds. Rewards, next observations and discounts are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field

from evopipe.core import health, optim
from evopipe.core.networks import Net, forward
from evopipe.core.optim import Adam
from evopipe.core.population import Widths, moments, parameters, row
from evopipe.ops.policy import epsilon_greedy, or_random
from evopipe.ops.value import masked_argmax, pick
from evopipe.rng import Stream
from evopipe.schema.blocks import NetworkConfig
from evopipe.schema.declare import AlgoConfig, Evolve, hyper
from evopipe.types import Batch, Learned, Spaces

PAPER = "https://proceedings.neurips.cc/paper/1988/hash/812b4ba287f5ee0bc9d43bbf5bbe87fb-Abstract.html"
REGIME = "off_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous")
OFFLINE_ONLY = True


class Config(AlgoConfig):
    """Hyper-parameters of behaviour cloning."""

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
    """Return input and output width of every network: a logit for each action, or an action's numbers before tanh."""
    return {"actor": Widths(spaces.observations, spaces.actions)}


def init(cfg: Config, nets: Mapping[str, Net]) -> State:
    """Start from fresh networks."""
    actor = nets["actor"]
    return State(actor, Adam.start(actor), torch.zeros(len(actor.values), device=actor.values.device))


def explore(cfg: Config, step: int) -> float:
    """Return the chance of a random action, were it to act while it learns."""
    return 0.05


def output(state: State, obs: torch.Tensor) -> torch.Tensor:
    """Return log π(·|s) up to a constant, or μ(s) before tanh: obs `[P, E, O]` → `[P, E, A]`, finite numbers."""
    with torch.no_grad():
        return torch.nan_to_num(forward(state.actor, obs))


def greedy(cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Choose the likeliest legal action, or μ(s).

    Shapes: obs `[P, E, O]`, legal `[P, E, A]` or None where all are → `[P, E]` int64, or `[P, E, A]` in [−1, 1].
    """
    out = output(state, obs)
    return torch.tanh(out) if cfg.spaces.continuous else masked_argmax(out, legal)


def act(
    cfg: Config, state: State, obs: torch.Tensor, legal: torch.Tensor, epsilon: torch.Tensor, draw: Stream
) -> torch.Tensor:
    """Act greedily, with chance epsilon `[P]` at random: obs `[P, E, O]` → `[P, E]` int64, or `[P, E, A]`."""
    if cfg.spaces.continuous:
        return or_random(greedy(cfg, state, obs, legal), epsilon, draw)
    u = draw.uniform(2 * obs.shape[1]).view(-1, 2, obs.shape[1])
    return epsilon_greedy(output(state, obs), legal, epsilon, u[:, 0], u[:, 1])


def loss(cfg: Config, state: State, hp: Mapping[str, torch.Tensor], batch: Batch) -> torch.Tensor:
    """Return each member's loss `[P]`; hp values are `[P]`."""
    out = forward(state.actor, batch.obs)  # [P, B, A]
    if cfg.spaces.continuous:
        error = (torch.tanh(out) - batch.action).square().mean(dim=-1)
    else:
        error = -pick(out.log_softmax(dim=-1), batch.action)
    return (batch.weight * error).sum(dim=1)


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
