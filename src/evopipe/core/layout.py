"""Where the parameters of a perceptron, convolutions and LSTM layers included, lie in a flat row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from evopipe.core import lstm
from evopipe.core.stem import Stem
from evopipe.schema.blocks import EncoderKind

RESIDUAL = frozenset({"simba", "resnet"})


class Block(NamedTuple):
    """One hidden layer f of a member.

    A blended one computes h + α (f(h) − h), α learned from 0: that is how a layer joins a trained network without
    changing its function (a normalised layer cannot be an identity, a blend can).
    """

    width: int
    blend: bool = False


class Part(NamedTuple):
    """One parameter tensor: shape `[rows, columns]` from `start`.

    The columns are so many groups of units as `groups` says: an LSTM layer's gates.
    """

    name: str
    start: int
    rows: int
    columns: int
    groups: int = 1

    @property
    def units(self) -> int:
        """How many units it has columns for."""
        return self.columns // self.groups

    def of(self, row: torch.Tensor) -> torch.Tensor:
        """Return its view `[rows, columns]` of a flat row."""
        return row[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)

    def grouped(self, row: torch.Tensor) -> torch.Tensor:
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
        """All parts, None where it has none."""
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
        """All that has parameters."""
        return (*self.stem, *self.hidden, *self.output)


def lay_out(
    inputs: int, hidden: Sequence[tuple[str, Block]], outputs: int, norm: bool, stem: Stem, kind: EncoderKind
) -> Layout:
    """Lay the parts of a network out, one after another.

    Args:
        inputs: input width.
        hidden: name, width and whether the input also passes by, of every hidden layer.
        outputs: output width, 0 for no output layer.
        norm: whether hidden layers are normalised.
        stem: the convolutions.
        kind: what the encoder is.
    """
    at = 0

    def part(name: str, rows: int, columns: int, groups: int = 1) -> Part:
        nonlocal at
        at += rows * columns * groups
        return Part(name, at - rows * columns * groups, rows, columns * groups, groups)

    def dense(name: str, rows: int, columns: int, groups: int = 1) -> Layer:
        return Layer(columns, part(f"{name}.weight", rows, columns, groups), part(f"{name}.bias", 1, columns, groups))

    convolutions = tuple(dense(*each) for each in stem.parts())
    width, layers = stem.reads(inputs), []
    for name, (own, blend) in hidden:
        in_encoder, latent = not name.startswith("head"), name == "latent"
        residual = kind in RESIDUAL and in_encoder
        gated = kind == "lstm" and in_encoder and not latent
        layer = dense(name, width, own, lstm.GATES if gated else 1)
        if gated:
            layer = layer._replace(recurrent=part(f"{name}.recurrent.weight", own, own, lstm.GATES))
        if residual and not latent:  # the stream stays as wide as it is
            layer = layer._replace(out=width)
        elif blend:
            layer = layer._replace(out=max(width, own))
        if (kind == "simba") if residual else (norm and not gated):
            units = layer.out if residual else own
            layer = layer._replace(gain=part(f"{name}.gain", 1, units), shift=part(f"{name}.shift", 1, units))
        if residual and not latent:
            layer = layer._replace(
                back=part(f"{name}.back.weight", own, width), back_bias=part(f"{name}.back.bias", 1, width)
            )
        elif blend:
            layer = layer._replace(alpha=part(f"{name}.alpha", 1, 1))
        width = layer.out
        layers.append(layer)
    output = (dense("output", width, outputs),) if outputs else ()
    return Layout(convolutions, tuple(layers), output, at)
