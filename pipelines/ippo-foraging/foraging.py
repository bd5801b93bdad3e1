"""Foraging by levels: the game of the package lbforaging as a team of agents, each with its observation and reward."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from lbforaging.foraging import ForagingEnv
from pettingzoo import ParallelEnv

FIELD, FOOD = 24, (190, 30, 45)
COLOURS = ((0, 110, 190), (0, 140, 90), (150, 80, 170), (200, 120, 0))


class Foraging(ParallelEnv[str, Any, Any]):
    """Agents of levels 1 and 2 pick up food on a square board: together with the level that it has, beside it, at once.

    The levels, the places and the food are drawn by the seed. All rewards of an episode sum up to 1 at most: a food
    pays those that load it, by their levels. An episode ends when no food is left, and is cut after `steps`.

    Observation: `[3 (foods + agents)]`, row, column and level of every food, of the agent itself, and of the others;
    -1, -1, 0 for what is gone or unseen. Actions: stay, up, down, left, right, load; what is impossible is to stay.

    Args:
        side: fields along each side of the board.
        agents, foods: how many there are.
        cooperative: whether each food's level is that of all agents together (of three, where there are more).
        sight: fields that an agent sees in each direction; None: the board.
        steps: steps after which an episode is cut.
        render_mode: `rgb_array` or None.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "foraging", "render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(
        self,
        side: int = 5,
        agents: int = 2,
        foods: int = 1,
        cooperative: bool = True,
        sight: int | None = None,
        steps: int = 50,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents, self.agents = [f"agent_{i}" for i in range(agents)], []
        self.render_mode = render_mode
        self.game = ForagingEnv(
            players=agents,
            min_player_level=1,
            max_player_level=2,
            min_food_level=1,
            max_food_level=None,
            field_size=(side, side),
            max_num_food=foods,
            sight=side if sight is None else sight,
            max_episode_steps=steps,
            force_coop=cooperative,
        )

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.game.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.game.action_space[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seen, _ = self.game.reset(seed=seed)
        self.agents = [*self.possible_agents]
        return self._each(seen), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        seen, rewards, over, _, _ = self.game.step([int(actions[agent]) for agent in self.possible_agents])
        eaten = not self.game.field.any()  # the game itself calls its limit of steps an end too
        if over:
            self.agents = []
        return (
            self._each(seen),
            self._each(rewards),
            self._each([eaten] * len(seen)),
            self._each([over and not eaten] * len(seen)),
            {agent: {} for agent in self.possible_agents},
        )

    def render(self) -> Any:
        """Draw the board: an image [height, width, 3] of uint8, food red, agents in other colours; light is level 1."""
        board = np.full((*self.game.field.shape, 3), 245, np.uint8)
        for field in np.argwhere(self.game.field):
            board[tuple(field)] = FOOD
        for i, player in enumerate(self.game.players):
            colour = np.array(COLOURS[i % len(COLOURS)])
            board[player.position] = colour if player.level > 1 else (colour + 255) // 2
        return board.repeat(FIELD, axis=0).repeat(FIELD, axis=1)

    def _each(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))
