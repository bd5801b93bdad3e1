"""Beginning a run, and driving it to its end in a process that may be stopped or killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evopipe.algos import on_policy
from evopipe.core.member import Member
from evopipe.envs.workers import Workers
from evopipe.errors import DiskError, DivergedError, EnvironmentFailed, Interrupted, ResourceError, UsageError
from evopipe.evolve.mutate import Mutation
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Stopped
from evopipe.run.off_policy import OffPolicy
from evopipe.run.offline import Offline
from evopipe.run.on_policy import CollectRollouts, OnPolicy
from evopipe.run.regime import Regime, Setup
from evopipe.run.run import Champion, Run
from evopipe.run.spec import Spec
from evopipe.signals import StopSignal
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.track.events import End, Generation, Message, Progress, Start, Tracker

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions

SAVE_SHARE = 0.01  # of wall time that saving may take
_ENDINGS = {"target": "target reached", "max_steps": "all steps taken"}


_PATIENCE = 3  # generations without a reward that nobody need worry about
_ENDLESS = (
    "{} evaluation episodes of {} did not end and were cut by env.step_limit, for there is no time limit: register it "
    "with max_episode_steps, or lower env.step_limit"
)
_UNREWARDED = (
    "no member has seen a reward other than 0 in {:,} steps, so there is nothing to learn from or to select by: "
)


def begin(
    spec: Spec,
    members: Sequence[Member],
    warm: Transitions | None = None,
    births: Sequence[Mutation] | None = None,
    workers: Workers | None = None,
    learners: int = 1,
    collect_rollouts: CollectRollouts | None = None,
) -> Run[Spec]:
    """Return a run at its beginning, in the regime of its algorithm.

    For warm, workers and learners see `Setup`, for collect_rollouts `OnPolicy`. Raises UsageError if `collect_rollouts`
    is given and the algorithm collects none.
    """
    clock, keys = Clock.of(spec, len(members)), np.array([member.key for member in members])
    regime = regime_of(Setup(spec, clock, keys, warm, workers, learners), collect_rollouts)
    return Run(spec, regime, clock, members, births)


def regime_of(setup: Setup, collect_rollouts: CollectRollouts | None = None) -> Regime:
    """Return what members live on by the configuration; for errors see `begin`."""
    spec, warm = setup.spec, setup.warm
    if collect_rollouts is not None and not on_policy(spec.algo):
        raise UsageError(f"collect_rollouts: {spec.train.algo} collects no rollouts; take an on-policy algorithm")
    setup.clock.rewarded = warm is not None and bool(np.any(warm.reward))
    if spec.train.mode == "offline":
        return Offline(setup)
    return OnPolicy(setup, collect_rollouts) if on_policy(spec.algo) else OffPolicy(setup)


def train(
    run: Run[Any],
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
    began, spec, clock, resumed = time.perf_counter(), run.spec, run.clock, None
    if loaded := store.load():
        _warn(tracker, loaded.warnings)
        if lost := run.restore(loaded.tensors, loaded.meta):
            sentence = (
                f"{lost} environments did not return to where they were: {spec.name} is not a function of its seed "
                "and actions. They begin new episodes; the run goes on, but not bit for bit"
            )
            _warn(tracker, [sentence])
        resumed = clock.step
    tracker.emit(Start("train", spec.name, spec.train.algo, clock.members, clock.total * clock.envs, resumed))
    _warn(tracker, run.regime.remarks)
    saver = _Saver(run, store, save_seconds)

    def between() -> None:
        saver.save_if_due()
        _warn(tracker, problems())

    try:
        _drive(run, tracker, lambda: stop.signum is not None, between)
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


def _warn(tracker: Tracker, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        tracker.emit(Message("warning", sentence))


def _drive(run: Run[Any], tracker: Tracker, stop: Callable[[], bool], save: Callable[[], None]) -> None:
    """Advance a run until it ends or `stop` says so, then the caller saves; `save` is called between ticks."""
    watch, clock, told = _Stopwatch(run), run.clock, False
    while not run.reason and not stop():
        if clock.generation_over:
            tracker.emit(watch.progress("evaluating"))
            births, broken = run.births, clock.broken_here
            try:
                run.close_generation(stop)
            except Stopped:
                return
            if broken:
                _warn(tracker, [f"{broken} broken transitions of the environment were left out"])
            if run.cut and not told:
                _warn(tracker, [_ENDLESS.format(run.cut, run.spec.name)])
                told = True
            made_by, evolve = dict(enumerate(births)), run.spec.algo_config.evolve
            steps = clock.env_steps, clock.eval_steps
            tracker.emit(Generation.of(run.lineage[-1], made_by, evolve, watch.lap(), steps, run.losses))
            unseen = not (clock.rewarded or any(run.curve[-1][4:6]))
            if unseen and (clock.generation == _PATIENCE or run.reason):
                _warn(tracker, [_UNREWARDED.format(clock.step) + run.spec.unrewarded])
        else:
            run.advance()
            if watch.due():
                tracker.emit(watch.progress("learning"))
        save()


class _Stopwatch:
    """Wall time for people; no state of the run depends on it."""

    def __init__(self, run: Run[Any]) -> None:
        clock = run.clock
        self.run, self.clock, self.shown = run, clock, 0.0
        self.began = self.lapped = time.perf_counter()
        self.first_step, self.first_steps = clock.step, clock.env_steps

    def lap(self) -> float:
        before, self.lapped = self.lapped, time.perf_counter()
        return self.lapped - before

    def due(self) -> bool:
        now = time.perf_counter()
        if now - self.shown < 0.25:
            return False
        self.shown = now
        return True

    def progress(self, phase: str) -> Progress:
        clock, seconds = self.clock, max(time.perf_counter() - self.began, 1e-9)
        done, total = clock.step - self.first_step, clock.total * clock.envs
        return Progress(
            generation=clock.generation,
            step=clock.step,
            max_steps=total,
            env_steps=clock.env_steps,
            eval_steps=clock.eval_steps,
            phase=phase,
            steps_per_second=(clock.env_steps - self.first_steps) / seconds,
            seconds_left=(total - clock.step) * seconds / done if done else None,
            target=self.run.target,
        )


class _Saver:
    """Saves every so many seconds, and never more often than a hundredth of wall time allows."""

    def __init__(self, run: Run[Any], store: CheckpointStore, seconds: float) -> None:
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
