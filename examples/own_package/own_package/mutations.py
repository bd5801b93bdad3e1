"""A mutation: what another kind of change in a child may look like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evopipe.core.member import Member
from evopipe.mutations import Mutation, Traits
from evopipe.schema.evolution import MutationConfig


def swap_rows(
    cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator
) -> tuple[Member, Mutation] | None:
    """Let two inputs of one layer of the acting network change places."""
    network = traits.acting[-1]
    name = next(n for n, kind in traits.kinds.items() if kind == ("parameters", network))
    row = member.tensors[name].clone()  # what was given stays as it is
    matrices = {n: part for n, part in member.arch.named(traits.widths[network], row).items() if part.ndim == 2}
    layer = sorted(matrices)[int(rng.integers(len(matrices)))]
    matrix = matrices[layer]
    if len(matrix) < 2:
        return None  # nothing can change: another kind is drawn
    i, j = sorted(int(k) for k in rng.choice(len(matrix), 2, replace=False))
    matrix[[i, j]] = matrix[[j, i]]
    return replace(member, tensors={**member.tensors, name: row}), Mutation("swap_rows", layer, i, j)
