"""Statistics of members in each generation, for reports. They have no effect on the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor


class Measures:
    """Accumulator of means: named quantities of each member, averaged over the ticks (training steps) of each
    generation.

    Args:
        members: the number of members.
        names: the names of the quantities.
    """

    def __init__(self, members: int, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._sums = torch.zeros(0, members, 1 + len(names), dtype=torch.float64)  # the first counts ticks

    def note(self, generation: int, slots: Sequence[int], every: Mapping[str, Tensor]) -> None:
        """Add the values of one tick (training step) to the sums of a generation.

        Args:
            generation: the number of the generation, from 0.
            slots: the members, as places in the population.
            every: the quantities' values by name, a tensor with one number for each of these members.
        """
        if generation >= len(self._sums):
            more = self._sums.new_zeros(generation + 1 - len(self._sums), *self._sums.shape[1:])
            self._sums = torch.cat((self._sums, more))
        columns = [torch.ones(len(slots), dtype=torch.float64), *(every[name].cpu().double() for name in self.names)]
        self._sums[generation, list(slots)] += torch.stack(columns, dim=1)

    def rows(self) -> Iterator[list[float | int | str]]:
        """Yield a row for each generation and each member that was trained in it.

        A row is a list: the generation (from 1), the slot (place in the population), and the mean of each quantity. A
        mean that is NaN is an empty string.
        """
        for generation, members in enumerate(self._sums, 1):
            for slot, (ticks, *sums) in enumerate(members.tolist()):
                if ticks:
                    means = [value / ticks for value in sums]
                    yield [generation, slot, *("" if value != value else value for value in means)]

    def state(self) -> dict[str, Tensor]:
        return {"measures": self._sums.clone()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._sums = tensors["measures"].clone()
