"""The one reader of `lineage.jsonl`: every member at the end of every generation, and whom it descends from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from evopipe.errors import DataError
from evopipe.storage.files import parse_json, read_bytes

Key = tuple[int, int]
"""A member at the end of a generation: (generation, slot)."""


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


def read_nodes(path: Path) -> dict[Key, Node]:
    """Read every member at the end of every generation, in order.

    Raises:
        DataError: the file is damaged, or is no lineage.
    """
    try:
        return _nodes([parse_json(line, str(path)) for line in read_bytes(path).splitlines()])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: is no lineage of a run ({error!r}); run `dvc repro train` again") from error


def _nodes(records: Sequence[Mapping[str, Any]]) -> dict[Key, Node]:
    found: dict[Key, Node] = {}
    last_seen: dict[int, Key] = {}  # by id
    for before, record in pairwise(records):
        births = {child["slot"]: child for child in before["children"]}
        fresh = []
        for member in record["members"]:
            birth = births.get(member["slot"])
            if birth is None:  # every member had diverged, and the last healthy generation came back
                parent, mutation = last_seen.get(member["id"]), {"kind": "none", "what": "", "before": None}
            else:
                parent, mutation = (before["generation"], birth["parent_slot"]), birth["mutation"]
            fresh.append(_node(member, record["generation"], found.get(parent) if parent else None, mutation))
        found |= {node.key: node for node in fresh}
        last_seen |= {node.id: node.key for node in fresh}
    return found


def _node(member: Mapping[str, Any], generation: int, parent: Node | None, mutation: Mapping[str, Any]) -> Node:
    fitness = float(member["fitness"]) if member["healthy"] and member["fitness"] is not None else math.nan
    arch = member["arch"]
    return Node(
        key=(generation, int(member["slot"])),
        id=int(member["id"]),
        parent=parent.key if parent else None,
        fitness=fitness,
        gain=fitness - parent.fitness if parent else math.nan,
        kind=str(mutation["kind"]),
        change=_change(mutation),
        survived=parent is not None and parent.id == member["id"],
        network=_network(arch),
        traits={name: float(value) for name, value in sorted(member["hyper"].items())} | dict(_traits(arch)),
    )


def _change(mutation: Mapping[str, Any]) -> str:
    if mutation["before"] is None:
        return str(mutation["what"])
    values = (mutation["before"], mutation["after"])
    old, new = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in values)
    return f"{mutation['what']} {old} → {new}"


def _network(arch: Mapping[str, Any]) -> str:
    """Return a network in short, in the order in which it computes: `128+64 | 32 relu`."""
    parts = [arch.get("encoder"), arch.get("latent"), arch.get("head")]
    widths = ["+".join(str(width) for width, *_ in part) if isinstance(part, list) else str(part) for part in parts]
    return f"{' | '.join(part for part in widths if part not in ('', 'None'))} {arch.get('activation', '')}".strip()


def _traits(arch: Mapping[str, Any]) -> Iterator[tuple[str, float | str]]:
    """Describe an architecture by numbers and words; a part that is a list of layers gives two."""
    for key, value in sorted(arch.items()):
        name = key.replace("_", " ")
        if isinstance(value, list):
            yield f"{name} layers", float(len(value))
            yield f"{name} units", float(sum(layer[0] if isinstance(layer, list) else layer for layer in value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{name} units" if name == "latent" else name, float(value)
        else:
            yield name, {True: "yes", False: "no"}.get(value, str(value))
