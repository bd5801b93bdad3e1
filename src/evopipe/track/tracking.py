"""Connects a run to its trackers: the place of its record, and the start of its outbox. It never fails a stage."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evopipe.errors import EvopipeError
from evopipe.layout import WRITER
from evopipe.machine import git_revision
from evopipe.schema.blocks import TrackingConfig
from evopipe.signals import StopSignal
from evopipe.storage.keys import dvc_root
from evopipe.track.console import console_sink
from evopipe.track.events import JsonlSink, Tracker
from evopipe.track.outbox import ADVICE, Outbox
from evopipe.track.record import FILES, TRAINED, TrainingRecord, md5_of
from evopipe.version import __version__

LOG = "events.jsonl"


class Tracked(NamedTuple):
    """The parameters of a run that its trackers need.

    Attributes:
        config: the block `tracking`.
        values: all parameters as JSON data, which trackers show.
    """

    config: TrackingConfig
    values: Mapping[str, Any]


@contextlib.contextmanager
def watched(
    tracked: Tracked, state: Path, folder: Path, quiet: bool, name: str | None = None
) -> Iterator[tuple[StopSignal, Tracker, Outbox]]:
    """Track a training inside a `with` block, and watch for signals that ask it to stop.

    The block receives the flag that a signal sets, the `Tracker` that writes events to console and log, and the
    `Outbox` that delivers the log to experiment trackers.

    Args:
        tracked: the parameters that trackers need.
        state: the folder of the log.
        folder: the folder of the run's results.
        quiet: whether the console shows only warnings.
        name: the run's name for users; None for the name of the DVC experiment.
    """
    with (
        StopSignal() as stop,
        Tracker([console_sink(quiet), JsonlSink(state / LOG)]) as tracker,
        _outbox(tracked, state, folder, name) as outbox,
    ):
        yield stop, tracker, outbox


def _outbox(tracked: Tracked, state: Path, folder: Path, name: str | None) -> Outbox:
    """Begin a training's record in its `state` folder and return the outbox that will deliver it; the pipeline runs in
    `folder`. People read `name`, or the DVC experiment's."""
    wanted = None
    if _wanted(tracked.config):
        with _warning():
            told = {"revision": git_revision(folder.absolute()), "experiment": name or os.environ.get("DVC_EXP_NAME")}
            TrainingRecord(state).begin(tracked.values, **told, version=__version__)
            wanted = state
    return Outbox(wanted, dvc_root(folder), tracked.config)


def finish(config: TrackingConfig, state: Path, folder: Path) -> None:
    """Copy the results of a finished training from `folder` into the training's record, the folder `state`.

    `config` is the block `tracking` of the parameters. If it names no tracker, nothing is copied.
    """
    if _wanted(config):
        with _warning():
            TrainingRecord(state).keep(folder, _written_by("train"), ended=True)


def attach(config: TrackingConfig, stages: Iterable[str], folder: Path = Path()) -> None:
    """Copy the output files that `stages` have just written in `folder` into the record of their training run, and
    deliver the record to the trackers.

    `stages` are names of stages, and `config` is the block `tracking` of the parameters.
    """
    names = _written_by(*({*stages} - {"train"}))
    if not _wanted(config) or not names or not (folder / TRAINED).exists():
        return
    with _warning():
        root = dvc_root(folder)
        record = TrainingRecord.find(root / ".evopipe" / "train", md5_of(folder / TRAINED))
        if record is not None and record.keep(folder, names):
            Outbox(record.folder, root, config).deliver()


def _written_by(*stages: str) -> list[str]:
    """Which of `record.FILES` stages write: the others in the folder may still be another training's."""
    return [name for name, out in FILES.items() if WRITER[Path(out)] in stages]


def _wanted(config: TrackingConfig) -> bool:
    """Return whether a tracker is configured and wanted; `evopipe verify` sets a variable so that its runs are not
    tracked."""
    return bool(config.backends) and os.environ.get("EVOPIPE_TRACKING") != "off"


@contextlib.contextmanager
def _warning() -> Iterator[None]:
    try:
        yield
    except (EvopipeError, OSError) as error:
        with contextlib.suppress(Exception):
            print(f"warning: tracking: {error}; {ADVICE}", file=sys.stderr, flush=True)
