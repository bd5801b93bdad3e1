"""Where the parameters of a perceptron, convolutions and LSTM layers included, lie in a flat row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from evopipe.types import Tensor


class Block(NamedTuple):
    """One hidden layer f of a member.

    A blended layer computes h + α (f(h) − h) with a learned α that starts at 0. A new layer is blended, so that it does
    not change a trained network's function.
    """

    width: int
    blend: bool = False


class Part(NamedTuple):
    """Where one parameter tensor `[rows, columns]` lies in a flat row. The columns of an LSTM layer come in groups, its
    gates."""

    name: str
    start: int
    rows: int
    columns: int
    groups: int = 1

    @property
    def units(self) -> int:
        return self.columns // self.groups

    def of(self, row: Tensor) -> Tensor:
        """Return the tensor as a view `[rows, columns]` of a flat row."""
        return row[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)

    def grouped(self, row: Tensor) -> Tensor:
        """Return the tensor as a view `[rows, groups, units]` of a flat row."""
        return self.of(row).view(self.rows, self.groups, self.units)


class Layer(NamedTuple):
    """The parameter tensors of one layer: `gain` and `shift` if it is normalised, `alpha` if it is blended or may be
    skipped.

    The weight and bias of a residual block lead out of the residual stream; `back` and `back_bias` lead into it again.
    The `recurrent` weights of an LSTM layer read its own outputs of the previous step.
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
