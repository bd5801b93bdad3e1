"""What one agent did since it last learned, for algorithms that learn from rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evopipe.errors import UsageError
from evopipe.face.vect import Marks, marks_of


@dataclass(frozen=True)
class Taken:
    """One step of `E` environments, as networks and memory have it. Where a team plays, `E` is `E · K`, see
    `Rollout`."""

    obs: np.ndarray  # `[E, O]` float32, the true next observation
    action: torch.Tensor  # `[E, …]`, see `Batch.action`
    log_prob: np.ndarray  # `[E]`
    value: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    begins: np.ndarray  # `[E]`, an episode begins here
    terminated: np.ndarray  # `[E]`
    truncated: np.ndarray
    idle: np.ndarray  # `[E]`, no step: a reset that follows no action
    memory: torch.Tensor | None = None  # `[E, M]` before the step, where the agent keeps one
    legal: np.ndarray | None = None  # `[E, A]`, None where all is


class RolloutBuffer:
    """What one agent did since it last learned; `agent.learn()` learns from it and empties it.

    Every on-policy agent has one, `agent.rollout_buffer`, which `collect_rollouts` fills.

    Args:
        capacity: steps of every environment that it takes at most; None for any number.
        num_envs, observation_space, action_space, device: not needed: they follow from what is added.

    Examples:
        >>> from evopipe import collect_rollouts, create_population, make_vect_envs
        >>> env = make_vect_envs("CartPole-v1", num_envs=2)
        >>> (agent,) = create_population("PPO", env.single_observation_space, env.single_action_space, num_envs=2)
        >>> _ = collect_rollouts(agent, env, n_steps=4)
        >>> isinstance(agent.rollout_buffer, RolloutBuffer), len(agent.rollout_buffer.taken)
        (True, 4)
    """

    def __init__(
        self, capacity: int | None = None, num_envs: int | None = None, observation_space: Any = None,
        action_space: Any = None, device: Any = None,
    ) -> None:  # fmt: skip
        self.capacity, self.taken = capacity, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        """Steps of every environment that are there."""
        return len(self.taken)

    def add(self, step: Taken) -> None:
        """Add a step.

        Raises:
            UsageError: it is full.
        """
        if len(self.taken) == self.capacity:
            raise UsageError(f"RolloutBuffer: it is full ({self.capacity} steps): call agent.learn() or reset() first")
        self.taken.append(step)

    def reset(self) -> None:
        """Empty it."""
        self.taken = []


def flags(value: Any, count: int, name: str) -> np.ndarray:
    """Return flags `[E]`; UsageError where they are none."""
    try:
        found = np.asarray(value)
        if found.dtype.kind in "biuf":
            return np.broadcast_to(found.reshape(-1).astype(bool), (count,))
    except (TypeError, ValueError, RecursionError):
        pass
    raise UsageError(
        f"learn: {name} holds what is no array of {count} flags; append what the environment said of each step (and "
        "not the list to itself)"
    )


def ends_of(
    observations: Sequence[Any], dones: Sequence[Any], next_done: Any, counts: Sequence[int]
) -> list[tuple[np.ndarray, Marks]]:
    """Return of each of `T` steps where an episode begins, and what led to the observation after it, by `T + 1`
    observations and `T` flags for each of `counts` environments: after each step; with `next_done`, which is after the
    last one, before each. Observations of `make_vect_envs` know all this themselves: of them `dones` is not read."""
    steps, count = len(observations) - 1, counts[0]
    known = [marks_of(obs, count) for obs in observations]
    nothing = np.zeros(count, bool)
    if any(marks is None for marks in known[1:]):
        after = [*dones[1:], next_done] if next_done is not None else [*dones]
        ended = [flags(done, count, "dones") for done in after]
        marks = [Marks(nothing, done, nothing) for done in ended]
        return [(~nothing if t == 0 else ended[t - 1], marks[t]) for t in range(steps)]
    first = ~nothing if known[0] is None else known[0].began
    found = []
    for t in range(steps):
        after_step, before = known[t + 1], known[t]
        assert after_step is not None
        found.append((first if t == 0 or before is None else before.began, after_step))
    return found
