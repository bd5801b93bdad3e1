"""Protocols of the networks that the kernels read: rows of parameters, and their Adam moments."""

from __future__ import annotations

from typing import Any, Protocol

from evopipe.types import Tensor

LINE = 16  # float32 numbers in a cache line: rows are whole lines long
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Net(Protocol):
    """Protocol of a network of several members, such as `core.net.Net`.

    Attributes:
        structure: the layout of the parameters in the rows.
        values: `[rows, N]`, the parameters: flat rows of N numbers, one or several rows for each member.
        grad: `[rows, N]`, the gradients of the parameters.
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
        mean, square: `[rows, N]`, the first and second moments of the network's N parameters in each row.
        steps: `[rows]`, the number of Adam steps of each row.
    """

    @property
    def mean(self) -> Tensor: ...
    @property
    def square(self) -> Tensor: ...
    @property
    def steps(self) -> Tensor: ...
