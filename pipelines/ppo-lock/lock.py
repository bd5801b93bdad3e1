"""A combination lock that nobody opens by chance, and a curriculum that begins near its end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

DIGITS = "3021131202310"
"""The combination, a digit of 0 to 3 at each place."""


class Lock(gymnasium.Env[Any, Any]):
    """The right digit moves one place on, a wrong one ends the episode; the last right one gives the reward 1.

    Random actions open it once in 4¹³ episodes, about 67 million. Observation: `[13]`, 1 at the present place.

    Args:
        opened: how many digits are open when an episode begins.
    """

    def __init__(self, opened: int = 0) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (len(DIGITS),), np.float32)
        self.action_space = spaces.Discrete(4)
        self.opened = opened

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.opened, len(DIGITS))) if self.opened else 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = action == int(DIGITS[self.place])
        self.place += right
        opened = self.place == len(DIGITS)
        return self._seen(), float(opened), opened or not right, False, {}

    def _seen(self) -> Any:
        return np.eye(len(DIGITS) + 1, len(DIGITS), dtype=np.float32)[self.place]


def backwards(progress: float, score: float | None) -> dict[str, Any]:
    """Begin episodes ever farther from the end (Florensa et al., 2017): with the whole lock after four fifths of the
    run, or once a member opened it."""
    if score is not None and score > 0.5:
        return {"opened": 0}
    return {"opened": max(0, round((len(DIGITS) - 1) * (1 - progress / 0.8)))}


gymnasium.register("Lock-v0", Lock, max_episode_steps=50, reward_threshold=0.99)
