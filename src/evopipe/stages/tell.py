"""Output of stages to the user."""

from __future__ import annotations

import os
import sys


def tell(text: str, quiet: bool) -> None:
    """Print what a stage did. If the reader of the output has ended, the stage does not fail."""
    if quiet or sys.stdout is None:
        return
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # nor may the flush at exit


def warn(text: str) -> None:
    """Print a warning about the outs of a stage, which are written all the same."""
    print(f"warning: {text}", file=sys.stderr)
