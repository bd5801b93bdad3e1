"""The stages: a module each, whose `run(params, quiet, folder)` writes the stage's outs below a folder, from those of
earlier stages. What is unlike for environments and language models is in `problems`.

It raises what `evopipe.errors` has: MissingInputError or DataError where an out of an earlier stage, or what a
parameter names, is not there, is damaged, or belongs to something else; ParamsError where a parameter cannot be used;
EnvironmentFailed where an environment breaks its contract; ResourceError where memory runs out; DiskError where a file
cannot be written; Interrupted where a signal came. Training also raises BusyError and DivergedError.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from evopipe.layout import Stage

if TYPE_CHECKING:
    from evopipe.schema.params import AnyParams


def run(stage: Stage, params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Run a stage of the table; its module is imported now."""
    import_module(f"{__name__}.{stage.name}").run(params, quiet=quiet, folder=folder)
