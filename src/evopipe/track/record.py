"""The record of a training, `.evopipe/train/<key>/`: everything that trackers need, in local files.

    run.json      parameters, git commit, DVC experiment, start time; the hash of its result, and which files it kept
    events.jsonl  the log (`track.events`)
    kept/         what the stages wrote, under the names of `FILES`
    track.log     output of the trackers' own code

The outbox (`track.outbox`) delivers it to the trackers while the run lasts; `evopipe track sync` delivers what that
missed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from evopipe import layout
from evopipe.errors import DataError, EvopipeError
from evopipe.formats import leaves
from evopipe.storage.files import make_folder, read_bytes, read_json, write_bytes, write_json
from evopipe.track.events import End, Event, Generation, Start, read_event

TRAINED = str(layout.TRAINED)
_SHOWN = (
    layout.LINEAGE, layout.FITNESS, layout.SIGNALS, layout.TIMING, layout.TRAIN, layout.EVALUATION, layout.MEMBERS,
    layout.REPORT,
)  # fmt: skip
FILES = {out.stem: str(out) for out in (*_SHOWN, layout.ELITE)}
"""What a pipeline leaves that is worth seeing in a tracker, by name."""
_ABOUT, _TOLD = "run.json", ("key", "params", "started", "experiment", "revision", "version")


@dataclass(frozen=True)
class Kept:
    """A copy of one of a run's files or folders, in the run's record.

    Attributes:
        path: the path of the copy.
        md5: the hash of the content, as in `dvc.lock`.
        time: the time at which the original was written, in seconds since 1970.
    """

    path: Path
    md5: str  # as in `dvc.lock`
    time: float  # when it was written, seconds since 1970


@dataclass
class TrackedRun:
    """The data of one training that trackers show, read from its record or from DVC's files (`track.locks`).

    A tracker that gets the same run twice must store it once.

    Attributes:
        key: the run's unique name: 32 hex digits, or `dvc-` and the hash of its result.
        params: all of `params.yaml`.
        started: the time of the start, in seconds since 1970.
        status: whether the run is running, has finished or was killed.
        result: the hash of `models/trained`, as in `dvc.lock`; None while the run trains.
        generations: pairs (time, event) for each generation, in order.
        ended: the time and the reason of the end; None if the run did not end by itself.
        files: copies of the files that the run has written so far, by name.
        transitions: the hash of `data/transitions.h5`; None if there is no such file.
        experiment: the name of the DVC experiment; None if the run is not a DVC experiment.
        revision: the git commit; None if it is not known.
        version: the version of evopipe; None if it is not known.
        replace: whether `files` replace the copies that a tracker already has; False if those may be newer.
    """

    key: str  # its name among all trainings: 32 hex digits, or `dvc-` and those of its outcome
    params: Mapping[str, Any]  # all of `params.yaml`
    started: float  # seconds since 1970
    status: Literal["running", "finished", "killed"] = "running"
    result: str | None = None  # hash of `models/trained`, as in `dvc.lock`; None while it trains
    generations: list[tuple[float, Generation]] = field(default_factory=list)  # with their times, in order, each once
    ended: tuple[float, str] | None = None  # when, and why; None if it did not end by itself
    files: dict[str, Kept] = field(default_factory=dict)  # what there is of `FILES`
    transitions: str | None = None  # hash of `data/transitions.h5`, whether it learned from it or not
    experiment: str | None = None  # name of the DVC experiment
    revision: str | None = None  # git commit
    version: str | None = None  # of evopipe
    replace: bool = True  # whether its files are newer than another copy that a tracker may hold

    @property
    def env(self) -> str:
        """The id of the run's environment, or the task of its language models."""
        return about_of(self.params)

    @property
    def algo(self) -> str:
        return str(self.params["train"]["algo"])

    @property
    def name(self) -> str:
        """The run's name for users: the name of its DVC experiment, or the algorithm and the first digits of the run's
        key."""
        return self.experiment or f"{self.algo}-{self.key.removeprefix('dvc-')[:8]}"

    @property
    def last(self) -> tuple[float, int]:
        """The time at which the last generation ended, in seconds since 1970, and the population's training steps until
        then."""
        return (self.generations[-1][0], self.generations[-1][1].env_steps) if self.generations else (self.started, 0)

    def after(self, generation: int) -> list[tuple[float, Generation]]:
        """Return the times and events of all generations after the given number, for a tracker that has the earlier
        ones."""
        return [(clock, event) for clock, event in self.generations if event.generation > generation]

    def missing_files(self, held: Mapping[str, str], names: Iterable[str] = FILES) -> dict[str, Kept]:
        """Return the files, among `names`, that a tracker lacks or has with other content.

        `held` has the hashes of the tracker's files, by name. If this object's attribute `replace` is False, the
        tracker's files may be newer; then only the files that it lacks are returned.
        """
        there = {name: self.files[name] for name in names if name in self.files}
        return {n: kept for n, kept in there.items() if n not in held or (self.replace and held[n] != kept.md5)}

    def snapshot_key(self) -> tuple[Any, ...]:
        """Return a value that changes when there is something new to deliver, and otherwise stays equal."""
        files = {name: kept.md5 for name, kept in self.files.items()}
        return self.key, len(self.generations), self.status, self.result, files

    def scores(self) -> dict[str, float]:
        """Return the held-out scores of the elite (the best member) by the names that trackers show; empty if there are
        none or the file is damaged."""
        try:
            scores = dict(json.loads(self.files["evaluation"].path.read_bytes())["elite"])
            if "interval" in scores:
                scores["interval_low"], scores["interval_high"] = scores.pop("interval")
            return {f"evaluation/{name}": float(value) for name, value in scores.items()}
        except (OSError, ValueError, TypeError, KeyError):
            return {}

    def dataset(self) -> tuple[str, str] | None:
        """Return the name and the hash of the dataset on which the run was trained.

        The result is None if the run used no dataset, or has not ended.
        """
        try:
            learned = json.loads(self.files["train"].path.read_bytes())["warm_start"]
            fetch = self.params["fetch"]
            own = fetch[fetch["source"]]
            name = own.get("dataset") or own.get("path") or f"{self.env}/{fetch['source']}"
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return (str(name), self.transitions) if learned and self.transitions else None

    def flat_params(self) -> dict[str, str]:
        """Return the parameters that the run uses, as a flat dict of texts by dotted name.

        Values that are not texts are written as JSON.
        """
        used = {name: value for name, value in self.params.items() if name != "tracking"}
        if isinstance(used.get("algos"), Mapping):
            used["algos"] = {self.algo: used["algos"].get(self.algo, {})}
        if isinstance(used.get("fetch"), Mapping):
            sources = {"collect", "minari", "hdf5", "rlds", "table", "generate", "jsonl", "datasets"}
            unused = sources - {used["fetch"].get("source")}
            used["fetch"] = {name: value for name, value in used["fetch"].items() if name not in unused}
        return {n: v if isinstance(v, str) else json.dumps(v, sort_keys=True) for n, v in leaves(used)}


def about_of(params: Mapping[str, Any]) -> str:
    """Return what a run is about: the value of `env.id`, or of `language.task` if it trains language models.

    `params` are parameters in the layout of `params.yaml`.
    """
    (found,) = (str(value) for name, value in leaves(params) if name in layout.ABOUT)
    return found


class New(Counter[str]):
    """Counts of the things that one delivery sent and that the tracker did not have before. The keys are `run`,
    `generation` and `file`."""

    def __str__(self) -> str:
        return ", ".join(f"{n:,} new {what}{'s' * (n > 1)}" for what, n in self.items() if n) or "0 new"


class TrainingRecord:
    """The record of a training: a folder with everything that trackers need of it. `folder` is its path; `begin`
    creates it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: TrackedRun | None = None
        self._offset = 0  # of the first byte of the log that was not read

    @classmethod
    def all(cls, home: Path) -> list[TrainingRecord]:
        """Return all training records below `home`, which is `<DVC root>/.evopipe/train`, sorted by name."""
        return [cls(path.parent) for path in sorted(home.glob(f"*/{_ABOUT}"))]

    @classmethod
    def find(cls, home: Path, result: str) -> TrainingRecord | None:
        """Search the folder `home` for the record of the training whose `models/trained` has the hash `result`; return
        the record, or None if there is none."""
        for record in cls.all(home):
            with contextlib.suppress(EvopipeError):
                if record._about()["result"] == result:
                    return record
        return None

    def begin(self, params: Mapping[str, Any], **told: str | None) -> None:
        """Create the record. An existing record is left as it is, because the run is resumed or repeated.

        Args:
            params: all of `params.yaml`, as JSON data.
            told: more facts about the run, by name: the git `revision`, the DVC `experiment` and evopipe's `version`.
                Each is a text or None.
        """
        if not (self.folder / _ABOUT).exists():
            about = {"key": self.folder.name, "params": params, "started": round(time.time(), 3), **told}
            write_json(self.folder / _ABOUT, {**about, "result": None, "files": {}})

    def keep(self, work: Path, names: Iterable[str], ended: bool = False) -> bool:
        """Copy files of the pipeline into the record, where later runs cannot overwrite them; return whether anything
        was new.

        Files that do not exist or have not changed are skipped.

        Args:
            work: the pipeline's folder.
            names: the names of the files, which are keys of `FILES`.
            ended: whether the training has just ended; then the hash of its result is recorded too.
        """
        about = self._about()
        new = {**about, "files": {**about["files"]}}
        if ended:
            new["result"] = md5_of(work / TRAINED)
            if (work / layout.TRANSITIONS).exists():
                new["transitions"] = md5_of(work / layout.TRANSITIONS)
        for name in names:
            source = work / FILES[name]
            if source.exists() and (md5 := md5_of(source)) != new["files"].get(name, {}).get("md5"):
                _copy(source, self._place(name))
                new["files"][name] = {"md5": md5, "time": round(time.time(), 3)}
        if new != about:
            write_json(self.folder / _ABOUT, new)
        return bool(new != about)

    def run(self, writing: bool = False) -> TrackedRun:
        """Return the run in its current state; each call reads what was added to the log since the last call.

        `writing` says whether the run's process still writes to the record. If it does not, a run that has not ended is
        reported as killed.

        Raises:
            MissingInputError, DataError: the run's description is missing or damaged.
        """
        about = self._about()
        run = self._run = self._run or TrackedRun(**{name: about[name] for name in _TOLD})
        with contextlib.suppress(FileNotFoundError), (self.folder / "events.jsonl").open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if (read := read_event(line)) is not None:
                    _take(run, *read)
        places = {name: self._place(name) for name in about["files"]}
        run.files = {name: Kept(place, **about["files"][name]) for name, place in places.items() if place.exists()}
        run.result, run.transitions = about["result"], about.get("transitions")
        run.status = "finished" if run.ended else "running" if writing else "killed"
        return run

    def delivering(self) -> FileLock:
        """Return the lock that a process holds while it delivers the record. The training itself holds a different
        lock."""
        return FileLock(self.folder / "track.lock", poll_interval=0.2)

    def _about(self) -> dict[str, Any]:
        about = read_json(self.folder / _ABOUT)
        if not isinstance(about, dict) or not about.keys() >= {*_TOLD, "result", "files"}:
            raise DataError(f"{self.folder / _ABOUT}: is not the description of a run; remove it")
        return about

    def _place(self, name: str) -> Path:
        return self.folder / "kept" / name / Path(FILES[name]).name


def _take(run: TrackedRun, clock: float, event: Event) -> None:
    """Add an event to a run. A run that was killed repeats what came after its last checkpoint, bit for bit.

    Trackers may have received the first event of a generation already, so the first one counts.
    """
    if isinstance(event, Generation) and not run.after(event.generation - 1):
        run.generations.append((clock, event))
    elif isinstance(event, Start) and run.result is None:
        run.ended = None
    elif isinstance(event, End) and run.ended is None:
        run.ended = (clock, event.reason)


def _copy(source: Path, target: Path) -> None:
    """Put a copy of a file or folder in place of an older one."""
    shutil.rmtree(target.parent, ignore_errors=True)
    make_folder(target.parent)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link)
    else:
        _link(str(source), str(target))


def _link(source: str, target: str) -> None:
    """Link if the file system can: stages never write into a file, they put a new one in its place."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        write_bytes(Path(target), read_bytes(Path(source).resolve()))


def md5_of(path: Path) -> str:
    """Return the MD5 hash of a file or folder, as DVC computes it for `dvc.lock`; a folder's hash ends with `.dir`."""
    if not path.is_dir():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    hashes = {file.relative_to(path).as_posix(): md5_of(file) for file in path.rglob("*") if file.is_file()}
    listed = json.dumps([{"md5": hashes[name], "relpath": name} for name in sorted(hashes)])
    return hashlib.md5(listed.encode(), usedforsecurity=False).hexdigest() + ".dir"
