"""The lineage as the report draws it: every member at the end of every generation, and whom it descends from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from evopipe.evolve.lineage import Record, Scored
from evopipe.evolve.mutate import NONE, Mutation

Key = tuple[int, int]
"""A member at the end of a generation: (generation, slot)."""


@dataclass(frozen=True)
class Node:
    """One member at the end of one generation.

    Attributes:
        key: its generation and slot.
        id: its name in the lineage; it keeps it while it survives.
        parent: whom it descends from, in the generation before (or the last healthy one); None at the start.
        fitness: its score; NaN if it diverged.
        gain: by how much that exceeds the parent's; NaN if there is nothing to compare.
        kind: the mutation that made it; `change` says what that changed.
        survived: it is its parent, one generation older: same id.
        traits: hyper-parameters by name, then numbers and words that describe the architecture.
    """

    key: Key
    id: int
    parent: Key | None
    fitness: float
    gain: float
    kind: str
    change: str
    survived: bool
    network: str
    traits: Mapping[str, float | str]

    @property
    def diverged(self) -> bool:
        """Whether it has no score."""
        return not math.isfinite(self.fitness)


def nodes(lineage: Sequence[Record]) -> dict[Key, Node]:
    """Return every member at the end of every generation, in order."""
    found: dict[Key, Node] = {}
    last_seen: dict[int, Key] = {}  # by id
    for before, record in pairwise(lineage):
        births = {child.slot: child for child in before.children}
        fresh = []
        for member in record.members:
            parent, mutation = (
                last_seen.get(member.id),
                NONE,
            )  # all had diverged, and the last healthy generation returned
            if (birth := births.get(member.slot)) is not None:
                parent = None if birth.parent_slot is None else (before.generation, birth.parent_slot)
                mutation = birth.mutation
            fresh.append(_node(member, record.generation, found.get(parent) if parent else None, mutation))
        found |= {node.key: node for node in fresh}
        last_seen |= {node.id: node.key for node in fresh}
    return found


def _node(member: Scored, generation: int, parent: Node | None, mutation: Mutation) -> Node:
    fitness = member.fitness if member.healthy and math.isfinite(member.fitness) else math.nan
    hyper = {name: float(value) for name, value in sorted(member.hyper.items())}
    return Node(
        key=(generation, member.slot),
        id=member.id,
        parent=parent.key if parent else None,
        fitness=fitness,
        gain=fitness - parent.fitness if parent else math.nan,
        kind=mutation.kind,
        change=mutation.describe(),
        survived=parent is not None and parent.id == member.id,
        network=f"{member.arch.describe()} {member.arch.activation}",
        traits=hyper | dict(_traits(member.arch.to_json())),
    )


def _traits(arch: Mapping[str, Any]) -> Iterator[tuple[str, float | str]]:
    """Describe an architecture by numbers and words; a part that is a list of layers gives two."""
    for key, value in sorted(arch.items()):
        name = key.replace("_", " ")
        if isinstance(value, list):
            yield f"{name} layers", float(len(value))
            yield f"{name} units", float(sum(layer[0] for layer in value))
        elif isinstance(value, bool) or not isinstance(value, int):
            yield name, {True: "yes", False: "no"}.get(value, str(value))
        else:
            yield f"{name} units" if name == "latent" else name, float(value)
