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
    """A view of one member, with the attributes that scripts read and write; see `Agent` and `LanguageAgent`."""

    def __init__(self, breed: Any, member: Member, mutation: Mutation = NONE) -> None:
        self.breed, self._member, self.mutation = breed, member, mutation
        self.fitness: list[float] = [*member.fitness]
        self.scores: list[float] = []
        self.steps: list[int] = [0]

    @property
    def member(self) -> Member:
        """The member in its current state."""
        return replace(self._member, fitness=tuple(self.fitness))

    @property
    def index(self) -> int:
        """The index in the population."""
        return self._member.slot

    @property
    def algo(self) -> str:
        """The algorithm's name."""
        return str(self.breed.algo)

    @property
    def hp(self) -> Mapping[str, float]:
        """The hyper-parameters that may mutate, by name. The others are the same for the whole population."""
        return MappingProxyType(dict(self._member.hyper))

    @property
    def mut(self) -> str:
        """What the last mutation changed, as text; the text `None` if it changed nothing."""
        return self.mutation.describe() or "None"

    def __repr__(self) -> str:
        fitness = score(self.fitness[-1]) if self.fitness else "none"
        return f"<{type(self).__name__} {self.index} of {self.algo}: {self._member.arch.describe()}, fitness {fitness}>"

    def clone(self, index: int | None = None) -> Self:
        """Return an independent copy; only the base of a language model is shared. With `index`, the copy draws random
        numbers as the agent of that index does."""
        member = self.member
        slot = member.slot if index is None else index
        key = member.key if index is None else int(rng.member_keys(self.breed.seed, [slot])[0])
        copied = replace(member.clone(slot, member.id, key), parent=member.parent)
        child = type(self)(self.breed, copied, self.mutation)
        child.go_on_from(self, self)
        return child

    def go_on_from(self, parent: Self, slot: Self) -> None:
        """Copy the counters of `parent`. `slot` is the agent that this one replaces."""
        self.scores, self.steps, self.fitness = [*parent.scores], [*parent.steps], [*parent.fitness]
