"""Batch renormalisation of what dense layers read (Ioffe, "Batch renormalization", 2017).

A network whose `Widths.renorm` is true normalises the inputs of every dense layer, those of the first and of the output
layer too. Gains, shifts, running means and running variances are part of the network's flat row, so that they are
saved, cloned and mutated with it. They are as `[P, 4, inputs]`, in this order, for P members.

As a rule a layer normalises by the running statistics: y = γ (x − μ) / σ + β with σ = √(variance + ε). In the views
that `training` returns it normalises by the minibatch's own μ_B and σ_B, corrected towards the running ones:

    y = γ ((x − μ_B) / σ_B · r + d) + β,  r = σ_B / σ in [1/3, 3],  d = (μ_B − μ) / σ in [−5, 5].

r and d are constants for the gradient. During a warm-up r is 1 and d is 0, which is batch normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from evopipe.core.layers import no_number
from evopipe.core.net import Net
from evopipe.types import Tensor

ROWS = 4
EPS = 1e-3
R_MAX, D_MAX = 3.0, 5.0


def start(norm: Tensor) -> None:
    """Set the normalisation of a layer to its initial values, in place.

    `norm` is `[4, inputs]`. Its rows are the gains (initially 1), the shifts (0), the running means (0) and the running
    variances (1).
    """
    norm[:] = torch.tensor([1.0, 0.0, 0.0, 1.0])[:, None]


class Minibatch:
    """The renormalisation of one layer's inputs by the statistics of a minibatch.

    Args:
        norm: `[P, 4, inputs]`, the layer's gains, shifts, running means and running variances.
        share: `[P, B, 1]`, the weights of the B inputs in the statistics. The weights of each of P members sum up to 1.
        warm: `[P, 1, 1]` bool, whether the member's warm-up is over.
        own: `[P, 1, inputs]`, 1 for each member's own inputs, and 0 for padding.

    Attributes:
        found: `[P, 2, inputs]`, means and variances of the minibatch in the last call; 0 before the first call, and for
            padding.
    """

    def __init__(self, norm: Tensor, share: Tensor, warm: Tensor, own: Tensor) -> None:
        self.norm, self.share, self.warm, self.own = norm, share, warm, own
        self.found = torch.zeros_like(norm[:, 2:])

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x `[P, B, inputs]`, and keep the statistics in `found`. If a member's are not finite, its results
        are NaN."""
        gain, shift = self.norm[:, :2].split(1, dim=1)
        mean, variance = self.norm.detach()[:, 2:].split(1, dim=1)
        mean_b = (x * self.share).sum(dim=1, keepdim=True)
        centred = x - mean_b
        variance_b = (centred * centred * self.share).sum(dim=1, keepdim=True)
        scale = torch.rsqrt(variance_b + EPS)
        with torch.no_grad():
            self.found = torch.cat((mean_b, variance_b), dim=1) * self.own
            deviation = (variance + EPS).sqrt()
            r = torch.where(self.warm, ((variance_b + EPS).sqrt() / deviation).clamp(1 / R_MAX, R_MAX), 1.0)
            d = torch.where(self.warm, ((mean_b - mean) / deviation).clamp(-D_MAX, D_MAX), 0.0)
        return torch.addcmul(shift, centred * (scale + no_number(scale)) * r + d, gain)


def read(x: Tensor, norm: Tensor | Minibatch | None) -> Tensor:
    """Return the input x `[P, B, inputs]` of a dense layer, normalised.

    If `norm` is a tensor `[P, 4, inputs]` (the layer's gains, shifts, running means and running variances), x is
    normalised by the running statistics. If it is a `Minibatch`, x is normalised by the minibatch's statistics. If it
    is None, x is returned as it is.
    """
    if norm is None:
        return x
    if isinstance(norm, Minibatch):
        return norm(x)
    gain, shift = norm[:, :2].split(1, dim=1)
    mean, variance = norm.detach()[:, 2:].split(1, dim=1)
    scale = torch.rsqrt(variance + EPS)
    return torch.addcmul(shift, (x - mean) * (scale + no_number(scale)), gain)


def training(net: Net, present: Tensor, warm: Tensor) -> list[Any]:
    """Return a network's parameters for a forward pass that normalises by the minibatch's statistics.

    The result has the form of `Net.views`.

    Args:
        net: the network. Each of P members has the same number of rows in it, one or more.
        present: `[P, B]` bool, which of B inputs count in the statistics. At least one must.
        warm: `[P]` bool, whether the member's warm-up is over.
    """
    structure: Any = net.structure
    each, share = len(net.values) // len(present), present.to(net.values.dtype)
    share = (share / share.sum(dim=1, keepdim=True)).repeat_interleave(each, dim=0)[..., None]
    warm = warm.repeat_interleave(each)[:, None, None]
    return [
        view if own is None else view._replace(norm=Minibatch(view.norm, share, warm, own))
        for view, own in zip(net.views, structure.own_inputs(), strict=True)
    ]


def renew(net: Net, views: Sequence[Any], rate: float, active: Tensor) -> None:
    """Move the running statistics of a network towards those of a minibatch, in place: μ ← μ + rate (μ_B − μ), and the
    variance likewise.

    Args:
        net: the network. Each of P members has the same number of rows in it, one or more.
        views: the parameters that the function `training` returned, after a forward pass with them.
        rate: the share of the minibatch's statistics.
        active: `[P]` bool, True for the members whose statistics move. The statistics of other members do not change.
    """
    moves = active.repeat_interleave(len(net.values) // len(active))[:, None, None]
    for own, view in zip(net.frozen.views, views, strict=True):
        if view.norm is not None:
            running = own.norm[:, 2:]
            running.copy_(torch.where(moves, torch.lerp(running, view.norm.found, rate), running))
