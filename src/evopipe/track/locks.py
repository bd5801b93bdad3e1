"""Trainings as DVC knows them: the workspace's, other branches' and tags', and every experiment's, queued ones too.

A stage that DVC restores from its run cache executes nothing, and a pulled experiment ran elsewhere, so no log tells of
them. Their `dvc.lock` and the outputs that the cache holds tell nearly all; what only a log has (losses) is left out.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from evopipe.errors import DataError, EvopipeError, MissingInputError
from evopipe.schema.read import parse_yaml
from evopipe.storage import safeio
from evopipe.track.events import Generation, MemberRow
from evopipe.track.run import FILES, LINEAGE, TRAINED, Kept, Run

_LOCK, _PARAMS = "dvc.lock", "params.yaml"
_DEPTH = 3  # folders below the root in which a pipeline may lie
_SKIPPED = frozenset({"data", "models", "reports", "node_modules", "venv"})


@dataclass
class Locked:
    """One `dvc.lock` that holds a training."""

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

    def run(self, folder: Path) -> Run:
        """Read the training.

        Args:
            folder: where copies of its files go.

        Raises:
            MissingInputError: the cache does not hold its lineage.
            DataError: one of its files is damaged.
        """
        places = {}
        for name, out in FILES.items():
            with contextlib.suppress(MissingInputError, KeyError):
                places[name] = self._fetch(out, folder / name / PurePosixPath(out).name)
        if LINEAGE not in places:
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
            files={name: Kept(place, self.outs[FILES[name]], end) for name, place in places.items()},
            experiment=self.experiment,
            revision=self.revision,
        )

    def _fetch(self, out: str, target: Path) -> Path:
        """Copy a file or folder, from the cache or from where git has it."""
        md5 = self.outs[out]
        if not md5.endswith(".dir"):
            safeio.write_bytes(target, self._content(out, md5))
            return target
        for entry in json.loads(self._content(out, md5)):
            inner = PurePosixPath(entry["relpath"])
            if inner.is_absolute() or ".." in inner.parts:
                raise DataError(f"{self.where}: {out}: the cache names a file outside the folder ({inner})")
            safeio.write_bytes(target / inner, self._content(f"{out}/{inner}", entry["md5"]))
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


def find_trainings(root: Path) -> Iterator[Locked]:
    """Find all trainings that the repository knows: the workspace's first, then branches, tags and experiments.

    Args:
        root: the DVC root.
    """
    from dvc.repo import Repo
    from dvc.repo.experiments.utils import exp_refs
    from dvc.scm import NoSCM

    with Repo(str(root)) as repo:
        cache = Path(repo.cache.local.path)
        for lock in _locks(repo.fs, str(root)):
            time = Path(lock).stat().st_mtime
            yield from in_lock(repo.fs, lock, where="workspace", time=time, cache=cache, folder=Path(lock).parent)
        scm = repo.scm
        if isinstance(scm, NoSCM):
            return
        refs = [
            (ref.removeprefix(f"refs/{kind}/"), ref, None) for kind in ("heads", "tags") for ref in _refs(scm, kind)
        ]
        refs += sorted((ref.name, str(ref), ref.name) for ref in exp_refs(scm))
        # Git's root may lie above DVC's.
        prefix = Path(repo.root_dir).relative_to(scm.root_dir).as_posix()
        for where, ref, experiment in refs:
            commit = scm.resolve_commit(scm.resolve_rev(ref))
            about = {"where": where, "time": float(commit.commit_time), "cache": cache, "revision": commit.hexsha}
            tree = scm.get_fs(commit.hexsha)
            for lock in _locks(tree, "" if prefix == "." else prefix):
                yield from in_lock(tree, lock, experiment=experiment, **about)


def _refs(scm: Any, kind: str) -> list[str]:
    return sorted(scm.iter_refs(f"refs/{kind}/"))


def _locks(tree: Any, root: str) -> Iterator[str]:
    """Find the locks in a tree: of the workspace, or of a commit."""
    for here, folders, files in tree.walk(root):
        depth = len(PurePosixPath(here).parts) - len(PurePosixPath(root).parts)
        folders[:] = sorted(
            name for name in folders if depth < _DEPTH and not name.startswith(".") and name not in _SKIPPED
        )
        if _LOCK in files:
            yield str(PurePosixPath(here) / _LOCK)


def in_lock(tree: Any, lock: str, **about: Any) -> Iterator[Locked]:
    """Return the training of a lock; nothing where it has none, or cannot be read.

    Args:
        tree: the file system that holds it, as DVC has it.
        lock: its path there.
        about: further fields of `Locked`.
    """

    def read(name: str) -> bytes:
        with tree.open(str(PurePosixPath(lock).parent / name), "rb") as stream:
            return bytes(stream.read())

    try:
        stages = parse_yaml(read(_LOCK).decode(), _LOCK).data["stages"]
        outs = _fresh_outs(stages)
        params = {k: v for stage in stages.values() for k, v in stage.get("params", {}).get(_PARAMS, {}).items()}
    except (OSError, EvopipeError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        return
    if TRAINED in outs and FILES[LINEAGE] in outs:
        yield Locked(result=outs[TRAINED], outs=outs, params=params, read=read, **about)


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


def _generations(folder: Path, began: float) -> list[tuple[float, Generation]]:
    """Make the events of a training from its lineage, its curve and its times.

    A generation without a measured time counts as a second: what matters is that it is the same whenever it is read.
    """
    try:
        records = [json.loads(line) for line in (folder / LINEAGE / "lineage.jsonl").read_bytes().splitlines()]
        curve, timing = _rows(folder / "fitness" / "fitness.csv"), _rows(folder / "timing" / "timing.csv")
        made, clock, births = list[tuple[float, Generation]](), began, list[Any]()
        for record in records:
            if record["generation"] > 0:
                seconds = float(timing.get(record["generation"], {"seconds": 1.0})["seconds"])
                clock = round(clock + seconds, 3)
                row = curve.get(record["generation"], {})
                made.append((clock, _generation(record, births, row, seconds)))
            births = record["children"] or births
        return made
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{FILES[LINEAGE]}: is not a lineage of this version ({error!r})") from error


def _rows(path: Path) -> dict[int, dict[str, Any]]:
    """Return a table's rows by generation."""
    if not path.exists():
        return {}
    return {int(row["generation"]): row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}


def _generation(record: Any, births: list[Any], row: Mapping[str, Any], seconds: float) -> Generation:
    champion = record["champion"] or {"id": -1, "score": None}
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


def _member(member: Any, births: list[Any]) -> MemberRow:
    from evopipe.core.member import read_architecture
    from evopipe.evolve.mutate import NONE, Mutation

    mutation = next((Mutation(**born["mutation"]) for born in births if born["slot"] == member["slot"]), NONE)
    return MemberRow(
        slot=member["slot"],
        id=member["id"],
        parent=member["parent"],
        fitness=_number(member["fitness"]),
        mutation=mutation.kind,
        change="" if mutation == NONE else mutation.describe(),
        architecture=read_architecture(member["arch"]).describe(),
        activation=member["arch"]["activation"],
        hyper=member["hyper"],
        healthy=member["healthy"],
        loss=math.nan,
    )


def _number(value: Any) -> float:
    return math.nan if value in (None, "") else float(value)


def _reason(folder: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        reason = str(json.loads((folder / "train" / "train.json").read_bytes())["reason"])
        return {"target": "target reached", "max_steps": "all steps taken"}.get(reason, reason)
    return "restored"
