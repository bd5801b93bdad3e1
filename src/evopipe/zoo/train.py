"""Training of the zoo's rows: seed by seed, side by side, each recorded as soon as it has ended."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evopipe import layout, machine
from evopipe.errors import DataError, EvopipeError, need_package
from evopipe.formats import interval, score
from evopipe.parallel import available_cpus
from evopipe.policies.policy import POLICY, TENSORS
from evopipe.storage.files import parse_json, read_bytes, read_json
from evopipe.storage.folders import read_folder
from evopipe.storage.keys import state_folder
from evopipe.storage.tensors import dump_tensors, load_tensors
from evopipe.sweep.run import SweptRun, sweep
from evopipe.sweep.settings import settings_of
from evopipe.zoo.row import PIPELINES, Curve, Seed, ZooRow, code

_Tell = Callable[[str], None]


def train(rows: Sequence[ZooRow], seeds: Sequence[int], jobs: int | None, tell: _Tell, warn: _Tell) -> None:
    """Train each row of the zoo with the given seeds, and record the results in the clone's folder `zoo/`.

    A row is one algorithm in one environment. A seed is skipped if it already has recorded results with the row's
    present parameters.

    Rows are trained one after another. A seed's run that was stopped continues where it was, if the code is still the
    same. The failure of a row does not stop the others.

    Args:
        rows: the rows.
        seeds: the seeds of each row.
        jobs: the number of seeds that run at the same time; None for one per CPU.
        tell: a function that is called with sentences on the progress.
        warn: a function that is called with warnings.

    Raises:
        MissingInputError: there is one row only, and a package that it needs is not installed.
        EvopipeError: rows failed, and the others were trained. The exit code is that of the first failure.
        Interrupted: a signal arrived; finished runs are recorded, and the others saved.
    """
    failed: dict[str, EvopipeError] = {}
    for row in rows:
        try:
            done = row.trained()
            missing = [seed for seed in seeds if seed not in done]
            if not missing:
                tell(f"{row.name}: was trained with all of these seeds")
                continue
            _need(row)
            if not committed(row.home):
                warn("zoo: code or pipelines are not as committed: what is recorded names no revision")
            where = state_folder("zoo", f"{row.name}-{code()[:12]}", row.folder)
            tell(f"{row.name}: seeds {', '.join(map(str, missing))}")
            run(row, missing, where, jobs, warn, partial(_record, row, tell))
        except EvopipeError as error:
            if len(rows) == 1:
                raise
            failed[row.name] = error
            warn(f"{row.name}: {error}")
    if failed:
        first, failure = next(iter(failed.items()))
        failure.args = (f"{len(failed)} of {len(rows)} rows failed, the first was {first}: {failure}",)
        raise failure


def run(
    row: ZooRow, seeds: Sequence[int], top: Path, jobs: int | None, warn: _Tell,
    keep: Callable[[SweptRun], None] = lambda swept: None,
) -> list[SweptRun]:  # fmt: skip
    """Run a row's pipeline with each of the given seeds, each in a folder of its own below `top`; return the finished
    runs, the best first.

    The working folder is the pipeline's, so that the pipeline's own modules can be imported.

    Args:
        row: the row.
        seeds: the seeds.
        top: the folder of all runs.
        jobs: the number of runs at the same time; None for one per CPU.
        warn: a function that is called with warnings.
        keep: a function that is called with each run as soon as it has finished.

    Raises:
        MissingInputError: a package that the row needs is not installed.
        EvopipeError: a run failed. For other errors see `sweep.run.sweep`.
    """
    _need(row)
    with contextlib.chdir(row.folder):
        settings = settings_of("params.yaml", [f"seed={','.join(map(str, seeds))}"], (), None, "random", False)
        return sweep(settings, top, jobs or available_cpus(), False, lambda line: None, warn, keep)


def _need(row: ZooRow) -> None:
    if row.entry.extra is not None:
        need_package(row.entry.package or row.entry.extra, row.entry.extra, f"zoo: {row.name}")


def _record(row: ZooRow, tell: _Tell, swept: SweptRun) -> None:
    """Record a run that has ended."""
    found, archive = result(row, swept)
    seed = swept.setting.params.seed
    row.record(seed, found, archive)
    cost = f"{found.steps:,} steps, {found.cpu_seconds:.0f} CPU seconds"
    tell(f"{row.name}: seed {seed}: {score(found.mean)} {interval(found.interval)}, {cost}")


def result(row: ZooRow, swept: SweptRun) -> tuple[Seed, bytes]:
    """Return the results of a finished run of a row's pipeline, and the content of an archive file with the run's
    elite.

    The archive is a safetensors file with the elite's tensors, whose metadata has the content of `policy.json`.

    Args:
        row: the row.
        swept: the finished run.

    Raises:
        DataError: a file of the run is damaged.
        MissingInputError: a file of the run does not exist.
    """
    files = read_folder(swept.folder / layout.ELITE, only=(POLICY, TENSORS))
    summary, scores = (read_json(swept.folder / out) for out in (layout.TRAIN, layout.EVALUATION))
    try:
        about: Any = parse_json(files[POLICY], str(swept.folder / POLICY))
        made, elite = about["provenance"], scores["elite"]
        seed = Seed(
            mean=elite["mean"], interval=elite["interval"], std=elite["std"], iqm=elite["iqm"],
            episodes=scores["episodes"],
            training_steps=summary["steps"]["training"], evaluation_steps=summary["steps"]["evaluation"],
            cpu_seconds=round(swept.cpu_seconds, 1),
            elite=hashlib.sha256(files[TENSORS]).hexdigest(), params=row.key, code=code(),
            revision=made["git_revision"] if committed(row.home) else None,
            version=made["evopipe"], fingerprint=made["fingerprint"], curve=_curve(swept.folder),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{swept.folder}: is of no run that ended ({error!r}); delete it to run it again") from None
    note = json.dumps(about, sort_keys=True, separators=(",", ":"))
    return seed, dump_tensors(load_tensors(files[TENSORS], TENSORS), note)


def committed(home: Path) -> bool:
    """Return whether evopipe's code and the pipelines in the clone `home` have no uncommitted changes; False if git
    cannot tell."""
    return machine.committed(home, "src/evopipe", str(PIPELINES))


def _curve(folder: Path) -> Curve:
    """Return a run's curve from its reports."""
    columns: dict[str, list[str]] = {}
    for out in (layout.FITNESS, layout.TIMING):
        for line in csv.DictReader(read_bytes(folder / out).decode().splitlines()):
            for name, value in line.items() if out == layout.FITNESS else [("seconds", line["seconds"])]:
                columns.setdefault(name, []).append(value)
    return Curve.model_validate({name: columns[name] for name in Curve.model_fields})
