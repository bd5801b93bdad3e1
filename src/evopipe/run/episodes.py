"""The results of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


class Stopped(Exception):
    """The exception that ends an evaluation when a signal asks the run to stop; the run's state is as before the
    evaluation."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """The results of an evaluation: the returns and lengths of n episodes of each of P members.

    Attributes:
        returns: `[P, n]`, undiscounted; not finite if the environment broke.
        lengths: `[P, n]`, the steps of each episode.
        steps: the environment steps of all episodes together.
        more: other results by name, `[P, …]`; for a team, `agents` has the return of each of the K agents, `[P, n, K]`.
        cut: the number of episodes that `env.step_limit` ended, because the environment has no time limit of its own.
    """

    returns: np.ndarray  # [P, n]
    lengths: np.ndarray  # [P, n]
    steps: int
    more: Mapping[str, np.ndarray] = field(default_factory=dict)  # [P, …] each
    cut: int = 0
