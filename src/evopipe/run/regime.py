"""What a member lives on: transitions, its last steps, a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from evopipe.core.cohort import Cohort
from evopipe.core.member import Member
from evopipe.envs.workers import Workers
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes
from evopipe.run.spec import Spec

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions


@dataclass(frozen=True)
class Setup:
    """What a regime begins with. No result depends on workers and learners."""

    spec: Spec
    clock: Clock  # the run's
    keys: np.ndarray  # of the members, [P]
    warm: Transitions | None = None  # to learn from: offline the dataset, else before the first step
    workers: Workers | None = None  # worker processes for the environments; None steps them in this process
    learners: int = 1  # processes that may learn, this one included


class Scoring(Protocol):
    """What scores members."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Work with these cohorts from now on. Their tensors change in place. Slots that are in none of them wait: they
        cost no step, and go on as they were when they are adopted again."""

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score members, all on the same seeds `[n]`; raise Stopped if `stopped` says so."""

    def close(self) -> None:
        """Let processes and environments go."""


class Regime(Scoring, Protocol):
    """What a `Run` asks of a data regime. The run knows generations, and no environment."""

    warm: int  # transitions that were there from the start
    threshold: float | None  # the score at which the task counts as solved, if it names one
    whole: bool  # whether `state` is one moment's: not after something failed half-way

    @property
    def remarks(self) -> Sequence[str]:
        """What will happen that the parameters do not say, one sentence each."""

    def first(self, member: Member) -> Member:
        """Return a member of the first generation as it begins here."""

    def hand_down(self, parents: Sequence[int] | None) -> None:
        """Let new members have what is kept beside the members themselves: `parents` `[P]` says in which slot the
        parent of each was, −1 of a new trial; None if all were replaced."""

    def renew(self, slots: Sequence[int]) -> None:
        """Let new trials begin in these slots: episodes begin anew, and what is a slot's own is emptied."""

    def ended(self) -> np.ndarray:
        """Return the mean return of each slot's episodes that ended in the generation, `[P]`, NaN of one without any;
        asked only if `search.fitness` is `training`."""

    def advance(self) -> None:
        """Take one tick, and learn what is due.

        Raises:
            EnvironmentFailed: an environment failed. If `whole`, the state can be saved and the tick taken again.
        """

    def state(self) -> dict[str, Tensor]:
        """Return a copy of everything that outlives a tick, cohorts excepted."""

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        """Take over what `state` returned, for cohorts that were adopted; return how many environments were lost."""
