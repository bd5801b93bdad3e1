"""Your environment: catch the balls. Change it, or write your own in its place.

`evopipe env check my_env:Catch-v0` tries it; `env.id` in params.yaml names it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

COLUMNS, ROWS = 9, 10
LEFT, STAY, RIGHT = range(3)


class Catch(gymnasium.Env[Any, Any]):
    """A game in which a ball falls, and a paddle of one cell moves below it.

    A catch gives a reward of 1, and the next ball begins to fall. A miss ends the episode. The observation is the
    ball's column, the ball's row and the paddle's column, each scaled to [-1, 1]. The actions are left, stay and right.
    """

    # `render_modes` and `render` are for watching: training does not need them.
    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)  # seeds self.np_random: draw from it and from nothing else, and runs can be repeated
        self.paddle = COLUMNS // 2
        self._drop()
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + action - STAY, 0, COLUMNS - 1))
        self.row += 1
        landed = self.row == ROWS - 1
        caught = landed and self.column == self.paddle
        if caught:
            self._drop()
        # (observation, reward, terminated, truncated, info). A time limit is no termination: it stands below.
        return self._observation(), float(caught), landed and not caught, False, {}

    def render(self) -> Any:
        """Return a picture of the game, `[height, width, 3]` uint8."""
        image = np.full((ROWS, COLUMNS, 3), 245, np.uint8)
        image[self.row, self.column] = (220, 60, 40)
        image[ROWS - 1, self.paddle] = (30, 80, 200)
        return image.repeat(24, axis=0).repeat(24, axis=1)

    def _drop(self) -> None:
        self.column, self.row = int(self.np_random.integers(COLUMNS)), 0

    def _observation(self) -> Any:
        place = (self.column / (COLUMNS - 1), self.row / (ROWS - 1), self.paddle / (COLUMNS - 1))
        return np.array(place, np.float32) * 2.0 - 1.0


# 20 balls at most. Training ends early where the mean return reaches the threshold (`train.target: auto`).
gymnasium.register(
    "Catch-v0", entry_point=f"{__name__}:Catch", max_episode_steps=20 * (ROWS - 1), reward_threshold=19.0
)
