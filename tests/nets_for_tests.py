"""Networks as users write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Net(nn.Module):
    """Two layers, one of them normalised, and a parameter that is no matrix."""

    def __init__(self, inputs: int, outputs: int, hidden: int = 16) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.Linear(hidden, outputs)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("shift", torch.full((hidden,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.last(torch.tanh(self.norm(self.first(x)) + self.shift))


class Evolving(Net):
    """One that says how it may change."""

    @staticmethod
    def mutations(kwargs: dict[str, Any]) -> dict[str, dict[str, Any]]:
        hidden = kwargs.get("hidden", 16)
        wider = {"add hidden": {**kwargs, "hidden": hidden + 8}} if hidden < 32 else {}
        return wider | ({"remove hidden": {**kwargs, "hidden": hidden - 8}} if hidden > 8 else {})


class Turning(Net):
    """One whose changes say its arguments in another order, and of which one changes nothing."""

    @staticmethod
    def mutations(kwargs: dict[str, Any]) -> dict[str, dict[str, Any]]:
        turned = dict(sorted(kwargs.items(), reverse=True))
        return {"same": turned, "wider": {**turned, "hidden": kwargs["hidden"] + 8}}


class Unmapped(Net):
    """One that `torch.func.vmap` cannot run: what it does depends on a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if float(x.detach().sum()) > -1e9 else x


class Tied(nn.Module):
    """Without a bias, twice the same weight, and dropout, which is for training alone."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, outputs)
        self.third = nn.Linear(8, 8)
        self.third.weight = self.again.weight
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.third(torch.relu(self.again(torch.relu(self.first(x))))))))


class Vector(nn.Module):
    """Nothing that parameter noise could go to."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.outputs = nn.Parameter(torch.randn(inputs)), outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).sum(dim=-1, keepdim=True).expand(*x.shape[:-1], self.outputs)


class Wrong(Net):
    """Another output than it was asked for."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs + 1)


class Empty(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(len(x), self.outputs)


class Double(Net):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.double()


class Counting(Net):
    """Its buffer counts calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shift += 1.0
        return super().forward(x)


class Broken(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no way")


class Pair(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x


def plain(inputs: int, outputs: int) -> Any:
    return "a network"


NUMBER = 1
