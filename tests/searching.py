"""Searches without environments, for tests of strategies: what trials score is made up here, nothing else is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from harness.simulated import Course, Search

from evopipe.searchers.contract import About, Bound

__all__ = ["SPACE", "Course", "about", "resumed", "search", "who_lived"]

SPACE = {
    "batch_size": Bound(8, 512, log=True, whole=True),
    "gamma": Bound(0.9, 0.999),
    "lr": Bound(1e-4, 1e-2, log=True),
}
HYPER = {"batch_size": 64, "gamma": 0.99, "lr": 1e-3}


def about(size: int, life: int = 900, generation: int = 100, **more: Any) -> About:
    """What a searcher knows, of lives of nine generations."""
    return About(size, life, generation, **{"space": SPACE, "budget": 10**9, **more})


def search(
    strategy: str, scores: Callable[[int], Sequence[float]], known: About, config: Mapping[str, Any] | None = None,
    child: Any = None,
) -> Search:  # fmt: skip
    """A search in which the trial of a number, from 0 on, scores `scores(number)`, the last of it for ever."""
    return Search(strategy, config or {}, known, lambda number: Course(scores(number), values=HYPER), child)


def who_lived(run: Search, generations: int) -> list[tuple[int, int]]:
    """Take a search so many generations further; return the slot and the steps so far of each who lived, in turn."""
    found = []
    for _ in range(generations):
        slots = list(run.plan.active)
        run.generation()
        found += [(scored.slot, scored.steps) for scored in run.records[-1].members]
        assert sorted(slots) == [slot for slot, _ in found[-len(slots) :]]
    return found


def resumed(run: Search, again: Search) -> Search:
    """Return `again` as it is after a restart: it has the history of `run`, and what its searcher wrote as JSON."""
    again.searcher.restore(json.loads(json.dumps(run.searcher.state())))
    for name in ("courses", "slices", "members", "records"):
        setattr(again, name, list(getattr(run, name)))
    for name in ("number", "trials", "next_id", "training", "evaluating", "plan"):
        setattr(again, name, getattr(run, name))
    return again
