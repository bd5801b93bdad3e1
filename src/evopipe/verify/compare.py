"""Out by out: what is the same in two folders that ran the same pipeline."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evopipe.errors import DataError, MissingInputError
from evopipe.schema.read import read_yaml
from evopipe.stages import paths

MEASURED = frozenset({paths.TIMING.as_posix()})
"""Outs that are measurements of time: they differ from run to run, and nothing is computed from them."""

LEARNED = tuple(path.as_posix() for path in (paths.TRAINED, paths.LINEAGE, paths.FITNESS, paths.TRAIN))
"""Outs that depend on the last bits of training; so does all that depends on them."""

Verdict = Literal["same", "DIFFERENT", "missing", "measured", "close", "learned anew"]
_NAMED = 8
_SHOWN = 60


@dataclass(frozen=True)
class Out:
    """One out of one run: the stage that made it, and DVC's hash."""

    path: str
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
        found = {path for path in self.outs if path in LEARNED}
        while True:
            stages = {stage for stage, deps in self.deps.items() if found & deps}
            more = {out.path for out in self.outs.values() if out.stage in stages} - found
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
        outs = {
            out["path"]: Out(out["path"], stage, str(out["md5"]))
            for stage, entry in stages.items()
            for out in entry.get("outs", ())
        }
        deps = {stage: frozenset(dep["path"] for dep in entry.get("deps", ())) for stage, entry in stages.items()}
        return Lock(outs, deps)
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not a lock that DVC 3 wrote ({error!r}); run `dvc repro` again") from error


def compare(one: Path, two: Path) -> list[Row]:
    """Compare what two clones of one commit gave.

    Args:
        one: the pipeline's folder in the first.
        two: the same in the second.

    Returns:
        a row an out, in the order of the stages.
    """
    return rows_of(read_lock(one), read_lock(two), lambda a, b: _differing(a, b, one / a.path, two / a.path))


def rows_of(one: Lock, two: Lock, differing: Callable[[Out, Out], Row]) -> list[Row]:
    """Compare two locks, a row an out; `differing` judges what both have with different hashes."""
    rows = []
    for path in dict.fromkeys((*one.outs, *two.outs)):
        a, b = one.outs.get(path), two.outs.get(path)
        if a is None or b is None:
            made = a or b
            assert made is not None
            rows.append(Row(path, made.stage, a.md5 if a else "", b.md5 if b else "", "missing"))
        elif path in MEASURED or a.md5 == b.md5:
            rows.append(Row(path, a.stage, a.md5, b.md5, "measured" if path in MEASURED else "same"))
        else:
            rows.append(differing(a, b))
    return rows


def _differing(a: Out, b: Out, one: Path, two: Path) -> Row:
    if a.path == paths.REPORT.as_posix():
        left, right = computed_part(one), computed_part(two)
        a_sum, b_sum = (hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() for text in (left, right))
        if left == right:
            return Row(a.path, a.stage, a_sum, b_sum, "same", ("compared without its measured section",))
        return Row(a.path, a.stage, a_sum, b_sum, "DIFFERENT", (_first_line(left.splitlines(), right.splitlines()),))
    return Row(a.path, a.stage, a.md5, b.md5, "DIFFERENT", tuple(differences(one, two)))


def computed_part(report: Path) -> str:
    """Return a report's HTML without its measured section."""
    from evopipe.report.html import without_measured

    return without_measured(report.read_text(encoding="utf-8"))


def differences(one: Path, two: Path) -> list[str]:
    """Say in which files, and in which line of a text, two outs differ."""
    if one.is_file() and two.is_file():
        return [_in_file(one, two)]
    names = sorted(
        {file.relative_to(top).as_posix() for top in (one, two) for file in top.rglob("*") if file.is_file()}
    )
    notes = []
    for name in names:
        left, right = one / name, two / name
        if not (left.is_file() and right.is_file()):
            notes.append(f"{name}: only in {'A' if left.is_file() else 'B'}")
        elif left.read_bytes() != right.read_bytes():
            notes.append(f"{name}: {_in_file(left, right)}")
    return notes if len(notes) <= _NAMED else [*notes[:_NAMED], f"and {len(notes) - _NAMED} more files"]


def _in_file(one: Path, two: Path) -> str:
    left, right = one.read_bytes(), two.read_bytes()
    try:
        return _first_line(left.decode().splitlines(), right.decode().splitlines())
    except UnicodeDecodeError:
        at = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
        sizes = f"{len(left)} bytes" if len(left) == len(right) else f"{len(left)} and {len(right)} bytes"
        return f"differs from byte {at} on ({sizes})"


def _first_line(left: Sequence[str], right: Sequence[str]) -> str:
    for number, (x, y) in enumerate(zip(left, right, strict=False), start=1):
        if x != y:
            start = max(0, next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), 0) - 20)
            shown = (text.strip()[start : start + _SHOWN] for text in (x, y))
            return f"line {number}: {' | '.join(shown)}"
    return f"{len(left)} and {len(right)} lines" if len(left) != len(right) else "differs in its line ends"


def origins(rows: Sequence[Row], lock: Lock) -> list[str]:
    """Return the stages whose outs differ though all that they depend on is the same: where to look for the cause."""
    wrong = {row.path for row in rows if row.fails}
    stages = dict.fromkeys(row.stage for row in rows if row.fails)
    return [stage for stage in stages if not wrong & lock.deps.get(stage, frozenset())]


def table(rows: Sequence[Row], names: tuple[str, str] = ("A", "B")) -> list[str]:
    """Return the lines of the table, and below a row its notes."""
    cells = [("out", "stage", *names, "")]
    cells += [(row.path, row.stage, row.a[:12] or "-", row.b[:12] or "-", row.verdict) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells]
    told = [[f"    {note}" for note in row.notes] for row in rows]
    return [lines[0], *(line for pair in zip(lines[1:], told, strict=True) for line in (pair[0], *pair[1]))]
