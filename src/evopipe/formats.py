"""Short formats of numbers, texts and settings, for terminals and pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def score(value: float) -> str:
    """Return a fitness in at most 7 characters if it is below a million; a dash if it is not finite.

    Below 1 it has more digits: with a single reward at the end, 0.96 must not read 1.0, nor 0.03 read 0.0.
    """
    if not math.isfinite(value):
        return "-"
    if 0 < abs(value) < 1:
        return number(float(f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.2g}"))
    if abs(value) >= 1e6:
        return f"{value:.2g}"
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.1f}"


def number(value: float) -> str:
    """Return a hyper-parameter or loss in few characters: 64, 0.99, 3.2e-4."""
    if not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    mantissa, _, exponent = (f"{value:.2e}" if abs(value) < 0.01 else f"{value:.3g}").partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}" if exponent else mantissa


def duration(seconds: float) -> str:
    """Return a time in two units: 42 s, 3 min 05 s, 2 h 07 min."""
    if not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clean(text: str) -> str:
    """Return a text on one line without control characters, which could move a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings as (dotted name, value). An empty mapping is a leaf."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from leaves(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of texts as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip() for row in rows]
