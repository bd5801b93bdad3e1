"""Out by out: what is the same in two folders that ran the same pipeline."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evopipe.errors import DataError, EvopipeError, MissingInputError
from evopipe.report.page import without_measured
from evopipe.schema.read import read_yaml
from evopipe.stages import paths
from evopipe.storage.files import read_json
from evopipe.storage.folders import MANIFEST
from evopipe.storage.tensors import load_tensors

Verdict = Literal["same", "DIFFERENT", "missing", "measured", "close", "learned anew"]

_MEASURED = paths.TIMING.as_posix()  # it differs from run to run, and nothing is computed from it
# Outs that depend on the last bits of training; so does all that depends on them.
_LEARNED = frozenset(path.as_posix() for path in (paths.TRAINED, paths.LINEAGE, paths.FITNESS, paths.TRAIN))
_EVALUATION, _REPORT = paths.EVALUATION.as_posix(), paths.REPORT.as_posix()
_CLOSE = 1e-3
_NAMED, _SHOWN = 8, 60  # differing files of a folder, characters of a line


@dataclass(frozen=True)
class Out:
    """One out of one run: the stage that made it, and DVC's hash."""

    stage: str
    md5: str


@dataclass(frozen=True)
class Row:
    """One line of the table: an out, its two hashes (empty where it is missing), a verdict, and notes."""

    path: str
    stage: str
    a: str
    b: str
    verdict: Verdict
    notes: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether this difference means that the run was not reproduced."""
        return self.verdict in ("DIFFERENT", "missing")


@dataclass(frozen=True)
class Lock:
    """A pipeline's dvc.lock: its outs by path, and the paths that each stage depends on."""

    outs: Mapping[str, Out]
    deps: Mapping[str, frozenset[str]]

    def learned(self) -> frozenset[str]:
        """Return the outs that depend on the last bits of training."""
        found = _LEARNED & self.outs.keys()
        while True:
            more = {path for path, out in self.outs.items() if found & self.deps[out.stage]} - found
            if not more:
                return frozenset(found)
            found |= more


def read_lock(project: Path) -> Lock:
    """Read a pipeline's dvc.lock.

    Raises:
        MissingInputError: it is not there.
        DataError: it cannot be understood.
    """
    path = project / "dvc.lock"
    if not path.is_file():
        raise MissingInputError(f"{path}: not there; run `dvc repro` and commit dvc.lock")
    stages: Any = read_yaml(path).data.get("stages")
    try:
        return Lock(
            {o["path"]: Out(name, str(o["md5"])) for name, stage in stages.items() for o in stage.get("outs", ())},
            {name: frozenset(dep["path"] for dep in stage.get("deps", ())) for name, stage in stages.items()},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not a lock that DVC 3 wrote ({error!r}); run `dvc repro` again") from error


def compare(one: Path, two: Path, tolerance: float | None = None) -> list[Row]:
    """Compare what two folders hold after one pipeline.

    Args:
        one: the pipeline's folder in the first clone, or where the committed outs lie as far as they can be had.
        two: its folder in the clone that ran.
        tolerance: None: everything must be the same; else what was learned may differ, and this is by how much the
            elite's score may, as a share of the first one.

    Returns:
        a row an out, in the order of the stages.

    Raises:
        MissingInputError: the elite's committed or fresh score is not there.
    """
    before, after = read_lock(one), read_lock(two)
    learned = frozenset() if tolerance is None else before.learned() | after.learned()
    rows = []
    for path in dict.fromkeys((*before.outs, *after.outs)):
        a, b = before.outs.get(path), after.outs.get(path)
        made = a or b
        assert made is not None
        a_sum, b_sum, notes = a.md5 if a else "", b.md5 if b else "", list[str]()
        verdict: Verdict = "missing"
        if a and b:
            verdict = "measured" if path == _MEASURED else "same" if a.md5 == b.md5 else "DIFFERENT"
        if verdict == "DIFFERENT" and path in learned:
            verdict, notes = _learned(path, one / path, two / path, tolerance or 0.0)
        elif verdict == "DIFFERENT" and path == _REPORT:
            parts = [without_measured((top / path).read_text(encoding="utf-8")).encode() for top in (one, two)]
            a_sum, b_sum = (hashlib.md5(part, usedforsecurity=False).hexdigest() for part in parts)
            if a_sum == b_sum:
                verdict, notes = "same", ["compared without its measured section"]
            else:
                notes = [_first_difference(*parts)]
        elif verdict == "DIFFERENT" and (one / path).exists():
            notes = differences(one / path, two / path)
        rows.append(Row(path, made.stage, a_sum, b_sum, verdict, tuple(notes)))
    if _EVALUATION not in before.outs and any(row.verdict == "learned anew" for row in rows):
        raise MissingInputError(f"verify: {paths.EVALUATION} is no out of this pipeline; what was learned has no score")
    return rows


def _learned(path: str, there: Path, here: Path, tolerance: float) -> tuple[Verdict, list[str]]:
    """Judge what was learned: by the elite's score, or by numbers."""
    if path == _EVALUATION:
        if not there.exists():
            raise MissingInputError(f"verify: the committed {path} is neither in git nor in the cache: `dvc fetch` it")
        (mean_a, low_a, high_a), (mean_b, low_b, high_b) = _score(there), _score(here)
        meet = low_a <= high_b and low_b <= high_a
        agrees = meet or abs(mean_a - mean_b) <= tolerance * abs(mean_a)
        note = (
            f"elite {mean_a:.1f} [{low_a:.1f}, {high_a:.1f}] in the lock, {mean_b:.1f} [{low_b:.1f}, {high_b:.1f}] here"
        )
        return "close" if agrees else "DIFFERENT", [note]
    worst = distance(there, here) if there.exists() else math.inf
    if worst > _CLOSE:
        return "learned anew", []
    return "close", [f"largest relative difference {worst:.1g}" if worst else "equal but for provenance and checksums"]


def _score(path: Path) -> tuple[float, float, float]:
    """Return the elite's mean and its 95 % interval."""
    try:
        elite = read_json(path)["elite"]
        return float(elite["mean"]), float(elite["interval"][0]), float(elite["interval"][1])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{path}: has no score of the elite ({error!r})") from error


def differences(one: Path, two: Path) -> list[str]:
    """Say in which files, and where in them, two outs differ."""
    if one.is_file() and two.is_file():
        return [_first_difference(one.read_bytes(), two.read_bytes())]
    notes = []
    for name in _names(one, two):
        left, right = one / name, two / name
        if not (left.is_file() and right.is_file()):
            notes.append(f"{name}: only in {'A' if left.is_file() else 'B'}")
        elif left.read_bytes() != right.read_bytes():
            notes.append(f"{name}: {_first_difference(left.read_bytes(), right.read_bytes())}")
    return notes if len(notes) <= _NAMED else [*notes[:_NAMED], f"and {len(notes) - _NAMED} more files"]


def _names(one: Path, two: Path) -> list[str]:
    """Return the files of two folders."""
    files = ((file, top) for top in (one, two) for file in top.rglob("*") if file.is_file())
    return sorted({file.relative_to(top).as_posix() for file, top in files})


def _first_difference(left: bytes, right: bytes) -> str:
    """Say where two contents begin to differ: in which line of a text, at which byte of anything else."""
    at = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
    number, begin = left.count(b"\n", 0, at) + 1, left.rfind(b"\n", 0, at) + 1
    try:
        lines = [data[begin:].partition(b"\n")[0].decode() for data in (left, right)]
    except UnicodeDecodeError:
        return f"differs from byte {at} on ({len(left)} and {len(right)} bytes)"
    start = max(0, at - begin - 20)
    return f"line {number}: {' | '.join(line[start : start + _SHOWN].strip() for line in lines)}"


# --- numbers ----------------------------------------------------------------------------------------------------------


def distance(one: Path, two: Path) -> float:
    """Return the largest relative difference of the numbers in two outs; infinite where anything else differs.

    Of a folder, files of tensors and of tables count: checksums, programs and model cards follow from them.
    """
    pairs = [(one, two)]
    if one.is_dir() and two.is_dir():
        pairs = [(one / n, two / n) for n in _names(one, two) if Path(n).suffix in _READERS and n != MANIFEST]
    try:
        return max((_apart(_content(a), _content(b)) for a, b in pairs), default=math.inf)
    except (OSError, EvopipeError, ValueError):
        return math.inf


def _content(path: Path) -> Any:
    return _READERS.get(path.suffix, bytes)(path.read_bytes())


def _cells(data: bytes) -> list[list[float | str]]:
    return [[_number(cell) for cell in row] for row in csv.reader(data.decode().splitlines())]


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


_READERS: Mapping[str, Callable[[bytes], Any]] = {
    ".csv": _cells,
    ".json": json.loads,
    ".jsonl": lambda data: [json.loads(line) for line in data.splitlines()],
    ".safetensors": lambda data: {name: rows.flatten().tolist() for name, rows in load_tensors(data).items()},
}


def _apart(a: Any, b: Any) -> float:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():  # provenance names machine and commit
        return max((_apart(a[key], b[key]) for key in a if key != "provenance"), default=0.0)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max(map(_apart, a, b), default=0.0)
    if a == b or (a != a and b != b):  # a NaN is no number but itself
        return 0.0
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (a, b)):
        return math.inf
    gap = abs(a - b) / max(abs(a), abs(b), _CLOSE)  # of numbers near 0 the absolute difference counts
    return float(gap) if math.isfinite(gap) else math.inf


# --- the table --------------------------------------------------------------------------------------------------------


def origins(rows: Sequence[Row], lock: Lock) -> list[str]:
    """Return the stages whose outs differ though all that they depend on is the same: where to look for the cause."""
    wrong = {row.path for row in rows if row.fails}
    stages = dict.fromkeys(row.stage for row in rows if row.fails)
    return [stage for stage in stages if not wrong & lock.deps.get(stage, frozenset())]


def table(rows: Sequence[Row], names: tuple[str, str] = ("A", "B")) -> list[str]:
    """Return the lines of the table, and below a row its notes."""
    cells = [(row.path, row.stage, row.a[:12] or "-", row.b[:12] or "-", row.verdict) for row in rows]
    head, *lines = columns([("out", "stage", *names, ""), *cells])
    told = zip(lines, rows, strict=True)
    return [head, *(text for line, row in told for text in (line, *(f"    {note}" for note in row.notes)))]


def columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines, one column below the other."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
