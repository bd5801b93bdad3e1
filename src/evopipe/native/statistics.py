"""Running statistics of columns by the native kernels, as `core.normalise` merges them."""

from __future__ import annotations

from typing import NamedTuple

from evopipe.native import build, header
from evopipe.native.build import kernels
from evopipe.native.header import at
from evopipe.types import Tensor


class Running(NamedTuple):
    """Running statistics of N columns for each of `P` members, in float64. The C kernels update them in place."""

    number: Tensor  # [P], of values so far
    mean: Tensor  # [P, N]
    square: Tensor  # [P, N], sum of the squared distances from the mean

    def packed(self) -> bytes:
        """Return the statistics as the bytes of a C struct."""
        return header.of("statistics").pack(self.mean.shape[1], *map(at, self))


class Normalising(NamedTuple):
    """The statistics and constants by which the C kernels normalise the observations and rewards of `P` members during
    play."""

    seen: Running | None  # of observations; None: they are not normalised
    paid: Running | None  # of discounted returns, N = 1; None: rewards are not normalised
    columns: Tensor | None  # [N] int64, which numbers of an observation
    limit: Tensor  # [P] float32, the largest size of a normalised number
    healthy: Tensor  # [P] bool, whose statistics change
    returns: Tensor  # [slots, E] float64, discounted, of running episodes
    gamma: Tensor  # [P] float32

    def packed(self) -> bytes:
        """Return the normalisation as the bytes of a C struct."""
        none = bytes(header.of("statistics").size)
        return header.of("normalise_call").packed(
            seen=self.seen.packed() if self.seen else none, paid=self.paid.packed() if self.paid else none,
            which=at(self.columns), limit=at(self.limit), healthy=at(self.healthy), returns=at(self.returns),
            gamma=at(self.gamma),
        )  # fmt: skip


def merge(into: Running, values: Tensor, given: Tensor) -> bool:
    """Merge values into running statistics, in place, by the C kernels; return whether the kernels could do it.

    Args:
        into: the statistics.
        values: `[P, N, n]` float64, n values of N columns for each of P members.
        given: `[P, n]` bool, which values count.
    """
    if not build.serve_wholly(*into, values, given):
        return False
    kind = header.of("merge_call")
    kernels().merge_values(kind.pointer(kind.packed(
        of=into.packed(), members=values.shape[0], n=values.shape[2], values=at(values), given=at(given),
    )))  # fmt: skip
    return True
