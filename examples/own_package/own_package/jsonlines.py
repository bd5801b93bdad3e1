"""A tracker: every generation of a run as a line of `.evopipe/jsonlines/<run>.jsonl` below the DVC root."""

from __future__ import annotations

import json
from pathlib import Path

from evopipe.schema.tracking import TrackingConfig
from evopipe.track.record import New, TrackedRun


def connect(config: TrackingConfig, root: Path) -> _File:
    """Open the tracker of the project in `root`."""
    return _File(root / ".evopipe" / "jsonlines")


class _File:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def deliver(self, run: TrackedRun) -> New:
        """Append what is not there yet; return how much that was."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{run.key}.jsonl"
        held = len(path.read_text().splitlines()) if path.exists() else 0
        with path.open("a") as stream:
            for _, event in run.after(held):
                stream.write(json.dumps({"generation": event.generation, **event.metrics()}) + "\n")
        return New(run=int(held == 0), generation=len(run.generations) - held)

    def close(self) -> None:
        """Nothing is held open."""
