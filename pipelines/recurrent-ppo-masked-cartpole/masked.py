"""CartPole without velocities: where the cart is and how the pole leans, but not where either is going."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

SHOWN = [0, 2]  # of position, velocity, angle, angular velocity


class MaskedCartPole(CartPoleEnv):
    """Observation: position and angle, `[2]`. One alone does not say which way to push, several in a row do."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        whole: Any = self.observation_space
        self.observation_space = spaces.Box(whole.low[SHOWN], whole.high[SHOWN])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation[SHOWN], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation[SHOWN], float(reward), terminated, truncated, info


gymnasium.register("MaskedCartPole-v0", MaskedCartPole, max_episode_steps=500, reward_threshold=475.0)
