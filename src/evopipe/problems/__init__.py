"""The kinds of problem that runs work on: members in an environment (or a team's), and language models.

For each kind, one module makes a `run.problem.Problem` of the parameters, and further modules hold its parts of the
stages. No kind imports the other, and this module imports either only when it is needed: a stage depends on what it
uses.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evopipe.params.load import AnyParams

if TYPE_CHECKING:
    from evopipe.run.problem import Problem


def part_of(params: AnyParams, stage: str = "") -> Any:
    """Return the module of `problems` for this kind of parameters (environments or text), or its part for one stage."""
    return import_module(f"{__name__}.{params.part(stage)}")


def check(params: AnyParams) -> None:
    """Check parameters before the first stage does anything, so that no later stage needs to refuse them.

    Raises:
        ParamsError: a later stage would refuse them.
        EnvironmentFailed: an environment could not be made or reset.
    """
    part_of(params, "check").check(params)


def problem_of(params: AnyParams, folder: Path = Path(), alone: bool = False, together: Any = None) -> Problem[Any]:
    """Return the problem that these parameters describe; outs of earlier stages lie below `folder`.

    Args:
        params: the parameters.
        folder: the project's folder.
        alone: if True, processes that are set to `auto` are not used, because this process is one of many.
        together: a `language.together.Together`, if several processes form one shard of language models.

    Raises:
        ParamsError: an environment is unknown or not supported, or a base cannot be used.
        MissingInputError, DataError: a base is missing or damaged.
    """
    found: Problem[Any] = part_of(params).problem_of(params, folder, alone, together)
    return found
