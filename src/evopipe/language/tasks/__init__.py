"""Tasks: prompts for language models, and scores of the answers.

A task is found by its name here, or is a user's class, `module:Class`. Its rows are plain JSON data, and may serve
several kinds of algorithm at once, see `language.data.check_row`.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from evopipe.errors import ParamsError, said, suggestion
from evopipe.language.tasks.arithmetic import Arithmetic
from evopipe.language.tasks.gym import GymTask
from evopipe.language.tasks.symbols import Symbols
from evopipe.language.tasks.wordle import Wordle
from evopipe.own import foreign, import_name
from evopipe.schema.declare import Schema, explain
from evopipe.watchdog import Hung, Watchdog

Score: TypeAlias = "Callable[[Mapping[str, Any], str], float]"
"""(row, completion) → reward."""

_SECONDS = 60.0  # that code of one's own has to be imported, and to be made


class Task(Protocol):
    """The interface of tasks: a task makes rows with prompts, and scores completions.

    A task may have an attribute `characters`: a text of all characters that its rows use. If `language.model` is
    `tiny`, its tokenizer is made from these characters, unless `language.tiny.characters` gives others.
    """

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make `n` rows, with random draws from the NumPy generator `rng` alone: a generator in the same state gives
        the same rows.

        A row has a `prompt`, and an `answer`, a `completion`, or a pair `chosen` and `rejected`.
        """

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return the reward of a completion of the row's prompt."""


GAMES = ("rows", "check", "encode", "play")
"""What a task has whose rows are whole games (see `wordle.Wordle`) in the place of prompts: no score, for what a game
gives stands in the game."""

TASKS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "arithmetic": (Arithmetic, {}),
    "copy": (Symbols, {"operations": ["copy"]}),
    "reasoning-gym": (GymTask, {}),
    "reverse": (Symbols, {"operations": ["reverse"]}),
    "sort": (Symbols, {"operations": ["sort"]}),
    "symbols": (Symbols, {}),
    "wordle": (Wordle, {}),
}
"""What makes each task, and from which arguments; those of the parameters come after."""


def get(name: str, kwargs: Mapping[str, Any]) -> Task:
    """Make a task, given by its name or as `module:Class`. `kwargs` are the arguments of its class.

    Raises:
        ParamsError: there is no such task, or it does not take these arguments.
        MissingInputError: the task needs a package that is not installed.
        EnvironmentFailed: a user's module or class raised an exception, or ran for more than 60 seconds.
    """
    if name not in TASKS and ":" not in name:
        raise ParamsError(f"language.task: no task {name!r} (`module:Class` is one's own){suggestion(name, TASKS)}")
    make, given = TASKS.get(name, (None, {}))
    with foreign(f"language.task: making {name!r}", Watchdog(_SECONDS)):
        make = make or import_name(name, "language.task")
        try:
            task: Task = make(**{**given, **kwargs})
        except ValidationError as error:
            wrong = explain(error, make, dict(kwargs)) if isinstance(make, type) and issubclass(make, Schema) else []
            lines = [": ".join((".".join(map(str, ("language.kwargs", *keys))), text)) for keys, text in wrong]
            raise ParamsError("\n".join(lines) or f"language.kwargs: {error}") from None
        except TypeError as error:
            raise ParamsError(f"language.kwargs: {name!r} does not take {dict(kwargs)}: {error}") from error
    games = hasattr(task, "play")
    for method in GAMES if games else ("rows", "score"):
        if not callable(getattr(task, method, None)):
            does = "makes games, checks, encodes and plays them" if games else "makes rows and scores them"
            raise ParamsError(f"language.task: {name!r} has no method {method!r}: a task {does}")
    return task


def score_of(task: Task, own: str | None) -> Score:
    """Return the function (row, completion) → reward: the task's `score`, or a user's function if `own` names one.

    `own` is `module:function`; the user's function is called with the completion first, then the row.

    Raises:
        ParamsError: there is no such function.
        EnvironmentFailed: importing the user's module raised an exception, or took more than 60 seconds.
    """
    if own is None:
        return task.score
    with foreign(f"language.reward: importing {own!r}", Watchdog(_SECONDS)):
        function = import_name(own, "language.reward")

    def score(row: Mapping[str, Any], completion: str) -> float:
        found: float = function(completion, row)
        return found

    return score


_LARGEST = float(np.finfo(np.float32).max)


class _Rewarded(NamedTuple):
    """The rewards of completions, 0 where there was none."""

    values: npt.NDArray[np.float64]  # [n]
    failed: int  # completions without a reward of their own
    why: str | None  # what went wrong with the first of these


def rewards(score: Score, rows: Sequence[Mapping[str, Any]], completions: Sequence[str], seconds: float) -> _Rewarded:
    """Score completions, one for each row; return the rewards, and how many scores failed.

    `score` is a function (row, completion) → reward, which gets a copy of the row. A score fails, and its reward is 0,
    if the function raises an exception, takes longer than `seconds`, or returns no finite float32. The time is limited
    only in the main thread.
    """
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
