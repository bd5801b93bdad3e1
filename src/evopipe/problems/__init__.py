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
    """Import and return the module of `problems` for these parameters: `env` for environments, `text` for language
    models.

    If `stage` is given, that stage's module is returned instead, such as `env_export` or `text_export` for `export`.
    """
    return import_module(f"{__name__}.{params.part(stage)}")


def check(params: AnyParams) -> None:
    """Check parameters before the first stage runs, so that no later stage refuses the parameters.

    Raises:
        ParamsError: a later stage would refuse the parameters.
        EnvironmentFailed: an environment could not be made or reset, or a callback's module could not be imported.
    """
    params.train.callbacks.functions()
    part_of(params, "check").check(params)


def problem_of(params: AnyParams, folder: Path = Path(), alone: bool = False, together: Any = None) -> Problem[Any]:
    """Return the `Problem` that a run works on, made from parameters: configuration, training loop and final
    evaluation.

    Args:
        params: the parameters.
        folder: the project's folder, which has the outputs of earlier stages.
        alone: whether this process is a shard (a process with a part of the population) that has a single CPU. If so,
            the value `auto` of `runtime.env_workers` and of `runtime.learners` means no helper processes.
        together: a `language.together.Together`, if several processes form one shard of language models; else None.

    Raises:
        ParamsError: an environment is unknown or not supported, or a base model cannot be used.
        MissingInputError, DataError: a base model is missing or damaged.
    """
    found: Problem[Any] = part_of(params).problem_of(params, folder, alone, together)
    return found
