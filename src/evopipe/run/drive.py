"""Beginning a run, and driving it: advance it until it ends or is stopped, tell what happens, let it be saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from evopipe.algos import on_policy
from evopipe.core.member import Member
from evopipe.envs.workers import Workers
from evopipe.errors import UsageError
from evopipe.evolve.mutate import Mutation
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Stopped
from evopipe.run.off_policy import OffPolicy
from evopipe.run.offline import Offline
from evopipe.run.on_policy import CollectRollouts, OnPolicy
from evopipe.run.regime import Regime, Setup
from evopipe.run.run import Run
from evopipe.run.spec import Spec
from evopipe.track.events import Generation, Message, Progress, Tracker

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions


_PATIENCE = 3  # generations without a reward that nobody need worry about
_UNREWARDED = (
    "no member has seen a reward other than 0 in {step:,} steps, so there is nothing to learn from or to select by: "
    "let them explore more, let episodes last longer (train.eval_steps cuts those of evaluation), begin from data "
    "(train.warm_start), or reward steps on the way"
)


def begin(
    spec: Spec,
    members: Sequence[Member],
    warm: Transitions | None = None,
    births: Sequence[Mutation] | None = None,
    workers: Workers | None = None,
    learners: int = 1,
    collect_rollouts: CollectRollouts | None = None,
) -> Run:
    """Return a run at its beginning, in the regime of its algorithm.

    `births` are the members' mutations, if any. For warm, workers and learners see `Setup`, for collect_rollouts
    `OnPolicy`.

    Raises:
        UsageError: `collect_rollouts` is given and the algorithm collects none.
    """
    if collect_rollouts is not None and not on_policy(spec.algo):
        raise UsageError(f"collect_rollouts: {spec.train.algo} collects no rollouts; take an on-policy algorithm")
    clock, keys = Clock.of(spec, len(members)), np.array([member.key for member in members])
    clock.rewarded = warm is not None and bool(np.any(warm.reward))
    setup = Setup(spec, clock, keys, warm, workers, learners)
    regime: Regime
    if spec.train.mode == "offline":
        regime = Offline(setup)
    elif on_policy(spec.algo):
        regime = OnPolicy(setup, collect_rollouts)
    else:
        regime = OffPolicy(setup)
    return Run(spec, regime, clock, members, births)


def drive(run: Run, tracker: Tracker, stop: Callable[[], bool], save: Callable[[], None]) -> None:
    """Advance a run until it ends or `stop` says so, then the caller saves; `save` is called between ticks."""
    watch, clock = _Stopwatch(run), run.clock
    while not run.reason and not stop():
        if clock.generation_over:
            tracker.emit(watch.progress("evaluating"))
            births, broken = run.births, clock.broken_here
            try:
                run.close_generation(stop)
            except Stopped:
                return
            if broken:
                tracker.emit(Message("warning", f"{broken} broken transitions of the environment were left out"))
            made_by, evolve = dict(enumerate(births)), run.spec.algo_config.evolve
            steps = clock.env_steps, clock.eval_steps
            tracker.emit(Generation.of(run.lineage[-1], made_by, evolve, watch.lap(), steps, run.losses))
            unseen = not (clock.rewarded or any(run.curve[-1][4:6]))
            if unseen and (clock.generation == _PATIENCE or run.reason):
                tracker.emit(Message("warning", _UNREWARDED.format(step=clock.step)))
        else:
            run.advance()
            if watch.due():
                tracker.emit(watch.progress("learning"))
        save()


class _Stopwatch:
    """Wall time for people; no state of the run depends on it."""

    def __init__(self, run: Run) -> None:
        clock = run.clock
        self.run, self.clock, self.shown = run, clock, 0.0
        self.began = self.lapped = time.perf_counter()
        self.first_step, self.first_steps = clock.step, clock.env_steps

    def lap(self) -> float:
        """Return the seconds since the last call."""
        before, self.lapped = self.lapped, time.perf_counter()
        return self.lapped - before

    def due(self) -> bool:
        """Whether it is a quarter of a second since progress was last shown."""
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
