"""A comparison with other runs, which the report shows if `evopipe report --with` asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A comparison of several configurations, as a section of the report.

    Attributes:
        head: the header of the table.
        rows: the rows of the table, the best configuration first.
        notes: sentences about runs that are hard to compare, and what labels leave out.
        pictures: pairs of a caption and an SVG file's bytes.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    pictures: Sequence[tuple[str, bytes]]
