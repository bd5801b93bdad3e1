"""The lineage: one record a generation of who was scored, who descends from whom, and by which mutation.

`reports/lineage.jsonl` holds a record a line. The report, export, trackers and the API read it with `read_lineage`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter

from evopipe.core.member import Member, read_architecture
from evopipe.core.structure import Architecture
from evopipe.errors import DataError
from evopipe.mutations import NONE, Mutation

_Architecture = Annotated[Architecture, PlainValidator(read_architecture), PlainSerializer(lambda arch: arch.to_json())]
# JSON knows no −∞: such a fitness is null there.
_Fitness = Annotated[
    float,
    PlainValidator(lambda value: -math.inf if value is None else float(value)),
    PlainSerializer(lambda value: value if math.isfinite(value) else None),
]


@dataclass(frozen=True)
class Scored:
    """The record of one member at the evaluation of a generation.

    Attributes:
        slot: the member's place in the population.
        id: the member's id.
        parent: the id of its parent; None for a member with initial weights.
        key: the slot's random key.
        arch: the architecture.
        hyper: the hyper-parameters by name.
        healthy: False if the member diverged.
        fitness: the score; −∞ if the member has none, for example because it diverged.
        steps: environment steps that the member has trained for; None if all members have trained equally long.
    """

    slot: int
    id: int
    parent: int | None
    key: int
    arch: _Architecture
    hyper: Mapping[str, Any]
    healthy: bool
    fitness: _Fitness
    steps: Annotated[int | None, Field(exclude_if=lambda steps: steps is None)] = None

    @classmethod
    def of(cls, m: Member, steps: int | None = None) -> Scored:
        return cls(m.slot, m.id, m.parent, m.key, m.arch, dict(m.hyper), m.healthy, m.fitness[-1], steps)


@dataclass(frozen=True)
class Born:
    """The record of a slot's next member. A member that stays in its slot is recorded as its own parent.

    Attributes:
        slot: the member's place in the population.
        id: the member's id.
        parent: the parent's id; None for a member with initial weights.
        parent_slot: the slot in which the parent was; None for a member with initial weights.
        arch: the architecture.
        hyper: the hyper-parameters by name.
        mutation: the mutation that made the member.
        why: the reason why the member is in its slot, as text.
    """

    slot: int
    id: int
    parent: int | None
    parent_slot: int | None
    arch: _Architecture
    hyper: Mapping[str, Any]
    mutation: Mutation
    why: Annotated[str, Field(exclude_if=lambda why: not why)] = ""

    @classmethod
    def of(cls, m: Member, mutation: Mutation, parent_slot: int | None = None, why: str = "") -> Born:
        return cls(m.slot, m.id, m.parent, parent_slot, m.arch, dict(m.hyper), mutation, why)


@dataclass(frozen=True)
class Best:
    """The id and the score of the best member so far."""

    id: int
    score: float


@dataclass(frozen=True)
class Opponent:
    """An opponent of self-play: a member as it was after a generation.

    Attributes:
        id: the member's id.
        generation: the number of the generation.
        arrays: the hash of the file with its arrays, 32 hex digits of SHA-256, which is the file's name.
    """

    id: int
    generation: int
    arrays: str


@dataclass(frozen=True)
class Record:
    """The record of one generation. Record 0 has the initial members as `children`, and no scores.

    Attributes:
        generation: the number of the generation.
        step: environment steps of each member so far.
        members: the members that were scored.
        champion: the best member so far; None before the first evaluation.
        children: the members of the next generation; empty after the last one.
        restored: whether all members diverged, so that the run went back to an earlier generation.
        curriculum: the keyword arguments of the environments in which members trained; None without a curriculum.
        opponents: the league that members trained against, the oldest first; None without self-play.
    """

    generation: int
    step: int
    members: tuple[Scored, ...] = ()
    champion: Best | None = None
    children: tuple[Born, ...] = ()
    restored: Annotated[bool, Field(exclude_if=lambda restored: not restored)] = False
    curriculum: Annotated[dict[str, Any] | None, Field(exclude_if=lambda curriculum: curriculum is None)] = None
    opponents: Annotated[tuple[Opponent, ...] | None, Field(exclude_if=lambda opponents: opponents is None)] = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = _RECORD.dump_python(self, mode="json")
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        return _RECORD.validate_python(data)


_RECORD = TypeAdapter(Record)


def read_lineage(data: bytes, where: str) -> list[Record]:
    """Parse the content of `lineage.jsonl`, one record per generation.

    Raises:
        DataError: the content is damaged, or no lineage; the message begins with `where`.
    """
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
    """Return the member with this id and all its ancestors, the youngest first, as JSON data.

    Each has its id, its parent's id, its mutation, and the generation after which it was born. `records` is the
    complete lineage.
    """
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


def in_lockstep(records: Sequence[Record]) -> bool:
    """Return whether all members trained in every generation, and no new trial (a member with initial weights) began
    after the first generation."""
    first, *rest = records
    everybody = all(len(record.members) >= len(first.children) for record in rest)
    return everybody and all(child.parent_slot is not None for record in rest for child in record.children)


@dataclass(frozen=True)
class Origin:
    """The origin of a scored member.

    Attributes:
        parent: where the previous score is in the records, as (generation, slot); a slot is a place in the population.
            It is the member's own previous score. If the member was not scored before, it is the last score of the
            nearest ancestor with a score. None if no ancestor has one.
        mutation: the mutation that made the member.
        why: the reason why the member is in its slot, as text.
    """

    parent: tuple[int, int] | None
    mutation: Mutation
    why: str


def origins(records: Iterable[Record]) -> Iterator[tuple[Record, dict[int, Origin]]]:
    """Yield each record after the first, and with it the `Origin` of each member that was scored, by slot.

    A member may wait for some generations after its birth before it is first scored. Its origin has the mutation and
    the parent that were recorded at its birth.
    """
    last: dict[int | None, tuple[int, int] | None] = {}  # by slot: where its member, or an ancestor, was last scored
    seen: dict[int, tuple[int, int]] = {}  # by id
    births: dict[int, Born] = {}  # by slot
    unscored: dict[int, int] = {}  # ids by slot
    for before, record in pairwise(records):
        if before.children:
            last = {child.slot: last.get(child.parent_slot) for child in before.children}
            for child in before.children:
                if unscored.get(child.slot) != child.id:
                    births[child.slot], unscored[child.slot] = child, child.id
        else:  # all had diverged, and the last healthy generation returned
            last |= {member.slot: seen[member.id] for member in record.members if member.id in seen}
        found = {}
        for member in record.members:
            birth, key = births.get(member.slot), (record.generation, member.slot)
            known = (birth.mutation, birth.why) if birth else (NONE, "")
            found[member.slot] = Origin(last.get(member.slot), *known)
            last[member.slot] = seen[member.id] = key
            unscored.pop(member.slot, None)
        yield record, found


@dataclass(frozen=True)
class Schedule:
    """The schedule of hyper-parameters with which a member's weights were trained, from initial weights on.

    Attributes:
        values: pairs (steps of training, all hyper-parameters from there on), beginning at step 0.
        kinds: the kinds of all mutations of the member and its ancestors.
        steps: the length of the training.
        arch: the architecture of the member.
    """

    values: tuple[tuple[int, Mapping[str, Any]], ...]
    kinds: tuple[str, ...]
    steps: int
    arch: Architecture


def schedule(records: Iterable[Record], member: int, generation: int) -> Schedule:
    """Return the hyper-parameter schedule of the member with this id, up to a generation in which it was scored.

    `records` is the complete lineage.

    Raises:
        LookupError: the records lack the member's score or an ancestor's birth, or do not begin at step 0.
    """
    lived: dict[int | None, int] = {}  # steps by id
    births: dict[int | None, tuple[int, Born]] = {}  # at which step of a life, by id
    scored = None
    for record in records:
        for each in record.members:
            lived[each.id] = record.step if each.steps is None else each.steps
            scored = each if (record.generation, each.id) == (generation, member) else scored
        if scored is not None:
            break
        for child in record.children:
            births.setdefault(child.id, (lived.setdefault(child.id, lived.get(child.parent, 0)), child))
    if scored is None:
        raise LookupError(f"no member {member} was scored in generation {generation}")
    values: dict[int, Mapping[str, Any]] = {}
    kinds, current = [], member
    while True:
        if current not in births:
            raise LookupError(f"member {member} descends from member {current}, whose birth is not told")
        at, born = births.pop(current)  # each once: a file may say that one descends from itself
        values.setdefault(at, born.hyper)  # the youngest that began at a step
        kinds.append(born.mutation.kind)
        if born.parent is None:
            break
        current = born.parent
    if 0 not in values:
        raise LookupError(f"the line of member {member} does not begin at step 0")
    return Schedule(tuple(sorted(values.items())), tuple(reversed(kinds)), lived[member], scored.arch)
