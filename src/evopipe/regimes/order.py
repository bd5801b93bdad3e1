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
    """Return the row numbers at the positions `start` to `start + count` (exclusive) of the order in which members read
    a dataset.

    The order is endless and the same for all members. It consists of complete passes over the `rows` rows of the
    dataset, each shuffled anew from `seed`.
    """
    place = np.arange(start, start + count)
    found: np.ndarray = np.array([_pass(seed, int(p) // rows, rows)[int(p) % rows] for p in place])
    return found


def held_out(seeds: np.ndarray, rows: int) -> np.ndarray:
    """Return the row numbers that the seeds `[n]` select out of `rows` rows.

    The result is n different row numbers in ascending order, or all row numbers if n is at least `rows`.
    """
    if len(seeds) >= rows:
        return np.arange(rows)
    draws = np.random.Generator(np.random.Philox(np.random.SeedSequence(seeds[:4].tolist())))
    chosen: np.ndarray = np.sort(draws.permutation(rows)[: len(seeds)])
    return chosen
