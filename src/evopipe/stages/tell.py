"""A stage's last words."""

from __future__ import annotations

import os
import sys


def tell(text: str, quiet: bool) -> None:
    """Print what a stage did, after it did it: a reader that went away must not make a success a failure."""
    if quiet or sys.stdout is None:
        return
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # nor may the flush at exit


def warn(text: str) -> None:
    """Print what may be wrong with the outs of a stage, which are written all the same."""
    print(f"warning: {text}", file=sys.stderr)
