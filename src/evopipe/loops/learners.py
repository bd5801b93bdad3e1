"""Learning divided among processes: each takes some rows of the cohorts, on the same memory.

The members' tensors and the replay memory lie in memory that all processes see. For a generation the trainer forks
helpers, which have everything they need without a copy; at each tick it tells them how many updates are due, takes its
own share, and waits. A row is computed by the same operators on the same numbers wherever it is, so nothing depends on
how many processes there are.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import mmap
import os
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from evopipe.core.population import Cohort, cost, part, seen_by, tensors_of
from evopipe.envs.shared import Bell
from evopipe.envs.workers import available_cpus
from evopipe.errors import ParamsError, ResourceError
from evopipe.loops.problem import Problem
from evopipe.signals import ignore_stop_signals, signal_at_parent_death

MOST = 16  # processes that `auto` uses at most
LINE = 64  # bytes of a cache line
LEAST_WORK = 2e5  # µs of modelled work in a generation below which forking is not worth it


def learner_count(asked: int | Literal["auto"], threads: int) -> int:
    """Return how many processes may learn.

    Raises:
        ParamsError: several were asked for, and torch has several threads, which no fork survives.
    """
    able = hasattr(os, "fork") and sys.platform.startswith("linux") and not torch.cuda.is_available()
    if asked == "auto":
        return min(available_cpus(), MOST) if able and threads == 1 else 1
    if asked > 1 and threads > 1:
        raise ParamsError(f"runtime.learners: {asked} processes need runtime.threads: 1, not {threads}")
    return asked if able else 1


@dataclass(frozen=True, slots=True)
class Share:
    """Rows of one cohort that one process learns with."""

    cohort: int
    first: int
    end: int


def updates_per_step(cohort: Cohort) -> float:
    """Return the updates for a step of a member that learns once every `learn_step`."""
    return 1.0 / cohort.members[0].hyper.get("learn_step", 1)


def divide(
    cohorts: Sequence[Cohort], processes: int, rate: Callable[[Cohort], float] = updates_per_step
) -> list[list[Share]]:
    """Divide all rows among at most so many processes, so that the slowest has as little to do as possible.

    Rows stay in order and together: a process's time is its cohorts' dispatch and its rows' arithmetic.

    Args:
        cohorts: all members.
        processes: how many at most.
        rate: updates for an environment step of a member.

    Returns:
        The shares of each process, none without any; fewer processes where more would not be faster.
    """
    rows = [(c, r) for c, cohort in enumerate(cohorts) for r in range(len(cohort.members))]
    work = _interval_costs(cohorts, rows, rate)
    n = len(rows)
    # best[k][j]: least slowest time for the first j rows in k parts; cut[k][j]: where the last part begins.
    best, cuts = [[0.0, *(work[0, j] for j in range(1, n + 1))]], [[0] * (n + 1)]
    for _ in range(min(processes, n) - 1):
        last = best[-1]
        row = [min((max(last[i], work[i, j]), i) for i in range(j)) if j else (0.0, 0) for j in range(n + 1)]
        best.append([value for value, _ in row])
        cuts.append([i for _, i in row])
    parts = min(range(len(best)), key=lambda k: (best[k][n], k))
    ends = [n]
    for k in range(parts, 0, -1):
        ends.append(cuts[k][ends[-1]])
    borders = [0, *reversed(ends)]
    return [_shares(rows[a:b]) for a, b in itertools.pairwise(borders) if b > a]


def _interval_costs(
    cohorts: Sequence[Cohort], rows: Sequence[tuple[int, int]], rate: Callable[[Cohort], float]
) -> dict[tuple[int, int], float]:
    """Model cost of an environment step's learning for the rows i..j."""
    found, rates = {}, [rate(cohort) for cohort in cohorts]
    for i in range(len(rows)):
        for j in range(i + 1, len(rows) + 1):
            shares = _shares(rows[i:j])
            found[i, j] = sum(cost(cohorts[s.cohort].members[s.first : s.end]) * rates[s.cohort] for s in shares)
    return found


def _shares(rows: Sequence[tuple[int, int]]) -> list[Share]:
    shares: list[Share] = []
    for c, r in rows:
        if shares and shares[-1].cohort == c:
            shares[-1] = Share(c, shares[-1].first, r + 1)
        else:
            shares.append(Share(c, r, r + 1))
    return shares


class Lessons(Protocol):
    """What members learn from, and how: another for each data regime.

    What is due and its turn, of each cohort, are two numbers that only the regime knows the meaning of.
    """

    def shared(self) -> list[torch.Tensor]:
        """Return the tensors that all learn from, as long as the run lasts."""

    def rebind(self) -> None:
        """Take note that they lie elsewhere now."""

    def adopt(self, cohorts: Sequence[Cohort]) -> list[torch.Tensor]:
        """Prepare for new cohorts; return the tensors that all learn from as long as these last."""

    def numbers(self) -> list[int]:
        """Return what a helper must know at a tick: always as many numbers."""

    def follow(self, numbers: Sequence[int]) -> None:
        """Take over, in a helper, what `numbers` returned."""

    def rate(self, cohort: Cohort) -> float:
        """Return the updates for an environment step of a member."""

    def learn(self, share: Share, cohort: Cohort, tick: int, due: int, turn: int) -> tuple[Cohort, torch.Tensor]:
        """Let a share of the cohorts, given as a cohort of its own, learn what is due; return it and its losses."""

    def learn_in_place(self, share: Share, cohort: Cohort, tick: int, due: int, turn: int) -> torch.Tensor:
        """`learn` that leaves everything in the cohort's own tensors; return the losses."""


class Learners:
    """The processes that learn, this one included.

    Args:
        problem: configuration.
        lessons: what all learn from; it moves to shared memory where there is more than one process.
        processes: how many at most; see `learner_count`.
    """

    def __init__(self, problem: Problem, lessons: Lessons, processes: int = 1) -> None:
        self.problem, self.lessons = problem, lessons
        self.processes = processes if problem.device.type == "cpu" and problem.paths.capture == "none" else 1
        if self.processes > 1:
            _share(lessons.shared(), lessons.rebind)
        self._helpers: list[_Helper] = []
        # What each process learns with; empty where this one is alone.
        self._parts: list[list[tuple[Share, Cohort]]] = []
        self._losses: list[torch.Tensor] = []
        self._order = np.empty(0, np.int64)
        weakref.finalize(self, _dismiss, self._helpers, os.getpid())

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Divide new cohorts, before anything was computed with them; let the helpers of the old ones go."""
        self.close()
        read = self.lessons.adopt(cohorts)
        if self.processes == 1 or self._work(cohorts) < LEAST_WORK:
            return
        plan = divide(cohorts, self.processes, self.lessons.rate)
        if len(plan) > 1:
            self._losses = [torch.full((len(cohort.members),), torch.nan) for cohort in cohorts]
            state = [tensor for cohort in cohorts for tensor in (*tensors_of(cohort.state), cohort.healthy)]
            state += [tensor for cohort in cohorts for tensor in seen_by(cohort)]
            _share([*state, *self._losses, *read])
            self._parts = [[(s, part(cohorts[s.cohort], s.first, s.end)) for s in shares] for shares in plan]

    def _work(self, cohorts: Sequence[Cohort]) -> float:
        steps = min(self.problem.train.evo_steps, self.problem.train.max_steps)
        return steps * sum(cost(cohort.members) * self.lessons.rate(cohort) for cohort in cohorts)

    def learn(
        self, cohorts: list[Cohort], losses: list[torch.Tensor], tick: int, due: Sequence[int], turns: Sequence[int]
    ) -> None:
        """Let each cohort learn what is due at one tick; `cohorts` and `losses` are brought up to date in place.

        Args:
            cohorts: those of the last `adopt`.
            losses: the members' last losses, `[P]` each.
            tick: when; with the members' keys it fixes the draws.
            due: what each cohort owes, 0 for nothing, and
            turns: at which turn, as the lessons have it.

        Raises:
            ResourceError: a helper was killed.
        """
        if not self._parts:
            for i, (updates, turn) in enumerate(zip(due, turns, strict=True)):
                if updates:
                    whole = Share(i, 0, len(cohorts[i].members))
                    cohorts[i], losses[i] = self.lessons.learn(whole, cohorts[i], tick, updates, turn)
            return
        if not self._helpers:  # not before the first learning: until then there is nothing to divide
            size = 1 + 2 * len(due) + len(self.lessons.numbers())
            self._order = np.frombuffer(mmap.mmap(-1, 8 * size), np.int64)
            self._helpers.extend(_Helper(self._serve(mine, len(cohorts))) for mine in self._parts[1:])
        self._order[:] = (tick, *due, *turns, *self.lessons.numbers())
        for helper in self._helpers:
            helper.tell()
        _take(self.lessons, self._parts[0], self._losses, tick, due, turns)
        for helper in self._helpers:
            helper.wait()
        for i, updates in enumerate(due):
            if updates:
                losses[i] = self._losses[i].clone()

    def close(self) -> None:
        """Let the helpers go."""
        _dismiss(self._helpers, os.getpid())
        self._parts = []

    def _serve(self, mine: Sequence[tuple[Share, Cohort]], cohorts: int) -> Callable[[], None]:
        def serve() -> None:
            tick, *rest = self._order.tolist()
            self.lessons.follow(rest[2 * cohorts :])
            _take(self.lessons, mine, self._losses, tick, rest[:cohorts], rest[cohorts : 2 * cohorts])

        return serve


def _take(
    lessons: Lessons,
    mine: Sequence[tuple[Share, Cohort]],
    losses: Sequence[torch.Tensor],
    tick: int,
    due: Sequence[int],
    turns: Sequence[int],
) -> None:
    """Take one process's updates of one tick."""
    for share, cohort in mine:
        if due[share.cohort]:
            last = lessons.learn_in_place(share, cohort, tick, due[share.cohort], turns[share.cohort])
            losses[share.cohort][share.first : share.end] = last


def _share(tensors: Sequence[torch.Tensor], rebind: Callable[[], None] = lambda: None) -> None:
    """Move tensors to memory that forked processes share, in place: whoever holds one, holds it still.

    A view that was taken before stays behind: take none before.
    """
    sizes = [-(-tensor.nbytes // LINE) * LINE for tensor in tensors]
    block = torch.frombuffer(mmap.mmap(-1, max(1, sum(sizes))), dtype=torch.uint8)
    at = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        place = block[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor)
        tensor.set_(place)  # type: ignore[call-overload]
        at += size
    rebind()


class _Helper:
    """A forked process that takes its share whenever it is told."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self._told, self._done = Bell(), Bell()
        life, self._life = os.pipe()  # closed at this end, the helper ends
        self._words, words = os.pipe()  # closed at the other, it has ended
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process has threads: the child touches none of their locks
            self.pid = os.fork()
        if self.pid == 0:
            for end in (self._life, self._words):
                os.close(end)
            _work(serve, self._told, self._done, life, words, parent)
        os.close(life)
        os.close(words)

    def tell(self) -> None:
        """Begin a tick."""
        self._told.ring()

    def wait(self) -> None:
        """Wait for the end of the tick.

        Raises:
            ResourceError: the process was killed.
        """
        if self._done.wait(self._words):
            return
        if words := os.read(self._words, 4096):
            raise RuntimeError(f"a learner process failed: {words.decode(errors='replace')}")
        raise ResourceError(
            "a learner process was killed, often because memory ran out: the same command continues from the last "
            "checkpoint; lower population.size or train.replay.capacity, or set runtime.learners: 1"
        )

    def dismiss(self) -> None:
        """Let it end."""
        for end in (self._life, self._words):
            os.close(end)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._told.close()
        self._done.close()


def _dismiss(helpers: list[_Helper], owner: int) -> None:
    """End helpers, the youngest first: it holds what the older ones wait for. A fork leaves them to their parent."""
    if os.getpid() != owner:
        return
    while helpers:
        helpers.pop().dismiss()


def _work(serve: Callable[[], None], told: Bell, done: Bell, life: int, words: int, parent: int) -> None:
    """What a helper does, from its fork to its end. It must not return: the stack below it is the parent's."""
    code = 1
    try:
        ignore_stop_signals()
        signal_at_parent_death(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        gc.freeze()  # a collection would touch, and so copy, everything that came with the fork
        while told.wait(life):
            serve()
            done.ring()
        code = 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(words, "".join(traceback.format_exception_only(error)).strip().encode()[:4000] or b"failed")
    finally:
        os._exit(code)
