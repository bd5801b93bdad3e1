"""Changes of a shard's state since it was last sent: for a replay buffer, the rows of one generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

_ROWS, _PLACES = "rows of ", "places of "  # before the name of a tensor of which only some rows are told
_LARGE = 1 << 16  # bytes of a tensor below which it is told whole


def changes(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the changes from the state `before` to the state `now`, as tensors by name.

    The function `fold` applies such changes to a state. For a large tensor (64 KiB or more), the changes are its
    changed rows and its additional rows. If these are more than half of the tensor, the whole tensor is returned
    instead. All other tensors are returned whole, even if they have not changed.
    """
    told = {}
    for name, tensor in now.items():
        had = before.get(name)
        axis = None if had is None or not had.numel() or tensor.nbytes < _LARGE else _grown(had, tensor)
        if had is None or axis is None:
            told[name] = tensor
            continue
        old, new = _bits(had, axis), _bits(tensor, axis)
        other = torch.ones(new.shape[:2], dtype=torch.bool)
        other[:, : old.shape[1]] = (new[:, : old.shape[1]] != old).any(dim=2)
        places = other.flatten().nonzero().flatten()
        if 2 * len(places) > other.numel():
            told[name] = tensor
        else:
            told[_PLACES + name] = torch.cat((torch.tensor([axis, new.shape[1]]), places))
            told[_ROWS + name] = tensor.flatten(0, axis)[places]
    return told


def fold(told: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Apply changes one after another, and return the last state.

    `told` has the results of successive calls of `changes`. The first of them must be a complete state. The returned
    state may use the memory of the tensors in `told`.
    """
    state: dict[str, Tensor] = {}
    for each in told:
        before, state = state, {}
        for name, tensor in each.items():
            plain = name.removeprefix(_ROWS)
            if name.startswith(_ROWS):
                (axis, rows), places = each[_PLACES + plain][:2].tolist(), each[_PLACES + plain][2:]
                had, shape = before[plain], list(before[plain].shape)
                if shape[axis] < rows:
                    longer = had.new_empty(*shape[:axis], rows, *shape[axis + 1 :])
                    longer.narrow(axis, 0, shape[axis]).copy_(had)
                    had = longer
                had.flatten(0, axis)[places] = tensor
                state[plain] = had
            elif not name.startswith(_PLACES):
                state[name] = tensor
    return state


def _grown(had: Tensor, now: Tensor) -> int | None:
    """Return the axis that counts a tensor's rows: the second or the first, along which alone it may have grown."""
    for axis in (1, 0):
        alike = had.dtype == now.dtype and had.ndim == now.ndim > axis and had.shape[axis] <= now.shape[axis]
        if alike and (*had.shape[:axis], *had.shape[axis + 1 :]) == (*now.shape[:axis], *now.shape[axis + 1 :]):
            return axis
    return None


def _bits(tensor: Tensor, axis: int) -> Tensor:
    """Return a tensor's bits `[…, rows, of a row]`, as whole numbers as wide as they allow."""
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    flat = flat.view(tensor.shape[0] if axis else 1, tensor.shape[axis], -1)
    each = flat.shape[2]
    return flat.view(torch.int64 if each % 8 == 0 else torch.int32 if each % 4 == 0 else torch.uint8)
