"""What was delivered, for trackers that cannot be asked: one small JSON file a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evopipe.errors import EvopipeError
from evopipe.storage import safeio
from evopipe.track.run import New, Run


class Delivered:
    """Remembers which trainings a tracker has, and which of their files.

    Args:
        folder: where the notes lie.
        names: the files that the tracker takes.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, names

    def missing(self, run: Run) -> New:
        """Count what of a run was not delivered yet; an older file is not to replace a newer one."""
        noted = self._read(run)
        if noted is None:
            return New(run=1, generation=len(run.generations), file=len(self._files(run)))
        held: dict[str, str] = noted["files"]
        fresh = [name for name, md5 in self._files(run).items() if held.get(name) != md5]
        same = run.result is not None and noted["result"] == run.result
        generations = 0 if same else max(0, len(run.generations) - noted["generations"])
        return New(generation=generations, file=sum(run.replace or name not in held for name in fresh))

    def note(self, run: Run) -> None:
        """Note that all of it was delivered."""
        held = (self._read(run) or {"files": {}})["files"]
        about = {"generations": len(run.generations), "result": run.result, "files": {**held, **self._files(run)}}
        for key in {run.key, run.result or run.key}:
            safeio.write_json(self._folder / f"{key}.json", about)

    def _files(self, run: Run) -> dict[str, str]:
        return {name: run.files[name].md5 for name in self._names if name in run.files}

    def _read(self, run: Run) -> dict[str, Any] | None:
        for key in (run.key, run.result or run.key):
            try:
                noted = safeio.read_json(self._folder / f"{key}.json")
            except EvopipeError:
                continue
            if isinstance(noted, dict) and {"generations", "result", "files"} <= noted.keys():
                return noted
        return None
