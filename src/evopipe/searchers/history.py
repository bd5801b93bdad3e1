"""The lineage: one record a generation of who was scored, who descends from whom, and by which mutation.

`reports/lineage.jsonl` holds a record a line. The report, export, trackers and the API read it with `read_lineage`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter

from evopipe.core.member import Member, read_architecture
from evopipe.core.structure import Architecture
from evopipe.errors import DataError
from evopipe.mutations import Mutation

_Architecture = Annotated[Architecture, PlainValidator(read_architecture), PlainSerializer(lambda arch: arch.to_json())]
# JSON knows no −∞: such a fitness is null there.
_Fitness = Annotated[
    float,
    PlainValidator(lambda value: -math.inf if value is None else float(value)),
    PlainSerializer(lambda value: value if math.isfinite(value) else None),
]


@dataclass(frozen=True)
class Scored:
    """A member when its generation was evaluated; `fitness` is −∞ if it has none, as after it diverged."""

    slot: int
    id: int
    parent: int | None
    key: int
    arch: _Architecture
    hyper: Mapping[str, Any]
    healthy: bool
    fitness: _Fitness
    steps: Annotated[int | None, Field(exclude_if=lambda steps: steps is None)] = None  # lived, if others lived more

    @classmethod
    def of(cls, m: Member, steps: int | None = None) -> Scored:
        return cls(m.slot, m.id, m.parent, m.key, m.arch, dict(m.hyper), m.healthy, m.fitness[-1], steps)


@dataclass(frozen=True)
class Born:
    """A child: `parent` is its parent's id, `parent_slot` where that one was; None for an initial member."""

    slot: int
    id: int
    parent: int | None
    parent_slot: int | None
    arch: _Architecture
    hyper: Mapping[str, Any]
    mutation: Mutation
    why: Annotated[str, Field(exclude_if=lambda why: not why)] = ""  # it is in its slot, in words

    @classmethod
    def of(cls, m: Member, mutation: Mutation, parent_slot: int | None = None, why: str = "") -> Born:
        return cls(m.slot, m.id, m.parent, parent_slot, m.arch, dict(m.hyper), mutation, why)


@dataclass(frozen=True)
class Best:
    """The best member so far."""

    id: int
    score: float


@dataclass(frozen=True)
class Record:
    """A generation; number 0 holds the initial members, whom nobody scored."""

    generation: int
    step: int  # environment steps of each member so far
    members: tuple[Scored, ...] = ()  # as they were scored
    champion: Best | None = None  # the best so far, None before the first
    children: tuple[Born, ...] = ()  # the next generation; none after the last
    restored: Annotated[bool, Field(exclude_if=lambda restored: not restored)] = False  # after all members diverged

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = _RECORD.dump_python(self, mode="json")
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        return _RECORD.validate_python(data)


_RECORD = TypeAdapter(Record)


def read_lineage(data: bytes, where: str) -> list[Record]:
    """Read the content of `lineage.jsonl`; DataError, which begins with `where`, if it is damaged or no lineage."""
    records = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            records.append(_RECORD.validate_json(line))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            what = " ".join(str(error).split())[:200]
            raise DataError(
                f"{where}:{number}: is no record of a lineage ({what}); run `dvc repro train` again"
            ) from error
    return records


def descent(records: Iterable[Record], member: int) -> list[dict[str, Any]]:
    """Return a member, by its id, and its ancestors as JSON data, youngest first: id, parent, mutation, and the
    generation before. The records are the whole lineage."""
    births: dict[int | None, dict[str, Any]] = {}
    for record in records:
        for child in record.children:  # an elite that survives appears again: its first record is its birth
            birth = {"id": child.id, "parent": child.parent, "mutation": child.mutation.to_json()}
            births.setdefault(child.id, {**birth, "generation": record.generation})
    line, current = [], births.pop(member, None)
    while current is not None:
        line.append(current)
        current = births.pop(current["parent"], None)  # each once: a file may say that one descends from itself
    return line
