"""The two ways to verify, from the clones to the table."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evopipe.errors import DataError, EvopipeError
from evopipe.machine import fingerprint
from evopipe.stages import paths
from evopipe.storage import safeio
from evopipe.verify import clones, compare, lock

Tell = Callable[[str], None]


class NotReproduced(EvopipeError):
    """Outs differ that should not."""

    exit_code = 65


@dataclass(frozen=True)
class Result:
    """What verify found.

    Attributes:
        rows: one an out.
        lines: the table, ready to print, and what there is to say below it.
        problem: why it was not reproduced; empty where it was.
    """

    rows: Sequence[compare.Row]
    lines: Sequence[str]
    problem: str


def two_clones(pipeline: Path, jobs: int, keep: bool, tell: Tell, warn: Tell) -> Result:
    """Run HEAD in two clean clones, and compare every out.

    The clones lie in folders of different names and depths, so that an out that depends on its place is found out.

    Args:
        pipeline: the folder that holds dvc.yaml.
        jobs: clones that run at the same time.
        keep: leave the clones there, and say where.
        tell: receives progress.
        warn: receives warnings.

    Raises:
        UsageError: no git repository, or nothing committed.
        MissingInputError: dvc.yaml is not committed, or data that a `.dvc` file names is not in the cache.
        PipelineFailed: a stage failed.
        Interrupted: a signal asked to stop.
    """
    origin = _origin(pipeline, warn)
    with _home(keep, warn) as home:
        (home / "deeper").mkdir()
        pair = [clones.make_clone(origin, "A", home), clones.make_clone(origin, "B", home / "deeper")]
        clones.reproduce(pair, origin, jobs, tell)
        rows = compare.compare(*(clone.project for clone in pair))
        causes = compare.origins(rows, compare.read_lock(pair[0].project))
    lines = [f"two clean clones of {origin.revision[:12]}", "", *compare.table(rows), "", _count(rows)]
    return Result(rows, lines, _problem(rows, causes, "the clones"))


def committed_lock(pipeline: Path, tolerance: float, keep: bool, tell: Tell, warn: Tell) -> Result:
    """Run HEAD in one clean clone, and compare with the committed dvc.lock.

    Args:
        pipeline: the folder that holds dvc.yaml.
        tolerance: by how much the elite's score may differ, as a share of the committed one.
        keep: leave the clone there, and say where.
        tell: receives progress.
        warn: receives warnings.

    Raises:
        DataError: dvc.lock was made from other code or parameters than HEAD's.
        MissingInputError: dvc.lock is not committed, or the committed score cannot be had.
        UsageError, PipelineFailed, Interrupted: as `two_clones`.
    """
    origin = _origin(pipeline, warn)
    with _home(keep, warn) as home:
        clone = clones.make_clone(origin, "A", home)
        before = compare.read_lock(clone.project)
        _check_fresh(clone, origin)
        committed = lock.gather(clone.project, clones.cache_of(origin), before, home / "committed")
        clones.reproduce([clone], origin, 1, tell)
        rows = lock.compare(before, committed, clone.project, tolerance)
        causes = compare.origins(rows, before)
        there = _fingerprint(committed.get(paths.ELITE.as_posix()))
        here = _fingerprint(clone.project / paths.ELITE) or fingerprint()
    table = compare.table(rows, ("lock", "here"))
    lines = [f"dvc.lock of {origin.revision[:12]}", "", *table, "", _count(rows), "", *_machines(there, here)]
    return Result(rows, lines, _problem(rows, causes, "dvc.lock and this machine"))


def _origin(pipeline: Path, warn: Tell) -> clones.Origin:
    origin = clones.find_origin(pipeline)
    if origin.changed:
        files = "1 file is" if len(origin.changed) == 1 else f"{len(origin.changed)} files are"
        warn(f"{files} not as committed: verify looks at HEAD ({origin.revision[:12]}) alone")
    return origin


@contextlib.contextmanager
def _home(keep: bool, warn: Tell) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="evopipe-verify-")).resolve()
    try:
        yield home
    finally:
        if keep:
            warn(f"the clones are kept in {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)


def _check_fresh(clone: clones.Clone, origin: clones.Origin) -> None:
    stale = clones.stale(clone, origin)
    if stale:
        raise DataError(
            f"dvc.lock was made from other code, data or parameters than HEAD's (stale: {', '.join(stale)}); "
            "run `dvc repro`, and commit dvc.lock and reports/"
        )


def _count(rows: Sequence[compare.Row]) -> str:
    order = ("same", "close", "learned anew", "measured", "DIFFERENT", "missing")
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in order}
    return f"{len(rows)} outs: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


def _problem(rows: Sequence[compare.Row], causes: Sequence[str], between: str) -> str:
    wrong = [row.path for row in rows if row.fails]
    if not wrong:
        return ""
    told = f"not reproduced: {', '.join(wrong)} differ{'s' * (len(wrong) == 1)} between {between}"
    return told + f"; begin with {' and '.join(causes)}, whose inputs are the same" * bool(causes)


def _fingerprint(elite: Path | None) -> Mapping[str, Any]:
    """Return the machine that an elite was made on; nothing where it is not there."""
    file = elite / "policy.json" if elite else None
    if file is None or not file.is_file():
        return {}
    found = safeio.read_json(file).get("provenance", {}).get("fingerprint", {})
    return found if isinstance(found, dict) else {}


def _machines(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return the two machines side by side."""
    if not there:
        return ["the lock's machine is not known: `dvc pull` brings the elite that names it; this one:"] + [
            f"  {name}: {value}" for name, value in here.items()
        ]
    cells = [("machine", "lock", "here", "")]
    for name in dict.fromkeys((*there, *here)):
        values = str(there.get(name)), str(here.get(name))
        cells.append((name, *values, "*" if values[0] != values[1] else ""))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells]
