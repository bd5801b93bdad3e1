"""What an evaluation gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


class Stopped(Exception):
    """A signal came in the middle of an evaluation, which leaves nothing behind."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """What members reached: undiscounted `returns`, not finite where the environment broke, `lengths`, and `steps` in
    all; and `more`, by name: of teams each `agents`' own return `[P, n, K]`; and how many episodes were `cut` by
    `env.step_limit`, for the environment names no time limit."""

    returns: np.ndarray  # [P, n]
    lengths: np.ndarray  # [P, n]
    steps: int
    more: Mapping[str, np.ndarray] = field(default_factory=dict)  # [P, …] each
    cut: int = 0
