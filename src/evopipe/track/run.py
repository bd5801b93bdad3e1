"""What a tracker is told of a training, whatever the tracker, and wherever the training is read from.

Two sources give a `Run`: the record that a training leaves under `.evopipe/` (`track.record`) and DVC's own files
(`track.locks`). A tracker that is given the same run twice must hold it once.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evopipe import layout
from evopipe.errors import EvopipeError
from evopipe.track.events import Generation, MemberRow

TRAINED = str(layout.TRAINED)
LINEAGE, ELITE, REPORT, EVALUATION = "lineage", "elite", "report", "evaluation"
_SHOWN = (layout.LINEAGE, layout.FITNESS, layout.TIMING, layout.TRAIN, layout.EVALUATION, layout.MEMBERS, layout.REPORT)
FILES = {out.stem: str(out) for out in (*_SHOWN, layout.ELITE)}
"""What a pipeline leaves that is worth seeing in a tracker, by name."""


class TrackerError(EvopipeError):
    """A tracker could not take what it was given."""

    exit_code = 75


@dataclass(frozen=True)
class Kept:
    """A file or folder of a run."""

    path: Path
    md5: str  # as in `dvc.lock`
    time: float  # when it was written, seconds since 1970


@dataclass
class Run:
    """One training."""

    key: str  # its name among all trainings: 32 hex digits, or `dvc-` and those of its outcome
    params: Mapping[str, Any]  # all of `params.yaml`
    started: float  # seconds since 1970
    status: Literal["running", "finished", "killed"] = "running"
    result: str | None = None  # hash of `models/trained`, as in `dvc.lock`; None while it trains
    generations: list[tuple[float, Generation]] = field(default_factory=list)  # with their times, in order, each once
    ended: tuple[float, str] | None = None  # when, and why; None where it did not end by itself
    files: dict[str, Kept] = field(default_factory=dict)  # what there is of `FILES`
    experiment: str | None = None  # name of the DVC experiment
    revision: str | None = None  # git commit
    version: str | None = None  # of evopipe
    replace: bool = True  # whether its files are newer than another copy that a tracker may hold

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

    @property
    def env_steps(self) -> int:
        """Training steps of the population so far: the step of what is told of the run as a whole."""
        return self.generations[-1][1].env_steps if self.generations else 0

    def after(self, generation: int) -> list[tuple[float, Generation]]:
        """Return the generations after one, for a tracker that holds the others."""
        return [(clock, event) for clock, event in self.generations if event.generation > generation]

    def stand(self) -> tuple[Any, ...]:
        """Return how far it is: equal as long as there is nothing new to tell."""
        return len(self.generations), self.status, self.result, {name: kept.md5 for name, kept in self.files.items()}


class New(Counter[str]):
    """How many `run`, `generation` and `file` a tracker did not hold before."""

    def __str__(self) -> str:
        return ", ".join(f"{n:,} new {what}{'s' * (n > 1)}" for what, n in self.items() if n) or "0 new"


# --- numbers and parameters -------------------------------------------------------------------------------------------


def population_metrics(event: Generation) -> dict[str, float]:
    """Return what a generation says of the population; numbers that are not finite are left out."""
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
            "time/generation_seconds": event.seconds or math.nan,
        }
    )


def member_metrics(row: MemberRow) -> dict[str, float]:
    """Return a member's numbers; those that are not finite are left out."""
    parent = math.nan if row.parent is None else row.parent
    own = {"fitness": row.fitness, "loss": row.loss, "healthy": row.healthy, "id": row.id, "parent": parent}
    return _finite({**own, **{f"hyper/{name}": value for name, value in row.hyper.items()}})


def evaluation_metrics(run: Run) -> dict[str, float]:
    """Return the elite's held-out scores; nothing where they are not there or not of this format."""
    try:
        scores = dict(json.loads(run.files[EVALUATION].path.read_text(encoding="utf-8"))["elite"])
        low, high = scores.pop("interval", (math.nan, math.nan))
        scores |= {"interval_low": low, "interval_high": high}
        return _finite({f"evaluation/{name}": float(value) for name, value in scores.items()})
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def flat_params(run: Run) -> dict[str, str]:
    """Return the parameters by dotted name, lists as JSON, but for blocks that the run does not use.

    Those would only make runs look different.
    """
    used = {name: value for name, value in run.params.items() if name != "tracking"}
    if isinstance(used.get("algos"), Mapping):
        used["algos"] = {run.algo: used["algos"].get(run.algo, {})}
    if isinstance(used.get("fetch"), Mapping):
        unused = {"collect", "minari", "hdf5"} - {used["fetch"].get("source")}
        used["fetch"] = {name: value for name, value in used["fetch"].items() if name not in unused}
    return dict(_leaves(used, ""))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _leaves(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, sort_keys=True)
