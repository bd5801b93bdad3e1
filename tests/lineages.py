"""Lineages by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from evopipe.core.arch import Arch
from evopipe.mutations import NONE, Mutation
from evopipe.schema.network import NetworkConfig
from evopipe.searchers.history import Best, Born, Record, Scored

LR = "lr"
ARCH = Arch.start(NetworkConfig(encoder=(8,), latent=8), ())


def born(slot: int, id: int, of: int | None = None, parent: int | None = None, lr: float = 1e-3, why: str = "") -> Born:
    """Who is next in a slot, of the slot `of`; with a parent, unless it waits, a child with another value."""
    child = parent is not None and why not in ("waits", "leads")
    mutation = Mutation("rl_hp", LR, 1e-3, lr) if child else NONE
    return Born(slot, id, parent, of, ARCH, {LR: lr}, mutation, why)


def record(generation: int, step: int, scored: Sequence[tuple[Any, ...]] = (), children: Sequence[Born] = ()) -> Record:
    """A generation; who was scored are (slot, id, fitness), and steps where these are not all's."""
    members = []
    for slot, id, fitness, *steps in scored:
        well, score = fitness is not None, -math.inf if fitness is None else fitness
        members.append(Scored(slot, id, None, id, ARCH, {LR: 1e-3}, well, score, *steps))
    return Record(generation, step, tuple(members), Best(0, 1.0), tuple(children))


WAITED = [
    record(0, 0, children=[born(0, 0, lr=1e-3), born(1, 1, lr=2e-3)]),
    record(1, 100, [(0, 0, 5.0)], [born(0, 0, of=0), born(1, 2, of=0, parent=0, lr=4e-3, why="a child")]),
    record(2, 200, [(0, 0, 7.0)], [born(0, 0, of=0), born(1, 2, of=1, parent=0, lr=4e-3, why="waits")]),
    record(3, 200, [(1, 2, 9.0, 200)], [born(0, 3, why="a trial"), born(1, 2, of=1, parent=0, lr=4e-3, why="leads")]),
    record(4, 100, [(0, 3, 1.0, 100), (1, 2, 8.0, 300)]),
]
"""Member 2, a child of 0 after 100 steps, waits for a generation, then lives; 3 takes 0's place; 1 never lived."""
