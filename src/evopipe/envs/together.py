"""The rows of one pool that its worker processes and this process step together.

While a pool is all that the trainer waits for, in an evaluation, it would wait idle: it takes a share itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from evopipe.envs.rows import NO_MASK, Actions, Begun, Bools, Fault, Here, Ints, Stepped

if TYPE_CHECKING:
    import numpy.typing as npt

    from evopipe.envs.workers import Remote

T = TypeVar("T")


class Together:
    """Workers hold some rows, this process the others.

    Args:
        remote: the workers' share.
        here: this process's.
    """

    def __init__(self, remote: Remote, here: Here) -> None:
        self._remote, self._here = remote, here
        self._ours = np.zeros(remote.rows, np.bool_)
        self._ours[here.rows.numbers] = True
        self._all = np.arange(remote.rows)

    def reset(self, rows: Ints, seeds: Ints) -> Begun:
        """Begin episodes, see `Rows.reset`."""
        ours = self._ours[rows]
        if not ours.any():
            return self._remote.reset(rows, seeds)
        if ours.all():
            return self._here.reset(rows, seeds)
        here, there = self._both(
            rows,
            lambda: self._here.reset(rows[ours], seeds[ours]),
            lambda: self._remote.reset(rows[~ours], seeds[~ours]),
        )
        return _merged(ours, here[0], there[0]), self._masks(rows, ours, here[1], there[1])

    def send(self, rows: Ints | None, actions: Actions, next_seeds: Ints | None) -> None:
        """Begin a step of `rows`, of all where None."""
        if rows is None:
            self._remote.send(None, actions, next_seeds)
            self._here.send(None, actions[self._ours], None)
            return
        ours = self._ours[rows]
        if not ours.all():
            self._remote.send(rows[~ours], actions[~ours], None if next_seeds is None else next_seeds[~ours])
        self._here.send(rows[ours], actions[ours], None)

    def receive(self, rows: Ints | None) -> Stepped:
        """End it, see `Rows.step`."""
        if rows is None:
            rows = self._all
        ours = self._ours[rows]
        if not ours.any():
            return self._remote.receive(rows)
        if ours.all():
            return self._here.receive(rows)
        here, there = self._both(
            rows, lambda: self._here.receive(rows[ours]), lambda: self._remote.receive(rows[~ours])
        )
        return (
            _merged(ours, here[0], there[0]),
            _merged(ours, here[1], there[1]),
            _merged(ours, here[2], there[2]),
            _merged(ours, here[3], there[3]),
            self._masks(rows, ours, here[4], there[4]),
        )

    def close(self) -> None:
        """Close the environments; the processes stay for other pools."""
        self._remote.close()
        self._here.close()

    def _both(self, rows: Ints, here: Callable[[], T], there: Callable[[], T]) -> tuple[T, T]:
        """Do both; of two faults, raise the one that stepping one row after the other meets first."""
        fault: BaseException | None = None
        try:
            ours = here()
        except BaseException as error:  # whatever it is, the workers' answers must not wait for the next step
            fault = error
        try:
            theirs = there()
        except Fault as other:
            order = rows.tolist()
            if isinstance(fault, Fault) and order.index(fault.row) < order.index(other.row):
                raise fault from None
            raise
        if fault is not None:
            raise fault
        return ours, theirs

    def _masks(self, rows: Ints, ours: Bools, here: Bools | None, there: Bools | None) -> Bools | None:
        if here is None and there is None:
            return None
        if here is None or there is None:
            raise Fault(int(rows[ours if here is None else ~ours][0]), NO_MASK)
        return _merged(ours, here, there)


K = TypeVar("K", bound=np.generic)


def _merged(ours: Bools, here: npt.NDArray[K], there: npt.NDArray[K]) -> npt.NDArray[K]:
    whole = np.empty((len(ours), *here.shape[1:]), here.dtype)
    whole[ours], whole[~ours] = here, there
    return whole
