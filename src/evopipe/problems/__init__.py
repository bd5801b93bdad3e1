"""What runs work on: all that differs between members in an environment, or a team's, and language models.

Of each kind there is a module that makes a `run.problem.Problem` of parameters, and modules with its parts of the
stages. None imports the other kind's, and this one imports none before it is asked: a stage depends on what it uses.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evopipe.schema.params import AnyParams

if TYPE_CHECKING:
    from evopipe.run.problem import Problem


def part_of(params: AnyParams, stage: str = "") -> Any:
    """Return the module with one kind's part of a stage, or of what it is about."""
    return import_module(f"{__name__}.{params.PROBLEM}{stage and '_' + stage}")


def check(params: AnyParams) -> None:
    """Refuse what a later stage would refuse, before the first one does anything: `ParamsError`, or `EnvironmentFailed`
    where an environment could not be made or reset."""
    part_of(params, "check").check(params)


def problem_of(params: AnyParams, folder: Path = Path(), alone: bool = False, together: Any = None) -> Problem[Any]:
    """Return what a run with these parameters works on; inputs of earlier stages lie below `folder`.

    Args:
        alone: where helpers are `auto`, this process does all by itself: it is one of many.
        together: `language.together.Together`, where several processes are one shard of language models.

    Raises:
        ParamsError: an environment is unknown, or not served; a base cannot be used.
        MissingInputError, DataError: a base is not there, or damaged.
    """
    found: Problem[Any] = part_of(params).problem_of(params, folder, alone, together)
    return found
