"""Where the parameters of a perceptron, convolutions and LSTM layers included, lie in a flat row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from evopipe.types import Tensor


class Block(NamedTuple):
    """One hidden layer f of a member. A blended one computes h + α (f(h) − h), α learned from 0: that is how a layer
    joins a trained network without changing its function."""

    width: int
    blend: bool = False


class Part(NamedTuple):
    """One parameter tensor `[rows, columns]` from `start`; an LSTM layer's columns are in groups, its gates."""

    name: str
    start: int
    rows: int
    columns: int
    groups: int = 1

    @property
    def units(self) -> int:
        return self.columns // self.groups

    def of(self, row: Tensor) -> Tensor:
        """Return its view `[rows, columns]` of a flat row."""
        return row[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)

    def grouped(self, row: Tensor) -> Tensor:
        """Return its view `[rows, groups, units]` of a flat row."""
        return self.of(row).view(self.rows, self.groups, self.units)


class Layer(NamedTuple):
    """One layer's parts; `gain` and `shift` where normalised, `alpha` where blended or passed by.

    A residual block's weight and bias lead out of the stream, `back` and `back_bias` into it again. An LSTM layer's
    `recurrent` reads its own outputs of the step before.
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
    """All layers of a network, in a flat row of `size` numbers."""

    stem: tuple[Layer, ...]  # convolutions
    hidden: tuple[Layer, ...]
    output: tuple[Layer, ...]  # one layer, or none
    size: int

    @property
    def every(self) -> tuple[Layer, ...]:
        return (*self.stem, *self.hidden, *self.output)
