"""Growth on demand: one member lives at a time, and another is begun when those that are there promise too little.

A decision is made after every slice. By turns the next slice goes

- to the trial that is projected to reach the target first; but if that is longer than all that was lived so far, to one
  more: a new draw and a child of the leader by turns;
- to the oldest trial that has not lived its full life, so that a curve that is flat for long is never starved, and the
  search takes about twice as long as serial search at most.

A projection is the gap to the target over the mean gain of the last `window` slices; whoever was scored once only is
given the benefit of the doubt. Without a target the gap is to a score above the best one by a tenth of the range of all
scores so far. Losers wait with their state, and are looked at again whenever the next slice is given.

The parts are known: a portfolio that favours who improves fastest (FIRE PBT, Dalibard & Jaderberg, 2021), and freezing
and thawing by what a curve promises (Swersky, Snoek & Adams, 2014, https://arxiv.org/abs/1406.3896).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from evopipe.schema.declare import Problem, Schema
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Living, Plan
from evopipe.searchers.propose import Proposer, perturbed

RENEWS, PAUSES, DRAWS = True, True, True
_BETTER = 0.1  # of the range of scores, by which the best one is to be beaten where there is no target


class Config(Schema):
    """Growth on demand."""

    slice: int | None = Field(
        None, ge=1, le=10**12, description="environment steps of a slice, after which is decided; null: train.evo_steps"
    )
    window: int = Field(3, ge=1, le=10**4, description="slices whose mean gain a trial is projected by")
    factor: float = Field(
        1.5,
        gt=1.0,
        le=100.0,
        description="a child's values are its parent's times or over this, by even chances, within the space",
    )


def problems(config: Config, about: About) -> Iterator[Problem]:
    """Say what does not fit the run."""
    if config.slice is not None and about.budget is not None and config.slice > about.budget:
        yield ("slice",), f"the run ends before (search.budget: {about.budget}); lower it, or raise search.budget"


class Search:
    """See the module, and `contract.Searcher`."""

    def __init__(self, config: Config, about: About) -> None:
        self.config, self.about, self.proposer = config, about, Proposer(about)
        self.active, self.slices, self.grown = 0, 0, 0  # the slot that lives, slices so far, trials after the first

    def state(self) -> dict[str, Any]:
        return {"active": self.active, "slices": self.slices, "grown": self.grown}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.active, self.slices, self.grown = state["active"], state["slices"], state["grown"]

    def plan(self, history: History, draw: Draw) -> Plan:
        """One member lives for a slice."""
        return Plan((self.active,), self.config.slice or self.about.generation)

    def step(self, history: History, draw: Draw) -> list[Fate]:
        """All keep what they are, but for the slot of one more trial."""
        self.slices += 1
        found: list[Fate] = [Keep("waits") for _ in history.members]
        self.active, found[self.active_slot] = self._next(history, draw)
        return found
