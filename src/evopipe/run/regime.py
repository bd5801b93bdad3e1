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
    """The parts from which a regime is built: configuration, clock, keys, dataset, and helper processes.

    No result depends on the numbers of workers and learners.

    Attributes:
        spec: the configuration.
        clock: the run's counters.
        keys: `[P]`, the random keys of the P members.
        warm: the dataset, as transitions: the only data of an offline run, else the first content of the replay
            buffers; None for no dataset.
        workers: worker processes that step the environments; None steps them in this process.
        learners: the number of processes that may compute updates, including this one.
    """

    spec: EnvSpec
    clock: Clock
    keys: np.ndarray
    warm: Transitions | None = None
    workers: Workers | None = None
    learners: int = 1


class Scoring(Protocol):
    """The protocol of an object that scores members in evaluations."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Set the members that act and are scored from now on, in groups (cohorts) that are computed as one batch.

        The cohorts' tensors change in place. Members that are in no cohort wait: a waiting member takes no steps, and
        continues unchanged when a later call includes it again.
        """

    def evaluate(self, cohorts: Sequence[Cohort], seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
        """Score the members of `cohorts` on the same n seeds `[n]`; return the episodes of the evaluation. `stopped` is
        a function that returns whether to stop.

        Raises:
            Stopped: `stopped` returned True.
        """

    def close(self) -> None:
        """Close the environments and end their processes."""


class Regime(Scoring, Protocol):
    """The protocol of a training loop over one kind of data, such as replay buffers, rollouts or a dataset.

    A `Run` calls these methods. The run counts generations, but has no access to environments.

    Attributes:
        warm: the number of transitions that the memory had at the start.
        threshold: the score at which the task counts as solved; None if the task does not name one.
        whole: whether `state` may be saved: False after a failure in the middle of a tick.
    """

    warm: int
    threshold: float | None
    whole: bool

    @property
    def remarks(self) -> Sequence[str]:
        """Sentences for the user about what the parameters do that is not obvious."""

    def first(self, member: Member) -> Member:
        """Prepare a member of the first generation for this kind of training, and return it.

        For example, a normaliser is updated with the dataset's observations.
        """

    def inherit(self, parents: Sequence[int] | None) -> None:
        """Copy what the regime stores for each member, such as priorities, from parents to their children.

        `parents` `[P]` has, for each of the P new members, the slot of its parent, or −1 for a new trial. `parents` is
        None if all members were replaced.
        """

    def renew(self, slots: Sequence[int]) -> None:
        """Prepare these slots (places in the population) for new trials (members with new weights): begin new episodes,
        and clear the slots' own data."""

    def ended(self) -> np.ndarray:
        """Return, for each of the P slots (places in the population), the mean return of the training episodes that
        ended in this generation, `[P]`.

        The value is NaN for a slot without such an episode. This method is called only if `search.fitness` is
        `training`.
        """

    def signals(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        """Return, for each of these slots (places in the population), the training signals of this generation by name,
        each as a pair (mean over the generation, last value).

        Signals are shown to users; no result depends on them.
        """

    def advance(self, most: int = 1) -> None:
        """Take one tick (one step in every environment, or one batch of data), and make the updates that are due after
        it.

        Some regimes can take several ticks in one call. They take at most `most`, and stop at the end of a generation.

        Raises:
            EnvironmentFailed: an environment failed. If the regime's attribute `whole` is still True, the state can be
                saved and the tick repeated.
        """

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all tensors that are needed to continue training from here, except the members' own
        tensors."""

    def restore(self, tensors: Mapping[str, Tensor]) -> int:
        """Restore the tensors that `state` returned. Call `adopt` with the members before.

        The result is the number of environments that could not be restored.
        """
