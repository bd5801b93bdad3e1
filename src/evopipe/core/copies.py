"""Several networks of the same architecture in one row of a member: those of the agents of a team.

A row of `N` numbers holds `copies` rows of a padded structure, one behind the other. Adam, clipping, health, cloning,
evolution and storage therefore see one row a member. A forward pass runs all copies of all members in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from evopipe.core.structure import Structure, ViewOf, Widths
from evopipe.types import Tensor


class Copies:
    """A structure in which each row holds the parameters of several networks of one architecture, one after the other.

    A team uses it where each group of agents has its own network. The class implements the protocol `Structure`, which
    documents the methods.

    Args:
        inner: the structure that has one row for each network. In it, the rows of one member's networks stand next to
            each other.
        copies: the number of networks of each member.
    """

    def __init__(self, inner: Structure, copies: int) -> None:
        self.inner, self.copies = inner, copies
        self.widths: Widths = inner.widths._replace(copies=copies)
        self.size = copies * inner.size
        self.memory_widths, self.memory = inner.memory_widths, inner.memory

    def pack(self, rows: Sequence[Tensor]) -> Tensor:
        parts = [part for row in rows for part in row.chunk(self.copies)]
        return self.inner.pack(parts).view(len(rows), -1)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        parts = self.inner.unpack(packed.view(len(packed) * self.copies, -1))
        return [torch.cat(parts[i : i + self.copies]) for i in range(0, len(parts), self.copies)]

    def part(self, first: int, end: int | None, every: int = 1) -> Copies:
        if every != 1:
            raise ValueError("copies of twin networks lie in no one stride: declare each twin as a network of its own")
        return Copies(self.inner.part(first * self.copies, None if end is None else end * self.copies), self.copies)

    def repeat(self, times: int) -> Copies:
        return Copies(self.inner.repeat(times), self.copies)

    def views(self, of: ViewOf) -> Any:
        return self.inner.views(of)

    def forward(self, views: Any, x: Tensor) -> Tensor:
        return self.inner.forward(views, x)

    def remember(self, views: Any, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.remember(views, x, memory)

    def unroll(self, views: Any, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        return self.inner.unroll(views, x, memory, begins)
