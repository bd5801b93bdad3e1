"""Scores of several configurations over their seeds: what `evopipe compare` prints.

A run is what a folder, an experiment or a git revision holds: `dvc.lock`, which names its parameters, and
`reports/evaluation.json`, the elite's held-out score. In a folder of a sweep `params.yaml` has its parameters.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evopipe import layout
from evopipe.compare.labels import labels, wrapped
from evopipe.errors import DataError, EvopipeError, MissingInputError, UsageError
from evopipe.formats import columns, interval, leaves, score
from evopipe.layout import EVALUATION, TRAINED
from evopipe.ops.statistics import bootstrap_interval, interquartile_mean
from evopipe.schema.read import parse_yaml

_LOCK, _PARAMS, _SWEPT = Path("dvc.lock"), Path("params.yaml"), Path("sweep.json")
_STAGES = [*layout.OUTS][: [*layout.OUTS].index(layout.WRITER[EVALUATION]) + 1]  # what a score comes from
_EXPERIMENT = re.compile(r"refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/(.+)")
_RESAMPLES = 10_000
_HEAD = "HEAD"
_TERMINAL = 100  # characters of a line of the legend

_Read = Callable[[Path], bytes]


@dataclass(frozen=True)
class Finished:
    """One finished run.

    Attributes:
        seed: the run's seed.
        settings: the parameters except the seed, by dotted key.
        elite: the held-out scores of the elite, the run's best member, by name, such as `mean` and `interval`.
        episodes: the number of held-out episodes.
        name: the folder, experiment or revision of the run, as text.
        read: a function that returns the content of one of the run's files, by its path in the run's folder.
    """

    seed: int
    settings: Mapping[str, Any]  # its other parameters, by dotted key
    elite: Mapping[str, Any]  # scores, over so many episodes
    episodes: int
    name: str  # of its place
    read: _Read  # how to read a file there

    def curve(self, file: Path) -> dict[str, list[float]]:
        """Read one of the run's CSV files, which has one row per generation; return its columns as lists of numbers, by
        name.

        Raises:
            MissingInputError: the run has no such file.
            DataError: the file has no rows of numbers.
        """
        try:
            rows = list(csv.DictReader(self.read(file).decode().splitlines()))
            return {name: [float(row[name]) for row in rows] for name in rows[0]}
        except OSError:
            raise MissingInputError(f"{self.name}: has no {file}; `dvc pull` or `dvc checkout` may bring it") from None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise DataError(f"{self.name}: {file} has no row of numbers for each generation ({error})") from None


@dataclass(frozen=True)
class Row:
    """One row of the comparison: a configuration with all its runs, and statistics of their held-out returns.

    Attributes:
        label: a short text with the parameters in which the configuration differs from others; see `legend`.
        over: a text that says what `mean`, `interval` and `iqm` are statistics of. Of several runs, these are the runs'
            mean returns. Of a single run, they are the returns of its episodes.
        runs: the configuration's runs.
        means: the mean return of each run.
        mean: the mean return.
        interval: the 95 % confidence interval of `mean`.
        iqm: the interquartile mean of the returns.
    """

    label: str
    over: str
    runs: tuple[Finished, ...]
    means: tuple[float, ...]
    mean: float
    interval: tuple[float, float]
    iqm: float


def compare(what: Sequence[str] = (), everywhere: bool = False) -> tuple[list[Row], list[str]]:
    """Compare runs by their configurations; return a `Row` for each configuration, the best first, and a list of notes.

    Runs that differ only in their seeds have the same configuration. A note is a sentence: that a run cannot be
    compared, or that the runs are of several environments.

    `what` names the runs: folders, DVC experiments or git revisions. The folder of a sweep stands for all its runs. If
    `what` is empty, the runs of the working folder, of HEAD and of HEAD's experiments are compared. With `everywhere`,
    the experiments of all other commits are compared too.

    Raises:
        UsageError: a name is no folder, experiment or revision.
        MissingInputError: there is no run at all.
        EvopipeError: a named folder, experiment or revision has no run that can be compared.
    """
    runs: dict[str, Finished] = {}
    notes = []
    for name, read in _places(what, everywhere):
        try:
            run = _run(name, read)
        except EvopipeError as error:
            if what:
                raise
            if not (name == _HEAD and isinstance(error, MissingInputError)):  # it was committed before the first run
                notes.append(str(error))
            continue
        # HEAD is often the working folder too: of one configuration and seed the first counts.
        runs.setdefault(json.dumps([run.seed, run.settings], sort_keys=True), run)
    if not runs:
        raise MissingInputError(
            "compare: no run is here; `dvc repro` makes one, or name folders, experiments, revisions"
        )
    grouped: dict[str, list[Finished]] = {}
    for run in runs.values():
        grouped.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    rows = sorted(map(_row, grouped.values()), key=lambda row: -row.mean)
    texts, _ = _labels(rows)
    rows = [replace(row, label=text) for row, text in zip(rows, texts, strict=True)]
    tasks = {str(row.runs[0].settings.get("env.id", row.runs[0].settings.get("language.task"))) for row in rows}
    if len(tasks) > 1:
        notes.append(
            f"these runs are of several environments ({', '.join(sorted(tasks))}): scores of one say nothing of another"
        )
    return rows, notes


def table(rows: Sequence[Row]) -> str:
    """Return the comparison as lines of text for a terminal: a header, one line for each configuration, with aligned
    columns, and the legend of the labels."""
    told = legend(rows)
    return "\n".join([*columns(cells(rows)), *[""] * bool(told), *wrapped(told, _TERMINAL)])


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the comparison as rows of cells: the header, then one row for each configuration."""
    head = ("configuration", "over", "mean", "95 % interval", "IQM")
    return [head, *((row.label, row.over, score(row.mean), interval(row.interval), score(row.iqm)) for row in rows)]


def legend(rows: Sequence[Row]) -> list[str]:
    """Return what the labels of a comparison leave out, as sentences; empty if they leave out nothing.

    The sentences give the full key of each parameter with a short name, and all parameters of each configuration whose
    label is cut.
    """
    return _labels(rows)[1]


def _labels(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    return labels([row.runs[0].settings for row in rows], [row.runs[0].name for row in rows])


# --- runs -------------------------------------------------------------------------------------------------------------


def _places(what: Sequence[str], everywhere: bool) -> Iterator[tuple[str, _Read]]:
    """Yield where runs may be: a name, and how to read a file there; FileNotFoundError where it is not."""
    head = _git("rev-parse", "--verify", "HEAD^{commit}")
    found = _git("for-each-ref", "--format=%(refname)", "refs/exps") if head else None
    refs = [ref for ref in (found or b"").decode().split() if _EXPERIMENT.fullmatch(ref)]
    for name in what:
        named = [ref for ref in refs if ref.endswith(f"/{name}")]
        if Path(name).is_dir():
            yield from ((str(each), _in(each)) for each in _runs_in(Path(name)))
        elif named or _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"):
            yield name, _at(named[-1] if named else name)
        else:
            raise UsageError(f"compare: {name} is no folder, no experiment and no git revision; see `dvc exp list -A`")
    if not what:
        yield "the working folder", _in(Path())
        if head:
            yield _HEAD, _at(_HEAD)
            sha = head.decode().strip()
            of_head = f"refs/exps/{sha[:2]}/{sha[2:]}/"
            for ref in refs:
                if everywhere or ref.startswith(of_head):
                    yield ref.rpartition("/")[2], _at(ref)


def _runs_in(folder: Path) -> list[Path]:
    """Return a folder, or if it is a sweep's the folders of those of its runs that are scored."""
    runs = sorted(path.parent for path in folder.glob(f"*/{_SWEPT}"))
    if not runs or (folder / _LOCK).exists():
        return [folder]
    return [run for run in runs if (run / EVALUATION).exists()] or runs[:1]


def _run(name: str, read: _Read) -> Finished:
    """Read a run, and see that its score and its parameters belong together."""
    with contextlib.suppress(OSError):
        return _swept(name, read, read(_SWEPT))
    try:
        lock, evaluation = (read(file) for file in (_LOCK, EVALUATION))
    except OSError as error:
        raise MissingInputError(
            f"{name}: has no run ({error.filename}: not there); compare reads what `dvc repro` and `evopipe sweep` "
            "left, not folders that evopipe.train wrote in Python"
        ) from None
    try:
        stages = parse_yaml(lock.decode(), f"{name}: {_LOCK}").data["stages"]
        scored, report = stages["evaluate"], json.loads(evaluation)
        same = _hash(scored["outs"], EVALUATION) == hashlib.md5(evaluation, usedforsecurity=False).hexdigest()
        same = same and _hash(scored["deps"], TRAINED) == _hash(stages["train"]["outs"], TRAINED)
        settings: dict[str, Any] = {}
        for stage in _STAGES:
            for file in stages.get(stage, {}).get("params", {}).values():
                settings |= dict(leaves(file))
        run = Finished(int(settings.pop("seed")), settings, report["elite"], report["episodes"], name, read)
        _ = run.elite["mean"], run.elite["interval"], run.elite["iqm"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{name}: dvc.lock or {EVALUATION} is of no pipeline of evopipe ({error!r})") from None
    if not same:
        raise DataError(f"{name}: {EVALUATION} is not of the run in dvc.lock; run `dvc repro` there")
    return run


def _swept(name: str, read: _Read, done: bytes) -> Finished:
    """Read a run of a sweep, with the parameters that its dvc.lock would have: those of the stages before its score."""
    try:
        params, evaluation = parse_yaml(read(_PARAMS).decode(), f"{name}: {_PARAMS}").data, json.loads(read(EVALUATION))
        stages = json.loads(done)["stages"]
        if _STAGES[-1] not in stages:
            raise MissingInputError(f"{name}: has no score yet; `evopipe sweep` goes on with it")
        before = [stage for stage in layout.STAGES if stage.name in stages and stage.name in _STAGES]
        keys = [_filled(key, params) for stage in before for each in (stage.env, stage.text) for key in each.params]
        there = {key: _value(params, key) for key in keys if key != "seed" and _has(params, key)}
        settings = dict(leaves(there))
        return Finished(params["seed"], settings, evaluation["elite"], evaluation["episodes"], name, read)
    except OSError as error:
        raise MissingInputError(f"{name}: has no score yet ({error.filename}: not there)") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{name}: {_PARAMS}, {_SWEPT} or {EVALUATION} is of no sweep ({error!r})") from None


def _filled(key: str, params: Mapping[str, Any]) -> str:
    """Return a key of a stage's table in which `${train.algo}` is replaced by what that parameter says."""
    return re.sub(r"\$\{(.+?)\}", lambda found: str(_value(params, found[1])), key)


def _value(params: Any, key: str) -> Any:
    return functools.reduce(lambda block, name: block[name], key.split("."), params)


def _has(params: Any, key: str) -> bool:
    with contextlib.suppress(KeyError, TypeError):
        _value(params, key)
        return True
    return False


def _in(folder: Path) -> _Read:
    return lambda file: (folder / file).read_bytes()


def _at(revision: str) -> _Read:
    def read(file: Path) -> bytes:
        found = _git("show", f"{revision}:./{file.as_posix()}")
        return _cached(revision, file) if found is None else found

    return read


def _cached(revision: str, file: Path) -> bytes:
    """Read an out that DVC keeps, and git does not; FileNotFoundError where neither has it."""
    lock = _git("show", f"{revision}:./{_LOCK}")
    stages = (parse_yaml(lock.decode(), f"{revision}: {_LOCK}").data or {}).get("stages", {}) if lock else {}
    hashes = [str(out["md5"]) for stage in stages.values() for out in stage.get("outs", ()) if out["path"] == str(file)]
    if not (hashes and (cache := _cache(Path.cwd()))):
        raise FileNotFoundError(2, "not there", file.as_posix())
    kept: Path = cache / "files/md5" / hashes[0][:2] / hashes[0][2:]
    return kept.read_bytes()


@functools.cache
def _cache(here: Path) -> Path | None:
    """Return the folder of the cache of the DVC project at `here`; None where there is none, or no DVC."""
    found = _said(sys.executable, "-m", "dvc", "cache", "dir")
    return here / found.decode().strip() if found else None


def _git(*words: str) -> bytes | None:
    """Return what git said; None where it failed, or is not there."""
    return _said("git", *words)


def _said(*words: str) -> bytes | None:
    try:
        run = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if run.returncode else run.stdout


def _hash(entries: Sequence[Mapping[str, Any]], path: Path) -> Any:
    return {entry["path"]: entry["md5"] for entry in entries}[path.as_posix()]


# --- configurations ---------------------------------------------------------------------------------------------------


def _row(runs: Sequence[Finished]) -> Row:
    """Return a configuration's row, without its label."""
    means = tuple(float(run.elite["mean"]) for run in runs)
    if len(runs) == 1:
        low, high = runs[0].elite["interval"]
        over = f"{runs[0].episodes} episodes of seed {runs[0].seed}"
        return Row("", over, tuple(runs), means, means[0], (low, high), float(runs[0].elite["iqm"]))
    x = np.array(means)
    low, high = bootstrap_interval(x, _RESAMPLES, np.random.default_rng(0))
    return Row("", f"{len(runs)} seeds", tuple(runs), means, float(x.mean()), (low, high), interquartile_mean(x))
