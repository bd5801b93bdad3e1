"""How a tracker is fed that can only be added to, and cannot be asked what it has got.

While a run lasts its generations are appended. What was brought to the end is noted, one small JSON file a training; a
delivery that was cut off is written anew by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from evopipe.errors import EvopipeError
from evopipe.storage.files import read_json, write_json
from evopipe.track.events import Generation
from evopipe.track.run import New, Run


class Writer(Protocol):
    """One run that is being written."""

    sent: int  # the last generation that is there

    def write(self, clock: float, event: Generation) -> None:
        """Append a generation, and when it ended, in seconds since 1970."""

    def finish(self, run: Run) -> None:
        """Append what there is to say of the run as a whole, and close."""

    def close(self) -> None:
        """Let go of a run that is not complete."""


class Appending:
    """Brings one run after the other: the backend of such a tracker.

    Args:
        notes: folder of the notes on what was delivered.
        names: the files that the tracker takes.
        begin: makes the writer of a run, in place of what was written of it before.
    """

    def __init__(self, notes: Path, names: Sequence[str], begin: Callable[[Run], Writer]) -> None:
        self._notes, self._names, self._begin = notes, names, begin
        self._writer: Writer | None = None
        self._key = ""

    def deliver(self, run: Run) -> New:
        """Bring what is not there yet."""
        new = self._missing(run)
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
            held = (self._read(run) or {"files": {}})["files"]
            note = {"generations": len(run.generations), "result": run.result, "files": {**held, **self._files(run)}}
            for key in {run.key, run.result or run.key}:
                write_json(self._notes / f"{key}.json", note)
        return new

    def close(self) -> None:
        """Let go of the run that is open."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _missing(self, run: Run) -> New:
        """Count what of a run was not delivered yet; an older file is not to replace a newer one."""
        noted, files = self._read(run), self._files(run)
        if noted is None:
            return New(run=1, generation=len(run.generations), file=len(files))
        same = run.result is not None and noted["result"] == run.result
        generations = 0 if same else max(0, len(run.generations) - noted["generations"])
        held = noted["files"]
        fresh = [name for name, md5 in files.items() if held.get(name) != md5 and (run.replace or name not in held)]
        return New(generation=generations, file=len(fresh))

    def _files(self, run: Run) -> dict[str, str]:
        return {name: run.files[name].md5 for name in self._names if name in run.files}

    def _read(self, run: Run) -> dict[str, Any] | None:
        for key in (run.key, run.result or run.key):
            try:
                noted = read_json(self._notes / f"{key}.json")
            except EvopipeError:
                continue
            if isinstance(noted, dict) and {"generations", "result", "files"} <= noted.keys():
                return noted
        return None
