"""Python twins of environments in C, for `evopipe env check`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Catch(gymnasium.Env[Any, Any]):
    """The example of docs/environments.md without wind."""

    def __init__(self, columns: int = 5) -> None:
        self.columns = columns
        self.observation_space = spaces.Box(0.0, 1.0, (10 * columns,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = [0, int(self.np_random.integers(self.columns)), self.columns // 2]
        return self._shown(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        row, ball, paddle = self.state
        self.state = [row + 1, ball, min(max(paddle + int(action) - 1, 0), self.columns - 1)]
        landed = self.state[0] == 9
        return self._shown(), (1.0 if ball == self.state[2] else -1.0) * landed, landed, False, {}

    def _shown(self) -> np.ndarray:
        board = np.zeros((10, self.columns), np.float32)
        board[self.state[0], self.state[1]] = board[9, self.state[2]] = 1.0
        return board.ravel()


gymnasium.register("InC-v0", Catch, max_episode_steps=100, reward_threshold=0.95)
gymnasium.register("Wide-v0", Catch, kwargs={"columns": 6}, max_episode_steps=50)
