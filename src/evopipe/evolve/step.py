"""One evolution step: select → clone → mutate. A pure function of members, fitness and the generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evopipe import rng
from evopipe.core.member import Member
from evopipe.evolve.mutate import NONE, Mutation, Traits, mutate
from evopipe.evolve.select import tournament
from evopipe.rng import Purpose
from evopipe.schema.blocks import MutationConfig, TournamentConfig


@dataclass(frozen=True)
class Evolved:
    """The next generation: in slot order its members, how each was mutated, and the slot of each one's parent."""

    members: tuple[Member, ...]
    mutations: tuple[Mutation, ...]
    parents: tuple[int, ...]


def evolve(
    selection: TournamentConfig,
    mutation: MutationConfig,
    traits: Traits,
    members: Sequence[Member],
    fitness: np.ndarray,
    seed: int,
    generation: int,
    next_id: int,
) -> Evolved:
    """Return the next generation. Members are in slot order; fitness `[P]` is −∞ where one must not be a parent. Seed
    and generation fix every draw. Children take ids from `next_id` by slot."""
    chooser = rng.host(rng.run_key(seed), Purpose.SELECT, generation)
    selected = tournament(selection, fitness, chooser)
    # Nothing is shared with a parent, and each child has its slot's own key.
    children = [members[p].clone(slot, next_id + slot, members[slot].key) for slot, p in enumerate(selected.parents)]
    spared = 0 if selection.elitism and not mutation.mutate_elite else -1
    born = [
        (child, NONE)
        if child.slot == spared
        else mutate(mutation, traits, child, rng.host(child.key, Purpose.MUTATE, generation))
        for child in children
    ]
    if selection.elitism and selected.elite is not None and born[0][1] is NONE:  # it survives, as who it is
        elite = members[selected.elite]
        born[0] = (replace(born[0][0], id=elite.id, parent=elite.parent), NONE)
    return Evolved(tuple(m for m, _ in born), tuple(change for _, change in born), selected.parents)
