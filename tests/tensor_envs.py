"""Tensor environments as users write them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete


class Line:
    """Walk along a line to its end: position x, one step left or right."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: gymnasium.Space[Any] = Discrete(2)
    max_episode_steps: int | None = 20
    reward_threshold = 1.5
    draws = 1

    def __init__(self, goal: float = 1.0) -> None:
        self.goal = goal

    def start(self, u: torch.Tensor) -> torch.Tensor:
        return torch.cat((u - 0.5, torch.zeros_like(u)))  # [2, n]: position, time

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        place, time = columns.unbind()
        place = place + (action * 2 - 1) * 0.1
        over = place >= self.goal
        return torch.stack((place, time + 1.0)), over.float() * 2 - 0.01, over

    def observe(self, columns: torch.Tensor) -> torch.Tensor:
        return columns.T.to(torch.float32, memory_format=torch.contiguous_format)


class Push(Line):
    """The same, pushed by any number; it has no time limit of its own."""

    action_space = Box(-2.0, 2.0, (1,), np.float32)
    max_episode_steps = None

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        place = columns[0] + action[:, 0].double() * 0.05
        over = place >= self.goal
        return torch.stack((place, columns[1] + 1.0)), place, over


class Breaking(Line):
    """Now and then it gives no number."""

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        columns, reward, over = super().advance(columns, action)
        return columns, reward.masked_fill((columns[1] == 7) & ((columns[0] * 10) % 1.0 > 0.7), torch.nan), over


class Broken(Line):
    def observe(self, columns: torch.Tensor) -> torch.Tensor:
        return super().observe(columns) * torch.nan


class Square(Line):
    observation_space = Box(-np.inf, np.inf, (2, 2), np.float32)


class Blind(Line):
    @property
    def draws(self) -> int:  # type: ignore[override]
        raise AttributeError
