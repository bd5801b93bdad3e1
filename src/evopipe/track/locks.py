"""The trainings that DVC knows: of the workspace, of other branches and tags, and of every experiment, queued ones too.

A stage that DVC restores from its run cache executes nothing, and a pulled experiment ran elsewhere, so there is no log
of them. Their `dvc.lock` and the outs in the cache hold nearly everything; what only a log has (losses) is left out.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from evopipe.errors import DataError, EvopipeError, MissingInputError, need_package
from evopipe.layout import TRANSITIONS
from evopipe.schema.read import parse_yaml
from evopipe.storage.files import read_bytes, write_bytes
from evopipe.track.events import Generation
from evopipe.track.record import FILES, TRAINED, Kept, TrackedRun
from evopipe.track.signals import read_signals

if TYPE_CHECKING:
    pass

_LOCK, _PARAMS = "dvc.lock", "params.yaml"
_DEPTH = 3  # folders below the root in which a pipeline may lie
_SKIPPED = frozenset({"data", "models", "reports", "node_modules", "venv"})


@dataclass
class Locked:
    """A training that a `dvc.lock` file describes, in the workspace or in a git revision.

    Attributes:
        where: the name of the place for users: `workspace`, a branch, a tag or an experiment.
        result: the hash of `models/trained`.
        outs: the hash of every output file or folder, by its path.
        params: the parameters in the lock file, by dotted name.
        read: a function that returns the content of a file by its path, which is relative to the lock file's folder.
        time: the time of the commit or of the lock file, in seconds since 1970.
        cache: the folder of DVC's cache.
        experiment: the name of the DVC experiment; None if the training belongs to no experiment.
        revision: the git commit; None if there is none.
        folder: the pipeline's folder in the workspace; None for a training in git only.
    """

    where: str  # what people call it: `workspace`, a branch, an experiment
    result: str  # hash of `models/trained`
    outs: Mapping[str, str]  # hash of every out, by its path
    params: Mapping[str, Any]  # what the lock says of parameters, by dotted name
    read: Callable[[str], bytes]  # gives the content of a file of its tree, by its path beside the lock
    time: float  # of the commit, or of the lock
    cache: Path  # folder of DVC's cache
    experiment: str | None = None
    revision: str | None = None
    folder: Path | None = None  # where it lies in the workspace; None: in git only

    @classmethod
    def all(cls, root: Path) -> list[Locked]:
        """Return all trainings in a DVC repository: first the workspace's, then those of branches, tags and
        experiments.

        Raises:
            DataError: DVC's settings name git, and there is no git repository.
        """
        need_package("dvc", "pipeline", "track sync in a DVC repository")
        from dvc.repo import Repo
        from dvc.scm import SCMError

        try:
            repo = Repo(str(root))
        except SCMError as error:
            how = "git init, or dvc config core.no_scm true"
            raise DataError(f"{root}: DVC reads experiments from git here, and there is none: {how}") from error
        with repo:
            cache = Path(repo.cache.local.path)
            found = [cls.of(tree, lock, cache=cache, **about) for tree, lock, about in _locks(repo)]
        return [locked for locked in found if locked is not None]

    @classmethod
    def of(cls, tree: Any, lock: str, **about: Any) -> Locked | None:
        """Return the training that a lock file describes; None if it describes no training or cannot be read.

        Args:
            tree: one of DVC's file systems, which contains the lock file.
            lock: the path of the lock file in `tree`.
            about: the attributes of the result that are not in the lock file, such as `where`, `time` and `cache`.
        """

        def read(name: str) -> bytes:
            with tree.open(str(PurePosixPath(lock).parent / name), "rb") as stream:
                return bytes(stream.read())

        try:
            stages = parse_yaml(read(_LOCK).decode(), _LOCK).data["stages"]
            outs = _fresh_outs(stages)
            params = {k: v for stage in stages.values() for k, v in stage.get("params", {}).get(_PARAMS, {}).items()}
        except (OSError, EvopipeError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
            return None
        if TRAINED not in outs or FILES["lineage"] not in outs:
            return None
        return cls(result=outs[TRAINED], outs=outs, params=params, read=read, **about)

    def run(self, folder: Path) -> TrackedRun:
        """Return the training as trackers take it, with copies of the training's files in `folder`.

        Raises:
            MissingInputError: the DVC cache does not contain the training's lineage.
            DataError: a file of the training is damaged.
        """
        files = {}
        for name, out in FILES.items():
            with contextlib.suppress(MissingInputError, KeyError):
                files[name] = Kept(self._fetch(out, folder / name), self.outs[out], self.time)
        if "lineage" not in files:
            raise MissingInputError(f"{self.where}: {FILES['lineage']} is not in the cache; `dvc fetch` brings it")
        run = TrackedRun(
            key=f"dvc-{self.result.removesuffix('.dir')}",
            params=self._all_params(),
            started=self.time,
            status="finished",
            result=self.result,
            files=files,
            transitions=self.outs.get(str(TRANSITIONS)),
            experiment=self.experiment,
            revision=self.revision,
            replace=self.folder is not None,
        )
        try:
            run.generations = list(_generations(run))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.where}: is no training of this version ({error!r})") from error
        run.ended = run.last[0], _reason(run)
        return run

    def _fetch(self, out: str, folder: Path) -> Path:
        """Copy a file or folder, from the cache or from where git has it."""
        md5, target = self.outs[out], folder / PurePosixPath(out).name
        if not md5.endswith(".dir"):
            write_bytes(target, self._content(out, md5))
            return target
        for entry in json.loads(self._content(out, md5)):
            inner = PurePosixPath(entry["relpath"])
            if inner.is_absolute() or ".." in inner.parts:
                raise DataError(f"{self.where}: {out}: the cache names a file outside the folder ({inner})")
            write_bytes(target / inner, self._content(f"{out}/{inner}", entry["md5"]))
        return target

    def _content(self, out: str, md5: str) -> bytes:
        for read in ((self.cache / md5[:2] / md5[2:]).read_bytes, lambda: self.read(out)):
            with contextlib.suppress(OSError, KeyError):
                data = read()
                if hashlib.md5(data, usedforsecurity=False).hexdigest() == md5.removesuffix(".dir"):
                    return data
        raise MissingInputError(f"{self.where}: {out} is not in the cache")

    def _all_params(self) -> dict[str, Any]:
        """Return the params file of that tree, with the values that the lock says the stages ran with."""
        params: dict[str, Any] = {}
        with contextlib.suppress(OSError, KeyError, EvopipeError, UnicodeDecodeError):
            params = dict(parse_yaml(self.read(_PARAMS).decode(), _PARAMS).data)
        for name, value in self.params.items():
            *blocks, last = name.split(".")
            place = params
            for block in blocks:
                place = place.setdefault(block, {})
            place[last] = value
        return params


def _locks(repo: Any) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """Find the locks of the workspace and of all commits that have a name: file system, path there, what is known."""
    from dvc.repo.experiments.utils import exp_refs
    from dvc.scm import NoSCM

    for lock in _locks_in(repo.fs, repo.root_dir):
        path = Path(lock)
        yield repo.fs, lock, {"where": "workspace", "time": path.stat().st_mtime, "folder": path.parent}
    scm = repo.scm
    if isinstance(scm, NoSCM):
        return
    refs: list[tuple[str, str, str | None]] = []
    for kind in ("refs/heads/", "refs/tags/"):
        refs += [(ref.removeprefix(kind), ref, None) for ref in sorted(scm.iter_refs(kind))]
    refs += sorted((ref.name, str(ref), ref.name) for ref in exp_refs(scm))
    prefix = Path(repo.root_dir).relative_to(scm.root_dir).as_posix()  # git's root may lie above DVC's
    for where, ref, experiment in refs:
        commit = scm.resolve_commit(scm.resolve_rev(ref))
        about = {"where": where, "time": float(commit.commit_time), "revision": commit.hexsha}
        tree = scm.get_fs(commit.hexsha)
        for lock in _locks_in(tree, "" if prefix == "." else prefix):
            yield tree, lock, {**about, "experiment": experiment}


def _locks_in(tree: Any, root: str) -> Iterator[str]:
    for here, folders, files in tree.walk(root):
        deep = len(PurePosixPath(here).parts) - len(PurePosixPath(root).parts) >= _DEPTH
        folders[:] = sorted(f for f in folders if not deep and not f.startswith(".") and f not in _SKIPPED)
        if _LOCK in files:
            yield str(PurePosixPath(here) / _LOCK)


def _fresh_outs(stages: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of every out by path, but for those of stages that have not followed a change yet."""
    outs = {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", ())}
    fresh = dict(outs)
    for _ in stages:  # a stale stage makes those after it stale
        for stage in stages.values():
            if any(dep["path"] in outs and fresh.get(dep["path"]) != dep["md5"] for dep in stage.get("deps", ())):
                for out in stage.get("outs", ()):
                    fresh.pop(out["path"], None)
    return fresh


# --- from reports to events -------------------------------------------------------------------------------------------


def _generations(run: TrackedRun) -> Iterator[tuple[float, Generation]]:
    """Make the events of a training, with the times that they ended at, from its lineage, its curve and its times."""
    from evopipe.searchers.history import in_lockstep, origins, read_lineage

    clock, evolve = run.started, run.params.get("algos", {}).get(run.algo, {}).get("evolve", {})
    steps, seconds = _columns(run, "fitness", "env_steps", "eval_steps"), _columns(run, "timing", "seconds")
    lineage = read_lineage(read_bytes(run.files["lineage"].path), FILES["lineage"])
    signals: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}
    if "signals" in run.files:
        with contextlib.suppress(DataError):  # the rest is there
            signals = read_signals(run.files["signals"].path)
    lived: dict[tuple[int, int] | None, int] = {}  # steps of members by (generation, slot)
    trained, lockstep = 0, in_lockstep(lineage)
    for record, of in origins(lineage):
        for member in record.members:
            steps_now = record.step if member.steps is None else member.steps
            lived[record.generation, member.slot] = steps_now
            trained += steps_now - lived.get(of[member.slot].parent, 0)
        births = {slot: origin.mutation for slot, origin in of.items()}
        (taken,) = seconds.get(record.generation, [1.0])  # unmeasured: the same whenever it is read
        clock = round(clock + taken, 3)
        training, evaluation = steps.get(
            record.generation, [record.step * len(record.members) if lockstep else trained, 0]
        )
        told = {slot: found for (number, slot), found in signals.items() if number == record.generation}
        yield clock, Generation.of(record, births, evolve, taken, (int(training), int(evaluation)), signals=told)


def _columns(run: TrackedRun, name: str, *columns: str) -> dict[int, list[float]]:
    """Return columns of one of a run's tables by generation; nothing if it is not there."""
    if name not in run.files:
        return {}
    with run.files[name].path.open(encoding="utf-8", newline="") as stream:
        return {int(row["generation"]): [float(row[column]) for column in columns] for row in csv.DictReader(stream)}


def _reason(run: TrackedRun) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        reason = str(json.loads(run.files["train"].path.read_bytes())["reason"])
        return {"target": "target reached", "max_steps": "all steps taken"}.get(reason, reason)
    return "restored"
