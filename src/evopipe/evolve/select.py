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
    """Parents by slot.

    Attributes:
        parents: row of the parent of each slot's child.
        elite: row of the fittest member, or None where no member is healthy.
    """

    parents: tuple[int, ...]
    elite: int | None


def windowed(fitness: Sequence[float], window: int) -> float:
    """Return the mean of the last `window` evaluations; −∞ where there is none or one is not finite."""
    last = fitness[-window:]
    mean = sum(last) / len(last) if last else -float("inf")
    return mean if abs(mean) != float("inf") and mean == mean else -float("inf")


def tournament(cfg: TournamentConfig, fitness: np.ndarray, rng: np.random.Generator) -> Selection:
    """Choose a parent for every slot.

    Args:
        cfg: tournament size and elitism.
        fitness: `[P]`; −∞ marks a member that must not be a parent. NaN and ∞ count as −∞.
        rng: the generator of this generation's selection.

    Returns:
        Parents. A member of fitness −∞ is parent only where no other is left in the whole population: a tournament of
        only such members falls to the fittest of all. Ties go to the lower row.
    """
    import numpy as np

    score = np.where(np.isfinite(fitness), fitness, -np.inf)
    if not np.isfinite(score.max()):
        return Selection(tuple(range(len(score))), None)
    elite = int(score.argmax())
    drawn = np.sort(rng.integers(0, len(score), (len(score), cfg.size)), axis=1)
    winners = drawn[np.arange(len(score)), score[drawn].argmax(axis=1)]
    winners = np.where(np.isfinite(score[winners]), winners, elite)
    if cfg.elitism:
        winners[0] = elite
    return Selection(tuple(int(w) for w in winners), elite)
