"""The base class of both kinds of agents, each of which is a view of one member of a population."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

from evopipe import rng
from evopipe.core.member import Member
from evopipe.formats import score
from evopipe.mutations import NONE, Mutation


class View:
    """The base class of agents: a view of one member, with the attributes that AgileRL's scripts read and write. See
    `Agent` and `LanguageAgent`."""

    def __init__(self, breed: Any, member: Member, mutation: Mutation = NONE) -> None:
        self.breed, self._member, self.mutation = breed, member, mutation
        self.fitness: list[float] = [*member.fitness]
        self.scores: list[float] = []
        self.steps: list[int] = [0]

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
        child = type(self)(self.breed, copied, self.mutation)
        child.go_on_from(self, self)
        return child

    def go_on_from(self, parent: Self, slot: Self) -> None:
        """Copy the scores, steps and fitness of `parent`. `slot` is the agent that this agent replaces."""
        self.scores, self.steps, self.fitness = [*parent.scores], [*parent.steps], [*parent.fitness]
