"""Trainings as DVC knows them: the workspace's, other branches' and tags', and every experiment's, queued ones too.

A stage that DVC restores from its run cache executes nothing, and a pulled experiment ran elsewhere, so no log tells of
them. Their `dvc.lock` and the outputs that the cache holds tell nearly all; what only a log has (losses) is left out.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from evopipe.errors import DataError, EvopipeError, MissingInputError
from evopipe.schema.read import parse_yaml
from evopipe.storage import safeio
from evopipe.track.base import Generation, MemberRow
from evopipe.track.run import FILES, LINEAGE, TRAINED, Kept, Run

LOCK, PARAMS = "dvc.lock", "params.yaml"
DEPTH = 3  # folders below the root in which a pipeline may lie
_SKIPPED = frozenset({"data", "models", "reports", "node_modules", "venv"})


@dataclass
class Locked:
    """One `dvc.lock` that holds a training.

    Attributes:
        where: what people call it: `workspace`, a branch, an experiment.
        result: hash of `models/trained`.
        outs: hash of every out, by its path.
        params: what the lock says of parameters, by dotted name.
        read: the content of a file of its tree, by its path beside the lock.
        time: of the commit, or of the lock.
    """

    where: str
    result: str
    outs: Mapping[str, str]
    params: Mapping[str, Any]
    read: Callable[[str], bytes]
    time: float
    cache: Path
    experiment: str | None = None
    revision: str | None = None
    folder: Path | None = field(default=None)

    def run(self, folder: Path) -> Run:
        """Read the training.

        Args:
            folder: where copies of its files go.

        Raises:
            MissingInputError: the cache does not hold its lineage.
            DataError: one of its files is damaged.
        """
        files = dict(self._kept(folder))
        if LINEAGE not in files:
            raise MissingInputError(f"{self.where}: {FILES[LINEAGE]} is not in the cache; `dvc fetch` brings it")
        generations = _generations(folder, self.time)
        end = generations[-1][0] if generations else self.time
        return Run(
            key=f"dvc-{self.result.removesuffix('.dir')}",
            params=self._all_params(),
            started=self.time,
            status="finished",
            result=self.result,
            generations=generations,
            ended=(end, _reason(folder)),
            files={name: Kept(kept.path, kept.md5, end) for name, kept in files.items()},
            experiment=self.experiment,
            revision=self.revision,
            replace=False,
        )

    def _kept(self, folder: Path) -> Iterator[tuple[str, Kept]]:
        for name, place in FILES.items():
            md5 = self.outs.get(place)
            if md5 is None:
                continue
            target = folder / name / PurePosixPath(place).name
            with contextlib.suppress(MissingInputError):
                self._fetch(place, md5, target)
                yield name, Kept(target, md5, self.time)

    def _fetch(self, place: str, md5: str, target: Path) -> None:
        if not md5.endswith(".dir"):
            safeio.write_bytes(target, self._content(place, md5))
            return
        for entry in json.loads(self._content(place, md5)):
            inner = PurePosixPath(entry["relpath"])
            if inner.is_absolute() or ".." in inner.parts:
                raise DataError(f"{self.where}: {place}: the cache names a file outside the folder ({inner})")
            safeio.write_bytes(target / inner, self._content(f"{place}/{inner}", entry["md5"]))

    def _content(self, place: str, md5: str) -> bytes:
        """Return a file's bytes, from the cache or from where git has them."""
        cached = self.cache / md5[:2] / md5[2:]
        readers: tuple[Callable[[], bytes], ...] = (cached.read_bytes, lambda: self.read(place))
        for read in readers:
            with contextlib.suppress(OSError, KeyError):
                data = read()
                if hashlib.md5(data, usedforsecurity=False).hexdigest() == md5.removesuffix(".dir"):
                    return data
        raise MissingInputError(f"{self.where}: {place} is not in the cache")

    def _all_params(self) -> dict[str, Any]:
        """Return the params file of that tree, with the values that the lock says the stages ran with."""
        params: dict[str, Any] = {}
        with contextlib.suppress(OSError, KeyError, EvopipeError, UnicodeDecodeError):
            params = dict(parse_yaml(self.read(PARAMS).decode(), PARAMS).data)
        for name, value in self.params.items():
            *blocks, last = name.split(".")
            place = params
            for block in blocks:
                place = place.setdefault(block, {})
            place[last] = value
        return params


def locked(root: Path) -> Iterator[Locked]:
    """Find all trainings that the repository knows: the workspace's first, then branches, tags and experiments.

    Args:
        root: the DVC root.
    """
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        cache = Path(repo.cache.local.path)
        yield from of_workspace(root, cache)
        if _has_git(repo):
            yield from _of_revisions(repo, cache)


def workspaces(root: Path) -> Iterator[Path]:
    """Return the folders of the workspace that have a `dvc.lock`."""
    for here, folders, files in os.walk(root):
        depth = len(Path(here).relative_to(root).parts)
        folders[:] = sorted(
            name for name in folders if depth < DEPTH and not name.startswith(".") and name not in _SKIPPED
        )
        if LOCK in files:
            yield Path(here)


def of_workspace(root: Path, cache: Path = Path(".dvc/cache/files/md5")) -> Iterator[Locked]:
    """Find the trainings that lie in the workspace."""
    for folder in workspaces(root):
        lock = folder / LOCK
        read = lambda name, folder=folder: (folder / name).read_bytes()  # noqa: E731
        yield from _trainings("workspace", read, lock.stat().st_mtime, cache, folder=folder)


def _has_git(repo: Any) -> bool:
    from dvc.scm import NoSCM

    return not isinstance(repo.scm, NoSCM)


def _of_revisions(repo: Any, cache: Path) -> Iterator[Locked]:
    from dvc.repo.experiments.utils import exp_refs

    scm = repo.scm
    names = [(ref.removeprefix(f"refs/{kind}/"), ref, None) for kind in ("heads", "tags") for ref in _refs(scm, kind)]
    names += sorted((ref.name, str(ref), ref.name) for ref in exp_refs(scm))
    # Git's root may lie above DVC's.
    prefix = PurePosixPath(Path(repo.root_dir).relative_to(scm.root_dir).as_posix())
    for where, ref, experiment in names:
        commit = scm.resolve_commit(scm.resolve_rev(ref))
        tree = scm.get_fs(commit.hexsha)
        for lock in _locks(tree, prefix):
            read = lambda name, lock=lock, tree=tree: _read(tree, str(lock.parent / name))  # noqa: E731
            about = {"experiment": experiment, "revision": commit.hexsha}
            yield from _trainings(where, read, float(commit.commit_time), cache, **about)


def _refs(scm: Any, kind: str) -> list[str]:
    return sorted(scm.iter_refs(f"refs/{kind}/"))


def _locks(tree: Any, prefix: PurePosixPath) -> Iterator[PurePosixPath]:
    for here, folders, files in tree.walk(str(prefix) if str(prefix) != "." else ""):
        depth = len(PurePosixPath(here).parts) - len(prefix.parts)
        folders[:] = sorted(name for name in folders if depth < DEPTH and not name.startswith("."))
        if LOCK in files:
            yield PurePosixPath(here) / LOCK


def _read(tree: Any, name: str) -> bytes:
    with tree.open(name, "rb") as stream:
        return bytes(stream.read())


def _trainings(where: str, read: Callable[[str], bytes], time: float, cache: Path, **about: Any) -> Iterator[Locked]:
    """Return the training of a lock; nothing where it has none, or cannot be read."""
    try:
        stages = parse_yaml(read(LOCK).decode(), LOCK).data["stages"]
        outs = _outs(stages)
        params = {k: v for stage in stages.values() for k, v in stage.get("params", {}).get(PARAMS, {}).items()}
    except (OSError, EvopipeError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        return
    if TRAINED in outs and FILES[LINEAGE] in outs:
        yield Locked(where, outs[TRAINED], outs, params, read, time, cache, **about)


def _outs(stages: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of every out by path, but for those of stages that have not followed a change yet."""
    outs = {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", ())}
    fresh = dict(outs)
    while True:
        stale = [
            out["path"]
            for stage in stages.values()
            for out in stage.get("outs", ())
            if out["path"] in fresh
            and any(dep["path"] in outs and fresh.get(dep["path"]) != dep["md5"] for dep in stage.get("deps", ()))
        ]
        if not stale:
            return fresh
        for path in stale:
            del fresh[path]


# --- from reports to events -------------------------------------------------------------------------------------------


def _generations(folder: Path, began: float) -> list[tuple[float, Generation]]:
    """Make the events of a training from its lineage, its curve and its times.

    A generation without a measured time counts as a second: what matters is that it is the same whenever it is read.
    """
    try:
        records = [json.loads(line) for line in (folder / LINEAGE / "lineage.jsonl").read_bytes().splitlines()]
        curve = {int(row["generation"]): row for row in _rows(folder / "fitness" / "fitness.csv")}
        seconds = {int(row["generation"]): float(row["seconds"]) for row in _rows(folder / "timing" / "timing.csv")}
        made, clock = [], began
        births: list[Mapping[str, Any]] = []
        for record in records:
            if record["generation"] > 0:
                spent = seconds.get(record["generation"], 1.0)
                clock = round(clock + spent, 3)
                made.append((clock, _generation(record, births, curve.get(record["generation"], {}), spent)))
            births = record["children"] or births
        return made
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{FILES[LINEAGE]}: is not a lineage of this version ({error!r})") from error


def _generation(
    record: Mapping[str, Any], births: list[Mapping[str, Any]], row: Mapping[str, str], seconds: float
) -> Generation:
    champion = record["champion"] or {"id": -1, "score": math.nan}
    return Generation(
        generation=record["generation"],
        step=record["step"],
        env_steps=int(row.get("env_steps") or record["step"] * len(record["members"])),
        eval_steps=int(row.get("eval_steps") or 0),
        seconds=seconds,
        members=tuple(_member(member, births) for member in record["members"]),
        best=_number(row.get("best")),
        mean=_number(row.get("mean")),
        elite=_number(champion["score"]),
        elite_id=champion["id"],
    )


def _member(member: Mapping[str, Any], births: list[Mapping[str, Any]]) -> MemberRow:
    from evopipe.core.networks import Arch
    from evopipe.evolve.mutate import NONE, Mutation

    born = next((b["mutation"] for b in births if b["slot"] == member["slot"]), NONE.to_json())
    mutation = Mutation(**born)
    return MemberRow(
        slot=member["slot"],
        id=member["id"],
        parent=member["parent"],
        fitness=_number(member["fitness"]),
        mutation=mutation.kind,
        change="" if mutation == NONE else mutation.describe(),
        architecture=Arch.from_json(member["arch"]).describe(),
        activation=member["arch"]["activation"],
        hyper=member["hyper"],
        healthy=member["healthy"],
        loss=math.nan,
    )


def _number(value: Any) -> float:
    return math.nan if value in (None, "") else float(value)


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))) if path.exists() else []


def _reason(folder: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        summary = json.loads((folder / "train" / "train.json").read_bytes())
        words = {"target": "target reached", "max_steps": "all steps taken"}
        return words.get(summary["reason"], str(summary["reason"]))
    return "restored"
