"""Between stages and trackers: where a training's record lies, and who starts its delivery. Never fails a stage."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from evopipe import __version__
from evopipe.errors import EvopipeError
from evopipe.keys import dvc_root
from evopipe.machine import git_revision
from evopipe.schema.params import Params
from evopipe.track import record
from evopipe.track.courier import ADVICE, Courier, start
from evopipe.track.run import TRAINED, WRITTEN_BY


def home(folder: Path = Path()) -> Path:
    """Return the folder of all trainings' records."""
    return dvc_root(folder) / ".evopipe" / "train"


def courier(params: Params, state: Path, folder: Path) -> Courier:
    """Begin a training's record and return who will deliver it.

    Args:
        params: the parameters.
        state: the training's state folder.
        folder: the folder that the pipeline runs in.
    """
    root = dvc_root(folder)
    if not _wanted(params):
        return Courier(None, root, params.tracking)
    try:
        record.begin(
            state,
            params.model_dump(mode="json"),
            git_revision(folder.absolute()),
            os.environ.get("DVC_EXP_NAME"),
            __version__,
        )
    except (EvopipeError, OSError) as error:
        _warn(error)
        return Courier(None, root, params.tracking)
    return Courier(state, root, params.tracking)


def finish(params: Params, state: Path, folder: Path) -> None:
    """Put a finished training's outcome into its record."""
    if _wanted(params):
        try:
            record.finish(state, folder)
        except (EvopipeError, OSError) as error:
            _warn(error)


def attach(params: Params, stages: Iterable[str], folder: Path = Path()) -> None:
    """Put what these stages have just written into the record of their training, and have it delivered."""
    names = [name for stage in stages for name in WRITTEN_BY.get(stage, ()) if stage != "train"]
    if not _wanted(params) or not names:
        return
    with contextlib.suppress(OSError):
        try:
            place = record.find(home(folder), record.md5_of(folder / TRAINED))
            if place is not None and record.keep(place, folder, names):
                start(place, dvc_root(folder), params.tracking, subprocess.DEVNULL)
        except EvopipeError as error:
            _warn(error)


def _wanted(params: Params) -> bool:
    """Whether a tracker is named; `evopipe verify`, whose runs nobody wants to see, sets the variable."""
    return bool(params.tracking.backends) and os.environ.get("EVOPIPE_TRACKING") != "off"


def _warn(error: Exception) -> None:
    with contextlib.suppress(Exception):
        print(f"warning: tracking: {error}; {ADVICE}", file=sys.stderr, flush=True)
