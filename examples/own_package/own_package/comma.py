"""A search strategy: the (1, λ) evolution strategy, `search.strategy: comma`.

After every generation all members become copies of the fittest, each with values a normal step away from its own.

Beyer & Schwefel, "Evolution strategies: a comprehensive introduction", 2002,
https://doi.org/10.1023/A:1015059928466
"""

from __future__ import annotations

import math

from pydantic import Field

from evopipe.schema.declare import Schema
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Plan, Stateless
from evopipe.searchers.propose import share_of, value_at

RENEWS, PAUSES, DRAWS = False, False, True  # it begins no new trials, all live, first values are drawn


class Config(Schema):
    """Its block in `params.yaml`, `search.comma`."""

    sigma: float = Field(0.1, gt=0.0, le=1.0, description="standard deviation of a step, as a share of each range")


class Search(Stateless):
    """Knows nothing but the history, so there is no state to keep."""

    def __init__(self, config: Config, about: About) -> None:
        self.config, self.about = config, about

    def plan(self, history: History, draw: Draw) -> Plan:
        return Plan(tuple(range(self.about.size)), self.about.generation)

    def step(self, history: History, draw: Draw) -> list[Fate] | None:
        scores, steps = history.scores(), draw()
        best = max(history.members, key=lambda member: scores[member.slot])
        if not math.isfinite(scores[best.slot]):
            return None
        children: list[Fate] = []
        for _ in history.members:
            values = {}
            for name, bound in sorted(self.about.space.items()):
                share = share_of(bound, best.hyper[name]) + self.config.sigma * float(steps.normal())
                values[name] = value_at(bound, min(max(share, 0.0), 1.0))
            children.append(Child(best.slot, values, "a child of the fittest"))
        return children
