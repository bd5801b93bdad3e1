"""Long short-term memory (Hochreiter & Schmidhuber, 1997; forget gates: Gers et al., 2000) for the population axis.

A layer's weights have four groups of columns: input, forget and output gate, candidate. One product serves all four. A
pad, whose weights are zero, stays at an output and a cell of exactly 0.
"""

from __future__ import annotations

import torch

from evopipe.types import Tensor

GATES = 4
FORGET, CANDIDATE = 1, 3  # places among the groups


def cell(sums: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Take one LSTM step. P counts members, B inputs, H units.

    Args:
        sums: `[P, B, 4H]`, the pre-activations of the three gates and of the candidate.
        c: `[P, B, H]`, the cell states before the step.

    Returns:
        The outputs and the cell states after the step, `[P, B, H]` each.
    """
    width = c.shape[-1]
    gates, candidate = sums.split((CANDIDATE * width, width), dim=-1)
    i, f, o = gates.sigmoid().split(width, dim=-1)
    c = torch.addcmul(f * c, i, candidate.tanh())
    return o * c.tanh(), c


def sequence(sums: Tensor, recurrent: Tensor, h: Tensor, c: Tensor, begins: Tensor) -> Tensor:
    """Take `L` LSTM steps in sequence; return the outputs `[P, L, B, H]`. P counts members, B sequences, H units.

    Args:
        sums: `[P, L, B, 4H]`, the part of the pre-activations that comes from the layer's input.
        recurrent: `[P, H, 4H]`, the weights that read the layer's outputs of the previous step.
        h, c: `[P, B, H]`, outputs and cell states before the first step.
        begins: `[P, L, B]` bool, True at the first step of an episode. Outputs and cell states are reset to 0 before
            that step, and no gradient passes.
    """
    kept = (~begins).to(sums.dtype)[..., None]  # a product costs a third of a `masked_fill`
    found = []
    for own, keep in zip(sums.unbind(1), kept.unbind(1), strict=True):
        h, c = cell(torch.baddbmm(own, h * keep, recurrent), c * keep)
        found.append(h)
    return torch.stack(found, dim=1)
