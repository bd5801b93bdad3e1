"""Running means and variances by the native kernels; `core.normalise` uses them, and has the same in torch."""

from __future__ import annotations

from typing import NamedTuple

from evopipe.native import build, header
from evopipe.native.build import kernels
from evopipe.native.header import at
from evopipe.types import Tensor


class Running(NamedTuple):
    """Running statistics of N columns for each of `P` members, in float64. The C kernels update them in place.

    Attributes:
        number: `[P]`, the number of values so far, which is the same for all columns of a member.
        mean: `[P, N]`, the mean of each column's values.
        square: `[P, N]`, the sum of the squared distances of each column's values from the column's mean.
    """

    number: Tensor
    mean: Tensor
    square: Tensor

    def packed(self) -> bytes:
        """Return the statistics as the bytes of a C struct."""
        return header.of("statistics").pack(self.mean.shape[1], *map(at, self))


class Normalising(NamedTuple):
    """What the C kernels need to normalise the observations and rewards of `P` members during play.

    Attributes:
        seen: the running statistics of observations; None if observations are not normalised.
        paid: the running statistics of discounted returns, which are a single column. Rewards are scaled by these
            statistics. None if rewards are not normalised.
        columns: `[N]` int64, the indices of the N normalised columns of an observation; None if observations are not
            normalised.
        limit: `[P]` float32, the largest absolute value of a normalised number; larger ones are clipped to it.
        healthy: `[P]` bool, True for the members whose statistics change.
        returns: `[slots, E]` float64, the discounted return of the running episode in each of E environments, for every
            slot (place in the population), not for the P members only.
        gamma: `[P]` float32, the discounts.
    """

    seen: Running | None
    paid: Running | None
    columns: Tensor | None
    limit: Tensor
    healthy: Tensor
    returns: Tensor
    gamma: Tensor

    def packed(self) -> bytes:
        """Return the normalisation as the bytes of a C struct."""
        none = bytes(header.of("statistics").size)
        return header.of("normalise_call").packed(
            seen=self.seen.packed() if self.seen else none, paid=self.paid.packed() if self.paid else none,
            which=at(self.columns), limit=at(self.limit), healthy=at(self.healthy), returns=at(self.returns),
            gamma=at(self.gamma),
        )  # fmt: skip


def merge(into: Running, values: Tensor, given: Tensor) -> bool:
    """Merge new values into running statistics, in place, by the C kernels; return whether the kernels could do it.

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
