"""The stages: a module each, some of them another in `language` for language models, whose `run(params, quiet, folder)`
writes the stage's outs below a folder, from those of earlier stages.

It raises what `evopipe.errors` has: MissingInputError or DataError where an out of an earlier stage, or what a
parameter names, is not there, is damaged, or belongs to something else; ParamsError where a parameter cannot be used;
EnvironmentFailed where an environment breaks its contract; ResourceError where memory runs out; DiskError where a file
cannot be written; Interrupted where a signal came. Training also raises BusyError and DivergedError.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_UNLIKE = ("population", "evaluate", "export")  # where language models have a module of their own


def stage_of(name: str, of_text: bool) -> Any:
    """Return a stage's module, of language models or of others."""
    return import_module(f"evopipe.stages.{'language.' if of_text and name in _UNLIKE else ''}{name}")
