"""The stages: a module each, whose `run(params, quiet, folder)` writes the stage's outs below a folder, from those of
earlier stages. What is unlike for environments and language models is in `problems`.

It raises what `evopipe.errors` has: MissingInputError or DataError where an out of an earlier stage, or what a
parameter names, is not there, is damaged, or belongs to something else; ParamsError where a parameter cannot be used;
EnvironmentFailed where an environment breaks its contract; ResourceError where memory runs out; DiskError where a file
cannot be written; Interrupted where a signal came. Training also raises BusyError and DivergedError.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evopipe.layout import Stage


def module_of(stage: Stage) -> Any:
    """Return the module of a stage of the table, which is imported now."""
    return import_module(f"{__name__}.{stage.name}")
