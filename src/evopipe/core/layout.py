"""Where the parameters of a perceptron, convolutions and LSTM layers included, lie in a flat row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from evopipe.types import Tensor


class Block(NamedTuple):
    """One hidden layer f of a member.

    Attributes:
        width: the number of the layer's units.
        blend: whether the layer is blended. A blended layer computes h + α (f(h) − h) from its input h, with a learned
            α that starts at 0. A layer that a mutation adds is blended, so that the trained network's function does not
            change at first.
    """

    width: int
    blend: bool = False


class Part(NamedTuple):
    """The place of one parameter tensor `[rows, columns]` in a network's flat row of parameters.

    Attributes:
        name: the parameter's name.
        start: the index of the tensor's first number in the flat row.
        rows, columns: the tensor's shape.
        groups: the number of groups into which the columns are divided: in an LSTM layer one for each gate, else 1.
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
        """Return the parameter tensor of a flat row as a view `[rows, groups, units]`: its columns are split into
        `groups` equal blocks of `units` columns.

        An LSTM layer has a block for each of its four gates, any other layer a single one.
        """
        return self.of(row).view(self.rows, self.groups, self.units)


class Layer(NamedTuple):
    """The places in a flat row of the parameter tensors of one layer; None for a tensor that the layer does not have.

    Attributes:
        out: the width of the layer's output, which the next layer reads.
        weight, bias: the weights and biases; in a residual block, those that read the residual stream.
        gain, shift: the gains and shifts of layer normalisation.
        alpha: the α of a blended layer (one whose output is mixed with its input).
        back, back_bias: in a residual block, the weights and biases that compute what is added to the residual stream.
        recurrent: in an LSTM layer, the weights that read the layer's own outputs of the previous step.
        norm: the batch renormalisation of the layer's inputs (`core.renorm`), four rows with a column for each input:
            gains, shifts, running means and running variances.
    """

    out: int
    weight: Part
    bias: Part
    gain: Part | None = None
    shift: Part | None = None
    alpha: Part | None = None
    back: Part | None = None
    back_bias: Part | None = None
    recurrent: Part | None = None
    norm: Part | None = None

    @property
    def parts(self) -> tuple[Part | None, ...]:
        return self[1:]


@dataclass(frozen=True)
class Layout:
    """The layers of a network, and where their parameters are in a flat row.

    Attributes:
        stem: the convolutions.
        hidden: the hidden layers.
        output: the output layer, or nothing for an encoder.
        size: the length of the flat row.
    """

    stem: tuple[Layer, ...]
    hidden: tuple[Layer, ...]
    output: tuple[Layer, ...]
    size: int

    @property
    def every(self) -> tuple[Layer, ...]:
        return (*self.stem, *self.hidden, *self.output)
