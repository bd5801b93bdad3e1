"""An environment in which every number differs from every other, so that none can stand in another's place unseen.

`env.id: handover_envs:Drift-v0`
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

LIMIT = 15  # steps until an episode is cut


class Drift(gymnasium.Env[Any, Any]):
    """A body on a line: the three actions, from `first` on, push it left, not at all, right; it pays more the nearer to
    0.5 it is, and ends where it is further than 2 from 0. Each column of an observation has a scale of its own; no
    return is a length.

    An episode that starts right of `breaks` breaks with its second step. `fuse` is how many steps are left until an
    environment raises, in this process; None for no end.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    fuse: ClassVar[int | None] = None

    def __init__(self, breaks: float = 9.0, first: int = 2) -> None:
        self.observation_space = spaces.Box(-1e4, 1e4, (3,), np.float32)
        self.action_space = spaces.Discrete(3, start=first)
        self.breaks, self.first = breaks, first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.speed = (float(self.np_random.uniform(-wide, wide)) for wide in (1.2, 0.3))
        self.steps, self.bad = 0, self.x > self.breaks
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Drift.fuse is not None:
            Drift.fuse -= 1
            if Drift.fuse < 0:
                raise RuntimeError("the fuse is blown")
        self.steps += 1
        self.speed += 0.15 * (int(action) - self.first - 1)
        self.x += self.speed
        reward = 1.75 - abs(self.x - 0.5)
        return self.seen(), float("nan") if self.bad and self.steps == 2 else reward, abs(self.x) > 2.0, False, {}

    def seen(self) -> Any:
        return np.array([self.x, 100.0 * self.speed, 3.0 + 0.01 * self.steps], np.float32)


if "Drift-v0" not in gymnasium.registry:
    gymnasium.register("Drift-v0", entry_point=Drift, max_episode_steps=LIMIT, reward_threshold=900.0)
