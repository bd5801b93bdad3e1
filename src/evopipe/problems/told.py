"""What an evaluation tells of members, whatever they were scored on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evopipe import rng
from evopipe.ops.statistics import summary
from evopipe.rng import Purpose
from evopipe.schema.params import AnyParams


@dataclass(frozen=True)
class Told:
    """What the stage `evaluate` writes and says: the content of `evaluation.json`, the elite's scores in it; every
    other member's; of each name the seeds, returns and lengths of its episodes; over what the elite was scored; and
    texts to look at, None where nothing was written."""

    evaluation: Mapping[str, Any]
    members: Mapping[str, Any]
    episodes: Sequence[tuple[str, np.ndarray, np.ndarray, np.ndarray]]
    over: str
    shown: Sequence[Mapping[str, Any]] | None = None


def names_of(members: int) -> list[str]:
    """Return what so many trained members are called: the elite stands behind them."""
    return [*(f"member_{i}" for i in range(members - 1)), "elite"]


def score_of(params: AnyParams, place: int, returns: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    """Return the scores of episodes, `[n]` each; those of another `place` have other draws of the bootstrap."""
    chance = rng.host(rng.run_key(params.seed), Purpose.BOOTSTRAP, place)
    return summary(returns, lengths, params.evaluate.bootstrap, chance)
