"""Self-play on the report's page: whom each generation trained against, and how it did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from evopipe.report import words
from evopipe.report.draw import Plot
from evopipe.report.lives import Key
from evopipe.searchers.history import Opponent, Record

if TYPE_CHECKING:
    from evopipe.report.read import FinishedRun

_DESK = 600  # pixels; what is wider is for a desk, else for a phone
_RETURN = "charts/episodic_return"
_SHORT = 8  # digits of a hash that tell opponents apart for a reader


@dataclass(frozen=True)
class Matches:
    """How one generation trained by self-play.

    Attributes:
        generation: the number of the generation.
        opponents: the league that it trained against, the oldest first.
        training: the mean return of its training episodes, against the league and the opponent of `env.kwargs`; NaN if
            none ended.
        fitness: the mean fitness of its members, against the opponent of `env.kwargs` alone; NaN if all diverged.
    """

    generation: int
    opponents: tuple[Opponent, ...]
    training: float
    fitness: float

    @property
    def told(self) -> str:
        """The opponents as text: the generation of each, and the first digits of its file's hash."""
        each = (f"{one.generation} ({one.arrays[:_SHORT]})" for one in self.opponents)
        return ", ".join(each) or "none: only the opponent of env.kwargs"


def met(lineage: Sequence[Record], signals: Mapping[Key, Mapping[str, float]]) -> tuple[Matches, ...]:
    """Return how each generation trained by self-play; empty for a run without.

    `signals` has the means of the training signals by name, for each (generation, slot).
    """
    found = []
    for record in lineage:
        if record.opponents is not None:
            keys = [(record.generation, member.slot) for member in record.members if member.healthy]
            returns = [signals[key][_RETURN] for key in keys if _RETURN in signals.get(key, {})]
            scores = [member.fitness for member in record.members if member.healthy]
            found.append(Matches(record.generation, record.opponents, _mean(returns), _mean(scores)))
    return tuple(found)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def opponents(run: FinishedRun, width: int, label: Markup) -> Markup:
    """Draw two lines over generations: the mean return in training, against all opponents, and the mean fitness."""
    wide = width > _DESK
    plot = Plot(f"opponents.{width}", width, 270 if wide else 230, (52, 16, 28, 44), "mean return")
    for colour, values in (("member", [each.fitness for each in run.met]), ("elite", [m.training for m in run.met])):
        points = list(zip((float(each.generation) for each in run.met), values, strict=True))
        plot.line(points, colour, 2.2, marker="o", markersize=5 if len(points) <= 30 else 0)
    first, last = run.met[0].generation, run.met[-1].generation
    plot.axes.set(xlim=(first - 0.4, last + 0.4), xlabel="generation")
    plot.axes.margins(y=0.08)
    plot.axes.xaxis.grid(False)
    plot.ticks("x", words.value, 8 if wide else 4, whole=True)
    plot.ticks("y", words.value, 5)
    return plot.svg(label)
