"""Medians, ratios of pairs with bootstrap intervals, censored times, and what may be concluded from them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95  # of intervals
LEAST_PAIRS = 5
WIDEST = 1.5  # upper over lower end of an interval, beyond which a throughput ratio is INCONCLUSIVE
_ALL_RESAMPLES = 50_000  # up to so many, all resamples are taken; beyond, as many as the next number
_RESAMPLES = 20_000


class Ratio(NamedTuple):
    """A ratio: its median over pairs, the ends of its interval, the number of pairs.

    `high` and `median` are infinite where censored times leave them open.
    """

    median: float
    low: float
    high: float
    pairs: int


class Time(NamedTuple):
    """A time, of which a censored run says only that it would have been longer."""

    value: float
    censored: bool = False

    @property
    def least(self) -> float:
        """The shortest that it can have been."""
        return self.value

    @property
    def most(self) -> float:
        """The longest that it can have been."""
        return math.inf if self.censored else self.value


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Return the median of `over[i] / under[i]` with its bootstrap interval over pairs.

    Raises:
        ValueError: the sequences are empty or differ in length.
    """
    each = [a / b for a, b in zip(over, under, strict=True)]
    low, high = interval(each)
    return Ratio(statistics.median(each), low, high, len(each))


def ratio_of_times(over: Sequence[Time], under: Sequence[Time]) -> Ratio:
    """Return the ratio of times of which some are censored.

    The median and the lower end take each pair's ratio as small as it can have been, the upper end as large: a censored
    denominator leaves nothing above 0, a censored numerator nothing below infinity.
    """
    pairs = list(zip(over, under, strict=True))
    least = [a.least / b.most for a, b in pairs]
    most = [a.most / b.least for a, b in pairs]
    return Ratio(statistics.median(least), interval(least)[0], interval(most)[1], len(pairs))


def median_time(times: Sequence[Time]) -> Time:
    """Return the median time; a lower bound where it could be longer."""
    least = statistics.median(t.least for t in times)
    most = statistics.median(t.most for t in times)
    return Time(least, censored=most > least)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the median: all resamples where few, else many from a fixed seed.

    Raises:
        ValueError: there are no values.
    """
    n = len(values)
    if not n:
        raise ValueError("no values")
    array = np.array(values, float)
    if n**n <= _ALL_RESAMPLES:
        index = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        index = np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))
    medians = np.sort(_medians(array[index]))
    tail = (1 - LEVEL) / 2
    count = len(medians)
    return float(medians[math.floor(tail * (count - 1))]), float(medians[math.ceil((1 - tail) * (count - 1))])


def _medians(samples: np.ndarray) -> np.ndarray:
    """Row medians, where infinities do not become NaN."""
    ordered = np.sort(samples, axis=1)
    n = ordered.shape[1]
    low, high = ordered[:, (n - 1) // 2], ordered[:, n // 2]
    return np.where(low == high, low, (low + high) / 2)


def too_wide(r: Ratio) -> bool:
    """Whether a throughput ratio says too little: few pairs, or an interval whose ends are far apart."""
    return r.pairs < LEAST_PAIRS or not r.high <= WIDEST * r.low


def verdict(r: Ratio, bound: float, wide: bool = False) -> str:
    """Return `reached`, `not reached` or `INCONCLUSIVE` for "the ratio is at least `bound`".

    Args:
        r: the ratio.
        bound: what it should reach.
        wide: accept an interval of any width, as times to a solved elite have.
    """
    if r.pairs < LEAST_PAIRS or (not wide and too_wide(r)):
        return "INCONCLUSIVE"
    if r.low >= bound:
        return "reached"
    return "not reached" if r.high < bound else "INCONCLUSIVE"
