"""What runs work on: all that differs between members in an environment, or a team's, and language models.

Each module makes a `run.problem.Problem` of parameters; everything else asks that value. No module here imports the
other, nor does this one before it is asked: a run in an environment loads no language model's code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evopipe.run.problem import Problem
from evopipe.schema.params import AnyParams, Params


def problem_of(params: AnyParams, folder: Path = Path(), alone: bool = False, together: Any = None) -> Problem[Any]:
    """Return what a run with these parameters works on; inputs of earlier stages lie below `folder`.

    Args:
        alone: where helpers are `auto`, this process does all by itself: it is one of many.
        together: `language.together.Together`, where several processes are one shard of language models.

    Raises:
        ParamsError: an environment is unknown, or not served; a base cannot be used.
        MissingInputError, DataError: a base is not there, or damaged.
    """
    if isinstance(params, Params):
        from evopipe.problems import env

        return env.problem_of(params, folder, alone)
    from evopipe.problems import text

    return text.problem_of(params, folder, alone, together)
