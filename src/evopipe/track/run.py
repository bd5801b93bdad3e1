"""What a tracker is told of a training, whatever the tracker, and wherever the training is read from.

Two sources give a `Run`: the record that a training leaves under `.evopipe/` (`track.record`) and DVC's own files
(`track.experiments`). A tracker that is given the same run twice must hold it once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from evopipe.errors import EvopipeError
from evopipe.schema.blocks import Tracker
from evopipe.track.base import Generation, MemberRow

Status = Literal["running", "finished", "killed"]

LINEAGE, ELITE, REPORT, EVALUATION = "lineage", "elite", "report", "evaluation"
FILES = {
    LINEAGE: "reports/lineage.jsonl",
    "fitness": "reports/fitness.csv",
    "timing": "reports/timing.csv",
    "train": "reports/train.json",
    EVALUATION: "reports/evaluation.json",
    "members": "reports/members.json",
    REPORT: "reports/report.html",
    ELITE: "models/elite",
}
"""What a pipeline leaves that is worth seeing in a tracker, by name: `stages/paths.py` has the same places."""
WRITTEN_BY = {
    "train": (LINEAGE, "fitness", "timing", "train"),
    "evaluate": (EVALUATION, "members"),
    "export": (ELITE,),
    "report": (REPORT,),
}
"""Which of them a stage writes: the others in the folder may still be another training's."""
TRAINED = "models/trained"

# Blocks of the params file that a run does not use would only make runs look different.
_SOURCES = frozenset({"collect", "minari", "hdf5"})


class TrackerError(EvopipeError):
    """A tracker could not take what it was given."""

    exit_code = 75


@dataclass(frozen=True)
class Kept:
    """A file or folder of a run.

    Attributes:
        path: where it lies.
        md5: of its content, as in `dvc.lock`.
        time: when it was written, seconds since 1970.
    """

    path: Path
    md5: str
    time: float


@dataclass
class Run:
    """One training.

    Attributes:
        key: its name among all trainings: 32 hex digits, or `dvc-` and those of its outcome.
        result: hash of `models/trained`, as in `dvc.lock`; None while it trains.
        params: all of `params.yaml`.
        started: seconds since 1970.
        generations: (seconds since 1970, generation), in order, each once.
        ended: when, in seconds since 1970, and why; None where it did not end by itself.
        files: what there is of `FILES`.
        experiment: name of the DVC experiment; `revision`: git commit.
        replace: whether its files are newer than another copy that a tracker may hold.
    """

    key: str
    params: Mapping[str, Any]
    started: float
    status: Status = "running"
    result: str | None = None
    generations: list[tuple[float, Generation]] = field(default_factory=list)
    ended: tuple[float, str] | None = None
    files: dict[str, Kept] = field(default_factory=dict)
    experiment: str | None = None
    revision: str | None = None
    version: str | None = None
    replace: bool = True

    @property
    def env(self) -> str:
        """The environment's id."""
        return str(self.params["env"]["id"])

    @property
    def algo(self) -> str:
        """The algorithm's name."""
        return str(self.params["train"]["algo"])

    @property
    def name(self) -> str:
        """What people read: the DVC experiment's name, or the algorithm and the start of the key."""
        return self.experiment or f"{self.algo}-{self.key.removeprefix('dvc-')[:8]}"

    @property
    def last_time(self) -> float:
        """When the last generation ended."""
        return self.generations[-1][0] if self.generations else self.started


@dataclass
class New:
    """What a tracker did not hold before."""

    runs: int = 0
    generations: int = 0
    files: int = 0

    def __add__(self, other: New) -> New:
        return New(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def __str__(self) -> str:
        if not self:
            return "0 new"
        counts = [(getattr(self, f.name), f.name) for f in fields(self)]
        return ", ".join(f"{n:,} new {word if n != 1 else word[:-1]}" for n, word in counts if n)


class Backend(Protocol):
    """One tracker. Every method may raise anything; whoever calls tries again later."""

    def deliver(self, run: Run) -> New:
        """Bring what the tracker does not hold yet, and return how much that was."""

    def find(self, run: Run) -> bool:
        """Whether the tracker holds all of this training (its files apart)."""

    def close(self) -> None:
        """Let go."""


def missing_package(name: Tracker) -> str | None:
    """Say what to install where a tracker's package is not there; it is not imported to find out."""
    from importlib.util import find_spec

    if find_spec(name) is not None:
        return None
    package = "mlflow" if name == "mlflow" else f"evopipe[{name}]"
    return f"tracking.backends: {name} is not installed, so nothing goes there: pip install '{package}'"


# --- numbers ----------------------------------------------------------------------------------------------------------


def population_metrics(event: Generation) -> dict[str, float]:
    """Return what a generation says of the population; numbers that are not finite are left out."""
    spent = event.seconds if event.seconds > 0 else math.nan
    return _finite(
        {
            "fitness/best": event.best,
            "fitness/mean": event.mean,
            "fitness/elite": event.elite,
            "population/generation": event.generation,
            "population/healthy": sum(row.healthy for row in event.members),
            "population/elite_id": event.elite_id,
            "steps/each_member": event.step,
            "steps/evaluation": event.eval_steps,
            "time/generation_seconds": spent,
        }
    )


def member_metrics(row: MemberRow) -> dict[str, float]:
    """Return a member's numbers; those that are not finite are left out."""
    parent = math.nan if row.parent is None else row.parent
    own = {"fitness": row.fitness, "loss": row.loss, "healthy": row.healthy, "id": row.id, "parent": parent}
    return _finite({**own, **{f"hyper/{name}": value for name, value in row.hyper.items()}})


def member_words(row: MemberRow) -> dict[str, str]:
    """Return what of a member is no number."""
    return {
        "network": row.architecture,
        "activation": row.activation,
        "mutation": row.mutation,
        "change": row.change or "-",
    }


def evaluation_metrics(run: Run) -> dict[str, float]:
    """Return the elite's held-out scores; nothing where they are not there or not of this format."""
    kept = run.files.get(EVALUATION)
    if kept is None:
        return {}
    try:
        scores = dict(json.loads(kept.path.read_text(encoding="utf-8"))["elite"])
        low, high = scores.pop("interval", (math.nan, math.nan))
        scores |= {"interval_low": low, "interval_high": high}
        return _finite({f"evaluation/{name}": float(value) for name, value in scores.items()})
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def flat_params(run: Run) -> dict[str, str]:
    """Return the parameters that the run uses, by dotted name; lists as JSON."""
    data = dict(run.params)
    data.pop("tracking", None)
    chosen = run.algo
    if isinstance(data.get("algos"), Mapping):
        data["algos"] = {chosen: data["algos"].get(chosen, {})}
    fetch = data.get("fetch")
    if isinstance(fetch, Mapping):
        unused = _SOURCES - {fetch.get("source")}
        data["fetch"] = {name: value for name, value in fetch.items() if name not in unused}
    return dict(_leaves(data, ""))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _leaves(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Cut a sequence into pieces of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
