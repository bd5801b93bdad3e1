"""What a run left in its files, as the report needs it: who descends from whom, and every score."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from evopipe.errors import DataError, MissingInputError
from evopipe.storage import safeio

# Below the folder that the pipeline ran in; `stages/paths.py` has the same, and a test holds them together.
FITNESS, LINEAGE = Path("reports/fitness.csv"), Path("reports/lineage.jsonl")
TIMING, TRAIN = Path("reports/timing.csv"), Path("reports/train.json")
EVALUATION, MEMBERS = Path("reports/evaluation.json"), Path("reports/members.json")
EPISODES, ELITE = Path("reports/episodes.csv"), Path("models/elite")
POLICY = "policy.json"
WRITERS = dict.fromkeys((FITNESS, LINEAGE, TIMING, TRAIN), "train")
WRITERS |= dict.fromkeys((EVALUATION, MEMBERS, EPISODES), "evaluate") | {ELITE: "export"}

Key = tuple[int, int]
"""A member at the end of a generation: (generation, slot)."""
T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """One member at the end of one generation.

    Attributes:
        key: its generation and slot.
        id: its name in the lineage; it keeps it while it survives.
        parent: whom it descends from, in the generation before (or the last healthy one); None at the start.
        fitness: its score; NaN where it diverged.
        gain: by how much that exceeds the parent's; NaN where there is nothing to compare.
        kind: the mutation that made it; `change` says what that changed.
        survived: it is its parent, one generation older: same id.
        hyper: hyper-parameters by name; `traits`: numbers and words that describe the architecture.
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
    hyper: Mapping[str, float]
    traits: Mapping[str, float | str]


@dataclass(frozen=True)
class Generation:
    """The end of one generation; steps are totals of the population, `elite` is the best score so far or NaN."""

    number: int
    env_steps: int
    eval_steps: int
    elite: float


@dataclass(frozen=True)
class Episodes:
    """Held-out episodes of one member, `[n]` each, and their summary."""

    name: str
    seeds: tuple[int, ...]
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    mean: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Timing:
    """How long a generation took, and the steps of the population taken in these seconds."""

    generation: int
    seconds: float
    env_steps: int
    eval_steps: int


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        summary: `reports/train.json`.
        policy: `policy.json` of the elite.
        elite: its held-out episodes; `members`: those of the last population.
    """

    generations: tuple[Generation, ...]
    nodes: Mapping[Key, Node]
    summary: Mapping[str, Any]
    policy: Mapping[str, Any]
    elite: Episodes
    members: tuple[Episodes, ...]
    timing: tuple[Timing, ...]

    @cached_property
    def slots(self) -> int:
        """Members of the population."""
        return 1 + max((slot for _, slot in self.nodes), default=0)

    @cached_property
    def descent(self) -> tuple[Node, ...]:
        """The elite and its ancestors, oldest first."""
        born, name = int(self.summary["elite"]["generation"]), self.summary["elite"]["id"]
        node = next((n for n in self.nodes.values() if n.key[0] == born and n.id == name), None)
        line = []
        while node is not None:
            line.append(node)
            node = self.nodes[node.parent] if node.parent else None
        return tuple(reversed(line))

    @cached_property
    def env_steps(self) -> Mapping[int, int]:
        """Training steps of the population at the end of each generation."""
        return {generation.number: generation.env_steps for generation in self.generations}


def read(folder: Path) -> Run:
    """Read a finished run.

    Args:
        folder: the folder that the pipeline ran in: it has `reports/` and `models/elite/`.

    Raises:
        MissingInputError: a file is not there.
        DataError: a file is damaged, or does not hold what its stage writes.
    """
    for path, stage in WRITERS.items():
        if not (folder / path).exists():
            raise MissingInputError(f"{folder / path}: not there; run `evopipe {stage}` or `dvc repro {stage}` first")
    summary = _json(folder / TRAIN, "train", lambda data: {**data, "elite": {**data["elite"]}})
    generations = _rows(folder / FITNESS, "train", _generation)
    records = _lines(folder / LINEAGE)
    nodes = _guarded(folder / LINEAGE, "train", lambda: _nodes(records))
    episodes = _rows(folder / EPISODES, "evaluate", lambda row: row)
    scores = _json(folder / MEMBERS, "evaluate", lambda data: {name: _score(entry) for name, entry in data.items()})
    scores["elite"] = _json(folder / EVALUATION, "evaluate", lambda data: _score(data["elite"]))
    played = _guarded(folder / EPISODES, "evaluate", lambda: _episodes(episodes, scores))
    files = safeio.read_folder(folder / ELITE, only=(POLICY,))
    return Run(
        generations=tuple(generations),
        nodes=nodes,
        summary=summary,
        policy=safeio.parse_json(files[POLICY], str(folder / ELITE / POLICY)),
        elite=played.pop("elite"),
        members=tuple(played.values()),
        timing=tuple(_rows(folder / TIMING, "train", _timing)),
    )


# --- files ------------------------------------------------------------------------------------------------------------


def _guarded(path: Path, stage: str, make: Callable[[], T]) -> T:
    """Call `make`; say which file is at fault where its content is not what was expected."""
    try:
        return make()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: does not hold what it should ({error!r}); run `dvc repro {stage}` again") from error


def _json(path: Path, stage: str, take: Callable[[Any], T]) -> T:
    data = safeio.read_json(path)
    return _guarded(path, stage, lambda: take(data))


def _lines(path: Path) -> list[Any]:
    return [safeio.parse_json(line, str(path)) for line in safeio.read_bytes(path).splitlines()]


def _rows(path: Path, stage: str, take: Callable[[dict[str, str]], T]) -> list[T]:
    text = safeio.read_bytes(path).decode(errors="replace")
    return _guarded(path, stage, lambda: [take(row) for row in csv.DictReader(io.StringIO(text))])


def _generation(row: Mapping[str, str]) -> Generation:
    elite = float(row["elite"]) if row["elite"] else math.nan
    return Generation(int(row["generation"]), int(row["env_steps"]), int(row["eval_steps"]), elite)


def _timing(row: Mapping[str, str]) -> Timing:
    return Timing(int(row["generation"]), float(row["seconds"]), int(row["env_steps"]), int(row["eval_steps"]))


def _score(entry: Mapping[str, Any]) -> tuple[float, tuple[float, float]]:
    """Return a member's mean and its interval."""
    low, high = entry["interval"]
    return float(entry["mean"]), (float(low), float(high))


def _episodes(
    rows: Sequence[Mapping[str, str]], scores: Mapping[str, tuple[float, tuple[float, float]]]
) -> dict[str, Episodes]:
    found: dict[str, list[tuple[int, float, int]]] = {name: [] for name in scores}
    for row in rows:
        found[row["member"]].append((int(row["seed"]), float(row["return"]), int(row["length"])))
    return {
        name: Episodes(
            name,
            seeds=tuple(seed for seed, _, _ in found[name]),
            returns=tuple(total for _, total, _ in found[name]),
            lengths=tuple(length for _, _, length in found[name]),
            mean=mean,
            interval=interval,
        )
        for name, (mean, interval) in scores.items()
    }


# --- lineage ----------------------------------------------------------------------------------------------------------


def _nodes(records: Sequence[Mapping[str, Any]]) -> dict[Key, Node]:
    """Return every member at the end of every generation, in order."""
    nodes: dict[Key, Node] = {}
    last_seen: dict[int, Key] = {}  # by id
    for before, record in pairwise(records):
        births = {child["slot"]: child for child in before["children"]}
        number = record["generation"]
        fresh = [
            _node(member, number, births.get(member["slot"]), before["generation"], nodes, last_seen)
            for member in record["members"]
        ]
        for node in fresh:
            nodes[node.key] = node
            last_seen[node.id] = node.key
    return nodes


def _node(
    member: Mapping[str, Any],
    number: int,
    birth: Mapping[str, Any] | None,
    before: int,
    nodes: Mapping[Key, Node],
    last_seen: Mapping[int, Key],
) -> Node:
    if birth is None:  # every member had diverged, and the last healthy generation came back
        parent, mutation = last_seen.get(member["id"]), {"kind": "none", "what": "", "before": None, "after": None}
    else:
        at = (before, birth["parent_slot"])
        parent, mutation = at if at in nodes else None, birth["mutation"]
    fitness = math.nan if member["fitness"] is None or not member["healthy"] else float(member["fitness"])
    return Node(
        key=(number, int(member["slot"])),
        id=int(member["id"]),
        parent=parent,
        fitness=fitness,
        gain=fitness - nodes[parent].fitness if parent else math.nan,
        kind=str(mutation["kind"]),
        change=_change(mutation),
        survived=parent is not None and nodes[parent].id == member["id"],
        network=_network(member["arch"]),
        hyper={str(name): float(value) for name, value in sorted(member["hyper"].items())},
        traits=dict(_traits(member["arch"])),
    )


def _change(mutation: Mapping[str, Any]) -> str:
    what, before, after = mutation["what"], mutation["before"], mutation["after"]
    if before is None:
        return str(what)
    old, new = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in (before, after))
    return f"{what} {old} → {new}"


def _network(arch: Mapping[str, Any]) -> str:
    """Return a network in short, in the order in which it computes: `128+64 | 32 relu`."""
    parts = [arch.get("encoder"), arch.get("latent"), arch.get("head")]
    words = ["+".join(str(width) for width, *_ in part) if isinstance(part, list) else str(part) for part in parts]
    return f"{' | '.join(word for word in words if word and word != 'None')} {arch.get('activation', '')}".strip()


def _traits(arch: Mapping[str, Any]) -> Iterator[tuple[str, float | str]]:
    """Describe an architecture by numbers and words; a part that is a list of layers gives two."""
    for name, value in sorted(arch.items()):
        label = name.replace("_", " ")
        if isinstance(value, list):
            yield f"{label} layers", float(len(value))
            yield f"{label} units", float(sum(block[0] if isinstance(block, list) else block for block in value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{label} units" if name == "latent" else label, float(value)
        else:
            yield label, {True: "yes", False: "no"}.get(value, str(value))
