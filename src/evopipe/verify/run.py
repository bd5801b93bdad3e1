"""`evopipe verify`, from the clones to the table."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evopipe.errors import DataError, EvopipeError
from evopipe.machine import fingerprint
from evopipe.stages import paths
from evopipe.storage.files import read_json
from evopipe.verify import clones, compare

Tell = Callable[[str], None]


class NotReproduced(EvopipeError):
    """Outs differ that should not."""

    exit_code = 65


def verify(
    pipeline: Path, lock: bool, jobs: int, tolerance: float, keep: bool, show: Tell, tell: Tell, warn: Tell
) -> None:
    """Run HEAD in two clean clones, or in one against the committed dvc.lock, and compare every out.

    Args:
        pipeline: the folder that holds dvc.yaml.
        lock: against dvc.lock.
        jobs: clones that run at the same time.
        tolerance: with `lock`, by how much the elite's score may differ, as a share of the committed one.
        keep: leave the clones there, and say where.
        show: receives the table.
        tell: receives progress.
        warn: receives warnings.

    Raises:
        NotReproduced: outs differ.
        UsageError: no git repository, or nothing committed.
        MissingInputError: dvc.yaml, dvc.lock, the committed score, or data that a `.dvc` file names is not there.
        DataError: dvc.lock was made from other code or parameters than HEAD's.
        PipelineFailed: a stage failed.
        Interrupted: a signal asked to stop.
    """
    origin = clones.find_origin(pipeline)
    if origin.changed:
        files = "1 file is" if origin.changed == 1 else f"{origin.changed} files are"
        warn(f"{files} not as committed: verify looks at HEAD ({origin.revision[:12]}) alone")
    with _home(keep, warn) as home:
        one = clones.make_clone(origin, "A", home)
        if lock:
            title, names, between = "dvc.lock of", ("lock", "here"), "dvc.lock and this machine"
            two, one = one, _committed(one, origin, home)
            clones.reproduce([two], origin, 1, tell)
        else:
            title, names, between = "two clean clones of", ("A", "B"), "the clones"
            # Folders of different names and depths, so that an out that depends on its place is found out.
            (home / "deeper").mkdir()
            two = clones.make_clone(origin, "B", home / "deeper")
            clones.reproduce([one, two], origin, jobs, tell)
        rows = compare.compare(one.project, two.project, tolerance if lock else None)
        lines = [f"{title} {origin.revision[:12]}", "", *compare.table(rows, names), "", _count(rows)]
        if lock:
            lines += ["", *_machines(_fingerprint(one.project), _fingerprint(two.project) or fingerprint())]
        causes = compare.origins(rows, compare.read_lock(one.project))
    show("\n".join(lines))
    wrong = [row.path for row in rows if row.fails]
    if wrong:
        begin = f"; begin with {' and '.join(causes)}, whose inputs are the same" if causes else ""
        raise NotReproduced(
            f"not reproduced: {', '.join(wrong)} differ{'s' * (len(wrong) == 1)} between {between}{begin}"
        )


def _committed(clone: clones.Clone, origin: clones.Origin, home: Path) -> clones.Clone:
    """Return a clone that holds the committed outs, as far as git and the cache have them."""
    compare.read_lock(clone.project)
    stale = clones.stale(clone, origin)
    if stale:
        raise DataError(
            f"dvc.lock was made from other code, data or parameters than HEAD's (stale: {', '.join(stale)}); "
            "run `dvc repro`, and commit dvc.lock and reports/"
        )
    committed = clones.make_clone(origin, "committed", home, cache=clones.cache_of(origin))
    clones.dvc(committed, origin, "checkout", "--allow-missing", "--quiet")
    return committed


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


def _count(rows: Sequence[compare.Row]) -> str:
    order = ("same", "close", "learned anew", "measured", "DIFFERENT", "missing")
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in order}
    return f"{len(rows)} outs: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


def _fingerprint(project: Path) -> Mapping[str, Any]:
    """Return the machine that an elite was made on; nothing where it is not there."""
    file = project / paths.ELITE / "policy.json"
    return read_json(file)["provenance"]["fingerprint"] if file.is_file() else {}


def _machines(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return the two machines side by side."""
    if not there:
        return ["the lock's machine is not known: `dvc pull` brings the elite that names it; this one:"] + [
            f"  {name}: {value}" for name, value in here.items()
        ]
    pairs = {name: (str(there.get(name)), str(here.get(name))) for name in dict.fromkeys((*there, *here))}
    marked = [(name, a, b, "" if a == b else "*") for name, (a, b) in pairs.items()]
    return compare.columns([("machine", "lock", "here", ""), *marked])
