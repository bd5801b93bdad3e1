"""The protocol of regimes: what members learn from, such as replay, rollouts or a dataset."""

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
from evopipe.run.spec import EnvSpec

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions


@dataclass(frozen=True)
class Setup:
    """What a regime is built from. No result depends on the numbers of workers and learners."""

    spec: EnvSpec
    clock: Clock  # the run's
    keys: np.ndarray  # of the members, [P]
    warm: Transitions | None = None  # to learn from: offline the dataset, else before the first step
    workers: Workers | None = None  # worker processes for the environments; None steps them in this process
    learners: int = 1  # processes that may learn, this one included


class Scoring(Protocol):
    """The protocol of an object that scores members."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Use these cohorts from now on. Their tensors change in place.

        Slots that are in none of them wait: they take no steps, and continue unchanged when they are adopted again.
        """

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score the members, all on the same seeds `[n]`.

        Raises:
            Stopped: `stopped` returned True.
        """

    def close(self) -> None:
        """Release processes and environments."""


class Regime(Scoring, Protocol):
    """The protocol of a regime: the source that members learn from, as a `Run` needs it. The run counts generations,
    and knows no environment."""

    warm: int  # transitions that were there from the start
    threshold: float | None  # the score at which the task counts as solved, if it names one
    whole: bool  # whether `state` is one moment's: not after something failed half-way

    @property
    def remarks(self) -> Sequence[str]:
        """Effects that the parameters do not make obvious, as one sentence each."""

    def first(self, member: Member) -> Member:
        """Return a member of the first generation, prepared for this regime."""

    def inherit(self, parents: Sequence[int] | None) -> None:
        """Pass on what the regime keeps for each member, such as priorities, to the new members.

        `parents` `[P]` holds the slot of each new member's parent, −1 for a new trial; it is None if all members were
        replaced.
        """

    def renew(self, slots: Sequence[int]) -> None:
        """Prepare these slots for new trials: begin new episodes, and empty what belongs to the slot."""

    def ended(self) -> np.ndarray:
        """Return the mean return of each slot's episodes that ended in this generation, `[P]`, NaN for a slot without
        any.

        It is asked only if `search.fitness` is `training`.
        """

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        """Return how learning went in this generation, for people: of each of these slots its signals by name, each
        with its mean and its last value."""

    def advance(self, most: int = 1) -> None:
        """Take one tick, and make the updates that are due. A regime that can take several in one call takes up to
        `most`, none beyond the end of the generation.

        Raises:
            EnvironmentFailed: an environment failed. If `whole` is True, the state can be saved and the tick taken
                again.
        """

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all state that outlives a tick, except cohorts."""

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        """Restore what `state` returned, after cohorts were adopted; return how many environments could not be
        restored."""
