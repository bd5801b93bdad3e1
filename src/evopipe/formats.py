"""Short formats of numbers, texts and settings, for terminals and pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any


def score(value: float) -> str:
    """Return a fitness as text: as `number` writes it, but with one decimal for whole numbers of up to three digits.

    Examples are 0.9564, 98.35, 500.0, 12346.
    """
    text = number(value)
    return f"{text}.0" if text.removeprefix("-").isdigit() and len(text.removeprefix("-")) <= 3 else text


def interval(ends: Iterable[float]) -> str:
    """Return the interval of a score as text, such as `[220.0, 252.7]`; `ends` are its lower and its upper end."""
    low, high = map(score, ends)
    return f"[{low}, {high}]"


def number(value: float) -> str:
    """Return a number as text with four significant digits and without trailing zeros: 64, 0.99, 3.2e-4, 1.235e7.

    A number from 10,000 up to a million is rounded to a whole number with all its digits. A number that is not finite
    becomes `-`.
    """
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size < 999_999.5 and (size >= 9999.5 or value == int(value)):
        return str(round(value))
    mantissa, _, exponent = (f"{value:.3e}" if size < 0.01 or size >= 9999.5 else f"{value:.4g}").partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}" if exponent else mantissa


def duration(seconds: float) -> str:
    """Return a time in seconds as text in at most two units: 42 s, 3 min 05 s, 2 h 07 min; `-` if it is not finite."""
    if not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clean(text: str) -> str:
    """Return a text with every control character replaced by a space, so that it cannot move a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings as pairs (dotted name, value); an empty mapping is a leaf too.

    `name` is the dotted name of `value` itself, with which every leaf's name begins.
    """
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from leaves(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def tails(keys: Iterable[str], least: Callable[[str], int] = lambda _: 1) -> dict[str, str]:
    """Return short names of dotted keys, by key: the last words of each, as many as tell the keys apart.

    `least` returns the least number of words of a key's name.
    """
    keys = list(keys)

    def tail(key: str, words: int) -> str:
        return ".".join(key.split(".")[-words:])

    def name(key: str) -> str:
        apart = (
            n for n in count(least(key)) if tail(key, n) == key or sum(tail(k, n) == tail(key, n) for k in keys) == 1
        )
        return tail(key, next(apart))

    return {key: name(key) for key in keys}


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines of text, one line per row, with cells padded so that columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip() for row in rows]
