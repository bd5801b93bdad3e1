"""The report of an evaluation, whatever members were scored on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evopipe import rng
from evopipe.ops.statistics import summary
from evopipe.params.load import AnyParams
from evopipe.rng import Purpose


@dataclass(frozen=True)
class Told:
    """The report of the stage `evaluate`, for environments and for language models.

    Attributes:
        evaluation: the content of `evaluation.json`, with the scores of the elite (the best member).
        members: the scores of every other member, by name.
        episodes: (name, seeds, returns, lengths) of every member's episodes.
        over: a text that says what the elite was scored on.
        shown: sample completions; None if no text was written.
    """

    evaluation: Mapping[str, Any]
    members: Mapping[str, Any]
    episodes: Sequence[tuple[str, np.ndarray, np.ndarray, np.ndarray]]
    over: str
    shown: Sequence[Mapping[str, Any]] | None = None


def names_of(members: int) -> list[str]:
    """Return the names of `members` trained members in the reports: `member_0`, `member_1` and so on; the last is
    `elite`."""
    return [*(f"member_{i}" for i in range(members - 1)), "elite"]


def score_of(params: AnyParams, place: int, returns: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    """Return summary statistics of one member's episodes, from their returns `[n]` and lengths `[n]`.

    The statistics include a bootstrap interval. Its number of resamples is `evaluate.bootstrap` in `params`. Its random
    draws follow from the run's seed and from `place`, the member's index.
    """
    chance = rng.host(rng.run_key(params.seed), Purpose.BOOTSTRAP, place)
    return summary(returns, lengths, params.evaluate.bootstrap, chance)
