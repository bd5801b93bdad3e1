"""What the report shows of other runs beside its own, once `evopipe report --with` was asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Several configurations, as `evopipe compare` finds them.

    Attributes:
        head: of the table.
        rows: of the table, the best configuration first.
        notes: sentences about runs that are hard to compare.
        pictures: of each what it shows, and its SVG.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    pictures: Sequence[tuple[str, bytes]]
