"""TensorBoard: event files below the DVC root, the population's in a run's own folder and each member's in one of it.

Event files can only be added to, so a delivery that was cut off is written anew by the next one.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evopipe.schema.blocks import TrackingConfig
from evopipe.storage import safeio
from evopipe.track.marks import Marks
from evopipe.track.run import EVALUATION, New, Run, evaluation_metrics, flat_params, member_metrics, population_metrics

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


class Tensorboard:
    """Writes runs to `.evopipe/tensorboard/<experiment>/<run>/`.

    Args:
        config: the `tracking` block.
        root: the DVC root.
    """

    def __init__(self, config: TrackingConfig, root: Path) -> None:
        self._config, self._home = config, root / ".evopipe" / "tensorboard"
        self._marks = Marks(self._home / "delivered")
        self._open: dict[str, _Writing] = {}

    def find(self, run: Run) -> bool:
        """Whether all of this training is there."""
        return self._marks.complete(run)

    def deliver(self, run: Run) -> New:
        """Bring what is not there yet."""
        new, complete = New(), self._marks.complete(run)
        if complete and self._marks.has(run, EVALUATION):
            return new
        if run.key not in self._open:
            folder = self._home / _plain(self._config.experiment or run.env) / _plain(f"{run.name}-{run.key[-6:]}")
            new.runs = int(not self._marks.known(run))
            self._open[run.key] = _Writing(folder, run)
        sent = self._open[run.key].write(run)
        new.generations = 0 if complete else sent
        if run.status != "running":
            new.files = self._marks.note(run, (EVALUATION,))
            self._open.pop(run.key).close()
        return new

    def close(self) -> None:
        """Flush and close all files."""
        for writing in self._open.values():
            writing.close()
        self._open.clear()


class _Writing:
    """The event files of one run, written from its beginning."""

    def __init__(self, folder: Path, run: Run) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        safeio.make_folder(folder)
        self._folder, self._sent = folder, 0
        self._writers: dict[str, EventFileWriter] = {}
        self._add("", _text("params", flat_params(run)), run.started, 0)

    def write(self, run: Run) -> int:
        fresh = [(clock, event) for clock, event in run.generations if event.generation > self._sent]
        for clock, event in fresh:
            self._add("", _scalars(population_metrics(event)), clock, event.env_steps)
            for row in event.members:
                self._add(f"member-{row.slot}", _scalars(member_metrics(row)), clock, event.env_steps)
            self._sent = event.generation
        scores = evaluation_metrics(run) if run.status == "finished" else {}
        if scores:
            steps = run.generations[-1][1].env_steps if run.generations else 0
            self._add("", _scalars(scores), run.last_time, steps)
        for writer in self._writers.values():
            writer.flush()
        return len(fresh)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _add(self, name: str, summary: Any, clock: float, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if name not in self._writers:
            self._writers[name] = EventFileWriter(str(self._folder / name))
        self._writers[name].add_event(Event(wall_time=clock, step=step, summary=summary))


def _scalars(values: dict[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])


def _text(tag: str, values: dict[str, str]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    rows = "\n".join(f"| {name} | {value} |" for name, value in values.items())
    content = f"| parameter | value |\n|---|---|\n{rows}"
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[content.encode()], tensor_shape=shape)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


def _plain(name: str) -> str:
    """Return a name that is a folder's on every system."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "run"
