"""Several processes that are one member together: each computes some parts of its rows, and tells the others.

A part is so many rows, whoever computes it, and gradients are summed part after part: no bit depends on how many
processes there are. Everything else, as the loss and the optimiser's step, all of them compute. Messages are
`torch.distributed`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Together:
    """The processes of one member, this one among them. By itself it has nobody to tell."""

    size: int = 1
    place: int = 0  # of this process among them
    first: int = 0  # rank of the one that leads
    group: Any = None  # torch.distributed's

    @property
    def leads(self) -> bool:
        return not self.place

    def mine(self, part: int) -> bool:
        """Return whether this process computes a part."""
        return part % self.size == self.place

    def tell(self, part: int, *tensors: Tensor) -> None:
        """Give all the tensors of whoever computes a part, in place."""
        if self.size == 1:
            return
        for tensor in tensors:
            whole = tensor.contiguous()
            distributed.broadcast(whole, self.first + part % self.size, self.group)
            if whole is not tensor:
                tensor.copy_(whole)

    def agreed(self, stopped: Callable[[], bool], device: torch.device) -> Callable[[], bool]:
        """Return what says to all of them whether the first is to stop; all ask it at the same places."""
        if self.size == 1:
            return stopped

        def told() -> bool:
            flag = torch.tensor([stopped()], dtype=torch.uint8, device=device)
            self.tell(0, flag)
            return bool(flag)

        return told
