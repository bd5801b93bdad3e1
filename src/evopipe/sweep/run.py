"""The runs of a sweep, side by side: each in a process and a folder of its own, by the stages of the pipeline.

This process imports everything once; every run is a fork of it, which costs a few hundredths of a second. What a run
has done is written into its folder stage by stage, and the stage `train` has its checkpoints, so that a sweep which was
stopped or killed goes on where it was.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess, SpawnProcess
from pathlib import Path
from typing import Any

import torch

from evopipe import layout, stages
from evopipe.errors import (
    DataError,
    EvopipeError,
    Interrupted,
    ResourceError,
    redacted,
    translate_failures,
)
from evopipe.formats import columns, duration, interval, score
from evopipe.parallel import can_help, signal_at_parent_death
from evopipe.params.load import AnyParams, load_params
from evopipe.problems import check, part_of
from evopipe.signals import StopSignal
from evopipe.storage.files import make_folder, read_json, write_json, write_text
from evopipe.storage.lock import RunLock
from evopipe.sweep.settings import Setting
from evopipe.track import tracking

FOLDER = Path("sweeps")
PARAMS, LOG, DONE = "params.yaml", "run.log", "sweep.json"
_LATER = ("matplotlib.figure", "matplotlib.backends.backend_svg", "jinja2.ext")  # of every run's report
_LOOK = 0.2  # seconds between two looks at whether a signal arrived
_TAIL = 8192  # bytes of a log that are searched for its last error
_Process = ForkProcess | SpawnProcess
_Tell = Callable[[str], None]


@dataclass(frozen=True)
class SweptRun:
    """A finished run of a sweep.

    Attributes:
        setting: the parameters of the run.
        folder: the run's folder.
        mean, interval: the mean return of the run's best member (the elite) in held-out episodes, and the mean's 95 %
            confidence interval.
        seconds: the duration of the run.
        cpu_seconds: CPU time of all stages.
    """

    setting: Setting
    folder: Path
    mean: float
    interval: tuple[float, float]
    seconds: float
    cpu_seconds: float  # of all stages; what a run that was killed had not saved is not known

    @classmethod
    def read(cls, setting: Setting, folder: Path) -> SweptRun:
        """Read the results of a finished run from its folder.

        Raises:
            DataError, MissingInputError: the results are damaged or missing.
        """
        found = read_json(folder / layout.EVALUATION)
        try:
            mean, (low, high) = found["elite"]["mean"], found["elite"]["interval"]
            spent = (sum(each.values()) for each in _spent(folder))
            return cls(setting, folder, float(mean), (float(low), float(high)), *spent)
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{folder / layout.EVALUATION}: is of no run; delete {folder} to run it again") from None

    @property
    def cells(self) -> tuple[str, ...]:
        """The run's row in the table of results, as texts."""
        label, mean, ends = self.setting.label, score(self.mean), interval(self.interval)
        return label, mean, ends, duration(self.seconds), str(self.folder)


def sweep(
    settings: Sequence[Setting], top: Path, jobs: int, dataset: bool, tell: _Tell, warn: _Tell,
    keep: Callable[[SweptRun], None] = lambda run: None,
) -> list[SweptRun]:  # fmt: skip
    """Run every setting in a folder of its own; return the finished runs, the best first.

    A run that has finished before is not run again, and a run that was stopped continues. The failure of a run does not
    stop the others.

    Args:
        settings: the parameters of each run.
        top: the folder of the runs' folders.
        jobs: the number of runs at the same time.
        dataset: whether the stages that make a dataset run too.
        tell: a function that is called with sentences on the progress.
        warn: a function that is called with warnings.
        keep: a function that is called with each run as soon as it has finished.

    Raises:
        BusyError: another sweep works in this folder.
        ParamsError, EnvironmentFailed: a run could not begin; nothing was run.
        EvopipeError: runs failed; the others have finished. The exit code is that of the first failure.
        Interrupted: a signal arrived; the runs were saved.
    """
    torch.set_num_threads(1)  # no thread of OpenMP's may be there before the forks
    _import(settings, dataset)
    for setting in settings:
        try:
            check(setting.params)
        except EvopipeError as error:
            raise type(error)(f"{setting.label}: {error}") from None
    make_folder(top)
    with contextlib.suppress(FileExistsError), (top.parent / ".gitignore").open("x", encoding="utf-8") as file:
        file.write("*\n")
    with RunLock(top / ".lock"), StopSignal() as stop:
        if stages.runnable() == stages.WITHOUT_REPORT:  # of all runs alike: their own logs need not say so
            warn(stages.NO_REPORT)
        runs = _Runs(settings, top, jobs, dataset, tell, warn, keep)
        try:
            runs.drive(lambda: stop.signum is not None)
        finally:
            runs.end()
        if stop.signum is not None and len(runs.ended) + len(runs.failed) < len(settings):
            done = f"{len(runs.ended)} of {len(settings)} runs have ended"
            raise Interrupted(stop.signum, f"stopped: {done}, the others are saved; the same command continues")
    for line in table(runs.ended):
        tell(line)
    if runs.failed:
        first, failure = next(iter(runs.failed.items()))
        failure.args = (f"{len(runs.failed)} of {len(settings)} runs failed, the first was {first.label}: {failure}",)
        raise failure
    return runs.ended


def _import(settings: Sequence[Setting], dataset: bool) -> None:
    """Import what runs would import one by one."""
    for stage in (drawn := stages.runnable()):
        stages.module_of(stage)
    parts = ("population", "evaluate", "export", *["data"] * (dataset or settings[0].params.needs_dataset))
    for part in parts:
        part_of(settings[0].params, part)
    for name in _LATER if drawn == layout.STAGES else ():
        import_module(name)


def table(ended: Sequence[SweptRun]) -> list[str]:
    """Return the finished runs `ended` as lines of a table with a header, one line for each run."""
    head = ("setting", "elite's mean", "95 % interval", "time", "folder")
    return columns([head, *(each.cells for each in ended)])


class _Runs:
    """The runs of a sweep: which wait, which go on, which have ended, which failed."""

    def __init__(
        self, settings: Sequence[Setting], top: Path, jobs: int, dataset: bool, tell: _Tell, warn: _Tell,
        keep: Callable[[SweptRun], None] = lambda run: None,
    ) -> None:  # fmt: skip
        self.keep = keep
        self.waiting, self.top, self.jobs, self.dataset = list(settings), top, jobs, dataset
        self.tell, self.warn, self.count = tell, warn, len(settings)
        self.going: dict[_Process, Setting] = {}
        self.failed: dict[Setting, EvopipeError] = {}
        self._ended: list[SweptRun] = []

    @property
    def ended(self) -> list[SweptRun]:
        """Runs that have ended, the best first."""
        return sorted(self._ended, key=lambda each: (-each.mean, each.setting.name))

    def drive(self, stopped: Callable[[], bool]) -> None:
        """Run them all, or until `stopped`; then ask those that go on to save and end, and wait for them."""
        told = False
        while self.going or (self.waiting and not stopped()):
            while self.waiting and len(self.going) < self.jobs and not stopped():
                self._begin(self.waiting.pop(0))
            wait([process.sentinel for process in self.going], _LOOK if self.going else 0)
            if stopped() and not told:
                told = True
                for process in self.going:
                    process.terminate()
            for process in [each for each in self.going if not each.is_alive()]:
                self._take(process, self.going.pop(process), stopped())

    def end(self) -> None:
        """End at once what goes on still: after a second Ctrl-C, or an error."""
        for process in self.going:
            process.kill()
            process.join()

    def _begin(self, setting: Setting) -> None:
        folder = self.top / setting.name
        if _is_done(folder):
            self._keep(setting, "was there")
            return
        make_folder(folder)
        write_text(folder / PARAMS, setting.text)
        context: Any = multiprocessing.get_context("fork" if can_help() else "spawn")
        work = (folder, setting.params.needs_dataset or self.dataset, self.jobs > 1, os.getpid())
        process = context.Process(target=_run, args=work, name=setting.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process has threads: the run touches none of their locks
            process.start()
        self.going[process] = setting

    def _take(self, process: _Process, setting: Setting, stopping: bool) -> None:
        process.join()
        code, folder = process.exitcode or 0, self.top / setting.name
        if code == 0:
            self._keep(setting)
        elif not (stopping and (code < 0 or code > 128)):  # else it was asked to end, and was saved
            self.failed[setting] = _failure(folder, code)
            self.warn(f"{setting.label}: {self.failed[setting]} ({folder / LOG})")
        process.close()

    def _keep(self, setting: Setting, how: str = "") -> None:
        found = SweptRun.read(setting, self.top / setting.name)
        self._ended.append(found)
        self.keep(found)
        label, mean, interval, seconds, _ = found.cells
        number = len(self._ended) + len(self.failed)
        self.tell(f"{number} of {self.count}: {label}: elite {mean} {interval}, {how or seconds}")


def _failure(folder: Path, code: int) -> EvopipeError:
    """Return the error by which a run's process ended, from its log."""
    if code < 0:
        name = signal.Signals(-code).name
        memory = ": memory may have run out, lower --jobs" if name == "SIGKILL" else ""
        return ResourceError(f"its process was ended by {name}{memory}")
    with (folder / LOG).open("rb") as file:
        file.seek(max(0, os.path.getsize(folder / LOG) - _TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith("error: ")), (lines or [""])[-1])
    error = EvopipeError(said.removeprefix("error: "))
    error.exit_code = code
    return error


# --- the process of one run -------------------------------------------------------------------------------------------


def _run(folder: Path, dataset: bool, one_of_many: bool, parent: int) -> None:
    """Run the stages in a folder that has a params.yaml; end the process with the exit code of a command."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C in a terminal is for the sweep, which asks to end by SIGTERM
    for signum, handler in ((signal.SIGINT, signal.SIG_IGN), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(signum, handler)
    signal_at_parent_death(signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    try:
        with translate_failures():
            _stages(load_params(folder / PARAMS), folder, dataset, one_of_many)
    except (EvopipeError, Interrupted) as error:
        print(f"error: {redacted(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)


def _stages(params: AnyParams, folder: Path, dataset: bool, one_of_many: bool) -> None:
    """Run the stages that are not done yet."""
    if one_of_many:
        params = _alone(params)
    for stage in stages.runnable():
        done, cpu = _spent(folder)
        if stage.name in done or (stage.dataset and not dataset):
            continue
        began, cpu_began = time.perf_counter(), _cpu_seconds()
        try:
            stages.module_of(stage).run(params, folder=folder)
            done = {**done, stage.name: round(time.perf_counter() - began, 3)}
        finally:
            cpu[stage.name] = round(cpu.get(stage.name, 0.0) + _cpu_seconds() - cpu_began, 3)
            write_json(folder / DONE, {"stages": done, "cpu": cpu})
    tracking.attach(params.tracking, layout.OUTS, folder)


def _alone(params: AnyParams) -> AnyParams:
    """Return the parameters of a run whose neighbours have the other CPUs: `auto` takes none. It changes no result."""
    alone = {"env_workers": 0, "learners": 1}
    own = {key: value for key, value in alone.items() if getattr(params.runtime, key, None) == "auto"}
    return params.model_copy(update={"runtime": params.runtime.model_copy(update=own)})


def _spent(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the stages that a run has done with their seconds, and those that it began with their CPU seconds."""
    path = folder / DONE
    found = read_json(path) if path.exists() else {}
    return dict(found.get("stages", {})), dict(found.get("cpu", {}))


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    ended = os.times()  # counts in hundredths of a second, too coarse for a short stage of this process
    return time.process_time() + ended.children_user + ended.children_system


def _is_done(folder: Path) -> bool:
    return stages.runnable()[-1].name in _spent(folder)[0]
