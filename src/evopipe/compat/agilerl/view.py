"""The base class of both kinds of agents, each of which is a view of one member of a population."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from evopipe import rng
from evopipe.core.member import Member
from evopipe.formats import score
from evopipe.mutations import NONE, Mutation


class StepList(list[int]):
    """A list of counts of environment steps, whose last entry is the current count.

    For newer scripts, which have only the current count, the list also acts as that number in `+=`, `//`, `<`, `>=` and
    `int()`.

    Examples:
        >>> steps = StepList([100])
        >>> steps += 50
        >>> steps, steps // 30, steps < 200
        ([150], 5, True)
    """

    def __iadd__(self, more: Any) -> Self:  # type: ignore[override, misc]
        if np.ndim(more):
            return super().__iadd__(more)
        self[-1] += int(more)
        return self

    def __int__(self) -> int:
        return self[-1]

    def __floordiv__(self, every: int) -> int:
        return self[-1] // every

    def __lt__(self, other: Any) -> bool:
        return super().__lt__(other) if np.ndim(other) else self[-1] < int(other)

    def __ge__(self, other: Any) -> bool:
        return super().__ge__(other) if np.ndim(other) else self[-1] >= int(other)


class View:
    """The base class of agents. An agent is a view of one member of a population: it shows the member's data under the
    names that AgileRL's scripts read and write.

    Args:
        breed: what all agents of the population share, a `Breed` or `LanguageBreed`.
        member: the weights, hyper-parameters and counters of the agent.
        mutation: the mutation that made the agent.
    """

    def __init__(self, breed: Any, member: Member, mutation: Mutation = NONE) -> None:
        self.breed, self._member, self.mutation = breed, member, mutation
        self.fitness: list[float] = [*member.fitness]
        self.scores: list[float] = []
        self.steps = [0]

    @classmethod
    def viewing(cls, breed: Any, member: Member, mutation: Mutation = NONE) -> Self:
        """Return an agent of this class that is a view of the member `member`. `breed` is what all agents of the
        population share, and `mutation` the mutation that made the agent."""
        return cls(breed, member, mutation)

    @property
    def steps(self) -> StepList:
        """Counts of environment steps (for language models, of prompts), as a list whose last entry is the current
        count."""
        return self._steps

    @steps.setter
    def steps(self, steps: int | Iterable[int]) -> None:
        self._steps = StepList([steps] if isinstance(steps, int) else steps)

    @property
    def member(self) -> Member:
        """The agent's member (weights, hyper-parameters, fitness) in its current state."""
        return replace(self._member, fitness=tuple(self.fitness))

    @property
    def index(self) -> int:
        """The agent's index in the population."""
        return self._member.slot

    @property
    def algo(self) -> str:
        """Evopipe's name of the agent's algorithm."""
        return str(self.breed.algo)

    @property
    def hp(self) -> Mapping[str, float]:
        """The agent's values of the hyper-parameters that may mutate, by name. Other hyper-parameters are the same for
        the whole population."""
        return MappingProxyType(dict(self._member.hyper))

    @property
    def mut(self) -> str:
        """A text that describes the last mutation; `"None"` if nothing changed."""
        return self.mutation.describe() or "None"

    def __repr__(self) -> str:
        fitness = score(self.fitness[-1]) if self.fitness else "none"
        return f"<{type(self).__name__} {self.index} of {self.algo}: {self._member.arch.describe()}, fitness {fitness}>"

    def clone(self, index: int | None = None) -> Self:
        """Return an independent copy of the agent. Only the base model of language agents is shared.

        With `index`, the copy has that index, and draws random numbers as the agent at that index does.
        """
        member = self.member
        slot = member.slot if index is None else index
        key = member.key if index is None else int(rng.member_keys(self.breed.seed, [slot])[0])
        copied = replace(member.clone(slot, member.id, key), parent=member.parent)
        child = self.viewing(self.breed, copied, self.mutation)
        child.go_on_from(self, self)
        return child

    def go_on_from(self, parent: Self, slot: Self) -> None:
        """Copy three lists of the agent `parent` to this agent: `scores` (returns of finished episodes), `steps` and
        `fitness`.

        `slot` is the agent that this agent replaces. Here it has no effect; subclasses may use it.
        """
        self.scores, self.steps, self.fitness = [*parent.scores], [*parent.steps], [*parent.fitness]
