"""The mutation `rl_hp`: one hyper-parameter grows or shrinks, or several get values that a search strategy chose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from evopipe.core.member import Member
from evopipe.mutations.values import NONE, Changed, Mutation, Traits
from evopipe.schema.blocks import MutationConfig
from evopipe.schema.declare import Evolve


def mutate(cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> Changed:
    """Multiply one RL hyper-parameter of a member, drawn at random, by its factor `grow` or `shrink`, within its range.

    Return the changed copy of the member and the record of the mutation, or None if no hyper-parameter can change.

    Args:
        cfg: the settings of mutation.
        traits: the facts about the algorithm: its networks, tensors and hyper-parameters.
        member: the member, which is not changed itself.
        rng: the generator of all random draws.
    """
    names = sorted(traits.evolve)
    for i in rng.permutation(len(names)):
        name = names[int(i)]
        old, whole = member.hyper[name], name in traits.whole
        grow = bool(rng.random() < 0.5)
        for up in (grow, not grow):
            new = scaled(old, traits.evolve[name], up, whole)
            if new != old:
                return replace(member, hyper={**member.hyper, name: new}), Mutation("rl_hp", name, old, new)
    return None


def scaled(old: float, evolve: Evolve, up: bool, whole: bool) -> float:
    """Return the value `old` multiplied by `evolve.grow` if `up`, else by `evolve.shrink`.

    The result is clipped to the range from `evolve.min` to `evolve.max`. If `whole`, the value is a whole number and
    moves by at least 1. If clipping would lower a value that is to grow, or raise a value that is to shrink, `old` is
    returned unchanged. This happens only if `old` is outside the range.
    """
    new, low, high = old * (evolve.grow if up else evolve.shrink), evolve.min, evolve.max
    if whole:
        new = max(round(new), old + 1) if up else min(round(new), old - 1)
        low, high = math.ceil(low), math.floor(high)
    new = min(max(new, low), high)
    # A value outside its range (set by hand) must not jump against the drawn direction.
    if (new < old) if up else (new > old):
        return old
    return int(new) if whole else float(new)


def set_values(member: Member, values: Mapping[str, float]) -> tuple[Member, Mutation]:
    """Return a copy of a member with the given hyper-parameter values, and a record of what changed.

    The record is `NONE`, and the member is returned as it is, if all values are equal to the old ones.
    """
    changed = {name: value for name, value in sorted(values.items()) if value != member.hyper[name]}
    if not changed:
        return member, NONE
    each = [Mutation("rl_hp", name, member.hyper[name], value) for name, value in changed.items()]
    many = Mutation("rl_hp", ", ".join(one.describe() for one in each))
    return replace(member, hyper={**member.hyper, **changed}), each[0] if len(each) == 1 else many
