"""Proposers: what gives a new trial its values, drawn from the space of the search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evopipe.searchers.contract import About, Bound, Draw, History, Trial

if TYPE_CHECKING:
    import numpy as np

LOG_FROM = 10.0
"""A hyper-parameter is drawn by its logarithm if its range spans at least this factor."""


def bound(low: float, high: float, whole: bool) -> Bound:
    """Return the bound of a hyper-parameter with this range: by its logarithm if it is positive and spans decades."""
    return Bound(low, high, log=low > 0 and high / low >= LOG_FROM, whole=whole)


def at(space: Mapping[str, Bound], shares: Sequence[float]) -> dict[str, float]:
    """Return the values at these shares of the space, each in [0, 1): 0 is the low end, 1 the high one."""
    return {name: value_at(space[name], share) for name, share in zip(sorted(space), shares, strict=True)}


def value_at(bound: Bound, share: float) -> float:
    """Return the value at a share of a bound. A whole number has an interval of its own, ends included."""
    low, high = bound.low, bound.high
    if bound.whole:
        low, high = math.ceil(low) - 0.5, math.floor(high) + 0.5
        low = max(low, 0.5) if bound.log else low
    if bound.log:
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    if bound.whole:
        return int(min(max(round(value), math.ceil(bound.low)), math.floor(bound.high)))
    return float(min(max(value, bound.low), bound.high))


def share_of(bound: Bound, value: float) -> float:
    """Return where in a bound a value lies, in [0, 1]: the inverse of `value_at`, but for the ends of whole numbers."""
    scale = math.log if bound.log else float
    low, high = scale(bound.low), scale(bound.high)
    return min(max((scale(value) - low) / (high - low), 0.0), 1.0) if high > low else 0.5


def random_values(space: Mapping[str, Bound], draw: np.random.Generator) -> dict[str, float]:
    """Draw every value by itself, uniformly, or uniformly by its logarithm."""
    return at(space, draw.random(len(space)).tolist())


class Proposer:
    """What gives a new trial its values, as `search.proposer` says."""

    def __init__(self, about: About) -> None:
        self.about = about

    def trial(self, history: History, draw: Draw, slot: int, why: str) -> Trial:
        """Return a new trial in a slot; its values depend on the generation's draw and the slot alone."""
        generator = draw().spawn(slot + 1)[slot]
        return Trial(random_values(self.about.space, generator), why)
