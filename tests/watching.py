"""Callbacks that tests name in parameters: what they were called with, and one that raises."""

from __future__ import annotations

from typing import Any

SEEN: list[tuple[str, Any]] = []
FAILS: list[bool] = []

not_a_function = 3


def generation(run: Any) -> None:
    SEEN.append(("on_generation", run))


def best(run: Any) -> None:
    SEEN.append(("on_best", run))


def tick(run: Any) -> bool:
    SEEN.append(("on_tick", run))
    return False  # means nothing


def raising(run: Any) -> None:
    if FAILS:
        raise ValueError("no such chart")
