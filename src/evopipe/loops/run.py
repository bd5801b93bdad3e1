"""Driving a run: advance it until it ends or is stopped, tell what happens, let it be saved in between."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evopipe.algos import on_policy
from evopipe.core.networks import Arch
from evopipe.core.population import Member
from evopipe.envs.workers import Crew
from evopipe.evolve.mutate import NONE, Mutation
from evopipe.loops.base import Loop
from evopipe.loops.evaluate import Stopped
from evopipe.loops.offline import Offline
from evopipe.loops.on_device import OnDevice
from evopipe.loops.on_policy import OnPolicy
from evopipe.loops.online import Online
from evopipe.loops.problem import Problem
from evopipe.track.events import Generation, MemberRow, Message, Progress, Tracker

if TYPE_CHECKING:
    from evopipe.storage.dataset import Transitions


def begin(
    problem: Problem,
    members: Sequence[Member],
    warm: Transitions | None = None,
    births: Sequence[Mutation] | None = None,
    crew: Crew | None = None,
    learners: int = 1,
) -> Loop:
    """Return the loop of the problem's data regime at its beginning; arguments are those of `Loop`."""
    kind: type[Loop] = Online
    if problem.train.mode == "offline":
        kind = Offline
    elif on_policy(problem.algo):
        kind = OnDevice if problem.env.backend == "torch" else OnPolicy
    return kind(problem, members, warm, births, crew, learners)


def run(
    loop: Loop,
    tracker: Tracker,
    stop: Callable[[], bool],
    save: Callable[[], None],
) -> None:
    """Advance a run until it ends or a signal stops it.

    Args:
        loop: the run.
        tracker: where events go.
        stop: whether a signal asked to stop; the caller then saves.
        save: called between ticks.
    """
    clock = _Clock(loop)
    while not loop.reason and not stop():
        closing = loop.generation_over
        if closing:
            tracker.emit(clock.progress("evaluating"))
            births = loop.births
            broken = loop.broken_here
            try:
                loop.close_generation(stop)
            except Stopped:
                return
            if broken:
                tracker.emit(Message("warning", f"{broken} broken transitions of the environment were left out"))
            tracker.emit(describe_generation(loop, clock.lap(), births))
        else:
            loop.advance()
            if clock.due():
                tracker.emit(clock.progress("learning"))
        save()


def describe_generation(loop: Loop, seconds: float, mutations: Sequence[Mutation]) -> Generation:
    """Describe the generation that was just closed, for people and trackers.

    Args:
        loop: the run.
        seconds: wall time that the generation took.
        mutations: by slot, how its members were made.
    """
    row, record, champion = loop.curve[-1], loop.lineage[-1], loop.champion
    members = tuple(
        MemberRow(
            slot=m["slot"],
            id=m["id"],
            parent=m["parent"],
            fitness=-math.inf if m["fitness"] is None else m["fitness"],
            mutation=mutation.kind,
            change=mutation.describe() if mutation is not NONE else "",
            architecture=Arch.from_json(m["arch"]).describe(),
            activation=m["arch"]["activation"],
            hyper={name: m["hyper"][name] for name in sorted(loop.problem.algo_config.evolve)},
            healthy=m["healthy"],
            loss=loss,
        )
        for m, mutation, loss in zip(record["members"], mutations, loop.losses, strict=True)
    )
    return Generation(
        generation=loop.generation,
        step=loop.step,
        env_steps=loop.env_steps,
        eval_steps=loop.eval_steps,
        seconds=seconds,
        members=members,
        best=math.nan if row[4] is None else float(row[4]),
        mean=math.nan if row[5] is None else float(row[5]),
        elite=champion.score if champion else math.nan,
        elite_id=champion.member.id if champion else -1,
    )


class _Clock:
    """Wall time for people; no state of the run depends on it."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.began, self.shown = loop, time.perf_counter(), 0.0
        self.lapped = self.began
        self.first_step, self.first_steps = loop.step, loop.env_steps

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def lap(self) -> float:
        """Return the seconds since the last call."""
        now = time.perf_counter()
        seconds, self.lapped = now - self.lapped, now
        return seconds

    def due(self) -> bool:
        """Whether a quarter of a second has passed since progress was last shown."""
        now = time.perf_counter()
        if now - self.shown < 0.25:
            return False
        self.shown = now
        return True

    def progress(self, phase: str) -> Progress:
        loop, seconds = self.loop, max(self.seconds, 1e-9)
        done, total = loop.step - self.first_step, loop.total_ticks * loop.problem.env.num_envs
        left = (total - loop.step) * seconds / done if done else None
        return Progress(
            generation=loop.generation,
            step=loop.step,
            max_steps=total,
            env_steps=loop.env_steps,
            eval_steps=loop.eval_steps,
            phase=phase,
            steps_per_second=(loop.env_steps - self.first_steps) / seconds,
            seconds_left=left,
        )
