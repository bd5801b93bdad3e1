"""Meet in pixels: two agents on a board of 7 × 7 fields, which they see as images, and which must come together."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

SIDE, STEPS = 7, 40
MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])
"""Stay, up, down, left, right."""


class Meet(ParallelEnv[str, Any, Any]):
    """When both stand on one field, each is paid 1, and both go on from random fields. It is cut after 40 steps.

    Observation: bytes `[7, 7, 2]`, 255 where the agent is, and where the other is. Two neighbours that go towards each
    other change places and do not meet: one must wait. Together they are paid 17 where one always waits, 31 where both
    go and know who waits, 1 where both go at random.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "meet", "render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, render_mode: str | None = None) -> None:
        self.possible_agents, self.agents = ["agent_0", "agent_1"], []
        self.render_mode = render_mode
        self.random = np.random.default_rng()
        self.seen, self.done = spaces.Box(0, 255, (SIDE, SIDE, 2), np.uint8), spaces.Discrete(len(MOVES))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.seen

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.done

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.time = [*self.possible_agents], 0
        self._part()
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        agents = self.agents
        self.places = np.clip(self.places + MOVES[[actions[agent] for agent in agents]], 0, SIDE - 1)
        met = bool((self.places[0] == self.places[1]).all())
        if met:
            self._part()
        self.time += 1
        seen, infos = self._seen(), {agent: {} for agent in agents}
        if self.time == STEPS:
            self.agents = []
        over = dict.fromkeys(agents, self.time == STEPS)
        return seen, dict.fromkeys(agents, float(met)), dict.fromkeys(agents, False), over, infos

    def render(self) -> Any:
        """Draw the board: an image [height, width, 3] of uint8, an agent red, the other green."""
        board = np.concatenate((self._image(0), np.zeros((SIDE, SIDE, 1), np.uint8)), axis=2)
        return board.repeat(24, axis=0).repeat(24, axis=1)

    def _part(self) -> None:
        """Put both on random fields, never the same."""
        fields = self.random.choice(SIDE * SIDE, 2, replace=False)
        self.places = np.stack(np.divmod(fields, SIDE), axis=1)

    def _seen(self) -> dict[str, Any]:
        return {agent: self._image(i) for i, agent in enumerate(self.possible_agents)}

    def _image(self, agent: int) -> Any:
        image = np.zeros((SIDE, SIDE, 2), np.uint8)
        for channel, place in enumerate((agent, 1 - agent)):
            image[self.places[place][0], self.places[place][1], channel] = 255
        return image
