"""Environments with goals that behave well, or badly on purpose; importing this module registers them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NEAR = 0.25


class Reach(gymnasium.Env[Any, Any]):
    """A point moves by continuous actions to a place; what is far from it costs 1 in each of eight steps.

    `bad` spoils one thing: `shape`, rewards of one pair of goals alone; `info`, rewards that need it; `unlike`, rewards
    that step() does not give; `once`, such a reward in the fifth step alone; `none`, no function of rewards; `space`,
    goals of another shape; `ends`, an end that is no bool; `image`, a goal in pixels; `late`, rewards that fail after
    the first three calls; `words`, rewards that are texts; `several`, an end that is an array; `number`, one that is a
    number; `onesided`, rewards that say which of both goals is which.
    """

    def __init__(self, bad: str = "", shown: int = 0) -> None:
        goal: Any = spaces.Box(-2.0, 2.0, (2,), np.float64)
        if bad == "image":
            goal = spaces.Box(0, 255, (3, 8, 8), np.uint8)
        desired = spaces.Box(-2.0, 2.0, (3,), np.float64) if bad == "space" else goal
        parts = {"achieved_goal": goal, "desired_goal": desired, "observation": spaces.Box(-2.0, 2.0, (3,), np.float64)}
        if shown:
            parts["picture"] = spaces.Box(0, 255, (1, shown, shown), np.uint8)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.bad, self.shown, self.calls = bad, shown, 0
        if bad != "none":
            self.compute_reward = self._compute_reward
        if bad == "ends":
            self.compute_terminated = lambda achieved, desired, info: np.array([1, 2])
        if bad in ("several", "number"):
            self.compute_terminated = lambda achieved, desired, info: np.array([False]) if bad == "several" else 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1.0, 1.0, 2), self.np_random.uniform(-1.0, 1.0, 2)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = np.clip(self.at + 0.4 * np.asarray(action, np.float64), -2.0, 2.0)
        self.steps += 1
        reward = float(np.linalg.norm(self.at - self.goal) <= NEAR) - 1.0
        if self.bad == "onesided":
            reward = float(self.at[0] - self.goal[0])
        wrong = self.bad == "unlike" or (self.bad == "once" and self.steps == 5)
        return self._seen(), reward + (0.5 if wrong else 0.0), False, self.steps == 8, {}

    def _compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        self.calls += 1
        if self.bad == "info":
            return info["reward"]
        if self.bad == "late" and self.calls > 3:
            raise ValueError("no more")
        if self.bad == "shape":
            return float(np.linalg.norm(achieved - desired) <= NEAR) - 1.0
        if self.bad == "words":
            return np.array(["much"] * len(achieved))
        if self.bad == "onesided":
            return achieved[:, 0] - desired[:, 0]
        return (np.linalg.norm(achieved - desired, axis=-1) <= NEAR).astype(np.float64) - 1.0

    def _seen(self) -> dict[str, Any]:
        if self.bad == "image":
            pixels = np.zeros((3, 8, 8), np.uint8)
            return {"achieved_goal": pixels, "desired_goal": pixels, "observation": np.zeros(3)}
        desired = np.array([*self.goal, 0.0]) if self.bad == "space" else self.goal.copy()
        seen = {
            "achieved_goal": self.at.copy(),
            "desired_goal": desired,
            "observation": np.array([*self.at, self.steps / 8]),
        }
        if self.shown:
            seen["picture"] = np.full((1, self.shown, self.shown), int(50 * (self.at[0] + 2)), np.uint8)
        return seen


class Rooms(gymnasium.Env[Any, Any]):
    """A walk along five rooms to one of them, numbered from 3, with an end there; goals are of a Discrete space."""

    def __init__(self) -> None:
        room = spaces.Discrete(5, start=3)
        self.observation_space = spaces.Dict({"observation": room, "achieved_goal": room, "desired_goal": room})
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.room, self.goal, self.steps = 5, int(self.np_random.choice([3, 7])), 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.room = int(np.clip(self.room + 2 * action - 1, 3, 7))
        self.steps += 1
        there = self.room == self.goal
        return self._seen(), float(there), there, self.steps == 6, {}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return (achieved == desired).astype(float)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        return bool(achieved == desired)

    def _seen(self) -> dict[str, int]:
        return {"observation": self.room, "achieved_goal": self.room, "desired_goal": self.goal}


def halved(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """A wrapper that changes what step() gives, but not `compute_reward`."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: float(reward) / 2)


gymnasium.register("Reach-v0", entry_point=f"{__name__}:Reach")
gymnasium.register("Rooms-v0", entry_point=f"{__name__}:Rooms")
