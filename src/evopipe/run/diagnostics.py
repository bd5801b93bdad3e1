"""Training signals of members, such as losses and gradient norms. They are shown to users; no result depends on
them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from evopipe.core.graphs import upload

DIGITS = 6
"""Significant digits that are kept of a signal: the others depend on who shares a computation."""
_PREFIX, _BEGUN = "signal.", "signals.begun"
_MOST = 16  # notes that are entered into the table together


class Diagnostics:
    """The training signals of the current generation (losses, gradient norms and so on), for `P` slots.

    For each signal, the mean over the generation and the last value are kept. Signals are shown to users; no result
    depends on them.

    Args:
        members: `P`, the number of slots (places in the population).
        device: the device on which the signals are kept.

    Attributes:
        begun: `[P]`, the number of updates that each slot's member had made when the generation began.
    """

    def __init__(self, members: int, device: torch.device) -> None:
        self.begun = torch.zeros(members, dtype=torch.float64, device=device)
        self._names: dict[str, int] = {}  # and in which column each stands
        self._table = self.begun.new_zeros(members, 0, 3)  # of each name: sum, count and last
        self._noted: list[tuple[tuple[int, ...], list[str], Tensor]] = []  # not in the table yet: slots, names, values

    def forget(self, slots: Sequence[int], updates: Tensor | None = None) -> None:
        """Clear the signals of these slots (places in the population) at the beginning of a generation.

        `updates` `[n]` is the number of updates that the member of each slot has made so far. The attribute `begun`
        stores these numbers. If `updates` is None, `begun` does not change.
        """
        self._settle()
        rows = upload(torch.tensor(slots, dtype=torch.int64), self.begun.device)
        self._table[rows] = 0.0
        if updates is not None:
            self.begun[rows] = updates.double()

    def note(self, slots: Sequence[int], values: Mapping[str, Tensor]) -> None:
        """Add one value of each signal in `values` to the members in these slots (places in the population).

        `values` maps a signal's name to a tensor `[n]`, with one number for each of the n slots. The host does not wait
        for the device.
        """
        at = self.begun.device  # environments on the host count their episodes there
        each = [x if x.is_floating_point() else x.double() for x in values.values()]
        each = [x if x.device == at else upload(x.double(), at) for x in each]
        self._noted.append((tuple(slots), list(values), torch.stack(each, dim=1).double()))
        if len(self._noted) >= _MOST:
            self._settle()

    def _settle(self) -> None:
        """Enter into the table what was noted since: what the same members have new of other names all at once."""
        waiting, self._noted = self._noted, []
        while waiting:
            slots, names, values = waiting.pop(0)
            found, names = [values], list(names)
            while waiting and waiting[0][0] == slots and not {*names} & {*waiting[0][1]}:
                _, more, values = waiting.pop(0)
                names += more
                found.append(values)
            self._enter(slots, names, torch.cat(found, dim=1))

    def _enter(self, slots: Sequence[int], names: Sequence[str], last: Tensor) -> None:
        """Add a value `[n, k]` of each of k signals to the members in n slots."""
        if new := [name for name in names if name not in self._names]:
            self._names |= {name: place for place, name in enumerate(new, len(self._names))}
            self._table = torch.cat((self._table, self.begun.new_zeros(len(self.begun), len(new), 3)), dim=1)
        rows = upload(torch.tensor(slots), self.begun.device)[:, None]
        columns = upload(torch.tensor([self._names[name] for name in names]), self.begun.device)
        total, count, _ = self._table[rows, columns].unbind(dim=-1)
        self._table[rows, columns] = torch.stack((total + last, count + 1.0, last), dim=-1)

    def told(self, slots: Sequence[int]) -> list[dict[str, tuple[float, float]]]:
        """Return, for each of these slots (places in the population), the signals of this generation by name, each as
        a pair (mean over the generation, last value).

        Signals without a value are left out. Names are sorted, because a checkpoint does not store their order.
        """
        self._settle()
        return [
            {
                name: (rounded(total / count) if count > 1 else rounded(last), rounded(last))
                for name, (total, count, last) in sorted(zip(self._names, row, strict=True))
                if count
            }
            for row in self._table.cpu()[list(slots)].tolist()
        ]

    def state(self) -> dict[str, Tensor]:
        self._settle()
        table = self._table.to("cpu", copy=True)
        return {_BEGUN: self.begun.to("cpu", copy=True)} | {
            _PREFIX + name: table[:, i].contiguous() for name, i in self._names.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the signals from tensors that `state` returned; other tensors in the mapping are ignored."""
        self._noted = []
        names = [name.removeprefix(_PREFIX) for name in tensors if name.startswith(_PREFIX)]
        self._names = {name: place for place, name in enumerate(names)}
        tables = [tensors[_PREFIX + name] for name in names]
        self._table = torch.stack(tables, dim=1).to(self.begun.device) if tables else self._table[:, :0]
        self.begun.copy_(tensors[_BEGUN])


def rounded(value: float) -> float:
    """Return a number rounded to `DIGITS` significant digits, the precision with which signals are stored."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
