"""The protocols that the kernels need of networks: rows of numbers, and Adam's moments of each."""

from __future__ import annotations

from typing import Any, Protocol

from evopipe.types import Tensor

LINE = 16  # float32 numbers in a cache line: rows are whole lines long
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Net(Protocol):
    """Protocol of a network of several members, such as `core.net.Net`: `values` and `grad` are `[rows, N]`."""

    @property
    def structure(self) -> Any: ...
    @property
    def values(self) -> Tensor: ...
    @property
    def grad(self) -> Tensor: ...


class Adam(Protocol):
    """Protocol of a network's Adam moments: `mean` and `square` are `[rows, N]`, `steps` is `[rows]`."""

    @property
    def mean(self) -> Tensor: ...
    @property
    def square(self) -> Tensor: ...
    @property
    def steps(self) -> Tensor: ...
