"""The next generation, made from a strategy's decisions: select → clone → mutate. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evopipe import rng
from evopipe.core.member import Member
from evopipe.mutations import NONE, Mutation, Traits, mutate
from evopipe.mutations.rl_hp import set_values
from evopipe.rng import Purpose
from evopipe.schema.blocks import MutationConfig, TournamentConfig
from evopipe.searchers.contract import DRAWN, Child, Fate, Keep, Trial
from evopipe.searchers.tournament import fates

NOBODY = -1
"""The parent of a new trial."""


@dataclass(frozen=True)
class Evolved:
    """The next generation. Every attribute has one entry for each slot.

    Attributes:
        members: the members.
        mutations: the mutation that made each member; `NONE` if nothing changed.
        parents: the slot of each member's parent; `NOBODY` for a new trial.
        why: the reason why each member is in its slot, as text.
    """

    members: tuple[Member, ...]
    mutations: tuple[Mutation, ...]
    parents: tuple[int, ...]
    why: tuple[str, ...] = ()


def carry_out(
    decided: Sequence[Fate],
    mutation: MutationConfig,
    traits: Traits,
    members: Sequence[Member],
    generation: int,
    next_id: int,
    keys: Sequence[int],
    new: Callable[[int, int, int, Mapping[str, float]], Member],
) -> Evolved:
    """Make the next generation from the decisions of a search strategy: keep, copy, mutate or create a member for each
    slot.

    Args:
        decided: the decision for each slot, as `Searcher.step` returned it.
        mutation, traits: the settings of mutation, and the facts about the algorithm that mutation needs.
        members: the members, in the order of slots.
        generation: the generation's number; together with the keys it fixes the random draws of mutations.
        next_id: a slot's new member has the id `next_id + slot`.
        keys: the random key of each slot's next member.
        new: a function `(slot, id, key, values)` that creates a member with fresh weights, where the strategy
            decided so. `values` are its hyper-parameters by name.
    """
    born = [
        _one(fate, mutation, traits, members, generation, slot, next_id + slot, keys[slot], new)
        for slot, fate in enumerate(decided)
    ]
    return Evolved(
        tuple(member for member, _, _ in born), tuple(change for _, change, _ in born),
        tuple(parent for _, _, parent in born), tuple(fate.why for fate in decided),
    )  # fmt: skip


def _one(
    fate: Fate, mutation: MutationConfig, traits: Traits, members: Sequence[Member], generation: int,
    slot: int, id: int, key: int, new: Callable[[int, int, int, Mapping[str, float]], Member],
) -> tuple[Member, Mutation, int]:  # fmt: skip
    """Return one slot's next member, what changed in it, and the slot of its parent."""
    match fate:
        case Keep():
            return members[slot], NONE, slot
        case Trial(values):
            return new(slot, id, key, values), NONE, NOBODY
        case Child(of, change):
            parent = members[of]
            child, changed = parent.clone(slot, id, key), NONE  # nothing is shared with a parent
            if change == DRAWN:
                child, changed = mutate(mutation, traits, child, rng.host(key, Purpose.MUTATE, generation))
            elif isinstance(change, Mapping):
                child, changed = set_values(child, change)
            if fate.survives and changed is NONE:
                child = replace(child, id=parent.id, parent=parent.parent)
            return child, changed, of


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
    """Make the next generation by tournament selection and mutation, and return it.

    Args:
        selection: the settings of the tournament.
        mutation, traits: the settings of mutation, and the facts about the algorithm that mutation needs.
        members: the members, in the order of slots.
        fitness: `[P]`, the members' fitness; −∞ for members that cannot be parents.
        seed, generation: the run's seed and the generation's number, which fix every random draw.
        next_id: a new child in slot s has the id `next_id + s`.
    """
    chooser = rng.host(rng.run_key(seed), Purpose.SELECT, generation)
    decided = fates(selection, fitness, chooser, mutation.mutate_elite)
    if decided is None:  # nobody can be a parent: all stay, with children of their own
        decided = [Child(slot) for slot in range(len(members))]
        if selection.elitism and not mutation.mutate_elite:
            decided[0] = Child(0, None)
    keys = [member.key for member in members]
    return carry_out(decided, mutation, traits, members, generation, next_id, keys, _no_trial)


def _no_trial(slot: int, id: int, key: int, values: Mapping[str, float]) -> Member:
    raise NotImplementedError("a tournament begins no new trial")
