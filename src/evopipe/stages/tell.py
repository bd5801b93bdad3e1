"""Output of stages to the user."""

from __future__ import annotations

import os
import sys


def tell(text: str, quiet: bool) -> None:
    """Print a line about a stage's work to stdout, unless `quiet`. A closed pipe at stdout causes no error."""
    if quiet or sys.stdout is None:
        return
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # nor may the flush at exit


def warn(text: str) -> None:
    """Print a warning about a stage's results to stderr."""
    print(f"warning: {text}", file=sys.stderr)
