"""A network of one's own: `network.module: own_package.network:Gated`, `network.kwargs: {hidden: 32}`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Gated(nn.Module):
    """A gated layer: tanh(W x + b) · sigmoid(V x + c), then the outputs. `[B, inputs]` → `[B, outputs]`."""

    def __init__(self, inputs: int, outputs: int, hidden: int = 32) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, hidden), nn.Linear(inputs, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.value(x)) * torch.sigmoid(self.gate(x)))

    @staticmethod
    def mutations(kwargs: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Say what may change: more units, or fewer. Without this function the architecture stays as it is."""
        hidden = kwargs.get("hidden", 32)
        return {
            **({"add units": {"hidden": hidden + 16}} if hidden < 128 else {}),
            **({"remove units": {"hidden": hidden - 16}} if hidden > 16 else {}),
        }
