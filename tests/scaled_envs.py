"""Environments whose observations are of very unlike sizes; importing this module registers them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SCALE = np.array([1000.0, 1000.0, 1000.0, 1000.0], np.float32)
OFFSET = np.array([5000.0, 0.0, -300.0, 0.0], np.float32)


class Scaled(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole, its observations a thousand times as large and away from 0."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation * SCALE + OFFSET


class Rich(gymnasium.RewardWrapper[Any, Any]):
    """CartPole that pays so much a step."""

    def __init__(self, pays: float = 1e6) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.pays = pays

    def reward(self, reward: Any) -> Any:
        return self.pays * reward


gymnasium.register("Rich-v0", entry_point="scaled_envs:Rich")
gymnasium.register("Scaled-v0", entry_point="scaled_envs:Scaled", reward_threshold=475)
