"""CartPole that breaks: while a file exists, or now and then; ids are registered on import."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Breakable(CartPoleEnv):
    """Breaks at its `when`-th step and at every later one, while the file `trigger` exists; `how` says in what way."""

    def __init__(self, trigger: str, how: str = "raises", when: int = 60) -> None:
        super().__init__()
        self.trigger, self.how, self.when, self.steps = Path(trigger), how, when, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps >= self.when and self.trigger.exists():
            obs, reward = self.broken(obs, reward)
        return obs, reward, terminated, truncated, info

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        if self.how == "reset raises" and self.steps >= self.when and self.trigger.exists():
            raise RuntimeError("the gearbox broke")
        return super().reset(**options)

    def broken(self, obs: Any, reward: Any) -> tuple[Any, Any]:
        match self.how:
            case "raises":
                raise RuntimeError("the motor broke")
            case "leaves":
                os._exit(0)
            case "hangs":
                self.trigger.with_suffix(".hung").touch()
                time.sleep(1000)
            case "nan obs":
                return np.full(4, np.nan, np.float32), reward
            case "nan reward":
                return obs, float("nan")
            case "huge reward":
                return obs, 3e38
        return obs, reward


class Flickering(CartPoleEnv):
    """Loses its sensor for one step in about a thousand: seeds decide which."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.np_random.random() < 1e-3:
            obs = np.full(4, np.nan, np.float32)
        return obs, reward, terminated, truncated, info


for _name, _kind in {"Breakable-v0": Breakable, "Flickering-v0": Flickering}.items():
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=_kind, max_episode_steps=100)
