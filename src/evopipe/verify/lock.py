"""Against the committed lock, which another machine may have made: learned outs by tolerance, the rest by hash."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evopipe.errors import DataError, EvopipeError, MissingInputError
from evopipe.stages import paths
from evopipe.storage import safeio
from evopipe.verify.compare import Lock, Out, Row, differences, read_lock, rows_of

_CLOSE = 1e-3
_SKIPPED = frozenset({"provenance"})  # keys of policy.json that name machine and commit


def gather(project: Path, cache: Path, lock: Lock, target: Path) -> dict[str, Path]:
    """Copy the committed content of a lock's outs, where it can be had.

    Args:
        project: a clone's pipeline folder, before anything ran in it: it holds what git tracks.
        cache: DVC's cache.
        lock: the committed lock.
        target: a folder to copy to.

    Returns:
        where the content of each out lies; outs that neither git nor the cache has are left out.
    """
    found = {}
    for out in lock.outs.values():
        place = target / out.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if (project / out.path).is_file():
            shutil.copyfile(project / out.path, place)
            found[out.path] = place
        elif _from_cache(cache, out.md5, place):
            found[out.path] = place
    return found


def _from_cache(cache: Path, md5: str, place: Path) -> bool:
    source = cache / "files/md5" / md5[:2] / md5[2:]
    if not source.is_file():
        return False
    if not md5.endswith(".dir"):
        shutil.copyfile(source, place)
        return True
    for entry in json.loads(source.read_text(encoding="utf-8")):
        inside = place / entry["relpath"]
        inside.parent.mkdir(parents=True, exist_ok=True)
        if not _from_cache(cache, entry["md5"], inside):
            return False
    return True


def compare(lock: Lock, committed: Mapping[str, Path], project: Path, tolerance: float) -> list[Row]:
    """Compare a fresh run with the committed lock.

    Args:
        lock: the committed lock.
        committed: the content of its outs where it can be had, see `gather`.
        project: the pipeline's folder in the clone that ran.
        tolerance: by how much the elite's score may differ, as a share of the committed one.

    Raises:
        MissingInputError: the elite's committed or fresh score is not there.
    """
    fresh = read_lock(project)
    learned = lock.learned() | fresh.learned()
    rows = rows_of(
        lock,
        fresh,
        lambda a, b: _differing(a, b, committed.get(a.path), project / a.path, a.path in learned, tolerance),
    )
    if paths.EVALUATION.as_posix() not in lock.outs and any(row.verdict == "learned anew" for row in rows):
        raise MissingInputError(f"verify: {paths.EVALUATION} is no out of this pipeline; what was learned has no score")
    return rows


def _differing(a: Out, b: Out, there: Path | None, here: Path, learned: bool, tolerance: float) -> Row:
    if not learned:
        notes = tuple(differences(there, here)) if there else ()
        return Row(a.path, a.stage, a.md5, b.md5, "DIFFERENT", notes)
    if a.path == paths.EVALUATION.as_posix():
        if there is None:
            raise MissingInputError(
                f"verify: the committed {a.path} is neither in git nor in the cache: `dvc fetch` it"
            )
        agrees, note = _score(there, here, tolerance)
        return Row(a.path, a.stage, a.md5, b.md5, "close" if agrees else "DIFFERENT", (note,))
    worst = distance(there, here) if there else math.inf
    if worst <= _CLOSE:
        note = f"largest relative difference {worst:.1g}" if worst else "equal but for provenance and checksums"
        return Row(a.path, a.stage, a.md5, b.md5, "close", (note,))
    return Row(a.path, a.stage, a.md5, b.md5, "learned anew")


def _score(there: Path, here: Path, tolerance: float) -> tuple[bool, str]:
    """Whether two elites score alike: their 95 % intervals meet, or their means are within the tolerance."""
    (mean_a, low_a, high_a), (mean_b, low_b, high_b) = _elite(there), _elite(here)
    meet = low_a <= high_b and low_b <= high_a
    agrees = meet or abs(mean_a - mean_b) <= tolerance * abs(mean_a)
    note = f"elite {mean_a:.1f} [{low_a:.1f}, {high_a:.1f}] in the lock, {mean_b:.1f} [{low_b:.1f}, {high_b:.1f}] here"
    return agrees, note


def _elite(path: Path) -> tuple[float, float, float]:
    try:
        elite = safeio.read_json(path)["elite"]
        return float(elite["mean"]), float(elite["interval"][0]), float(elite["interval"][1])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{path}: has no score of the elite ({error!r})") from error


# --- numbers ----------------------------------------------------------------------------------------------------------


def distance(one: Path, two: Path) -> float:
    """Return the largest relative difference of the numbers in two outs; infinite where anything else differs.

    Of a folder, files of tensors and of tables count: checksums, programs and model cards follow from them.
    """
    if one.is_file() and two.is_file():
        return _file_distance(one, two)
    names = {file.relative_to(top).as_posix() for top in (one, two) for file in top.rglob("*") if _counts(file)}
    if not names or not all((top / name).is_file() for top in (one, two) for name in names):
        return math.inf
    return max(_file_distance(one / name, two / name) for name in names)


def _counts(file: Path) -> bool:
    return file.suffix in (".safetensors", ".json", ".jsonl", ".csv") and file.name != safeio.MANIFEST


def _file_distance(one: Path, two: Path) -> float:
    try:
        return max((_pair_distance(a, b) for a, b in _pairs(_content(one), _content(two))), default=0.0)
    except (_Unlike, EvopipeError, ValueError):
        return math.inf


class _Unlike(Exception):
    """Two contents differ in more than numbers."""


def _content(path: Path) -> Any:
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        return {name: tensor.flatten().tolist() for name, tensor in safeio.load_tensors(data, str(path)).items()}
    if path.suffix == ".csv":
        return [[_number(cell) for cell in row] for row in csv.reader(io.StringIO(data.decode()))]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in data.splitlines()]
    return json.loads(data) if path.suffix == ".json" else data.hex()


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _pairs(a: Any, b: Any) -> Iterable[tuple[float, float]]:
    """Every pair of numbers at the same place."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a.keys() - _SKIPPED:
            yield from _pairs(a[key], b[key])
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for x, y in zip(a, b, strict=True):
            yield from _pairs(x, y)
    elif _is_number(a) and _is_number(b):
        yield float(a), float(b)
    elif a != b:
        raise _Unlike


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pair_distance(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    gap = abs(a - b) / max(abs(a), abs(b), _CLOSE)  # of numbers near 0 the absolute difference counts
    return gap if math.isfinite(gap) else math.inf
