"""Several processes that compute one member together: each computes some of the rows and sends the results to the rest.

A part is a fixed number of rows, whoever computes it, and gradients are summed part after part, so no bit depends on
the number of processes. All processes compute everything else, such as the loss and the optimiser's step. Messages are
sent by `torch.distributed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Together:
    """The group of processes that compute one member together, including this process. A group of one process sends
    nothing.

    Attributes:
        size: the number of processes in the group.
        place: the index of this process in the group.
        first: the rank, among all processes, of the group's first process.
        group: the group of `torch.distributed`; None for a group of one process.
    """

    size: int = 1
    place: int = 0
    first: int = 0
    group: Any = None

    @property
    def leads(self) -> bool:
        return not self.place

    def mine(self, part: int) -> bool:
        """Return whether this process computes the part of the member's rows that has the number `part`. Parts are
        assigned to the group's processes in turn."""
        return part % self.size == self.place

    def tell(self, part: int, *tensors: Tensor) -> None:
        """Broadcast tensors from one process of the group to the others, which receive the values in place.

        `part` is the number of a part of the member's rows. The sender is the process that computes this part, see
        `mine`.
        """
        if self.size == 1:
            return
        for tensor in tensors:
            whole = tensor.contiguous()
            distributed.broadcast(whole, self.first + part % self.size, self.group)
            if whole is not tensor:
                tensor.copy_(whole)

    def agreed(self, stopped: Callable[[], bool], device: torch.device) -> Callable[[], bool]:
        """Return a function without arguments that returns, in every process of the group, what `stopped` returns in
        the group's first process.

        All processes must call the function at the same points of their work. `device` is the device of the tensor that
        is sent.
        """
        if self.size == 1:
            return stopped

        def told() -> bool:
            flag = torch.tensor([stopped()], dtype=torch.uint8, device=device)
            self.tell(0, flag)
            return bool(flag)

        return told
