"""What actor-critic algorithms have in common: how a deterministic actor acts, what twin critics give and learn.

Of a configuration and a state each function reads what it says, by the names that all of them use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evopipe.core.forward import action_values, encode, forward_each, mu
from evopipe.core.net import Net
from evopipe.ops.noise import exploration
from evopipe.ops.policy import or_random
from evopipe.ops.value import pick
from evopipe.rng import Stream

if TYPE_CHECKING:
    from torch import Tensor


def period(cfg: Any) -> int:
    """Return after how many updates their pattern repeats: the actor learns once in `policy_delay`."""
    return int(cfg.policy_delay)


def explore(cfg: Any, step: int) -> float:
    """Return the chance of a uniform action after `step` environment steps of a member: 1 before `random_steps`."""
    return float(step < cfg.random_steps)


def greedy(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return μ(s): obs `[P, E, O]` → `[P, E, A]` in [−1, 1]."""
    with torch.no_grad():
        return mu(state.actor, encode(state.encoder, obs))


def act(cfg: Any, state: Any, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return μ(s) and `noise`, clipped; with chance epsilon `[P]` a uniform action: obs `[P, E, O]` → `[P, E, A]`."""
    mean = greedy(cfg, state, obs, legal)
    drawn = exploration(cfg.noise, draw, mean.shape[1:], cfg.noise_sd, cfg.ou_theta)
    return or_random(mean + drawn, epsilon, draw.part(1))


def of_taken(cfg: Any, critics: Net, x: Tensor, action: Tensor) -> Tensor:
    """Return Q₁ and Q₂ of the actions taken, `[P, 2, B]`: x as `encode` gives it, action as in `Batch`."""
    if cfg.spaces.continuous:
        return action_values(critics, x, action)
    return pick(forward_each(critics, x), action[:, None].expand(-1, 2, -1))
