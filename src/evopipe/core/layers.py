"""Layers written for the population axis: activations and masked layer normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import get_args

import torch

from evopipe.schema.network import Activation
from evopipe.types import Tensor

EPS = 1e-5


@cache
def _forward(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation of torch's class of this name; not before it is used, since parameters need no torch."""
    found: Callable[[Tensor], Tensor] = getattr(torch.nn, name)().forward
    return found


def _activation(name: str, x: Tensor) -> Tensor:
    return _forward(name)(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {name: partial(_activation, name) for name in get_args(Activation)}
# The result may take the place of its argument, less memory to go through, where the gradient is computed from the
# result either way. (ELU's would be another formula in place: a member's bits would depend on its neighbours' kinds.)
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": lambda x: torch.relu_(x),
    "Tanh": lambda x: torch.tanh_(x),
    "Sigmoid": lambda x: torch.sigmoid_(x),
}
NOT_ZERO_AT_ZERO = frozenset({"Sigmoid", "Softplus"})


def activate(x: Tensor, runs: Sequence[tuple[str, int, int]]) -> Tensor:
    """Apply each member's activation function to x `[P, B, H]`: B inputs and H units of P members. x may be
    overwritten.

    Members are sorted by activation. `runs` has a triple (activation, first, end) for each activation: the rows of x
    from `first` to `end` (exclusive) have it. These slices cost a fifth of a `torch.where` over all activations.
    """
    if len(runs) == 1:
        name = runs[0][0]
        return IN_PLACE.get(name, ACTIVATIONS[name])(x)
    parts = x.split([end - first for _, first, end in runs])  # slices one by one would each be padded again backward
    return torch.cat([ACTIVATIONS[name](part) for (name, _, _), part in zip(runs, parts, strict=True)])


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """Normalise x over each member's own units (Ba, Kiros & Hinton, 2016). Padding units become zero.

    A row whose variance is not finite becomes NaN.

    Args:
        x: `[P, B, H]`: B inputs and H units, with padding, of P members.
        gain, bias: `[P, 1, H]`, zero on padding.
        mask: `[P, 1, H]`, 1 on a member's own units and 0 on padding; all 0 if the member lacks the layer. None if no
            member has padding.

    The mask is multiplied into the sums, because a plain `x.sum(-1)` would let gradient flow into padding. The sums are
    not computed as matrix products, whose last bits depend on the number of members on some processors.
    """
    if mask is None:
        out, _, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, EPS)
        return torch.addcmul(bias + no_number(scale), out, gain)
    own = mask.sum(dim=2, keepdim=True).clamp(min=1.0)  # a member without this layer has no unit to divide by
    share = mask / own  # [P, 1, H], the mean's weights
    centred = x - (x * share).sum(dim=-1, keepdim=True)
    variance = (centred * centred * share).sum(dim=-1, keepdim=True)  # [P, B, 1]
    scale = torch.rsqrt(variance + EPS)
    return torch.addcmul(bias, centred * (scale + no_number(scale)), gain)


def no_number(scale: Tensor) -> Tensor:
    """Return NaN where the variance was not finite, else 0. `scale` is 1 over the standard deviation.

    Normalisation adds the result to its scale or bias, so that a member that diverged can be recognised. Without it, an
    infinite variance would give the scale 1 / √∞ = 0, and so finite values.
    """
    return 0.0 / scale.detach()
