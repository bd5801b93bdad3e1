"""TensorBoard: event files below the DVC root, the population's in a run's own folder and each member's in one of it.

Event files can only be added to, so a delivery that was cut off is written anew by the next one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evopipe.storage import safeio
from evopipe.track.config import TrackingConfig
from evopipe.track.delivered import Delivered
from evopipe.track.run import EVALUATION, New, Run, evaluation_metrics, flat_params, member_metrics, population_metrics

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PACKAGE = "evopipe[tensorboard]"


def connect(config: TrackingConfig, root: Path) -> _Tensorboard:
    """Open `.evopipe/tensorboard/`, where runs go to `<experiment>/<run>/`."""
    return _Tensorboard(config.experiment, root / ".evopipe" / "tensorboard")


class _Tensorboard:
    """Writes one run after the other."""

    def __init__(self, experiment: str | None, home: Path) -> None:
        self._experiment, self._home = experiment, home
        self._delivered = Delivered(home / "delivered", [EVALUATION])
        self._key, self._sent = "", 0  # of the run that is being written, and its last generation
        self._writers: dict[str, SummaryWriter] = {}

    def deliver(self, run: Run) -> New:
        """Bring what is not there yet."""
        new = self._delivered.missing(run)
        if not new.total():
            return new
        folder = self._home / _plain(self._experiment or run.env) / _plain(f"{run.name}-{run.key[-6:]}")
        if run.key != self._key:
            self.close()
            if folder.exists():
                shutil.rmtree(folder)
            safeio.make_folder(folder)
            self._key, self._sent = run.key, 0
            table = "\n".join(f"| {name} | {value} |" for name, value in flat_params(run).items())
            self._writer(folder).add_text("params", f"| parameter | value |\n|---|---|\n{table}", 0, run.started)
        for clock, event in run.after(self._sent):
            self._add(folder, population_metrics(event), event.env_steps, clock)
            for row in event.members:
                self._add(folder / f"member-{row.slot}", member_metrics(row), event.env_steps, clock)
            self._sent = event.generation
        for writer in self._writers.values():
            writer.flush()
        if run.status != "running":
            self._add(folder, evaluation_metrics(run), run.env_steps, run.last_time)
            self.close()
            self._delivered.note(run)
        return new

    def close(self) -> None:
        """Flush and close all files; a run that comes again is written anew."""
        for writer in self._writers.values():
            writer.close()
        self._key, self._writers = "", {}

    def _writer(self, folder: Path) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        if str(folder) not in self._writers:
            self._writers[str(folder)] = SummaryWriter(str(folder))
        return self._writers[str(folder)]

    def _add(self, folder: Path, values: Mapping[str, float], step: int, clock: float) -> None:
        for name, value in values.items():
            self._writer(folder).add_scalar(name, value, step, clock)


def _plain(name: str) -> str:
    """Return a name that is a folder's on every system."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "run"
