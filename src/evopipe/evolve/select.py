"""Selection: who becomes a parent. Pure functions of fitness and a random generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from evopipe.schema.blocks import TournamentConfig


@dataclass(frozen=True, slots=True)
class Selection:
    """The row of the parent of each slot's child, and of the fittest member; None where no member is healthy."""

    parents: tuple[int, ...]
    elite: int | None


def windowed(fitness: Sequence[float], window: int) -> float:
    """Return the mean of the last `window` evaluations; −∞ where there is none or one is not finite."""
    last = fitness[-window:]
    mean = sum(last) / len(last) if last else -float("inf")
    return mean if abs(mean) != float("inf") and mean == mean else -float("inf")


def draws(cfg: TournamentConfig, members: int, rng: np.random.Generator) -> np.ndarray:
    """Return who meets in each slot's tournament, `[P, size]`, in ascending order; nobody where there are none."""
    import numpy as np

    return np.sort(rng.integers(0, members, (members, cfg.size)), axis=1)


def tournament(cfg: TournamentConfig, fitness: np.ndarray, rng: np.random.Generator) -> Selection:
    """Choose a parent for every slot by fitness `[P]`; what is not finite marks members that must not be parents. A
    tournament of only such members falls to the fittest of all; if there is none, all stay. Ties go to the lower
    row."""
    import numpy as np

    score = np.where(np.isfinite(fitness), fitness, -np.inf)
    if not np.isfinite(score.max()):
        return Selection(tuple(range(len(score))), None)
    elite = int(score.argmax())
    if cfg.size == 0:  # no tournament: everyone goes on but those who must not
        own = [slot if np.isfinite(each) else elite for slot, each in enumerate(score)]
        return Selection((elite, *own[1:]) if cfg.elitism else tuple(own), elite)
    drawn = draws(cfg, len(score), rng)
    winners = drawn[np.arange(len(score)), score[drawn].argmax(axis=1)]
    winners = np.where(np.isfinite(score[winners]), winners, elite)
    if cfg.elitism:
        winners[0] = elite
    return Selection(tuple(int(w) for w in winners), elite)
