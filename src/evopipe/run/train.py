"""Training in a process that may be stopped or killed: resume, save in between, and end with a champion."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

from evopipe.errors import DiskError, DivergedError, EnvironmentFailed, Interrupted, ResourceError
from evopipe.run.drive import drive
from evopipe.run.run import Champion, Run
from evopipe.signals import StopSignal
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.track.events import End, Message, Start, Tracker

SAVE_SHARE = 0.01  # of wall time that saving may take
_ENDINGS = {"target": "target reached", "max_steps": "all steps taken"}


def train(
    run: Run,
    store: CheckpointStore,
    save_seconds: float,
    stop: StopSignal,
    tracker: Tracker,
    problems: Callable[[], Iterable[str]],
) -> Champion:
    """Take a run from its last checkpoint, or its beginning, to its end; return the champion.

    It is saved every `save_seconds` at most, and as it ended. Between ticks `problems` is asked for warnings to show.

    Raises:
        DataError: every checkpoint is damaged.
        DivergedError: all members diverged, again and again.
        EnvironmentFailed: the environment raised or broke its contract.
        Interrupted: a signal came; the run was saved.
    """
    began, spec, clock = time.perf_counter(), run.spec, run.clock
    step = _resume(run, store, tracker)
    tracker.emit(Start("train", spec.env.id, spec.train.algo, clock.members, clock.total * clock.envs, step))
    _warn(tracker, run.regime.remarks)
    saver = _Saver(run, store, save_seconds)

    def between() -> None:
        saver.save_if_due()
        _warn(tracker, problems())

    try:
        drive(run, tracker, lambda: stop.signum is not None, between)
    except (EnvironmentFailed, ResourceError) as failed:
        whole = run.regime.whole and isinstance(failed, EnvironmentFailed)
        if whole:
            clock.broken_here = 0  # a mended environment starts with a clean slate
            with contextlib.suppress(DiskError):  # the environment's failure is the news
                saver.save()
        if stop.signum is not None:  # it was asked to stop, and hung or fell
            where = "from there" if whole else "from the last checkpoint"
            raise Interrupted(
                stop.signum,
                f"stopped at step {clock.step} of each member: {failed}; the same command continues {where}",
            ) from None
        raise
    if stop.signum is not None and not run.reason:
        saver.save()
        raise Interrupted(
            stop.signum, f"stopped at step {clock.step} of each member; saved, the same command continues from there"
        )
    if run.champion is None:
        raise DivergedError("no generation had a healthy member, so there is no elite: lower the learning rate")
    saver.save()  # whatever happens while the outs are written, training is not lost
    tracker.emit(End(_ENDINGS[run.reason], time.perf_counter() - began, clock.env_steps, clock.eval_steps))
    return run.champion


def _resume(run: Run, store: CheckpointStore, tracker: Tracker) -> int | None:
    """Take over the newest checkpoint; return its step, None if there is none."""
    loaded = store.load()
    if loaded is None:
        return None
    _warn(tracker, loaded.warnings)
    if lost := run.restore(loaded.tensors, loaded.meta):
        sentence = (
            f"{lost} environments did not return to where they were: {run.spec.env.id} is not a function of its seed "
            "and actions. They begin new episodes; the run goes on, but not bit for bit"
        )
        _warn(tracker, [sentence])
    return run.clock.step


def _warn(tracker: Tracker, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        tracker.emit(Message("warning", sentence))


class _Saver:
    """Saves every so many seconds, and never more often than a hundredth of wall time allows."""

    def __init__(self, run: Run, store: CheckpointStore, seconds: float) -> None:
        self.run, self.store, self.seconds = run, store, seconds
        self.last, self.cost = time.perf_counter(), 0.0

    def save_if_due(self) -> None:
        if time.perf_counter() - self.last >= max(self.seconds, self.cost / SAVE_SHARE):
            self.save()

    def save(self) -> None:
        began = time.perf_counter()
        tensors, meta = self.run.state()
        self.store.save(self.run.clock.tick + self.run.clock.generation, tensors, meta)
        self.last = time.perf_counter()
        self.cost = self.last - began
