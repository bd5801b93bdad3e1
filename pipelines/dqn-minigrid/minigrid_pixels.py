"""MiniGrid in pixels: a task of the package `minigrid`, seen as the agent's own view drawn in colours.

What MiniGrid shows by itself has the shape of an image and is none: its bytes number kinds and colours of objects, and
that a door is a 4 and a key a 5 does not make them alike. Drawn, objects differ as they look. The direction and the
mission's text that come with the view are left out: the missions of DoorKey, LavaGap and Empty never change.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import minigrid  # noqa: F401  # it registers the tasks
import numpy as np
from gymnasium import spaces

LARGEST = 20_000


class Pixels(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Draw the 7 × 7 cells that the agent sees: bytes `[7 · pixels, 7 · pixels, 3]`.

    What `minigrid.wrappers.RGBImgPartialObsWrapper` shows, but a view is drawn once and then remembered: to draw it
    takes some three times as long as a step.
    """

    drawn: ClassVar[dict[tuple[int, bytes], Any]] = {}

    def __init__(self, env: gymnasium.Env[Any, Any], pixels: int) -> None:
        super().__init__(env)
        self.pixels, self.draw = pixels, env.get_wrapper_attr("get_frame")
        side = env.get_wrapper_attr("agent_view_size") * pixels
        self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)

    def observation(self, observation: Any) -> Any:
        key = self.pixels, observation["image"].tobytes()
        if key not in self.drawn:
            if len(self.drawn) >= LARGEST:
                self.drawn.clear()
            self.drawn[key] = self.draw(tile_size=self.pixels, agent_pov=True)
        return self.drawn[key].copy()


def make(task: str, pixels: int = 4, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Construct a task by its Gymnasium id, with so many pixels along the side of a cell."""
    spec = gymnasium.registry.get(task)
    if spec is None or not str(spec.entry_point).startswith("minigrid."):
        raise ValueError(f"{task!r} is no task of MiniGrid; gymnasium.pprint_registry() lists them")
    if pixels < 1:
        raise ValueError(f"pixels is {pixels}; a cell needs at least 1")
    return Pixels(gymnasium.make(task, disable_env_checker=True, render_mode=render_mode), pixels)


gymnasium.register("MiniGridPixels-v0", f"{__name__}:make")
