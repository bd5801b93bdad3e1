"""Short formats of numbers, texts and settings, for terminals and pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def score(value: float) -> str:
    """Return a fitness as `number` does, and a decimal with it where there is room: 0.9564, 98.35, 500.0, 12346."""
    text = number(value)
    return f"{text}.0" if text.removeprefix("-").isdigit() and len(text.removeprefix("-")) <= 3 else text


def number(value: float) -> str:
    """Return a number with four significant digits and no zeros behind them: 64, 0.99, 3.2e-4, 1.235e7. Up to a million
    it is whole from five digits on: no digit before the point is left out. A number that is not finite is a dash."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size < 999_999.5 and (size >= 9999.5 or value == int(value)):
        return str(round(value))
    mantissa, _, exponent = (f"{value:.3e}" if size < 0.01 or size >= 9999.5 else f"{value:.4g}").partition("e")
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
