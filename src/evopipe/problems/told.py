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
    """The report that the stage `evaluate` writes.

    Attributes:
        evaluation: the content of `evaluation.json`, with the elite's scores.
        members: the scores of every other member.
        episodes: (name, seeds, returns, lengths) of every member's episodes.
        over: the name of what the elite was scored on.
        shown: sample texts; None if no text was written.
    """

    evaluation: Mapping[str, Any]
    members: Mapping[str, Any]
    episodes: Sequence[tuple[str, np.ndarray, np.ndarray, np.ndarray]]
    over: str
    shown: Sequence[Mapping[str, Any]] | None = None


def names_of(members: int) -> list[str]:
    """Return the names of this many trained members; the last is the elite."""
    return [*(f"member_{i}" for i in range(members - 1)), "elite"]


def score_of(params: AnyParams, place: int, returns: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    """Return the scores of episodes, `[n]` each. Another `place` has other random draws for the bootstrap."""
    chance = rng.host(rng.run_key(params.seed), Purpose.BOOTSTRAP, place)
    return summary(returns, lengths, params.evaluate.bootstrap, chance)
