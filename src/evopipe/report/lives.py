"""The histories of members in a search in which some waited, or new trials began after the first generation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evopipe.searchers.history import Born, Record, in_lockstep

Key = tuple[int, int]
"""A member at the end of a generation: (generation, slot)."""


@dataclass
class Life:
    """The history of one member in a run, from its birth or the run's start to its replacement or the run's end.

    Attributes:
        id: the member's id.
        slot: the member's place in the population.
        parent: the id of the member that it was cloned from; None if it began with new weights (a trial).
        since: environment steps of the population at the member's birth.
        hyper: the hyper-parameters by name.
        made: the mutation and what it changed, as text; empty if nothing changed.
        why: the reason for the birth, as text.
        steps: environment steps that the member has trained for, including its ancestors' steps.
        best: the best of its scores; NaN if it has none.
        keys: the (generation, slot) of each generation in which it was scored.
        end: the reason why the member was replaced, or why it waits while others train, as text; empty if neither is
            so.
    """

    id: int
    slot: int
    parent: int | None
    since: int
    hyper: Mapping[str, Any]
    made: str
    why: str
    steps: int = 0
    best: float = math.nan
    keys: list[Key] = field(default_factory=list)
    end: str = ""

    @classmethod
    def of(cls, child: Born, since: int) -> Life:
        parent = None if child.parent_slot is None else child.parent
        return cls(child.id, child.slot, parent, since, child.hyper, child.mutation.describe(), child.why)

    @property
    def kind(self) -> str:
        """A text that says where the member comes from: `trial`, or `child of member N`."""
        return "trial" if self.parent is None else f"child of member {self.parent}"

    @property
    def about(self) -> str:
        """The text of the member's tooltip: slot, member, origin, mutation, and the reason for its birth."""
        lines = (f"slot {self.slot}, member {self.id}: {self.kind}", self.made, self.why)
        return "\n".join(line for line in lines if line)


def lives_of(lineage: Sequence[Record], env_steps: Mapping[int, int]) -> tuple[Life, ...]:
    """Return the histories of all members of a search, in the order of their births, from the records `lineage` of all
    generations.

    The result is empty if all members always trained at the same time and no trial began after the first generation.
    `env_steps` has the population's environment steps at the end of each generation.
    """
    if not lineage or in_lockstep(lineage):
        return ()
    found = {child.id: Life.of(child, 0) for child in lineage[0].children}
    standing = {child.slot: child.id for child in lineage[0].children}
    for record in lineage[1:]:
        _live(found, record)
        if record.children:
            now = {child.slot: child for child in record.children}
            stay = {child.id for child in now.values()}
            for id in stay & found.keys():
                found[id].end = next(child.why for child in now.values() if child.id == id)
                if not (found[id].keys or found[id].since):  # one of the first, which has not lived yet
                    found[id].why = found[id].end
            for slot, id in standing.items():
                if id not in stay and id in found and slot in now:
                    found[id].end = now[slot].why
            found |= {child.id: Life.of(child, env_steps[record.generation]) for child in now.values()
                      if child.id not in found}  # fmt: skip
            standing = {slot: child.id for slot, child in now.items()}
    last = {member.id for member in lineage[-1].members}
    for life in (found[id] for id in standing.values() if id in found):
        life.end = (
            "the run ended"
            if life.id in last
            else f"waited at the end{f' ({life.end})' if life.end not in ('', 'waits') else ''}"
        )
    return tuple(found.values())


def _live(found: Mapping[int, Life], record: Record) -> None:
    """Take note of a generation that members lived."""
    for member in record.members:
        if (life := found.get(member.id)) is not None:
            life.steps = record.step if member.steps is None else member.steps
            life.keys.append((record.generation, member.slot))
            if math.isfinite(member.fitness):
                life.best = max(member.fitness, life.best) if math.isfinite(life.best) else member.fitness
