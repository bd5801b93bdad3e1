"""Drives a run to its end, tick by tick, and shows its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from evopipe.run.callbacks import Callbacks
from evopipe.run.evaluate import Stopped
from evopipe.run.league import League
from evopipe.run.run import Run
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.track.events import Generation, Message, Progress, Tracker

SAVE_SHARE = 0.01  # of wall time that saving may take
_PATIENCE = 3  # generations without a reward that nobody need worry about
_ENDLESS = (
    "{} evaluation episodes of {} did not end and were cut by env.step_limit, for there is no time limit: register it "
    "with max_episode_steps, or lower env.step_limit"
)
_UNREWARDED = (
    "no member has seen a reward other than 0 in {:,} steps, so there is nothing to learn from or to select by: "
)


def warn(tracker: Tracker, sentences: Iterable[str]) -> None:
    """Send each of these sentences to the tracker as a warning to the user."""
    for sentence in sentences:
        tracker.emit(Message("warning", sentence))


def drive(
    run: Run[Any], tracker: Tracker, stop: Callable[[], bool], save: Callable[[], None],
    callbacks: Callbacks | None = None,
) -> None:  # fmt: skip
    """Train a run until it ends or `stop` returns True, send its progress to the tracker, and call the user's
    `callbacks`, if there are any.

    `save` is called after every step of training. It decides itself whether to save the state. The caller has to save
    the final state.
    """
    watch, clock, told = _Stopwatch(run), run.clock, False
    while not run.reason and not stop():
        if clock.generation_over and run.waiting:
            run.turn()
        elif clock.generation_over:
            tracker.emit(watch.progress("evaluating"))
            births, broken, champion = run.births, clock.broken_here, run.champion
            try:
                run.close_generation(stop)
            except Stopped:
                return
            if broken:
                warn(tracker, [f"{broken} broken transitions of the environment were left out"])
            if run.cut and not told:
                warn(tracker, [_ENDLESS.format(run.cut, run.spec.name)])
                told = True
            made_by, evolve = dict(enumerate(births)), run.spec.algo_config.evolve
            steps = clock.env_steps, clock.eval_steps
            tracker.emit(Generation.of(run.lineage[-1], made_by, evolve, watch.lap(), steps, run.losses, run.told))
            unseen = not (clock.rewarded or any(run.curve[-1][4:6]))
            if unseen and (clock.generation == _PATIENCE or run.reason):
                warn(tracker, [_UNREWARDED.format(clock.step) + run.spec.unrewarded])
            if callbacks is not None:
                callbacks.after_generation(run, champion)
        else:
            before = clock.ticks
            run.advance(clock.generation_ticks)
            if callbacks is not None:
                callbacks.after_tick(run, before)
            if watch.due():
                tracker.emit(watch.progress("learning"))
        save()


class _Stopwatch:
    """Wall time for people; no state of the run depends on it."""

    def __init__(self, run: Run[Any]) -> None:
        clock = run.clock
        self.run, self.clock, self.shown = run, clock, 0.0
        self.began = self.lapped = time.perf_counter()
        self.first_share, self.first_steps = run.share, clock.env_steps

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
        share, total = self.run.share, clock.total * clock.envs
        done = share - self.first_share
        return Progress(
            generation=clock.generation,
            step=clock.step,
            max_steps=total,
            env_steps=clock.env_steps,
            eval_steps=clock.eval_steps,
            phase=phase,
            steps_per_second=(clock.env_steps - self.first_steps) / seconds,
            seconds_left=(1.0 - share) * seconds / done if done > 0 else None,
            target=self.run.target,
        )


class Saver:
    """An object that saves checkpoints of a run every `seconds` seconds.

    The object saves less often if saving would take more than a hundredth of the time (`SAVE_SHARE`).
    """

    def __init__(self, run: Run[Any], store: CheckpointStore, seconds: float) -> None:
        self.run, self.store, self.seconds = run, store, seconds
        self.last, self.cost = time.perf_counter(), 0.0

    def save_if_due(self) -> None:
        """Save the run's state if enough time has passed since the last save."""
        if time.perf_counter() - self.last >= max(self.seconds, self.cost / SAVE_SHARE):
            self.save()

    def save(self) -> None:
        """Save the run's state at once, and note the time that this took."""
        began = time.perf_counter()
        tensors, meta = self.run.state()
        self.store.save(self.run.clock.ticks + self.run.clock.generation, tensors, meta)
        if self.run.league is not None:
            self._prune(self.run.league)
        self.last = time.perf_counter()
        self.cost = self.last - began

    def _prune(self, league: League) -> None:
        """Remove the opponents of self-play that neither the run nor a checkpoint on disk names any more."""
        saved = self.store.described()
        if saved is not None:  # else a run may have to go on from what cannot be read now
            named = {str(each["arrays"]) for meta in saved for each in meta["opponents"]}
            league.prune(named | {each.arrays for each in self.run.opponents})
