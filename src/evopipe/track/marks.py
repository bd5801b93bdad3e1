"""What was delivered, for trackers that cannot be asked: one small JSON file a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evopipe.errors import EvopipeError
from evopipe.storage import safeio
from evopipe.track.run import Run


class Marks:
    """Remembers which trainings a tracker has in full, and which of their files.

    Args:
        folder: where the marks lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def known(self, run: Run) -> bool:
        """Whether anything of it was delivered to its end before."""
        return bool(self._read(run))

    def complete(self, run: Run) -> bool:
        """Whether all of its generations were delivered."""
        mark = self._read(run)
        if run.result is not None and mark.get("result") == run.result:
            return True
        last = run.generations[-1][1].generation if run.generations else 0
        return bool(mark) and mark["generations"] == last and mark["status"] == run.status

    def has(self, run: Run, name: str) -> bool:
        """Whether a file of it was delivered as it is now, or is not there, or a newer one is not to replace it."""
        kept, held = run.files.get(name), self._read(run).get("files", {})
        return kept is None or held.get(name) == kept.md5 or (name in held and not run.replace)

    def note(self, run: Run, names: Sequence[str]) -> int:
        """Note that all of it was delivered, with these of its files; return how many of them are new."""
        held = self._read(run).get("files", {})
        now = {name: run.files[name].md5 for name in names if name in run.files}
        last = run.generations[-1][1].generation if run.generations else 0
        mark = {"generations": last, "status": run.status, "result": run.result, "files": {**held, **now}}
        for key in {run.key, run.result or run.key}:
            safeio.write_json(self._path(key), mark)
        return sum(held.get(name) != md5 for name, md5 in now.items())

    def _read(self, run: Run) -> dict[str, Any]:
        for key in (run.key, run.result):
            if key is None:
                continue
            try:
                mark = safeio.read_json(self._path(key))
            except EvopipeError:
                continue
            if isinstance(mark, dict) and {"generations", "status"} <= mark.keys():
                return mark
        return {}

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
