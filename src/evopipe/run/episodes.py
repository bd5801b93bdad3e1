"""The results of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


class Stopped(Exception):
    """A signal interrupted an evaluation, which has changed nothing."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes of an evaluation: their returns and lengths.

    Attributes:
        returns: `[P, n]`, undiscounted; not finite if the environment broke.
        lengths: `[P, n]`, steps of each episode.
        steps: environment steps in all.
        more: other results by name, `[P, …]`; for a team, `agents` holds each agent's own return `[P, n, K]`.
        cut: how many episodes `env.step_limit` ended, which applies if the environment names no time limit.
    """

    returns: np.ndarray  # [P, n]
    lengths: np.ndarray  # [P, n]
    steps: int
    more: Mapping[str, np.ndarray] = field(default_factory=dict)  # [P, …] each
    cut: int = 0
