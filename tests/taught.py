"""An environment whose rewards are its level, and curricula for it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CALLED: list[tuple[float, float | None]] = []
FAILS: list[bool] = []


class Level(gymnasium.Env[Any, Any]):
    """Each of five steps gives the level; the right one of two actions gives one more."""

    def __init__(self, level: int = 7, wide: bool = False, broken: bool = False) -> None:
        if broken:
            raise RuntimeError("no such level")
        self.observation_space = spaces.Box(-10.0, 10.0, (4 if wide else 3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.level = level

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(self.level + (action == self.hint))
        self.at += 1
        return self._seen(), reward, self.at == 5, False, {}

    def _seen(self) -> Any:
        self.hint = int(self.np_random.integers(2))
        return np.array([self.level, self.at, self.hint, 0][: self.observation_space.shape[0]], np.float32)


def rising(progress: float, score: float | None) -> dict[str, Any]:
    """Levels 1, 2, 3, … by progress."""
    CALLED.append((progress, score))
    if FAILS and score is not None:
        raise ValueError("no more lessons")
    return {"level": 1 + round(4 * progress)}


def longer(progress: float, score: float | None) -> dict[str, Any]:
    """Of `teams_for_tests:Relay`."""
    return {"length": 5 + round(4 * progress)}


def as_it_is(progress: float, score: float | None) -> dict[str, Any]:
    return {}


def wide(progress: float, score: float | None) -> dict[str, Any]:
    return {"wide": score is not None}


def broken(progress: float, score: float | None) -> dict[str, Any]:
    return {"broken": score is not None}


def a_list(progress: float, score: float | None) -> Any:
    return [3]


def an_array(progress: float, score: float | None) -> Any:
    return {"level": np.arange(3)}


gymnasium.register("Level-v0", Level)
