"""The protocols that the kernels need of networks: rows of numbers, and Adam's moments of each."""

from __future__ import annotations

from typing import Any, Protocol

from evopipe.types import Tensor

LINE = 16  # float32 numbers in a cache line: rows are whole lines long
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Net(Protocol):
    """Protocol of a network of several members, such as `core.net.Net`.

    Attributes:
        values, grad: `[rows, N]`, the parameters and their gradients, in flat rows of N numbers.
    """

    @property
    def structure(self) -> Any: ...
    @property
    def values(self) -> Tensor: ...
    @property
    def grad(self) -> Tensor: ...


class Adam(Protocol):
    """Protocol of the Adam moments of a network of several members, such as `core.optim.Adam`.

    Attributes:
        mean, square: `[rows, N]`, the first and second moments, in flat rows of N numbers.
        steps: `[rows]`, the number of steps of each row.
    """

    @property
    def mean(self) -> Tensor: ...
    @property
    def square(self) -> Tensor: ...
    @property
    def steps(self) -> Tensor: ...
