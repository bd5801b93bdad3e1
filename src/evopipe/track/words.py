"""Words and numbers that the plain lines and the live view share."""

from __future__ import annotations

import math

from evopipe.track.base import End


def members(count: int) -> str:
    """Return "1 member", "8 members"."""
    return f"{count} member{'' if count == 1 else 's'}"


def ending(event: End) -> str:
    """Return the last sentence of a run."""
    steps = f"{event.env_steps:,} training and {event.eval_steps:,} evaluation steps"
    return f"finished: {event.reason}, {duration(event.seconds)}, {steps}"


def score(value: float) -> str:
    """Return a fitness in at most 7 characters, where it is below a million; a dash where it is not finite."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1e6:
        return f"{value:.2g}"
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.1f}"


def number(value: float) -> str:
    """Return a hyper-parameter or loss in few characters: 64, 0.99, 3.2e-4."""
    if not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    if not exponent and abs(value) < 0.01:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


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
    """Return a text on one line and without control characters, which could move a terminal's cursor."""
    return "".join(char if char.isprintable() else " " for char in text)
