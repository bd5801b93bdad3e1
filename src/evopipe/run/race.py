"""Evaluation as a race (`train.evaluation: race`): a member stops playing as soon as its rank can change no decision.

Members play on common seeds. After 4, 8, 16 … episodes, pairs of members are compared by their difference in each
episode. A pair is decided if the mean difference is more than three standard errors from 0. The decisions to be made
are known before play: who is the best, and who wins each tournament, whose draws do not depend on fitness. A member
therefore continues if it leads, or if it is not decided against the leader or against a member that it meets in a
tournament.

The leader plays all episodes, unless it is alone and clearly below the run's target; then nobody is confirmed. The
returns that others would have got in the remaining episodes are estimated as the leader's, minus the mean difference
between the two so far. Their means are then comparable with the leader's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from evopipe.ops.statistics import mean_of_finite, standard_error

_FIRST = 4  # episodes before the first look
_CLEAR = 3.0  # standard errors
_BATCH = 8  # episodes of a confirmation between two looks
_ERROR = 0.05  # the chance that one which would fail is taken for one that would succeed
_GIVEN_UP = 2.0  # those of a confirmation: wrongly given up, it costs a generation; kept up, a hundred episodes

Play = Callable[[Sequence[int], slice], np.ndarray]


def looks(n: int) -> Iterator[slice]:
    """Divide the `n` episodes of a race into consecutive parts, and yield a slice for each part.

    After each part the members are compared, that is, after 4, 8, 16 … and n episodes.
    """
    first = 0
    while first < n:
        end = min(max(_FIRST, 2 * first), n)
        yield slice(first, end)
        first = end


def race(
    play: Play, racers: Sequence[int], met: Sequence[Sequence[int]], members: int, n: int, bar: float = -math.inf
) -> np.ndarray:
    """Evaluate members in a race of k episodes. Return each member's returns in these episodes, `[P, k]`.

    A member stops playing as soon as its rank can change no decision: who leads (has the highest mean return), and who
    wins each tournament. The leader plays all k episodes. The row of another racer has estimates for the episodes that
    it did not play. Rows of members that take no part are NaN.

    Usually k is `n`. The race ends earlier if only the leader still plays, and its mean is clearly below `bar`.

    Args:
        play: a function `(members, episodes) → returns [members, episodes]`.
        racers: the members that take part.
        met: `[T, m]`, the m members that meet in each of T tournaments.
        members: `P`, the number of all members.
        n: the largest number of episodes.
        bar: the least mean return with which the leader gets a second, longer evaluation after the race.
    """
    returns, played = np.full((members, n), np.nan), np.zeros(members, np.int64)
    decides = np.eye(members, dtype=bool)  # [P, P], pairs whose order matters
    for tournament in met:
        decides[np.ix_(tournament, tournament)] = True
    going = [*racers]
    for part in looks(n):
        returns[going, part], played[going] = play(going, part), part.stop
        leader = _best(returns, going, part.stop)
        clear = np.ones_like(decides)
        clear[np.ix_(going, going)] = _clear(returns[going, : part.stop])
        unclear = decides & ~clear
        going = [p for p in going if p == leader or unclear[p].any() or not clear[p, leader]]
        if going == [leader] and hopeless(returns[leader, : part.stop], bar, n, _FIRST, _CLEAR):
            n = part.stop
            break
    while True:
        whole = [p for p in racers if played[p] == n]
        leader, filled = _best(returns, whole, n), returns[:, :n].copy()
        for p in racers:
            k = played[p]
            filled[p, k:] = returns[leader, k:n] + mean_of_finite(returns[p, :k] - returns[leader, :k])
        best = _best(filled, racers, n)
        if played[best] == n:
            return filled
        rest = slice(int(played[best]), n)
        returns[[best], rest], played[best] = play([best], rest), n


def hopeless(returns: np.ndarray, bar: float, n: int, least: int = 2 * _FIRST, errors: float = _GIVEN_UP) -> bool:
    """Return whether the returns `[k]` of the first k episodes show that the mean of all `n` episodes will be below
    `bar`.

    The result is True if there are at least `least` finite returns, and their mean lies more than `errors` standard
    errors below `bar`.
    """
    found = returns[np.isfinite(returns)]
    if len(found) < least:
        return False
    error = standard_error(found) * math.sqrt(1.0 - len(returns) / n)  # of these n: what is played is certain
    return bool(found.mean() + errors * error < bar)


def batches(n: int) -> Iterator[slice]:
    """Yield consecutive slices of the `n` episodes of a confirmation, the second, longer evaluation of a new best
    member.

    After the episodes of each slice, the run checks whether the confirmation can end early.
    """
    return (slice(first, min(first + _BATCH, n)) for first in range(0, n, _BATCH))


def reached(returns: np.ndarray, bar: float, lowest: float, n: int, errors: float = 0.0) -> bool:
    """Return whether the returns `[k]` of the first k episodes show that the mean of all `n` episodes will be at or
    above `bar`.

    The test may be repeated as episodes end; it is then wrongly True in at most one case of twenty. It bets without
    replacement (Waudby-Smith & Ramdas, 2020, https://arxiv.org/abs/2006.04347):

    - Each return x multiplies a bettor's capital by (x − lowest) / (m − lowest). Here m is the mean that this episode
      and those after it must have, so that the mean of all episodes is `bar`.
    - The result is True if the capital has become twenty-fold. If the mean of all were below the bar, the capital would
      not grow on average, and would rarely become twenty-fold (Ville's inequality).
    - If m is not above `lowest` for one of the episodes, the bar will be reached for certain, and the result is True.

    Args:
        returns: the returns so far, in the order of the seeds; one that is not finite counts as `lowest`.
        bar: the mean to be reached.
        lowest: a number below which no return can be. If one of `returns` equals it, the result is False.
        n: the number of all episodes.
        errors: a margin above `bar`, in standard errors. The mean so far and the mean of all episodes must both exceed
            `bar` by this margin. The standard error of the mean of all episodes is estimated as if one more episode had
            the return `lowest`.
    """
    found = np.where(np.isfinite(returns), returns, lowest)
    if found.min() <= lowest or found.mean() - errors * standard_error(found) < bar:
        return False
    aim = bar + errors * float(np.append(found, lowest).std(ddof=1)) / math.sqrt(n)
    before = found.cumsum() - found
    needed = (n * aim - before) / (n - np.arange(len(found)))  # m of each episode before it
    if (needed <= lowest).any():
        return True
    return bool(np.log((found - lowest) / (needed - lowest)).sum() >= -math.log(_ERROR))


def _clear(returns: np.ndarray) -> np.ndarray:
    """Whether each pair of members differs clearly, `[P, P]`, by returns on common seeds `[P, k]`; NaN says nothing."""
    differences = returns[:, None] - returns
    error = differences.std(axis=2, ddof=1) / math.sqrt(returns.shape[1]) if returns.shape[1] > 1 else math.inf
    return np.asarray((np.abs(differences.mean(axis=2)) > _CLEAR * error) | np.eye(len(returns), dtype=bool))


def _best(returns: np.ndarray, members: Sequence[int], k: int) -> int:
    """Who has the highest mean of the first k episodes; the first of several."""
    means = [mean_of_finite(returns[p, :k]) for p in members]
    return members[int(np.argmax([-math.inf if math.isnan(mean) else mean for mean in means]))]
