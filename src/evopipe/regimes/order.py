"""The order in which members see the rows of a dataset: complete passes, each shuffled, equal for all members."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from evopipe import rng
from evopipe.rng import Purpose


@lru_cache(maxsize=4)
def _pass(seed: int, epoch: int, rows: int) -> np.ndarray:
    return rng.host(rng.run_key(seed), Purpose.PROMPT, epoch + 1).permutation(rows)


def rows_at(seed: int, rows: int, start: int, count: int) -> np.ndarray:
    """Return the row numbers of a dataset that members read at the positions `start` to `start + count` of an endless
    order.

    The order consists of complete passes over the `rows` rows, each shuffled anew from `seed`. It is the same for all
    members.
    """
    place = np.arange(start, start + count)
    found: np.ndarray = np.array([_pass(seed, int(p) // rows, rows)[int(p) % rows] for p in place])
    return found


def held_out(seeds: np.ndarray, rows: int) -> np.ndarray:
    """Return the row numbers that the seeds `[n]` select out of `rows` rows.

    They are n different rows in ascending order, or all rows if there are not more than n.
    """
    if len(seeds) >= rows:
        return np.arange(rows)
    draws = np.random.Generator(np.random.Philox(np.random.SeedSequence(seeds[:4].tolist())))
    chosen: np.ndarray = np.sort(draws.permutation(rows)[: len(seeds)])
    return chosen
