"""Environments that draw themselves well or badly; importing this registers `DrawnPicture-v0` and the others."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

LEFT, RIGHT = 3, 4  # the actions: not from 0


class Drawn(gymnasium.Env[Any, Any]):
    """Ten steps of 1 point each; the picture's first pixel counts the steps. Odd height and width."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ("rgb_array",), "render_fps": 50}
    shape: tuple[int, ...] = (33, 45, 3)
    dtype: Any = np.uint8

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2, start=LEFT)
        self.render_mode = render_mode
        self.picture = np.zeros(self.shape, self.dtype)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(2, np.float32), self.info()

    def step(self, action: int) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert type(action) is int
        assert action in (LEFT, RIGHT)
        self.steps += 1
        return self.np_random.random(2, np.float32), 1.0, self.steps == 10, False, self.info()

    def info(self) -> dict[str, Any]:
        return {}

    def render(self) -> Any:
        self.picture.flat[0] = self.steps  # the same array each time
        return self.picture


class Masked(Drawn):
    """Allows one action a step, in turns, and breaks on the other."""

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.steps % 2 == 0, self.steps % 2 == 1])}

    def step(self, action: int) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert action == (LEFT if self.steps % 2 == 0 else RIGHT)
        return super().step(action)


class Endless(Drawn):
    """Never ends."""

    def step(self, action: int) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Breaks(Drawn):
    """Raises in its third step."""

    def step(self, action: int) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.steps == 2:
            raise RuntimeError("the motor broke")
        return super().step(action)


class Grey(Drawn):
    """Draws without colours."""

    shape = (33, 45)


class Floats(Drawn):
    """Draws in numbers from 0 to 1."""

    dtype = np.float64


class Nothing(Drawn):
    """Draws nothing."""

    def render(self) -> Any:
        return None


class Unhurried(Drawn):
    """Names no frame rate."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}


class Invisible(Drawn):
    """Cannot be drawn."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}


for _env in (Drawn, Masked, Endless, Breaks, Grey, Floats, Nothing, Unhurried, Invisible):
    if f"{_env.__name__}Picture-v0" not in gymnasium.registry:
        gymnasium.register(f"{_env.__name__}Picture-v0", entry_point=f"{__name__}:{_env.__name__}")
