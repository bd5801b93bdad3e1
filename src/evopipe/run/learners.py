"""Learning divided among processes: each takes some rows of the cohorts, on the same memory.

The members' tensors and what they learn from lie in memory that all processes see. For a generation the trainer forks
helpers (`evopipe.parallel`); at each tick it tells them what is due, takes its own share, and waits. A row is computed
by the same operators on the same numbers wherever it is, so nothing depends on how many processes there are.

A loop needs three things of this module: `Lessons`, which it writes; `Share`, which its lessons are given; and
`Learners`, which it tells what is due.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, Protocol

import numpy as np
import torch

from evopipe.core.cohort import Cohort, cost
from evopipe.errors import ParamsError, ResourceError
from evopipe.parallel import Died, Helper, available_cpus, can_help, shared_memory
from evopipe.run.spec import Spec

MOST = 16  # processes that `auto` uses at most
LEAST_WORK = 2e5  # µs of modelled work in a generation below which forking is not worth it


def learner_count(asked: int | Literal["auto"], threads: int) -> int:
    """Return how many processes may learn.

    Raises:
        ParamsError: several were asked for, and torch has several threads, which no fork survives.
    """
    able = can_help() and not torch.cuda.is_available()
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
    n, rates = len(rows), [rate(cohort) for cohort in cohorts]

    @cache
    def work(first: int, end: int) -> float:
        """Modelled cost of an environment step's learning for these rows."""
        shares = _shares(rows[first:end])
        taken = [(cohorts[s.cohort], s) for s in shares]
        return sum(cost(cohort.members[s.first : s.end], cohort.pace) * rates[s.cohort] for cohort, s in taken)

    @cache
    def best(parts: int, end: int) -> tuple[float, tuple[int, ...]]:
        """Least time of the slowest part of the first rows, and where each part begins."""
        if parts == 1 or not end:
            return work(0, end), (0,)
        slowest, last = min((max(best(parts - 1, i)[0], work(i, end)), i) for i in range(end))
        return slowest, (*best(parts - 1, last)[1], last)

    parts = min(range(1, min(processes, n) + 1), key=lambda parts: best(parts, n)[0])
    return [_shares(rows[a:b]) for a, b in itertools.pairwise((*best(parts, n)[1], n)) if b > a]


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

    def adopt(self, cohorts: Sequence[Cohort]) -> list[torch.Tensor]:
        """Prepare for new cohorts; return the tensors that all learn from as long as these last."""

    def numbers(self) -> list[int]:
        """Return what a helper must know at a tick: always as many numbers."""

    def follow(self, numbers: Sequence[int]) -> None:
        """Take over, in a helper, what `numbers` returned."""

    def rate(self, cohort: Cohort) -> float:
        """Return the updates for an environment step of a member."""

    def learn(self, share: Share, cohort: Cohort, tick: int, due: int, turn: int) -> None:
        """Let a share of the cohorts, given as a cohort of its own, learn what is due, in place."""


class Learners:
    """The processes that learn, this one included.

    Args:
        spec: configuration.
        lessons: what all learn from; it moves to shared memory where there is more than one process.
        processes: how many at most; see `learner_count`.
    """

    def __init__(self, spec: Spec, lessons: Lessons, processes: int = 1) -> None:
        self.spec, self.lessons = spec, lessons
        self.processes = processes if spec.device.type == "cpu" and spec.paths.capture == "none" else 1
        if self.processes > 1:
            _share(lessons.shared())
        self._helpers: list[Helper] = []
        # What each process learns with; empty where this one is alone.
        self._parts: list[list[tuple[Share, Cohort]]] = []
        self._order = np.empty(0, np.int64)

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Divide new cohorts, before anything was computed with them; let the helpers of the old ones go."""
        self.close()
        read = self.lessons.adopt(cohorts)
        train, rate = self.spec.train, self.lessons.rate
        work = min(train.evo_steps, train.max_steps) * sum(cost(c.members, c.pace) * rate(c) for c in cohorts)
        plan = divide(cohorts, self.processes, rate) if self.processes > 1 and work >= LEAST_WORK else []
        if len(plan) > 1:
            rows = [(*c.tensors(), c.healthy, c.losses, *c.seen()) for c in cohorts]
            _share([*itertools.chain(*rows), *read])
            self._parts = [[(s, cohorts[s.cohort].part(s.first, s.end)) for s in shares] for shares in plan]

    def learn(self, cohorts: Sequence[Cohort], tick: int, due: Sequence[int], turns: Sequence[int]) -> None:
        """Let each cohort learn what is due at one tick, in place.

        Args:
            cohorts: those of the last `adopt`.
            tick: when; with the members' keys it fixes the draws.
            due: what each cohort owes, 0 for nothing, and
            turns: at which turn, as the lessons have it.

        Raises:
            ResourceError: a helper died.
        """
        if not self._parts:
            whole = [(Share(i, 0, len(cohort.members)), cohort) for i, cohort in enumerate(cohorts)]
            self._take(whole, tick, due, turns)
            return
        order = (tick, *due, *turns, *self.lessons.numbers())
        if not self._helpers:  # not before the first learning: until then there is nothing to divide
            self._order = np.frombuffer(shared_memory([8 * len(order)])[0], np.int64, len(order))
            self._helpers = [Helper(partial(self._follow, mine, len(cohorts))) for mine in self._parts[1:]]
        self._order[:] = order
        for helper in self._helpers:
            helper.tell()
        self._take(self._parts[0], tick, due, turns)
        for helper in self._helpers:
            _wait(helper)

    def close(self) -> None:
        """Let the helpers go."""
        for helper in self._helpers:
            helper.dismiss()
        self._helpers, self._parts = [], []

    def _follow(self, mine: Sequence[tuple[Share, Cohort]], cohorts: int) -> None:
        """What a helper does at a tick."""
        tick, *rest = self._order.tolist()
        self.lessons.follow(rest[2 * cohorts :])
        self._take(mine, tick, rest[:cohorts], rest[cohorts : 2 * cohorts])

    def _take(self, mine: Sequence[tuple[Share, Cohort]], tick: int, due: Sequence[int], turns: Sequence[int]) -> None:
        """Take one process's updates of one tick."""
        for share, cohort in mine:
            if due[share.cohort]:
                self.lessons.learn(share, cohort, tick, due[share.cohort], turns[share.cohort])


def _wait(helper: Helper) -> None:
    """Wait for the end of a helper's tick."""
    try:
        error = helper.wait()
    except Died as death:
        raise ResourceError(
            f"a learner {death}{', often because memory ran out' if death.killed else ''}: the same command continues "
            "from the last checkpoint; lower population.size or train.replay.capacity, or set runtime.learners: 1"
        ) from None
    if error is not None:
        raise error


def _share(tensors: Sequence[torch.Tensor]) -> None:
    """Move tensors to memory that forked processes share, in place: whoever holds one, holds it still.

    A view that was taken before stays behind: take none before.
    """
    for tensor, piece in zip(tensors, shared_memory([tensor.nbytes for tensor in tensors]), strict=True):
        place = torch.frombuffer(piece, dtype=torch.uint8)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor)
        tensor.set_(place)  # type: ignore[call-overload]
