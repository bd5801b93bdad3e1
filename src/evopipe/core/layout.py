"""Where the parameters of a perceptron, convolutions and LSTM layers included, lie in a flat row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from evopipe.types import Tensor


class Block(NamedTuple):
    """The width of one hidden layer f of a member, and whether the layer is blended.

    A blended layer computes h + α (f(h) − h) with a learned α that starts at 0. A layer that a mutation adds is
    blended, so that the trained network's function does not change at first.
    """

    width: int
    blend: bool = False


class Part(NamedTuple):
    """The place of one parameter tensor `[rows, columns]` in a network's flat row of parameters.

    The columns of an LSTM layer are divided into `groups`, one for each gate.
    """

    name: str
    start: int
    rows: int
    columns: int
    groups: int = 1

    @property
    def units(self) -> int:
        return self.columns // self.groups

    def of(self, row: Tensor) -> Tensor:
        """Return the parameter tensor as a view `[rows, columns]` of a flat row."""
        return row[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)

    def grouped(self, row: Tensor) -> Tensor:
        """Return the parameter tensor as a view `[rows, groups, units]` of a flat row."""
        return self.of(row).view(self.rows, self.groups, self.units)


class Layer(NamedTuple):
    """The places in a flat row of the parameter tensors of one layer; None for a tensor that the layer does not have.

    `gain` and `shift` belong to layer normalisation, and `alpha` to a blended layer. `weight` and `bias` of a residual
    block read the residual stream; `back` and `back_bias` compute what is added to it. The `recurrent` weights of an
    LSTM layer read its own outputs of the previous step.
    """

    out: int  # effective width that the next layer reads
    weight: Part
    bias: Part
    gain: Part | None = None
    shift: Part | None = None
    alpha: Part | None = None
    back: Part | None = None
    back_bias: Part | None = None
    recurrent: Part | None = None

    @property
    def parts(self) -> tuple[Part | None, ...]:
        return self[1:]


@dataclass(frozen=True)
class Layout:
    """The layers of a network, and where their parameters are in a flat row of `size` numbers."""

    stem: tuple[Layer, ...]  # convolutions
    hidden: tuple[Layer, ...]
    output: tuple[Layer, ...]  # one layer, or none
    size: int

    @property
    def every(self) -> tuple[Layer, ...]:
        return (*self.stem, *self.hidden, *self.output)
