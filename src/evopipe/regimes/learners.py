"""Learner processes: each makes the updates of some members, in shared memory.

For a generation, the trainer forks learners (`evopipe.parallel`). At each tick it tells them what is due, computes its
own share, and waits. A row is computed by the same operators on the same numbers in any process, so no result depends
on how many there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from evopipe.core.cohort import Cohort, cost
from evopipe.core.module import Module
from evopipe.errors import ParamsError, ResourceError
from evopipe.native import build
from evopipe.parallel import Died, Helper, available_cpus, can_help, dismiss, shared_memory

if TYPE_CHECKING:
    from evopipe.run.spec import EnvSpec
    from evopipe.run.text import TextSpec

LEAST_WORK = 2e5  # µs of modelled work in a generation below which forking is not worth it
_MOST = 16  # processes that `auto` uses at most


def learner_count(asked: int | Literal["auto"], threads: int, environments_first: bool = False) -> int:
    """Return how many learner processes may make updates at most, including this process.

    If the C kernels make the updates, the result is the largest number of their threads instead.

    Args:
        asked: the parameter `runtime.learners`: a number, or `auto`, which depends on the cores of the machine.
        threads: torch's threads, as `machine.configure` chose them.
        environments_first: whether `auto` leaves half the cores to the environments, see `EnvSpec.environments_first`.

    Raises:
        ParamsError: several processes were asked for, but torch has several threads; then this process cannot fork.
    """
    able = can_help() and not torch.cuda.is_available()
    if asked == "auto":
        # Our own kernels leave so little to do that more processes take their cores from the environments.
        most = available_cpus() // (2 if environments_first and build.chosen() is not None else 1)
        return max(1, min(most, _MOST)) if able and threads == 1 else 1
    if asked > 1 and threads > 1:
        raise ParamsError(f"runtime.learners: {asked} processes need runtime.threads: 1, not {threads}")
    return asked if able else 1


class Share(NamedTuple):
    """The members (rows) of one cohort that one learner process updates. A cohort is a group of members computed as one
    batch.

    Attributes:
        cohort: the index of the cohort in the list of all cohorts.
        first, end: the indices of the first row, and of the row after the last.
    """

    cohort: int
    first: int
    end: int


def _divide(cohorts: Sequence[Cohort], processes: int, rates: Sequence[float]) -> list[list[Share]]:
    """Divide all rows among at most this many processes, so that the slowest has as little to do as possible.

    Rows stay in order. A process's time is the dispatch of its cohorts and the arithmetic of its rows. Fewer processes
    are used if more would not be faster. `rates` are each cohort's updates for an environment step of a member.
    """
    rows = [(c, r) for c, cohort in enumerate(cohorts) for r in range(len(cohort.members))]
    n = len(rows)

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
    own = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row[0])]
    return [Share(group[0][0], group[0][1], group[-1][1] + 1) for group in own]


# Given a share, it as a cohort of its own, the tick and what is due: how it learns that, ready to be called.
_Ready: TypeAlias = Callable[[Share, Cohort, int, Sequence[int]], Callable[[], Any]]


class LearnerPool:
    """The learner processes that divide the updates of all cohorts among them. This process is one of them.

    A cohort is a group of members that are computed as one batch. A share is some of a cohort's rows (members), which
    one process updates.

    Args:
        spec: the run's configuration.
        processes: the most learners to use, see `learner_count`.
        ready: a function (share, rows, tick, work). It returns a second function, without arguments, which makes the
            updates of the share in place. `rows` are the members of the share as a cohort, and `tick` is the number of
            the training step. `work` is a list of numbers for the whole cohort that the share is part of. Only the
            regime (training loop) knows their meaning, except that the first is 0 if there is nothing to do.
        compiled: whether C kernels make the updates; then threads of this process are used instead of processes.
    """

    def __init__(self, spec: EnvSpec | TextSpec, processes: int, ready: _Ready, compiled: bool = False) -> None:
        self._spec, self._ready = spec, ready
        self._processes = processes if spec.device.type == "cpu" and spec.paths.capture == "none" else 1
        if isinstance(spec.architecture(), Module):  # its last bits may depend on who shares a call
            self._processes = 1
        if (kernels := build.chosen()) is not None:
            kernels.share_among(self._processes if compiled else 1)
        if compiled:
            self._processes = 1
        self._helpers: list[Helper] = []
        self._parts: list[list[tuple[Share, Cohort]]] = []  # what each process learns with
        self._order = np.empty(0, np.int64)

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Move tensors to memory that all learner processes share, in place.

        Views that were made of the tensors before keep the old memory.
        """
        if self._processes == 1:
            return
        for tensor, piece in zip(tensors, shared_memory([tensor.nbytes for tensor in tensors]), strict=True):
            place = torch.frombuffer(piece, dtype=torch.uint8)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            place.copy_(tensor)
            tensor.set_(place)  # type: ignore[call-overload]

    def adopt(self, cohorts: Sequence[Cohort], rates: Sequence[float], read: Sequence[Tensor] = ()) -> None:
        """Divide new cohorts (groups of members computed as one batch) among the learners, and end the learners of the
        old cohorts.

        The method must be called before anything is computed with the cohorts.

        Args:
            cohorts: the new cohorts.
            rates: the number of updates that each cohort makes per environment step of a member. Each learner's share
                of the work is estimated from these.
            read: tensors outside the cohorts that the learners read.
        """
        self.close()
        train, plan = self._spec.train, []
        if self._processes > 1:
            each = sum(cost(cohort.members, cohort.pace) * rate for cohort, rate in zip(cohorts, rates, strict=True))
            if min(train.evo_steps, train.max_steps) * each >= LEAST_WORK:
                plan = _divide(cohorts, self._processes, rates)
        if len(plan) > 1:
            rows = [(*c.tensors(), c.healthy, c.losses, *c.normaliser_tensors()) for c in cohorts]
            self.share([*itertools.chain(*rows), *read])
            self._parts = [[(s, cohorts[s.cohort].part(s.first, s.end)) for s in shares] for shares in plan]
        else:
            self._parts = [[(Share(i, 0, len(cohort.members)), cohort) for i, cohort in enumerate(cohorts)]]

    @property
    def alone(self) -> bool:
        """Whether this process makes all updates, without other learner processes."""
        return len(self._parts) == 1

    def share_of(self, tick: int, due: Sequence[Sequence[int]]) -> Iterator[Callable[[], Any]]:
        """Let all learners make the updates that are due at a tick; yield this process's own updates.

        Each yielded item is a function without arguments, which makes updates in place. The caller must call it. The
        other learners are started before the first item, and awaited after the last.

        Args:
            tick: the number of the tick.
            due: for each cohort (group of members computed as one batch) a list of numbers that says what it has to do.
                The first number is 0 if there is nothing to do. Only the regime (training loop) knows what the others
                mean: they are passed on to its function `ready`, see `LearnerPool`.

        Raises:
            ResourceError: a learner died.
        """
        if not any(numbers[0] for numbers in due):
            return
        if len(self._parts) > 1:
            self._tell(tick, due)
        yield from self._due(self._parts[0], tick, due)
        for helper in self._helpers:
            _wait(helper)

    def close(self) -> None:
        """End the learner processes."""
        dismiss(self._helpers)
        self._helpers, self._parts = [], []

    def _due(
        self, mine: Sequence[tuple[Share, Cohort]], tick: int, due: Sequence[Sequence[int]]
    ) -> Iterator[Callable[[], Any]]:
        for share, cohort in mine:
            if due[share.cohort][0]:
                yield self._ready(share, cohort, tick, due[share.cohort])

    def _tell(self, tick: int, due: Sequence[Sequence[int]]) -> None:
        order = [tick, *itertools.chain(*due)]
        if not self._helpers:  # not before the first learning: until then there is nothing to divide
            self._order = np.frombuffer(shared_memory([8 * len(order)])[0], np.int64, len(order))
            lengths = [len(numbers) for numbers in due]
            self._helpers = [Helper(partial(self._follow, mine, lengths)) for mine in self._parts[1:]]
        self._order[:] = order
        for helper in self._helpers:
            helper.tell()

    def _follow(self, mine: Sequence[tuple[Share, Cohort]], lengths: Sequence[int]) -> None:
        tick, *numbers = self._order.tolist()
        ends = itertools.accumulate(lengths)
        for learn in self._due(mine, tick, [numbers[end - n : end] for n, end in zip(lengths, ends, strict=True)]):
            learn()


def _wait(helper: Helper) -> None:
    try:
        error = helper.wait()
    except Died as death:
        raise ResourceError(
            f"a learner {death}{', often because memory ran out' if death.killed else ''}: the same command continues "
            "from the last checkpoint; lower population.size or train.replay.capacity, or set runtime.learners: 1"
        ) from None
    if error is not None:
        raise error
