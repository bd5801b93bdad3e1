"""Output of stages to the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from evopipe.formats import interval, score


def tell(text: str, quiet: bool) -> None:
    """Print the line `text` about a stage's work to stdout, unless `quiet`. A closed pipe at stdout causes no error."""
    if quiet or sys.stdout is None:
        return
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # nor may the flush at exit


def warn(text: str) -> None:
    """Print the warning `text` about a stage's results to stderr."""
    print(f"warning: {text}", file=sys.stderr)


@cache
def warn_once(text: str) -> None:
    """Print the warning `text` to stderr, unless this process has printed it before."""
    warn(text)


def tell_elite(elite: Mapping[str, Any], over: str, trained: Mapping[str, Any], quiet: bool) -> None:
    """Print the held-out score of the elite (the best member), and a warning if its score during training was much
    higher.

    Args:
        elite: the elite's held-out scores by name.
        over: a text that says what the elite was scored on.
        trained: the summary of the training, with the score by which the elite was chosen.
        quiet: whether to print the warning only.
    """
    ends, fitness = interval(elite["interval"]), trained["elite"]["score"]
    tell(f"elite: mean {score(elite['mean'])} over {over}, 95 % interval {ends}", quiet)
    if elite["interval"][1] < fitness:
        warn(f"held-out interval {ends} lies below the elite's fitness {score(fitness)}: raise train.eval_episodes")
