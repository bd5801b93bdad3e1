"""Catch in pixels: an image of 10 × 10 in which a ball falls and a paddle moves below it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE, BALLS = 10, 10
LEFT, STAY, RIGHT = range(3)


class Catch(gymnasium.Env[Any, Any]):
    """A catch gives 1 and brings the next ball, from a random column; a miss, or the tenth catch, ends the episode.

    Observation: bytes `[10, 10, 1]`, 255 where the ball and the paddle are. Every ball can be caught.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.paddle, self.caught = SIDE // 2, 0
        self._drop()
        return self._image(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + action - STAY, 0, SIDE - 1))
        self.row += 1
        landed = self.row == SIDE - 1
        caught = landed and self.column == self.paddle
        image = self._image()
        self.caught += caught
        if caught and self.caught < BALLS:
            self._drop()
            image = self._image()
        return image, float(caught), (landed and not caught) or self.caught == BALLS, False, {}

    def render(self) -> Any:
        """Draw the state: an image [height, width, 3] of uint8."""
        return np.repeat(np.repeat(np.repeat(self._image(), 3, axis=2), 20, axis=0), 20, axis=1)

    def _drop(self) -> None:
        self.column, self.row = int(self.np_random.integers(SIDE)), 0

    def _image(self) -> Any:
        image = np.zeros((SIDE, SIDE, 1), np.uint8)
        image[self.row, self.column] = image[SIDE - 1, self.paddle] = 255
        return image


gymnasium.register("Catch-v0", Catch, max_episode_steps=200, reward_threshold=9.5)
