"""A bar for loops of one's own."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress


class ProgressBar:
    """Steps done of `total`; `write` prints above it. On no terminal only what is written shows."""

    def __init__(self, total: int) -> None:
        console = Console(file=sys.stderr)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("steps", total=total)
        self._bar.start()

    def update(self, steps: int = 1) -> None:
        """So many steps more are done."""
        self._bar.advance(self._task, steps)

    def write(self, text: str) -> None:
        """Print a text."""
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """End it."""
        self._bar.stop()


def default_progress_bar(max_steps: int, accelerator: Any = None) -> ProgressBar:
    """Return a bar of so many steps; an accelerator of one process changes nothing.

    Examples:
        >>> bar = default_progress_bar(100)
        >>> bar.update(50)
        >>> bar.close()
    """
    return ProgressBar(max_steps)
