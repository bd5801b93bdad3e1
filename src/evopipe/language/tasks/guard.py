"""Rewards by foreign code: whatever a reward function does, a run goes on."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evopipe.errors import said
from evopipe.language.tasks import Score
from evopipe.watchdog import Hung, Watchdog

_LARGEST = float(np.finfo(np.float32).max)


class _Rewarded(NamedTuple):
    """The rewards of completions, 0 where there was none."""

    values: npt.NDArray[np.float64]  # [n]
    failed: int  # completions without a reward of their own
    why: str | None  # what went wrong with the first of these


def rewards(score: Score, rows: Sequence[Mapping[str, Any]], completions: Sequence[str], seconds: float) -> _Rewarded:
    """Score completions, each of the row in its place. A score that raises, does not return within so many seconds (in
    the main thread, see `Watchdog`) or returns what is no finite number of float32 gives the reward 0 and is counted.
    It sees a row's copy, and may change that."""
    values = np.zeros(len(completions))
    failed, first = 0, None
    for i, (row, completion) in enumerate(zip(rows, completions, strict=True)):
        try:
            with Watchdog(seconds, "language.reward_seconds"):
                returned = score(dict(row), completion)
                values[i], why = _number(returned)
        except Hung as hung:
            why = str(hung)
        except (Exception, SystemExit) as error:
            why = f"raised {said(error)[:300]}"
        if why is not None:
            failed += 1
            first = first or why
    return _Rewarded(values, failed, first)


def _number(returned: Any) -> tuple[float, str | None]:
    """Return what a score returned as a number, or 0 and why it is none: a text that reads as a number is a mistake."""
    found = returned.item() if hasattr(returned, "item") else returned
    if isinstance(found, numbers.Real) and abs(float(found)) <= _LARGEST:
        return float(found), None
    return 0.0, f"returned {found!r:.60}, which is no finite number"
