"""What actor-critic algorithms have in common: how a deterministic actor acts, what twin critics give and learn.

Of a configuration and a state each function reads what it says, by the names that all of them use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from evopipe.algos import Answers
from evopipe.core.forward import action_values, encode, forward, forward_each, mu
from evopipe.core.net import Net
from evopipe.ops.distributions import Distribution, distribution
from evopipe.ops.noise import exploration, smoothed
from evopipe.ops.policy import likeliest, or_random
from evopipe.ops.value import clipped_double_target, pick, twin_loss
from evopipe.rng import Stream
from evopipe.types import Batch, Tensor


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


def output(cfg: Any, state: Any, obs: Tensor) -> Tensor:
    """Return log π(·|s) up to a constant, or μ(s) before tanh, finite: obs `[P, E, O]` → `[P, E, A]`."""
    with torch.no_grad():
        return torch.nan_to_num(forward(state.actor, obs))


def best(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the likeliest legal action, or μ(s), of an actor with such an `output`."""
    return likeliest(output(cfg, state, obs), legal, cfg.spaces.continuous)


def chances(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Distribution:
    """Return the softmax over the legal actions, of an actor with such an `output`."""
    return distribution(cfg.spaces, output(cfg, state, obs), None, legal)


def q_values(cfg: Any, state: Any, obs: Tensor, action: Tensor | None) -> Tensor:
    """Return min(Q₁, Q₂) of actions `[P, B]`, or of all `[P, B, A]`: obs `[P, B, O]`."""
    with torch.no_grad():
        x = encode(getattr(state, "encoder", None), obs)
        q = forward_each(state.critics, x) if action is None else of_taken(cfg, state.critics, x, action)
        return q.amin(dim=1)


def of_own_action(
    greedy: Callable[..., Tensor], q_values: Callable[..., Tensor] = q_values
) -> Callable[[Any], Answers]:
    """Return the `answers` of an algorithm whose actor is deterministic: V(s) is Q(s, μ(s))."""

    def value(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Tensor:
        return q_values(cfg, state, obs, greedy(cfg, state, obs, legal))

    return lambda cfg: Answers(value, q_values)


def clipped_double_loss(
    cfg: Any, state: Any, batch: Batch, draw: Stream, x: Tensor, x_t: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss of both critics `[P]`, and errors `[P, B]`, against clipped double targets at smoothed actions.

    x and x_t are the observations before and after the step, as `encode` gives them.
    """
    with torch.no_grad():
        action_t = smoothed(mu(state.actor_target, x_t), draw, cfg.target_noise, cfg.target_clip)
        q1_t, q2_t = action_values(state.critics_target, x_t, action_t).unbind(dim=1)
        y = clipped_double_target(batch.reward, batch.discount, q1_t, q2_t)  # [P, B]
    return twin_loss(action_values(state.critics, x, batch.action) - y[:, None], batch.weight)


def of_taken(cfg: Any, critics: Net, x: Tensor, action: Tensor) -> Tensor:
    """Return Q₁ and Q₂ of the actions taken, `[P, 2, B]`: x as `encode` gives it, action as in `Batch`."""
    if cfg.spaces.continuous:
        return action_values(critics, x, action)
    return pick(forward_each(critics, x), action[:, None].expand(-1, 2, -1))
