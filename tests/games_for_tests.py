"""A game and players for tests of self-play: `env.id: games_for_tests:Nim-v0`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from evopipe.envs.games import GameEnv


class Nim:
    """Two players take 1 to 3 of the sticks in turn; who takes the last one wins."""

    seats, actions, cut = 2, 3, False

    def __init__(self, sticks: int = 7) -> None:
        self.most, self.observations = sticks, sticks + 1
        self.reset(0)

    def reset(self, seed: int) -> None:
        self.left, self.mover = self.most, 0
        self.returns: Sequence[float] = [0.0, 0.0]

    @property
    def turn(self) -> int | None:
        return self.mover if self.left else None

    def look(self, seat: int) -> np.ndarray:
        return np.eye(self.observations, dtype=np.float32)[self.left]

    def legal(self, seat: int) -> Sequence[int]:
        return [action for action in range(3) if action < self.left]

    def play(self, action: int) -> None:
        self.left -= action + 1
        if not self.left:
            self.returns = [1.0 - 2 * (seat != self.mover) for seat in range(2)]
        self.mover = 1 - self.mover

    def shown(self) -> str:
        return "|" * self.left

    def close(self) -> None:
        pass


def nim(sticks: int = 7, **kwargs: Any) -> GameEnv:
    return GameEnv(Nim(sticks), **kwargs)


def first(obs: np.ndarray, legal: np.ndarray, draw: np.random.Generator) -> int:
    """The first legal action."""
    return int(legal.argmax())


def wrong(obs: np.ndarray, legal: np.ndarray, draw: np.random.Generator) -> int:
    return 7


def broken(obs: np.ndarray, legal: np.ndarray, draw: np.random.Generator) -> int:
    raise ValueError("no idea")


def fewer(progress: float, score: float | None) -> dict[str, Any]:
    """A curriculum whose games do not change in size: `sticks` would."""
    return {"seat": round(progress)}


gymnasium.register("Nim-v0", partial(nim), max_episode_steps=20)
