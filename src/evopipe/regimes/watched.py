"""Transitions of evaluation episodes, for the replay buffer.

Evaluation is most of a run's steps, and off-policy algorithms can learn from them (Franke et al., 2021,
https://arxiv.org/abs/2009.01555).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evopipe.envs.rows import RowStep
from evopipe.memory.nstep import NStep
from evopipe.memory.replay import RowLayout

if TYPE_CHECKING:
    from evopipe.memory.replay import Replay


class Watched:
    """Recorder of the transitions of evaluation episodes, which are later added to the replay buffers.

    The recorder keeps the transitions until the generation ends, so that those of an evaluation that was stopped can be
    discarded.

    Args:
        layout: the layout of a transition.
        rows: the number of environments in an evaluation.
    """

    def __init__(self, layout: RowLayout, rows: int) -> None:
        self._layout, self._rows = layout, rows
        self._nstep = NStep(layout, rows) if layout.steps > 1 else None
        self._slots: list[np.ndarray] = []  # whose transitions, [n] each
        self._episodes: list[np.ndarray] = []  # of which episode, [n] each, counted over the generation's evaluations
        self._begun = self._next = 0  # the numbers of this evaluation's first episode, and of one after it
        self._found: list[np.ndarray] = []  # packed, [n, size] each

    def begin(self) -> None:
        """Begin the recording of another evaluation, whose episodes do not continue those of earlier evaluations."""
        self._begun = self._next
        if self._nstep is not None:
            self._nstep.forget(np.arange(self._rows))

    def forget(self) -> None:
        """Discard all recorded transitions."""
        self._slots, self._episodes, self._found = [], [], []
        self._begun = self._next = 0

    def note(
        self, slots: np.ndarray, rows: np.ndarray, episodes: np.ndarray, obs: np.ndarray, legal: np.ndarray,
        actions: np.ndarray, step: RowStep,
    ) -> None:  # fmt: skip
        """Record one step of n environments.

        Args:
            slots: `[n]`, the slot (place in the population) of the member that acts in each environment.
            rows: `[n]`, the environments' row numbers.
            episodes: `[n]`, the number of each environment's episode within the evaluation.
            obs: `[n, O]`, the observations of O numbers before the step.
            legal: `[n, A]`, which of the A actions were legal before the step.
            actions: `[n, …]`, the actions.
            step: the results of the step.
        """
        layout, episodes = self._layout, self._begun + episodes
        self._next = max(self._next, int(episodes.max()) + 1)
        taken = obs, actions, step.reward, step.terminated
        before = legal if layout.legal else None
        if self._nstep is None:
            found = layout.pack(*taken, step.obs, step.mask, legal=before)[:, None]
            keep = (~step.broken)[:, None]
        else:
            windows = self._nstep.part(rows)
            found, keep = windows.add(*taken, step.truncated, step.obs, step.mask, step.broken, before)
            self._nstep.put(rows, windows)
        keep = keep & np.isfinite(found).all(axis=2)
        self._slots.append(np.broadcast_to(slots[:, None], keep.shape)[keep])
        self._episodes.append(np.broadcast_to(episodes[:, None], keep.shape)[keep])
        self._found.append(found[keep])

    def into(self, replay: Replay) -> None:
        """Move all recorded transitions into the members' replay buffers, sorted by slot (place in the population) and
        episode.

        The order in which transitions were recorded depends on how many members were evaluated together; the sorted
        order does not.
        """
        if not self._found:
            return
        slots, episodes, found = (np.concatenate(x) for x in (self._slots, self._episodes, self._found))
        self.forget()
        memory = replay.memory_of(slots)
        order = np.lexsort((episodes, slots, memory))
        replay.add_of(memory[order], found[order])
