"""Comparison of two folders that ran the same pipeline, out by out."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evopipe import layout
from evopipe.errors import DataError, EvopipeError, MissingInputError
from evopipe.formats import interval, score
from evopipe.schema.read import read_yaml

_Verdict = Literal["same", "DIFFERENT", "missing", "measured", "close", "learned anew"]
_MEASURED = layout.TIMING.as_posix()  # it differs from run to run, and nothing is computed from it
# Outs that depend on the last bits of training; so does all that depends on them.
_LEARNED = frozenset(
    path.as_posix() for path in (layout.TRAINED, layout.LINEAGE, layout.FITNESS, layout.TRAIN, layout.MEASURES)
)
_EVALUATION, _REPORT = layout.EVALUATION.as_posix(), layout.REPORT.as_posix()
_NUMBERS, _MANIFEST = (".csv", ".json", ".jsonl", ".safetensors"), "manifest.json"
_NAMED, _SHOWN = 8, 60  # differing files of a folder, characters of a line


class _Out(NamedTuple):
    """One out of one run: the stage that made it, the paths that this stage depends on, and DVC's hash."""

    stage: str
    deps: frozenset[str]
    md5: str


@dataclass(frozen=True)
class ComparedOut:
    """The comparison of a single DVC out between two runs.

    Attributes:
        path: the path of the out.
        stage: the stage that makes the out.
        deps: the paths on which the stage depends.
        a, b: the hashes of the out in the first and in the second run; empty if the out is missing.
        verdict: `same`; `DIFFERENT`; `missing`, if one run does not have the out; or `measured`, if the out holds
            durations, which always differ. For an out that depends on training, it may also be `close` (the numbers
            are almost the same) or `learned anew` (they are not).
        notes: sentences that explain the verdict.
    """

    path: str
    stage: str
    deps: frozenset[str]
    a: str
    b: str
    verdict: _Verdict
    notes: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether the verdict is `DIFFERENT` or `missing`, so that the run was not reproduced."""
        return self.verdict in ("DIFFERENT", "missing")


def compare(one: Path, two: Path, tolerance: float | None = None) -> list[ComparedOut]:
    """Compare two folders in which the same pipeline ran; return one row for each DVC out, in the order of the stages.

    Without a tolerance, all outs must be equal, except for measured times.

    With a tolerance, outs that depend on training may differ. Of these, only the elite's score is judged. The two
    scores agree if their 95 % intervals overlap, or if they differ by at most `tolerance` times the score in `one`.
    With a tolerance, `one` must be the folder of the committed run. Its other outs may be unavailable.

    Raises:
        MissingInputError: the score in one of the folders is missing.
        DataError: a score or a dvc.lock cannot be read.
    """
    before, after = _read_lock(one), _read_lock(two)
    learned = set() if tolerance is None else _learned(before | after)
    rows = []
    for path, made in (before | after).items():
        a, b = (lock[path].md5 if path in lock else "" for lock in (before, after))
        there, here, notes = one / path, two / path, list[str]()
        verdict: _Verdict = "same" if a == b else "DIFFERENT" if a and b else "missing"
        if path == _MEASURED and a and b:
            verdict = "measured"
        elif verdict == "DIFFERENT" and path == _EVALUATION and path in learned:
            verdict, notes = _judge_score(there, here, tolerance or 0.0)
        elif verdict == "DIFFERENT" and path in learned:
            verdict = "close" if _close(there, here) else "learned anew"
        elif verdict == "DIFFERENT" and path == _REPORT:
            from evopipe.report.page import without_measured  # with torch, see `_content`

            pages = [without_measured(page.read_text(encoding="utf-8")).encode() for page in (there, here)]
            a, b = (hashlib.md5(page, usedforsecurity=False).hexdigest() for page in pages)
            verdict = "same" if a == b else "DIFFERENT"
            notes = ["compared without its measured section"] if a == b else [_where(*pages)]
        elif verdict == "DIFFERENT" and there.exists():
            notes = _differences(there, here)
        rows.append(ComparedOut(path, made.stage, made.deps, a, b, verdict, tuple(notes)))
    if _EVALUATION not in before and any(row.verdict == "learned anew" for row in rows):
        raise MissingInputError(f"verify: {_EVALUATION} is no out of this pipeline; what was learned has no score")
    return rows


def _read_lock(project: Path) -> dict[str, _Out]:
    """Read the outs that a pipeline's dvc.lock names, by path."""
    path, outs = project / "dvc.lock", dict[str, _Out]()
    stages: Any = read_yaml(path).data.get("stages")
    try:
        for name, stage in stages.items():
            deps = frozenset(dep["path"] for dep in stage.get("deps", ()))
            outs |= {out["path"]: _Out(name, deps, str(out["md5"])) for out in stage.get("outs", ())}
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not a lock that DVC 3 wrote ({error!r}); run `dvc repro` again") from error
    return outs


def _learned(outs: dict[str, _Out]) -> set[str]:
    """Return the outs that depend on the last bits of training, of another pipeline beside it too: its elite is the
    base of this one's members then."""
    elite = f"/{layout.ELITE.as_posix()}"
    begun = {path for path, out in outs.items() if any(d.startswith("../") and elite in d for d in out.deps)}
    found = set(_LEARNED & outs.keys()) | begun
    while more := {path for path, out in outs.items() if found & out.deps} - found:
        found |= more
    return found


def _judge_score(there: Path, here: Path, tolerance: float) -> tuple[_Verdict, list[str]]:
    """Judge what was learned by the elite's score: intervals that meet agree, and so do means within the tolerance."""
    if not there.exists():
        raise MissingInputError(
            f"verify: the committed {_EVALUATION} is neither in git nor in the cache: `dvc fetch` it"
        )
    scores = []
    for path in (there, here):
        try:
            elite = json.loads(path.read_bytes())["elite"]
            scores.append((float(elite["mean"]), float(elite["interval"][0]), float(elite["interval"][1])))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"{path}: has no score of the elite ({error!r})") from error
    (mean_a, low_a, high_a), (mean_b, low_b, high_b) = scores
    agrees = (low_a <= high_b and low_b <= high_a) or abs(mean_a - mean_b) <= tolerance * abs(mean_a)
    told = [f"{score(mean)} {interval(ends)}" for mean, *ends in scores]
    return "close" if agrees else "DIFFERENT", [f"elite {told[0]} in the lock, {told[1]} here"]


def _differences(one: Path, two: Path) -> list[str]:
    """Say in which files, and where in them, two outs differ."""
    notes = []
    for name, a, b in _files(one, two):
        begin = f"{name}: " if name else ""
        if not (a.is_file() and b.is_file()):
            notes.append(f"{begin}only in {'A' if a.is_file() else 'B'}")
        elif a.read_bytes() != b.read_bytes():
            notes.append(begin + _where(a.read_bytes(), b.read_bytes()))
    return notes if len(notes) <= _NAMED else [*notes[:_NAMED], f"and {len(notes) - _NAMED} more files"]


def _files(one: Path, two: Path) -> list[tuple[str, Path, Path]]:
    """Return the files of two outs: the name in a folder (none where the out is a file), and both places."""
    if not (one.is_dir() and two.is_dir()):
        return [("", one, two)]
    names = {file.relative_to(top).as_posix() for top in (one, two) for file in top.rglob("*") if file.is_file()}
    return [(name, one / name, two / name) for name in sorted(names)]


def _where(left: bytes, right: bytes) -> str:
    """Say where two contents begin to differ: in which line of a text, at which byte of anything else."""
    at = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
    number, begin = left.count(b"\n", 0, at) + 1, left.rfind(b"\n", 0, at) + 1
    try:
        lines = [data[begin:].partition(b"\n")[0].decode() for data in (left, right)]
    except UnicodeDecodeError:
        return f"differs from byte {at} on ({len(left)} and {len(right)} bytes)"
    start = max(0, at - begin - 20)
    return f"line {number}: {' | '.join(line[start : start + _SHOWN].strip() for line in lines)}"


def _close(one: Path, two: Path) -> bool:
    """Whether the numbers of two outs are within a thousandth of each other, and all else is the same. Of a folder,
    files of tensors and of tables count: checksums, programs and model cards follow from them."""
    numbers = [(a, b) for n, a, b in _files(one, two) if not n or (n.endswith(_NUMBERS) and n != _MANIFEST)]
    try:
        return bool(numbers) and all(_alike(_content(a), _content(b)) for a, b in numbers)
    except (OSError, EvopipeError, ValueError):
        return False


def _content(path: Path) -> Any:
    data = path.read_bytes()
    match path.suffix:
        case ".safetensors":
            from evopipe.storage.tensors import load_tensors  # with torch: a pipeline of small files is compared before

            return {name: tensor.flatten().tolist() for name, tensor in load_tensors(data).items()}
        case ".csv":
            return [[_number(cell) for cell in row] for row in csv.reader(data.decode().splitlines())]
        case ".json":
            return json.loads(data)
        case ".jsonl":
            return [json.loads(line) for line in data.splitlines()]
    return data


def _number(cell: str) -> float | str:
    with contextlib.suppress(ValueError):
        return float(cell)
    return cell


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):  # provenance names machine and commit
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a.keys() - {"provenance"})
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in (a, b)):
        return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)
