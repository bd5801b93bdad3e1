"""Pendulums whose episodes end as they should not; importing this module registers them."""

from __future__ import annotations

from typing import Any

import gymnasium


class Timed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A pendulum whose episodes end after so many steps; `hidden`: as if it had fallen, else as a time limit should."""

    def __init__(self, length: int = 50, hidden: bool = False) -> None:
        super().__init__(gymnasium.make("Pendulum-v1").unwrapped)
        self.length, self.hidden, self.steps = length, hidden, 0

    def reset(self, **how: Any) -> Any:
        self.steps = 0
        return super().reset(**how)

    def step(self, action: Any) -> Any:
        self.steps += 1
        end = self.steps >= self.length
        obs, reward, *_, info = super().step(action)
        return obs, reward, end and self.hidden, end and not self.hidden, info


gymnasium.register("Timed-v0", entry_point="timed_envs:Timed")
gymnasium.register("Untimed-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv")
