"""Environments of DeepMind's interface, and the ids that they have here."""

from __future__ import annotations

from functools import partial
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

from evopipe.envs import from_dm_env


class Catch(dm_env.Environment):
    """A ball falls for five steps, from a column that the seed says; the reward is 1 where the paddle is below it."""

    def __init__(self, seed: int, columns: int = 3, cut: bool = False) -> None:
        self.made, self.columns, self.cut, self.closed = seed, columns, cut, False
        self.draw = np.random.default_rng(seed)

    def observation_spec(self) -> Any:
        board = specs.BoundedArray((5, self.columns), np.float32, 0.0, 1.0, "board")
        return {"board": board, "paddle": specs.DiscreteArray(self.columns), "speed": specs.Array((), np.float64)}

    def action_spec(self) -> Any:
        return specs.BoundedArray((), np.int32, -1, 1, "move")

    def reset(self) -> dm_env.TimeStep:
        self.row, self.ball, self.paddle = 0, int(self.draw.integers(self.columns)), self.columns // 2
        return dm_env.restart(self._seen())

    def step(self, action: Any) -> dm_env.TimeStep:
        assert (action.dtype, action.shape) == (np.int32, ())
        self.paddle = int(np.clip(self.paddle + action, 0, self.columns - 1))
        self.row += 1
        if self.row < 4:
            return dm_env.transition(0.0, self._seen())
        reward = float(self.ball == self.paddle)
        return (dm_env.truncation if self.cut else dm_env.termination)(reward, self._seen())

    def close(self) -> None:
        self.closed = True

    def _seen(self) -> Any:
        board = np.zeros((5, self.columns), np.float32)
        board[self.row, self.ball] = 1.0
        return {"board": board, "paddle": np.int64(self.paddle), "speed": 1.0}


class Arm(Catch):
    """The same with two torques, a list of parts to see, and flags."""

    def observation_spec(self) -> Any:
        return [
            specs.Array((2,), np.float32),
            specs.BoundedArray((2,), np.uint8, [0, 1], [4, 3]),
            specs.Array((), bool),
        ]

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float64, -2.0, [1.0, 2.0])

    def step(self, action: Any) -> dm_env.TimeStep:
        assert (action.dtype, action.shape) == (np.float64, (2,))
        return super().step(np.asarray(np.sign(action[0]), np.int32))

    def _seen(self) -> Any:
        return [np.array([self.ball, self.paddle], np.float32), np.array([self.row, 2], np.uint8), self.row > 2]


def reseed(env: Catch, seed: int) -> None:
    env.draw = np.random.default_rng(seed)


gymnasium.register("DmCatch-v0", partial(from_dm_env, Catch), max_episode_steps=50)
gymnasium.register("DmArm-v0", partial(from_dm_env, Arm, reseed), max_episode_steps=50)
