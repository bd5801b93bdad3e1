"""The offline regime: members learn from a dataset, and act only to be evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from evopipe.algos import MASKED
from evopipe.core.cohort import Cohort
from evopipe.errors import DataError, ParamsError
from evopipe.memory.replay import RowLayout
from evopipe.regimes.learn import ReplayLearning
from evopipe.regimes.off_policy import byte_images
from evopipe.regimes.probe import Probe
from evopipe.rng import Purpose
from evopipe.run.evaluate import Evaluator
from evopipe.run.regime import Setup

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions

_PART = 1 << 24  # bytes of rows that are packed at once


class Offline:
    """The regime (see `Regime`) of offline algorithms: all members learn from one dataset.

    Members take no environment steps. A step, where steps are counted or limited, means here one opportunity to make an
    update. `setup` holds the configuration, clock, random keys, dataset and helper processes of the run, see `Setup`.
    The attribute `remarks` is empty, because there are no warnings for the user.

    Raises:
        DataError: the dataset is empty.
        ParamsError: the environment masks actions, which a dataset does not record.
    """

    remarks: Sequence[str] = ()

    def __init__(self, setup: Setup) -> None:
        spec, data = setup.spec, setup.warm
        if not data:
            raise DataError("train.mode: offline training needs a dataset with at least one transition, this has none")
        self.clock, self.warm, self.whole = setup.clock, len(data), True
        self.evaluate = Evaluator(spec, len(setup.keys), setup.workers)
        pool = self.evaluate.pool
        pool.reset([0], spec.seeds(Purpose.EVALUATE, 1))  # whether it masks actions shows then
        self.threshold = pool.reward_threshold
        if pool.masked:
            raise ParamsError(MASKED["offline"])
        layout = RowLayout.of(spec.spaces, False, spec.train.replay.n_step)
        self.learning = ReplayLearning(setup, layout, 1, len(data), byte_images(pool, data))
        self.replay, self.learners = self.learning.replay, self.learning.learners
        self._probe = Probe(spec, self.clock, offline=True)
        self.first, self.inherit = self.learning.first, self.learning.inherit
        for rows in _pack(layout, data):
            self.replay.add(rows[None], np.ones((1, len(rows)), bool), each=len(rows))

    def ended(self) -> np.ndarray:
        """Return NaN for each of the P slots (places in the population), `[P]`, because members play no training
        episodes."""
        return np.full(self.clock.members, np.nan)

    def renew(self, slots: Sequence[int]) -> None:
        """Do nothing, because all members share the dataset."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        self.cohorts = cohorts
        self.learning.adopt(cohorts)
        self._probe.adopt(cohorts)

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        return self._probe.diagnostics.told(slots)

    def advance(self, most: int = 1) -> None:
        """Take one tick: make the updates that are due. `most` has no effect."""
        self.whole = False
        for learn in self.learning.updates():
            learn()
        self.clock.count(rewarded=False)  # the dataset's are known
        self.learning.probe(self._probe)
        if self.clock.generation_over:
            self._probe.end(self.cohorts, self.learning.size)
        self.whole = True

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the regime's state as tensors by name: priorities and metrics.

        The dataset is left out, because it does not change.
        """
        trees = self.replay.priorities
        held = {} if trees is None else {f"replay.{k}": v for k, v in trees.state(self.warm).items()}
        return held | self._probe.diagnostics.state()

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        """Restore what `state` returned, see `Regime.restore`.

        Return 0, the number of environments that could not be restored, because no environments are stepped in
        training.
        """
        self._probe.diagnostics.restore(tensors)
        if self.replay.priorities is not None:
            state = {k.removeprefix("replay."): v for k, v in tensors.items() if k.startswith("replay.")}
            self.replay.priorities.restore(state)
        return 0

    def close(self) -> None:
        self.learners.close()
        self.evaluate.pool.close()


def _pack(layout: RowLayout, data: Transitions) -> Iterator[np.ndarray]:
    """Pack transitions into rows `[n, size]`, part by part: images as numbers are too large for all at once.

    Each spans `layout.steps` steps, fewer if its episode ends before: then it takes the end's own next observation, and
    bootstraps from it if the episode was cut, not if it terminated.
    """
    taken = _steps_taken(data, layout.steps)
    size = max(1, _PART // (4 * layout.size))
    for start in range(0, len(data), size):
        begin = np.arange(start, min(start + size, len(data)))
        final = begin + taken[begin] - 1
        step = np.arange(layout.steps)
        reward = data.reward[np.minimum(begin[:, None] + step, len(data) - 1)] * (step < taken[begin, None])
        yield layout.pack(
            data.obs[begin],
            data.action[begin],
            reward if layout.steps > 1 else reward[:, 0],
            data.terminated[final],
            data.next_obs[final],
            taken=taken[begin],
        )


def _steps_taken(data: Transitions, most: int) -> np.ndarray:
    """Return how many steps a transition from each step on spans, `[N]`: limited, and never beyond its episode."""
    ends = data.terminated | data.truncated
    ends[:-1] |= data.episode[1:] != data.episode[:-1]
    ends[-1] = True
    begin = np.arange(len(data))
    last = np.flatnonzero(ends)
    taken: np.ndarray = np.minimum(last[np.searchsorted(last, begin)] - begin + 1, most)
    return taken
