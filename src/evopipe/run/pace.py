"""How many ticks a call of C takes: it must end soon enough for signals to be handled and progress to be shown."""

from __future__ import annotations

FASTER = 8  # times as many ticks as the last call's at most


def next_count(ticks: int, seconds: float, aim: float) -> int:
    """Return how many ticks (steps of all environments) the next call of a C kernel should take, to last about `aim`
    seconds.

    The previous call took `seconds` for `ticks` ticks.
    """
    return max(1, min(FASTER * ticks, int(ticks * aim / max(seconds, 1e-6))))
