"""An environment backend, and the environment that it has: `env.backend: slope`, `env.id: own_package.slope:Slope`.

A tensor environment needs no backend of its own: `env.backend: torch` takes the same id. This one counts its steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from evopipe.envs.tensors import TensorPool, TensorStep
from evopipe.schema.env import EnvConfig

TEAMS = False


class Slope:
    """Reach the top: position x, one step up or down; a step up may slip. All rows are stepped at once."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Discrete(2)
    max_episode_steps = 50
    draws = 1  # numbers in [0, 1) that an episode begins with

    def __init__(self, top: float = 1.0) -> None:
        self.top = top

    def start(self, u: torch.Tensor) -> torch.Tensor:
        return u - 0.5  # [draws, n] → the state's columns [1, n], float64

    def advance(self, columns: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = columns + (action * 2 - 1) * 0.1
        over = x[0] >= self.top
        return x, over.float() - 0.01, over  # columns, rewards [n], terminated [n]

    def observe(self, columns: torch.Tensor) -> torch.Tensor:
        return columns.T.float()  # [n, O]


class _Counted(TensorPool):
    steps = 0

    def step(self, actions: torch.Tensor, rows: torch.Tensor | None = None) -> TensorStep:
        self.steps += 1
        return super().step(actions, rows)


def tensors(cfg: EnvConfig, rows: int, device: torch.device) -> Any:
    """Make so many rows of an environment on a device."""
    return _Counted(cfg, rows, device)
