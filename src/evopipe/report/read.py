"""What a run left in its files, as the report needs it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from evopipe.errors import DataError
from evopipe.evolve.lineage import read_lineage
from evopipe.layout import (
    ELITE,
    EPISODES,
    EVALUATION,
    FITNESS,
    LINEAGE,
    MEMBERS,
    TIMING,
    TRAIN,
    WRITER,
    need,
)
from evopipe.report import words
from evopipe.report.lineage import Key, Node, nodes
from evopipe.storage.files import parse_json, read_bytes, read_json
from evopipe.storage.folders import read_folder

T = TypeVar("T")


@dataclass(frozen=True)
class _Generation:
    """The end of one generation; steps are totals of the population, `elite` is the best score so far or NaN."""

    generation: int
    env_steps: int
    elite: Annotated[float, BeforeValidator(lambda text: text or math.nan)]


@dataclass(frozen=True)
class _Timing:
    """How long a generation took, and the steps of the population taken in these seconds."""

    generation: int
    seconds: float
    env_steps: int
    eval_steps: int


@dataclass(frozen=True)
class _Steps:
    training: int
    evaluation: int


@dataclass(frozen=True)
class _Champion:
    id: int
    generation: int
    score: float
    confirmed: bool = False


@dataclass(frozen=True)
class _Summary:
    """What `reports/train.json` says of a run, as far as the report shows it."""

    reason: str
    generations: int
    steps: _Steps
    elite: _Champion
    target: float | None = None


@dataclass(frozen=True)
class _Score:
    mean: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class _Evaluation:
    elite: _Score


@dataclass(frozen=True)
class _Episode:
    member: str
    seed: int
    total: Annotated[float, Field(alias="return")]
    length: int


@dataclass(frozen=True)
class Held:
    """One member's held-out episodes, at least one, and their summary."""

    name: str
    mean: float
    interval: tuple[float, float]
    episodes: tuple[_Episode, ...]

    @property
    def returns(self) -> list[float]:
        """One an episode."""
        return [episode.total for episode in self.episodes]

    @property
    def length(self) -> float:
        """Mean length of an episode."""
        return sum(episode.length for episode in self.episodes) / len(self.episodes)


@dataclass(frozen=True)
class Payoff:
    """What a kind of mutation brought: how many children, how many of them diverged, and the fitness of the others
    minus their parents', ascending."""

    kind: str
    children: int
    gains: tuple[float, ...]
    diverged: int

    @property
    def improved(self) -> float:
        """Share of the children that beat their parents."""
        return sum(gain > 0 for gain in self.gains) / self.children

    @property
    def median(self) -> float:
        """Median gain; NaN where there is none."""
        return median(self.gains) if self.gains else math.nan


@dataclass(frozen=True)
class Run:
    """One finished run; `policy` is the elite's `policy.json`, `members` are those of the last population."""

    generations: tuple[_Generation, ...]
    nodes: Mapping[Key, Node]
    summary: _Summary
    policy: Mapping[str, Any]
    elite: Held
    members: tuple[Held, ...]
    timing: tuple[_Timing, ...]

    @cached_property
    def slots(self) -> int:
        """Members of the population."""
        return 1 + max((slot for _, slot in self.nodes), default=0)

    @cached_property
    def diverged(self) -> int:
        """How many times a member diverged."""
        return sum(node.diverged for node in self.nodes.values())

    @cached_property
    def descent(self) -> tuple[Node, ...]:
        """The elite and its ancestors, oldest first."""
        born = self.summary.elite
        node = next((n for n in self.nodes.values() if (n.key[0], n.id) == (born.generation, born.id)), None)
        line = []
        while node is not None:
            line.append(node)
            node = self.nodes[node.parent] if node.parent else None
        return tuple(reversed(line))

    @cached_property
    def env_steps(self) -> Mapping[int, int]:
        """Training steps of the population at the end of each generation."""
        return {row.generation: row.env_steps for row in self.generations}

    def mean(self, place: int) -> float:
        """Return the population's mean fitness in a generation, by its place in the run; NaN where all diverged."""
        at = self.generations[place].generation
        scores = [node.fitness for node in self.nodes.values() if node.key[0] == at and not node.diverged]
        return sum(scores) / len(scores) if scores else math.nan

    @cached_property
    def payoffs(self) -> list[Payoff]:
        """What each kind of mutation brought, in the order of the kinds; survivors are no children."""
        children: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            if node.parent is not None and not node.survived:
                children.setdefault(node.kind, []).append(node)
        found = []
        for kind in dict.fromkeys((*words.KINDS, *sorted(children))):
            if nodes := children.get(kind):
                gains = tuple(sorted(node.gain for node in nodes if math.isfinite(node.gain)))
                found.append(Payoff(kind, len(nodes), gains, sum(node.diverged for node in nodes)))
        return found

    @cached_property
    def traits(self) -> tuple[dict[str, dict[Key, float | str]], dict[str, float | str]]:
        """The hyper-parameters and traits that vary between members or over time, by member, and those that do not."""
        columns: dict[str, dict[Key, float | str]] = {}
        for node in self.nodes.values():
            for name, value in node.traits.items():
                columns.setdefault(name.replace("_", " "), {})[node.key] = value
        varying = {name: column for name, column in columns.items() if len(set(column.values())) > 1}
        return varying, {name: next(iter(columns[name].values())) for name in columns if name not in varying}

    def course(self, column: Mapping[Key, float | str]) -> str:
        """Say with which value of a trait the elite's line began and ended."""
        shown = [words.value(column[node.key]) for node in self.descent if node.key in column]
        return f"elite {' → '.join(dict.fromkeys((shown[0], shown[-1])))}" if shown else ""


def read(folder: Path) -> Run:
    """Read a finished run from the folder that holds its `reports/` and `models/elite/`.

    Raises:
        MissingInputError: a file is not there.
        DataError: a file is damaged, or does not hold what its stage writes.
    """
    for out in (FITNESS, LINEAGE, TIMING, TRAIN, EVALUATION, MEMBERS, EPISODES, ELITE):
        need(folder, out)
    scores = {"elite": _json(folder, EVALUATION, _Evaluation).elite, **_json(folder, MEMBERS, dict[str, _Score])}
    episodes = _rows(folder, EPISODES, _Episode)
    held = {name: tuple(episode for episode in episodes if episode.member == name) for name in scores}
    for name in scores:
        if not held[name]:
            raise _unlike(folder, EPISODES, f"no episode of {name}")
    elite, *last = (Held(n.replace("member_", "slot "), at.mean, at.interval, held[n]) for n, at in scores.items())
    policy = read_folder(folder / ELITE, only=("policy.json",))["policy.json"]
    return Run(
        generations=_rows(folder, FITNESS, _Generation),
        nodes=nodes(read_lineage(read_bytes(folder / LINEAGE), str(folder / LINEAGE))),
        summary=_json(folder, TRAIN, _Summary),
        policy=parse_json(policy, str(folder / ELITE / "policy.json")),
        elite=elite,
        members=tuple(last),
        timing=_rows(folder, TIMING, _Timing),
    )


def _json(folder: Path, path: Path, kind: type[T]) -> T:
    return _checked(folder, path, kind, read_json(folder / path))


def _rows(folder: Path, path: Path, kind: type[T]) -> tuple[T, ...]:
    text = read_bytes(folder / path).decode(errors="replace")
    return _checked(folder, path, tuple[kind, ...], list(csv.DictReader(text.splitlines())))  # type: ignore[valid-type]


def _checked(folder: Path, path: Path, kind: type[T], data: Any) -> T:
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise _unlike(folder, path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _unlike(folder: Path, path: Path, fault: str) -> DataError:
    return DataError(f"{folder / path}: does not hold what it should ({fault}); run `dvc repro {WRITER[path]}` again")
