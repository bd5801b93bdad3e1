"""TensorBoard: event files below the DVC root. The population's are in a run's folder, each member's in a subfolder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evopipe.schema.tracking import TrackingConfig
from evopipe.storage.files import make_folder
from evopipe.track.backends import Appending
from evopipe.track.events import Generation
from evopipe.track.record import TrackedRun

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PACKAGE = "evopipe[tensorboard]"


def connect(config: TrackingConfig, root: Path) -> Appending:
    """Return a connection that writes TensorBoard's event files of a run to the folder
    `.evopipe/tensorboard/<experiment>/<run>/` below `root`.

    `config` is the block `tracking` of the parameters, and `root` the root of the DVC repository.
    """
    home = root / ".evopipe" / "tensorboard"

    def begin(run: TrackedRun) -> _Writer:
        return _Writer(home / _plain(config.experiment or run.env) / _plain(f"{run.name}-{run.key[-6:]}"), run)

    return Appending(home / "delivered", ["evaluation"], begin)


class _Writer:
    def __init__(self, folder: Path, run: TrackedRun) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        make_folder(folder)
        self.sent = 0
        self._folder = folder
        self._files: dict[str, SummaryWriter] = {}
        table = "\n".join(f"| {name} | {value} |" for name, value in run.flat_params().items())
        self._file("").add_text("params", f"| parameter | value |\n|---|---|\n{table}", 0, run.started)

    def write(self, clock: float, event: Generation) -> None:
        self._add("", event.metrics(), event.env_steps, clock)
        for row in event.members:
            self._add(f"member-{row.slot}", row.metrics(), event.env_steps, clock)

    def finish(self, run: TrackedRun) -> None:
        clock, step = run.last
        self._add("", run.scores(), step, clock)
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _add(self, name: str, values: Mapping[str, float], step: int, clock: float) -> None:
        for tag, value in values.items():
            self._file(name).add_scalar(tag, value, step, clock)

    def _file(self, name: str) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        if name not in self._files:
            self._files[name] = SummaryWriter(str(self._folder / name), flush_secs=5)
        return self._files[name]


def _plain(name: str) -> str:
    """Return a name that is a folder's on every system."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "run"
