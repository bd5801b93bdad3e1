"""The trackers, one file each. A file is named after the package that it uses.

It defines `PACKAGE`, what to install, and `connect(config, root)`, which opens the tracker. It imports its package only
where it uses it, because that may not be installed. Another package can add a tracker by an entry point of the group
`evopipe.trackers`, the name of a module that defines `connect`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from evopipe import plugins
from evopipe.errors import EvopipeError, TrackerError
from evopipe.schema.blocks import TRACKERS, TrackingConfig
from evopipe.storage.files import read_json, write_json
from evopipe.track.events import Generation
from evopipe.track.record import New, TrackedRun


class TrackerBackend(Protocol):
    """The protocol of a connection to an experiment tracker.

    The method `deliver` sends those data of a run that the tracker does not have yet, and returns counts of what it
    sent. The method `close` ends the connection. Both may raise any exception; the caller then tries again later with a
    new connection.
    """

    def deliver(self, run: TrackedRun) -> New: ...

    def close(self) -> None: ...


def connect(name: str, config: TrackingConfig, root: Path) -> TrackerBackend:
    """Open a connection to a tracker, and return it.

    Args:
        name: the tracker's name, such as `mlflow`.
        config: the block `tracking` of the parameters.
        root: the root of the DVC repository.

    Raises:
        TrackerError: the tracker's package is not installed, or the root no longer exists.
    """
    if not root.is_dir():  # a temporary copy; do not make a part of it anew
        raise TrackerError(f"{root}: this folder is gone, and with it what was to be delivered")
    if (missing := missing_package(name)) is not None:
        raise TrackerError(missing)
    return cast(TrackerBackend, _tracker(name).connect(config, root))


def missing_package(name: str) -> str | None:
    """Return a sentence that says what to install for a tracker; None if its package is installed. Nothing is
    imported."""
    if name not in TRACKERS:  # an entry point: it is installed; whether it can be imported is seen when it is opened
        return None if plugins.offered(plugins.TRACKERS, name) else f"tracking.backends: no package offers {name!r}"
    if find_spec(name) is not None:
        return None
    remedy = f"pip install '{_tracker(name).PACKAGE}'"
    return f"tracking.backends: {name} is not installed, so nothing goes there: {remedy}"


def _tracker(name: str) -> Any:
    outside = plugins.find(plugins.TRACKERS, name, "tracking.backends", TRACKERS)
    if outside is None:
        return importlib.import_module(f"{__name__}.{name}")
    found = outside.load("tracking.backends")
    if not callable(getattr(found, "connect", None)):
        raise TrackerError(f"tracking.backends: {outside} does not define connect(config, root): every tracker must")
    return found


class _Writer(Protocol):
    """The writer of one run.

    `write` appends a generation and when it ended, in seconds since 1970. `finish` appends what concerns the whole run,
    and closes; `close` releases a run that is not complete.
    """

    sent: int  # the last generation that is there

    def write(self, clock: float, event: Generation) -> None: ...

    def finish(self, run: TrackedRun) -> None: ...

    def close(self) -> None: ...


class Appending:
    """A connection to a tracker that can only append data, and cannot say what it has already.

    What was delivered completely is noted in the folder `notes`, in a small JSON file for each training. An interrupted
    delivery is repeated from its beginning.

    Args:
        notes: the folder for the notes.
        names: the names of the files that the tracker accepts.
        begin: a function that starts to write a run from its beginning: it discards what was written of that run
            before, and returns an object that writes to the tracker.
    """

    def __init__(self, notes: Path, names: Sequence[str], begin: Callable[[TrackedRun], _Writer]) -> None:
        self._notes, self._names, self._begin = notes, names, begin
        self._writer: _Writer | None = None
        self._key = ""

    def deliver(self, run: TrackedRun) -> New:
        noted = self._noted(run)
        brought, held = (noted["generations"], noted["files"]) if noted else (0, {})
        fresh = run.missing_files(held, self._names)
        new = New(run=int(noted is None), generation=max(0, len(run.generations) - brought), file=len(fresh))
        if not new.total():
            return new
        if self._writer is None or run.key != self._key:
            self.close()
            self._writer, self._key = self._begin(run), run.key
        for clock, event in run.after(self._writer.sent):
            self._writer.write(clock, event)
            self._writer.sent = event.generation
        if run.status != "running":
            self._writer.finish(run)
            self._writer = None
            files = {**held, **{name: kept.md5 for name, kept in fresh.items()}}
            for key in {run.key, run.result or run.key}:
                write_json(self._notes / f"{key}.json", {"generations": len(run.generations), "files": files})
        return new

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _noted(self, run: TrackedRun) -> dict[str, Any] | None:
        for key in (run.key, run.result or run.key):
            try:
                noted = read_json(self._notes / f"{key}.json")
            except EvopipeError:
                continue
            if isinstance(noted, dict) and {"generations", "files"} <= noted.keys():
                return noted
        return None
