"""Resizing a member's tensors when its architecture changes.

Surviving weights keep their values, surviving Adam moments too. What is added leaves the function unchanged:

* nodes under layer normalisation: new units get the *mean* of the layer's incoming weights and bias, so each equals the
  mean and normalises to 0. That would shrink the variance by H / (H + n): all incoming weights and biases grow by
  √((H + n) / H) to make up for it (so that the normalisation's ε weighs as before), old gains shrink by as much, new
  shifts are 0;
* nodes without it: fresh incoming, zero outgoing weights; where units pass by a blended layer, so that their readers
  are in use already, zero incoming weights;
* layers: blended in with α = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from evopipe.core.layers import NOT_ZERO_AT_ZERO
from evopipe.core.networks import Arch, LayerLayout, Layout, Part, initialise, layer_names, own_layout
from evopipe.core.population import Widths


@dataclass(frozen=True)
class Change:
    """An architecture before and after one mutation."""

    old: Arch
    new: Arch

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Hidden layer names before and after."""
        return tuple(layer_names(len(a.encoder), len(a.head)) for a in (self.old, self.new))  # type: ignore[return-value]

    def survivors(self) -> list[tuple[int, int]]:
        """(index before, index after) of every hidden layer that is in both; layers keep their names."""
        before, after = self.names
        return [(before.index(name), i) for i, name in enumerate(after) if name in before]


def _view(row: torch.Tensor, part: Part) -> torch.Tensor:
    return row[part.start : part.start + part.rows * part.columns].view(part.rows, part.columns)


def resize_parameters(change: Change, widths: Widths, row: torch.Tensor, rng: Any) -> torch.Tensor:
    """Return the parameters `[n']` of the changed network.

    Args:
        change: architectures before and after.
        widths: input and output width.
        row: parameters `[n]` before.
        rng: a `numpy.random.Generator` for fresh weights; give online and target networks equal ones, so that both
            receive the same new weights.
    """
    before, after = (own_layout(arch, *widths) for arch in (change.old, change.new))
    fresh = initialise(change.new, *widths, rng)
    pairs = [(before.hidden[old], after.hidden[new], _in_use(before, old)) for old, new in change.survivors()]
    for old, new, in_use in [*pairs, (before.output, after.output, 0)]:
        _copy_overlap(old, new, row, fresh)
        if not _arrives_as_zero(change):
            _view(fresh, new.weight)[old.weight.rows :] = 0.0
        if new.weight.columns > old.weight.columns:
            _grow(old, new, in_use, fresh)
            if new.shift is not None and not _arrives_as_zero(change):  # nobody reads them yet, so they may differ
                had, has = old.weight.columns, new.weight.columns
                _view(fresh, new.shift)[0, had:] = torch.from_numpy(0.1 * rng.standard_normal(has - had)).float()
    return fresh


def _in_use(before: Layout, layer: int) -> int:
    """Return how many places of a hidden layer's output have readers: also those that pass this layer by, and those
    that its new units would reach by passing later layers by."""
    width = before.hidden[layer].out
    for reader in before.hidden[layer + 1 :]:
        if reader.alpha is None:
            break
        width = reader.out
    return width


def _arrives_as_zero(change: Change) -> bool:
    """Whether new units put out 0, so that the weights that read them may be fresh."""
    return change.new.layer_norm and change.new.activation not in NOT_ZERO_AT_ZERO


def _copy_overlap(old: LayerLayout, new: LayerLayout, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy what both layers have: the top-left corner of every part."""
    for a, b in zip(old[:5], new[:5], strict=True):
        if isinstance(a, Part) and isinstance(b, Part):
            rows, columns = min(a.rows, b.rows), min(a.columns, b.columns)
            _view(target, b)[:rows, :columns] = _view(source, a)[:rows, :columns]


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


def resize_moments(change: Change, widths: Widths, row: torch.Tensor) -> torch.Tensor:
    """Return Adam moments `[n']` of the changed network: survivors keep theirs, new weights start at 0."""
    before, after = (own_layout(arch, *widths) for arch in (change.old, change.new))
    out = torch.zeros(after.size)
    pairs = [(before.hidden[old], after.hidden[new]) for old, new in change.survivors()]
    for old, new in [*pairs, (before.output, after.output)]:
        _copy_overlap(old, new, row, out)
    return out


def preserves_function(arch: Arch, widths: Widths, layer: int) -> bool:
    """Whether nodes can be added to a hidden layer, by its index, without changing the function, and learn from there.

    Where they would land on units in use (see `_in_use`) they cannot if the activation is not 0 at 0, and would never
    learn if it is a ReLU without normalisation: their weights start at 0, where its gradient is 0.
    """
    before = own_layout(arch, *widths)
    if _in_use(before, layer) == before.hidden[layer].weight.columns:
        return True
    return arch.activation not in NOT_ZERO_AT_ZERO and (arch.layer_norm or arch.activation != "ReLU")
