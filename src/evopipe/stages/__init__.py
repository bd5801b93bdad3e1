"""The stages, a module each. `run(params, quiet, folder)` reads the files that earlier stages wrote below a folder, and
writes its own.

What differs between environments and language models is in `problems`.

Raises:
    MissingInputError, DataError: an out of an earlier stage, or what a parameter names, is missing, damaged, or belongs
        to something else.
    ParamsError: a parameter cannot be used.
    EnvironmentFailed: an environment breaks its contract.
    ResourceError: memory ran out.
    DiskError: a file cannot be written.
    Interrupted: a signal arrived.
    BusyError, DivergedError: in training only.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from evopipe.layout import REPORT, STAGES, Stage

WITHOUT_REPORT = tuple(stage for stage in STAGES if REPORT not in stage.env.writes)
NO_REPORT = "no report was written: it needs matplotlib, which is not installed: pip install 'evopipe[report]'"


def runnable() -> tuple[Stage, ...]:
    """Return the stages in their order; without the report if matplotlib, which draws it, is not installed."""
    return STAGES if find_spec("matplotlib") is not None else WITHOUT_REPORT


def module_of(stage: Stage) -> Any:
    """Import and return the module that implements a stage of the table `layout.STAGES`."""
    return import_module(f"{__name__}.{stage.name}")
