"""Resizing a member's tensors when its architecture changes.

Surviving weights keep their values, surviving Adam moments too. What is added leaves the function unchanged:

* nodes under layer normalisation: new units get the *mean* of the layer's incoming weights and bias, so each equals the
  mean and normalises to 0. That would shrink the variance by H / (H + n): all incoming weights and biases grow by
  √((H + n) / H) to make up for it (so that the normalisation's ε weighs as before), old gains shrink by as much, new
  shifts are 0;
* nodes without it: fresh incoming, zero outgoing weights; where units pass by a blended layer, so that their readers
  are in use already, zero incoming weights;
* layers: blended in with α = 0;
* channels of a convolution: fresh incoming, zero outgoing weights;
* a larger kernel: zero weights around the old ones, and as much more padding;
* residual blocks, and nodes inside them: zero weights back into the stream;
* nodes of an LSTM layer: fresh incoming, zero outgoing weights, those to the layer's old units one step later too;
  where they would land on units in use, zero weights into their candidates, so that their cells stay empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from evopipe.core import lstm
from evopipe.core.arch import Arch, LayerLayout, Part, Role, Widths, initialise, of_role, own_layout
from evopipe.core.layers import NOT_ZERO_AT_ZERO


@dataclass(frozen=True)
class Change:
    """An architecture before and after one mutation."""

    old: Arch
    new: Arch

    def survivors(self, role: Role = "whole") -> list[tuple[int, int]]:
        """(index before, index after) of every hidden layer of a network that is in both; layers keep their names."""
        before, after = (arch.names[of_role(role, len(arch.encoder))] for arch in (self.old, self.new))
        return [(before.index(name), i) for i, name in enumerate(after) if name in before]

    @property
    def in_stem(self) -> bool:
        """Whether it is the convolutions that changed, and so nothing else."""
        return self.old.stem != self.new.stem

    @property
    def of_stream(self) -> bool:
        """Whether it is the width of a residual encoder's stream that changed."""
        return self.new.residual and self.old.latent != self.new.latent

    @property
    def of_memory(self) -> bool:
        """Whether it is the LSTM layers that changed, which are never normalised."""
        return self.new.kind == "lstm" and self.old.encoder != self.new.encoder


def _view(row: torch.Tensor, part: Part) -> torch.Tensor:
    return row[part.start : part.start + part.rows * part.columns].view(part.rows, part.columns)


def _groups(row: torch.Tensor, part: Part) -> torch.Tensor:
    """`[rows, groups, units]`."""
    return _view(row, part).view(part.rows, part.groups, part.units)


def resize_parameters(change: Change, widths: Widths, row: torch.Tensor, rng: Any) -> torch.Tensor:
    """Return the parameters `[n']` of the changed network.

    Args:
        change: architectures before and after.
        widths: input and output width.
        row: parameters `[n]` before.
        rng: a `numpy.random.Generator` for fresh weights; give online and target networks equal ones, so that both
            receive the same new weights.
    """
    before, after = (own_layout(arch, widths) for arch in (change.old, change.new))
    fresh = initialise(change.new, widths, rng)
    if change.in_stem and widths.role != "head":
        return _carry_stem(change, widths, row, fresh)
    stem = [(layer, layer, 0) for layer in before.stem]
    pairs = [
        (before.hidden[old], after.hidden[new], _in_use(change.old, widths, old))
        for old, new in change.survivors(widths.role)
    ]
    outputs = [(old, new, 0) for old, new in zip(before.output, after.output, strict=True)]
    for old, new, in_use in [*stem, *pairs, *outputs]:
        _copy_overlap(old, new, row, fresh)
        if not _arrives_as_zero(change) or change.of_stream:
            _view(fresh, new.weight)[old.weight.rows :] = 0.0
        residual = change.new.residual and not new.weight.name.startswith("head")
        if new.weight.columns > old.weight.columns and not residual:
            grow = _grow_memory if new.recurrent else _grow
            grow(old, new, in_use, fresh)
            if new.shift is not None and not _arrives_as_zero(change):  # nobody reads them yet, so they may differ
                had, has = old.weight.columns, new.weight.columns
                _view(fresh, new.shift)[0, had:] = torch.from_numpy(0.1 * rng.standard_normal(has - had)).float()
    return fresh


def _in_use(arch: Arch, widths: Widths, layer: int) -> int:
    """Return how many places of a hidden layer's output have readers: also those that pass this layer by, and those
    that its new units would reach by passing later layers by. (What an encoder's units reach is in the heads; a head's
    own inputs stand before the latent, and so add no places to those.)"""
    role: Role = "head" if widths.role == "head" else "whole"
    hidden = own_layout(arch, widths._replace(role=role)).hidden
    width = hidden[layer].out
    for reader in hidden[layer + 1 :]:
        if reader.alpha is None:
            break
        width = reader.out
    return width


def _arrives_as_zero(change: Change) -> bool:
    """Whether new units put out 0, so that the weights that read them may be fresh."""
    return change.new.layer_norm and change.new.activation not in NOT_ZERO_AT_ZERO and not change.of_memory


def _copy_overlap(old: LayerLayout, new: LayerLayout, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy what both layers have: the top-left corner of every part, of every group of columns apart."""
    for a, b in zip(old.parts, new.parts, strict=True):
        if isinstance(a, Part) and isinstance(b, Part):
            rows, units = min(a.rows, b.rows), min(a.units, b.units)
            _groups(target, b)[:rows, :, :units] = _groups(source, a)[:rows, :, :units]


def _grow(old: LayerLayout, new: LayerLayout, in_use: int, fresh: torch.Tensor) -> None:
    """Initialise the units that a layer gained so that they contribute nothing yet."""
    had, has = old.weight.columns, new.weight.columns
    weight, bias = _view(fresh, new.weight), _view(fresh, new.bias)
    if new.gain is not None:
        weight[:, had:] = weight[:, :had].mean(dim=1, keepdim=True)
        bias[:, had:] = bias[:, :had].mean()
        scale = (has / had) ** 0.5
        weight *= scale
        bias *= scale
        _view(fresh, new.gain)[:, :had] /= scale
    elif in_use > had:  # units land on ones whose readers are in use: they must put out 0 themselves
        weight[:, had:in_use] = 0.0
        bias[:, had:in_use] = 0.0


def _grow_memory(old: LayerLayout, new: LayerLayout, in_use: int, fresh: torch.Tensor) -> None:
    """`_grow` for an LSTM layer: old units do not read the new ones; those that land on units in use put out 0."""
    assert new.recurrent is not None
    had = old.weight.units
    _groups(fresh, new.recurrent)[had:, :, :had] = 0.0
    for part in (new.weight, new.recurrent, new.bias):
        _groups(fresh, part)[:, lstm.CANDIDATE, had:in_use] = 0.0


def resize_scales(change: Change, widths: Widths, row: torch.Tensor) -> torch.Tensor:
    """Return the scales `[n']` of the changed network's parameters: survivors keep theirs.

    New ones are c / √(inputs), c the mean of |σ| √(inputs) over all weights before: as large as scales are by now.
    """
    before, after = (own_layout(arch, widths) for arch in (change.old, change.new))
    weights = [_view(row, layer.weight) for layer in before.layers]
    mean = sum(float(w.abs().sum()) * w.shape[0] ** 0.5 for w in weights) / sum(w.numel() for w in weights)
    out = torch.zeros(after.size)
    for layer in after.layers:
        for part in (layer.weight, layer.bias):
            _view(out, part)[:] = mean * layer.weight.rows**-0.5
    return _carry(change, widths, row, out)


def resize_moments(change: Change, widths: Widths, row: torch.Tensor) -> torch.Tensor:
    """Return Adam moments `[n']` of the changed network: survivors keep theirs, new weights start at 0."""
    return _carry(change, widths, row, torch.zeros(own_layout(change.new, widths).size))


def _carry(change: Change, widths: Widths, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copy into a row of the changed network what survives of one before; return it."""
    if change.in_stem and widths.role != "head":
        return _carry_stem(change, widths, source, target)
    before, after = (own_layout(arch, widths) for arch in (change.old, change.new))
    hidden = [(before.hidden[old], after.hidden[new]) for old, new in change.survivors(widths.role)]
    ends = zip((*before.stem, *before.output), (*after.stem, *after.output), strict=True)
    for old, new in [*hidden, *ends]:
        _copy_overlap(old, new, source, target)
    return target


def _carry_stem(change: Change, widths: Widths, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`_carry` where channels or kernels changed: new channels keep what the target has coming in, and nobody reads
    them; a kernel is centred in the larger one, or its border cut off."""
    before, after = (own_layout(arch, widths) for arch in (change.old, change.new))
    old_stem, new_stem = change.old.stem, change.new.stem
    for i, (old, new) in enumerate(zip(before.stem, after.stem, strict=True)):
        a, b = (stem.convs[i % len(stem.convs)] for stem in (old_stem, new_stem))
        had, has = _view(source, old.weight).unflatten(0, (-1, a.kernel, a.kernel)), _view(target, new.weight)
        has = has.unflatten(0, (-1, b.kernel, b.kernel))  # [channels in, kernel, kernel, channels out]
        ins, outs = min(len(had), len(has)), min(a.channels, b.channels)
        wider = (b.kernel - a.kernel) // 2
        inner, cut = slice(max(wider, 0), b.kernel - max(wider, 0)), slice(max(-wider, 0), a.kernel - max(-wider, 0))
        has[len(had) :] = 0.0
        if wider > 0:
            has[..., :outs] = 0.0
        has[:ins, inner, inner, :outs] = had[:ins, cut, cut, :outs]
        _view(target, new.bias)[:, :outs] = _view(source, old.bias)[:, :outs]
    for old, new in zip(before.layers, after.layers, strict=True):
        _copy_overlap(old, new, source, target)
    had, has = (_view(row, each.layers[0].weight) for row, each in ((source, before), (target, after)))
    vector = old_stem.vector(widths.inputs)
    has[vector:] = 0.0
    old_at = new_at = vector
    for (c, places), (d, _) in zip(old_stem.features(), new_stem.features(), strict=True):
        n = min(c, d) * places
        has[new_at : new_at + n] = had[old_at : old_at + n]
        old_at, new_at = old_at + c * places, new_at + d * places
    return target


def preserves_function(arch: Arch, widths: Widths, layer: int) -> bool:
    """Whether nodes can be added to a hidden layer, by its index, without changing the function, and learn from there.

    Where they would land on units in use (see `_in_use`) they cannot if the activation is not 0 at 0, and would never
    learn if it is a ReLU without normalisation: their weights start at 0, where its gradient is 0. An LSTM layer's can
    and do.
    """
    encoder = len(arch.encoder)
    at = layer - (1 + encoder) * (widths.role == "head")
    if layer < arch.recurrent or at < 0:  # of a layer before the head its encoder knows
        return True
    if arch.residual and layer <= encoder:
        # A normalised stream cannot widen: every block that writes to it changes what the next one's mean is.
        return layer > 0 or (arch.kind != "simba" and _in_use(arch, widths, encoder) == arch.latent)
    if _in_use(arch, widths, at) == arch.hidden[layer].width:
        return True
    return arch.activation not in NOT_ZERO_AT_ZERO and (arch.layer_norm or arch.activation != "ReLU")
