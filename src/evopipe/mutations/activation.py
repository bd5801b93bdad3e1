"""The mutation `activation`: another activation function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from evopipe.core.member import Member
from evopipe.mutations.values import Changed, Mutation, Traits
from evopipe.schema.evolution import MutationConfig


def mutate(cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> Changed:
    """Replace the activation function of all hidden layers by another one, drawn from `cfg.activations`.

    Return the changed copy of the member and the record of the mutation, or None if there is no other activation to
    draw.

    Args:
        cfg: the settings of mutation.
        traits: the facts about the algorithm: its networks, tensors and hyper-parameters.
        member: the member, which is not changed itself.
        rng: the generator of all random draws.
    """
    old: Any = member.arch
    others = [name for name in cfg.activations if name != old.activation]
    if not others or not old.activation:
        return None
    new = others[int(rng.integers(len(others)))]
    return replace(member, arch=replace(old, activation=new)), Mutation("activation", "activation", old.activation, new)
