"""The mutation `parameters`: Gaussian noise on some weights of the networks that act."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from evopipe.core.member import Member
from evopipe.mutations.values import Changed, Mutation, Traits
from evopipe.schema.evolution import MutationConfig

_POSITIONS = 0.1  # share of a weight matrix that is disturbed
_RESET = 0.05  # share of those drawn anew
_LARGEST = 1e6


def mutate(cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> Changed:
    """Add noise to some weights of the networks that act, and of a shared encoder.

    One or more weight matrices are drawn, at most all of them. In each drawn matrix, a tenth of the entries change: 95
    % of these receive noise of standard deviation `cfg.sd · |w|` (w is the entry), and 5 % are drawn anew from N(0, 1).
    Return the changed copy of the member and the record of the mutation, or None if `cfg.sd` is 0 or the networks have
    no matrix.

    Args:
        cfg: the settings of mutation.
        traits: the facts about the algorithm: its networks, tensors and hyper-parameters.
        member: the member, which is not changed itself.
        rng: the generator of all random draws.
    """
    if cfg.sd == 0:
        return None
    values, matrices = {}, []
    for network in traits.acting:
        name = next(n for n, kind in traits.kinds.items() if kind == ("parameters", network))
        values[name] = member.tensors[name].clone()
        parts = member.arch.named(traits.widths[network], values[name])
        matrices += [tensor for tensor in parts.values() if tensor.ndim == 2]
    if not matrices:  # a module of the user's own may have none
        return None
    chosen = rng.permutation(len(matrices))[: int(rng.integers(1, len(matrices) + 1))]
    touched = sum(_disturb(matrices[int(i)], cfg.sd, rng) for i in sorted(chosen))
    return replace(member, tensors={**member.tensors, **values}), Mutation("parameters", f"{touched} weights")


def _disturb(matrix: torch.Tensor, sd: float, rng: np.random.Generator) -> int:
    flat = matrix.view(-1)
    positions = torch.from_numpy(rng.choice(len(flat), math.ceil(_POSITIONS * len(flat)), replace=False))
    noise = torch.from_numpy(rng.standard_normal(len(positions))).float()
    anew = torch.from_numpy(rng.random(len(positions)) < _RESET)
    old = flat[positions]
    flat[positions] = torch.where(anew, noise, old + sd * old.abs() * noise).clamp(-_LARGEST, _LARGEST)
    return len(positions)
