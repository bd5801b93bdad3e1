"""The lineage: one record a generation of who was scored, who descends from whom, and by which mutation.

`reports/lineage.jsonl` holds a record a line. The report, trackers and the API read it through `Record.from_json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evopipe.core.member import Member, read_architecture
from evopipe.core.structure import Architecture
from evopipe.evolve.mutate import Mutation


@dataclass(frozen=True)
class Scored:
    """A member when its generation was evaluated; `fitness` is −∞ if it has none, as after it diverged."""

    slot: int
    id: int
    parent: int | None
    key: int
    arch: Architecture
    hyper: Mapping[str, float]
    healthy: bool
    fitness: float

    @classmethod
    def of(cls, m: Member) -> Scored:
        """Return a member's record, with its last fitness."""
        return cls(m.slot, m.id, m.parent, m.key, m.arch, dict(m.hyper), m.healthy, m.fitness[-1])


@dataclass(frozen=True)
class Born:
    """A child: `parent` is its parent's id, `parent_slot` where that one was; None for an initial member."""

    slot: int
    id: int
    parent: int | None
    parent_slot: int | None
    arch: Architecture
    hyper: Mapping[str, float]
    mutation: Mutation

    @classmethod
    def of(cls, m: Member, mutation: Mutation, parent_slot: int | None = None) -> Born:
        """Return a child's record."""
        return cls(m.slot, m.id, m.parent, parent_slot, m.arch, dict(m.hyper), mutation)


@dataclass(frozen=True)
class Record:
    """A generation.

    Attributes:
        generation: its number; 0 holds the initial members, whom nobody scored.
        step: environment steps of each member so far.
        members: as they were scored.
        champion: id and score of the best so far, None before the first.
        children: the next generation; none after the last.
        restored: whether all members diverged, and the last healthy generation came back.
    """

    generation: int
    step: int
    members: tuple[Scored, ...] = ()
    champion: tuple[int, float] | None = None
    children: tuple[Born, ...] = ()
    restored: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; JSON has no −∞: such a fitness is null."""
        return {
            "generation": self.generation,
            "step": self.step,
            "members": [
                {**vars(m), "arch": m.arch.to_json(), "fitness": m.fitness if math.isfinite(m.fitness) else None}
                for m in self.members
            ],
            "champion": None if self.champion is None else {"id": self.champion[0], "score": self.champion[1]},
            "children": [
                {**vars(c), "arch": c.arch.to_json(), "mutation": c.mutation.to_json()} for c in self.children
            ],
            **({"restored": True} if self.restored else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Build from what `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError: it is another thing.
        """
        members = []
        for m in data["members"]:
            fitness = -math.inf if m["fitness"] is None else float(m["fitness"])
            members.append(Scored(**{**m, "arch": read_architecture(m["arch"]), "fitness": fitness}))
        champion = data["champion"]
        children = tuple(
            Born(**{**c, "arch": read_architecture(c["arch"]), "mutation": Mutation(**c["mutation"])})
            for c in data["children"]
        )
        return cls(
            int(data["generation"]), int(data["step"]), tuple(members),
            None if champion is None else (champion["id"], champion["score"]), children,
            bool(data.get("restored", False)),
        )  # fmt: skip

    def with_children(self, children: Sequence[Born]) -> Record:
        """Return the record of a generation that had these children."""
        return replace(self, children=tuple(children))
