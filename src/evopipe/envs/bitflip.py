"""An environment with goals: flip bits until they are those of the goal, `evopipe.envs.bitflip:BitFlip-v0`.

It is the example of the paper on hindsight experience replay (Andrychowicz et al., 2017, section 3.1): only the goal is
rewarded, and with many bits chance hardly ever finds it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class BitFlip(gymnasium.Env[Any, Any]):
    """n bits, of which each action flips one; an episode begins at random bits, with other random bits as its goal.

    A step costs 1, unless it reaches the goal: that costs nothing and ends the episode. After n steps the episode is
    truncated. Whoever flips the wrong bits alone, each once, has a return of about 1 − n / 2; whoever misses the goal
    has −n.

    Observations follow the convention of environments with goals: `observation` and `achieved_goal` are the bits,
    `desired_goal` those of the goal.

    Args:
        bits: n, the number of bits.
    """

    def __init__(self, bits: int = 12) -> None:
        if not isinstance(bits, int) or not 1 <= bits <= 1024:
            raise TypeError(f"unexpected keyword argument bits={bits!r}: it must be a whole number from 1 to 1024")
        parts = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict({part: spaces.MultiBinary(bits) for part in parts})
        self.action_space = spaces.Discrete(bits)
        self.bits = bits

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.np_random.integers(2, size=self.bits, dtype=np.int8)
        differs = np.zeros(self.bits, np.int8)
        while not differs.any():
            differs = self.np_random.integers(2, size=self.bits, dtype=np.int8)
        self._goal, self._steps = self._state ^ differs, 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._state[action] ^= 1
        self._steps += 1
        there = bool((self._state == self._goal).all())
        return self._seen(), float(there) - 1.0, there, not there and self._steps >= self.bits, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return the reward of reaching goals where others are desired: `[…]` for goals `[…, n]`, 0 or −1."""
        return (achieved_goal == desired_goal).all(axis=-1).astype(np.float32) - 1.0

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        """Return whether reaching one goal `[n]` where another one is desired ends the episode."""
        return bool((achieved_goal == desired_goal).all())

    def _seen(self) -> dict[str, Any]:
        return {
            "observation": self._state.copy(),
            "achieved_goal": self._state.copy(),
            "desired_goal": self._goal.copy(),
        }


gymnasium.register("BitFlip-v0", entry_point=f"{__name__}:BitFlip")
