"""What a member lives on: transitions, its last steps, a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from evopipe.core.cohort import Cohort
from evopipe.core.member import Member
from evopipe.run.evaluate import Episodes


class Regime(Protocol):
    """What a `Run` asks of a data regime. The run knows generations, and no environment.

    Attributes:
        warm: transitions that were there from the start.
        threshold: the score at which the task counts as solved, None where it names none.
        whole: whether `state` is one moment's. It is not where something failed half-way.
        remarks: what will happen that the parameters do not say, one sentence each.
    """

    warm: int
    threshold: float | None
    whole: bool

    @property
    def remarks(self) -> Sequence[str]: ...

    def first(self, member: Member) -> Member:
        """Return a member of the first generation as it begins here."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Work with these cohorts from now on. Their tensors change in place."""

    def hand_down(self, parents: Sequence[int] | None) -> None:
        """Let new members have what is kept of the old ones beside the members themselves.

        Args:
            parents: `[P]`, in which slot the parent of each new member was; None if all members were replaced.
        """

    def advance(self) -> None:
        """Take one tick, and learn what is due.

        Raises:
            EnvironmentFailed: an environment failed. If `whole`, the state can be saved and the tick taken again.
        """

    def evaluate(self, cohorts: Sequence[Cohort], seeds: Any, stopped: Callable[[], bool]) -> Episodes:
        """Score members, all on the same seeds `[n]`.

        Raises:
            Stopped: `stopped` said so.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """Return everything that outlives a tick, cohorts excepted."""

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """Take over what `state` returned, for cohorts that were adopted; return how many environments were lost."""

    def close(self) -> None:
        """Let processes and environments go."""
