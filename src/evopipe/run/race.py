"""Evaluation as a race: whose rank decides nothing any more plays no more episodes (`train.evaluation: race`).

Members play on common seeds. After 4, 8, 16 … episodes pairs of them are looked at, by their difference in each
episode: one is clear where the mean difference is more than three standard errors from 0. What decides is known before
anybody plays: who is the best, and who wins each tournament, whose draws do not depend on fitness. So a member goes on
that leads, or that does not differ clearly from the leader or from one whom it meets in a tournament.

The leader plays all episodes, or until it is alone and clearly below the run's target: then nobody is confirmed. What
others would have got on the rest is taken to be what the leader got, less the mean difference between the two so far:
their means are then comparable with the leader's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from evopipe.ops.statistics import mean_of_finite, standard_error

_FIRST = 4  # episodes before the first look
_CLEAR = 3.0  # standard errors
_GIVEN_UP = 2.0  # those of a confirmation: wrongly given up, it costs a generation; kept up, a hundred episodes

Play = Callable[[Sequence[int], slice], np.ndarray]


def looks(n: int) -> Iterator[slice]:
    """The episodes between two looks, of `n` in all."""
    first = 0
    while first < n:
        end = min(max(_FIRST, 2 * first), n)
        yield slice(first, end)
        first = end


def race(
    play: Play, racers: Sequence[int], met: Sequence[Sequence[int]], members: int, n: int, bar: float = -math.inf
) -> np.ndarray:
    """Return returns `[P, k]`, of the racers those that were played and estimates of the rest; NaN of other members.

    Args:
        play: `(members, episodes) → returns [members, episodes]`.
        racers: who takes part.
        met: who meets in each of the tournaments.
        members: `P`.
        n: episodes, of which the leader plays `k`.
        bar: the mean that the leader must reach for more to be at stake than ranks.
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
    """Whether returns `[k]`, at least so many, say that the mean of all `n` episodes will be below a bar."""
    found = returns[np.isfinite(returns)]
    if len(found) < least:
        return False
    error = standard_error(found) * math.sqrt(1.0 - len(returns) / n)  # of these n: what is played is certain
    return bool(found.mean() + errors * error < bar)


def _clear(returns: np.ndarray) -> np.ndarray:
    """Whether each pair of members differs clearly, `[P, P]`, by returns on common seeds `[P, k]`; NaN says nothing."""
    differences = returns[:, None] - returns
    error = differences.std(axis=2, ddof=1) / math.sqrt(returns.shape[1]) if returns.shape[1] > 1 else math.inf
    return np.asarray((np.abs(differences.mean(axis=2)) > _CLEAR * error) | np.eye(len(returns), dtype=bool))


def _best(returns: np.ndarray, members: Sequence[int], k: int) -> int:
    """Who has the highest mean of the first k episodes; the first of several."""
    means = [mean_of_finite(returns[p, :k]) for p in members]
    return members[int(np.argmax([-math.inf if math.isnan(mean) else mean for mean in means]))]
