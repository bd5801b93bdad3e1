"""Architectures: what one member's network is, and how its own parameters lie in a flat row, without pads.

A network is observation → encoder → latent → head → output, described by an `Arch`; images in the observation go
through a convolutional stem before. It may be cut behind the latent, so that several heads read one encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from evopipe.core import lstm
from evopipe.core.stem import Conv, Stem
from evopipe.errors import ParamsError
from evopipe.schema.blocks import EncoderKind, NetworkConfig
from evopipe.types import Image

Role = Literal["whole", "encoder", "head"]
RESIDUAL = frozenset({"simba", "resnet"})
LINE = 16  # float32 numbers in a cache line
WIDTH_MULTIPLE = 16  # hidden widths are padded to a multiple of this
NO_STEM = Stem()


class Widths(NamedTuple):
    """Input and output width of a network, and which part of an architecture it is.

    An `encoder` ends with the latent and has no output layer: its outputs are 0. A `head` begins behind the latent; it
    reads so many inputs of its own, actions for example, then the latent.
    """

    inputs: int
    outputs: int
    role: Role = "whole"


class Block(NamedTuple):
    """One hidden layer f of a member.

    A blended one computes h + α (f(h) − h), α learned from 0: that is how a layer joins a trained network without
    changing its function (a normalised layer cannot be an identity, a blend can).
    """

    width: int
    blend: bool = False


@dataclass(frozen=True)
class Arch:
    """One member's architecture."""

    encoder: tuple[Block, ...]
    latent: int
    head: tuple[Block, ...]
    activation: str
    layer_norm: bool
    stem: Stem = NO_STEM
    kind: EncoderKind = "mlp"

    @classmethod
    def start(cls, cfg: NetworkConfig, images: tuple[Image, ...] = ()) -> Arch:
        """Return the architecture that `params.yaml` describes, for observations with these images.

        Raises:
            ParamsError: an image is smaller than a kernel.
        """
        encoder, head = (tuple(Block(width) for width in part) for part in (cfg.encoder, cfg.head))
        convs = tuple(Conv(c.channels, c.kernel, c.stride) for c in cfg.conv)
        first = Stem(images, convs) if images and convs else Stem()
        misfit = first.misfit()
        if misfit:
            raise ParamsError(f"network.conv: {misfit}")
        return cls(encoder, cfg.latent, head, cfg.activation, cfg.layer_norm, first, cfg.encoder_kind)

    @property
    def hidden(self) -> tuple[Block, ...]:
        """All hidden layers in order: encoder, latent, head; a residual encoder stands behind the latent."""
        latent = (Block(self.latent),)
        front = (*latent, *self.encoder) if self.residual else (*self.encoder, *latent)
        return (*front, *self.head)

    @property
    def residual(self) -> bool:
        """Whether the encoder is made of residual blocks, which stand behind the latent."""
        return self.kind in RESIDUAL

    @property
    def recurrent(self) -> int:
        """How many hidden layers, the first ones, are LSTM layers."""
        return len(self.encoder) if self.kind == "lstm" else 0

    @property
    def names(self) -> list[str]:
        """Names of the hidden layers."""
        return layer_names(len(self.encoder), len(self.head), self.kind)

    def describe(self) -> str:
        """Return a short text: `128+64|32|64` is two encoder layers, the latent, one head layer; `~` marks a blend.

        Convolutions stand before, channels, kernel, stride: `16k3/2+32k3|…`; a residual encoder says so: `simba 64|32`.
        """
        convs = "+".join(conv.describe() for conv in self.stem.convs)
        encoder, head = ("+".join(f"{b.width}{'~' * b.blend}" for b in part) for part in (self.encoder, self.head))
        if self.kind != "mlp":
            encoder = f"{self.kind} {encoder}"
        return "|".join(part for part in (convs, encoder, str(self.latent), head) if part)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "encoder": [list(block) for block in self.encoder],
            "latent": self.latent,
            "head": [list(block) for block in self.head],
            "activation": self.activation,
            "layer_norm": self.layer_norm,
            **{name: [list(each) for each in part] for name, part in self.stem._asdict().items() if part},
            **({} if self.kind == "mlp" else {"kind": self.kind}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Arch:
        """Build from what `to_json` returned."""
        encoder, head = (tuple(Block(int(w), bool(b)) for w, b in data[part]) for part in ("encoder", "head"))
        images = tuple(Image(*map(int, image)) for image in data.get("images", ()))
        convs = tuple(Conv(*map(int, conv)) for conv in data.get("convs", ()))
        activation, norm = str(data["activation"]), bool(data["layer_norm"])
        return cls(encoder, int(data["latent"]), head, activation, norm, Stem(images, convs), data.get("kind", "mlp"))


class Part(NamedTuple):
    """Where one parameter tensor lies in a flat row: shape `[rows, columns]` from `start`.

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


class LayerLayout(NamedTuple):
    """One layer's parts; `gain` and `shift` where normalised, `alpha` where blended or passed by.

    A residual block's weight and bias lead out of the stream, `back` and `back_bias` into it again. An LSTM layer's
    `recurrent` reads its own outputs of the step before.
    """

    weight: Part
    bias: Part
    gain: Part | None
    shift: Part | None
    alpha: Part | None
    out: int  # effective width that the next layer reads
    back: Part | None = None
    back_bias: Part | None = None
    recurrent: Part | None = None

    @property
    def parts(self) -> tuple[Part | None, ...]:
        """All parts, None where it has none."""
        return (*self[:5], self.back, self.back_bias, self.recurrent)


@dataclass(frozen=True)
class Layout:
    """Offsets of all parts in a flat row of `size` numbers."""

    hidden: tuple[LayerLayout, ...]
    output: tuple[LayerLayout, ...]  # one layer, or none
    size: int
    stem: tuple[LayerLayout, ...] = ()

    @property
    def layers(self) -> tuple[LayerLayout, ...]:
        """Hidden layers, then the output layer."""
        return (*self.hidden, *self.output)

    @property
    def every(self) -> tuple[LayerLayout, ...]:
        """The stem's convolutions, then `layers`: all that has parameters."""
        return (*self.stem, *self.layers)


def layout(
    inputs: int,
    hidden: Sequence[tuple[str, int, bool]],
    outputs: int,
    norm: bool,
    front: Stem = NO_STEM,
    kind: EncoderKind = "mlp",
) -> Layout:
    """Lay the parts of a network out, one after another.

    Args:
        inputs: input width.
        hidden: (name, own width, whether its input also passes by) of every hidden layer.
        outputs: output width, 0 for no output layer.
        norm: whether hidden layers are normalised.
        front: the stem.
        kind: what the encoder is.
    """
    at, width, layers = 0, front.reads(inputs), []

    def part(name: str, rows: int, columns: int, groups: int = 1) -> Part:
        nonlocal at
        at += rows * columns * groups
        return Part(name, at - rows * columns * groups, rows, columns * groups, groups)

    def convolution(name: str, rows: int, columns: int) -> LayerLayout:
        weight, bias = part(f"{name}.weight", rows, columns), part(f"{name}.bias", 1, columns)
        return LayerLayout(weight, bias, None, None, None, columns)

    def residual(name: str, own: int) -> LayerLayout:
        nonlocal width
        weight, bias = part(f"{name}.weight", width, own), part(f"{name}.bias", 1, own)
        if name == "latent":
            width = own
        gain = part(f"{name}.gain", 1, width) if kind == "simba" else None
        shift = part(f"{name}.shift", 1, width) if kind == "simba" else None
        if name == "latent":
            return LayerLayout(weight, bias, gain, shift, None, width)
        back, back_bias = part(f"{name}.back.weight", own, width), part(f"{name}.back.bias", 1, width)
        return LayerLayout(weight, bias, gain, shift, None, width, back, back_bias)

    convolutions = tuple(convolution(*each) for each in front.parts())
    for name, own, passes in hidden:
        if kind in RESIDUAL and not name.startswith("head"):
            layers.append(residual(name, own))
            continue
        gated = kind == "lstm" and name.startswith("encoder")
        groups = lstm.GATES if gated else 1
        weight, bias = part(f"{name}.weight", width, own, groups), part(f"{name}.bias", 1, own, groups)
        recurrent = part(f"{name}.recurrent.weight", own, own, groups) if gated else None
        gain = part(f"{name}.gain", 1, own) if norm and not gated else None
        shift = part(f"{name}.shift", 1, own) if norm and not gated else None
        alpha = part(f"{name}.alpha", 1, 1) if passes else None
        width = max(width, own) if passes else own
        layers.append(LayerLayout(weight, bias, gain, shift, alpha, width, recurrent=recurrent))
    if not outputs:
        return Layout(tuple(layers), (), at, convolutions)
    weight, bias = part("output.weight", width, outputs), part("output.bias", 1, outputs)
    return Layout(tuple(layers), (LayerLayout(weight, bias, None, None, None, outputs),), at, convolutions)


def layer_names(encoder: int, head: int, kind: EncoderKind = "mlp") -> list[str]:
    """Name hidden layers: `encoder.0` …, `latent`, `head.0` …; of a residual encoder `latent`, `encoder.0` …"""
    blocks = [f"encoder.{i}" for i in range(encoder)]
    front = ["latent", *blocks] if kind in RESIDUAL else [*blocks, "latent"]
    return [*front, *(f"head.{i}" for i in range(head))]


def of_role(role: Role, encoder: int) -> slice:
    """Return which of an architecture's hidden layers a network has, `encoder` of them before or behind the latent."""
    return {"whole": slice(None), "encoder": slice(1 + encoder), "head": slice(1 + encoder, None)}[role]


def own_layout(arch: Arch, widths: Widths) -> Layout:
    """Return the unpadded layout of one member's network."""
    hidden = [(name, block.width, block.blend) for name, block in zip(arch.names, arch.hidden, strict=True)]
    hidden = hidden[of_role(widths.role, len(arch.encoder))]
    if widths.role == "head":
        return layout(widths.inputs + arch.latent, hidden, widths.outputs, arch.layer_norm)
    return layout(widths.inputs, hidden, widths.outputs, arch.layer_norm, arch.stem, arch.kind)


def round_up(value: float, multiple: int) -> int:
    """Return the least multiple that is not below the whole part of a value."""
    return -(-int(value) // multiple) * multiple


def initialise(arch: Arch, widths: Widths, rng: Any) -> torch.Tensor:
    """Draw one member's own flat row `[n]` on the CPU.

    Weights are orthogonal with gain √2, 0.1 at the output so that first values are small (Saxe et al., 2014). Biases of
    hidden layers and convolutions are uniform in ±1/√inputs, as torch's are: with biases of 0 an observation of zeros
    would reach no unit behind a ReLU, and train none. The output's biases are 0, norm gains 1, norm shifts 0, blends 0,
    and so are the weights back of residual blocks, which begin as identities.
    Weights of LSTM layers are orthogonal with gain 1, their biases uniform in ±1/√units, and those of their forget
    gates 1 (Jozefowicz et al., 2015).

    Args:
        arch: the architecture.
        widths: input and output width.
        rng: a `numpy.random.Generator`.
    """
    own = own_layout(arch, widths)
    row = torch.zeros(own.size)
    (of_biases,) = rng.spawn(1)  # so that no other draw depends on these
    for layer in (*own.stem, *own.hidden):
        bound = (layer.recurrent or layer.weight).rows ** -0.5
        drawn = torch.from_numpy(of_biases.uniform(-bound, bound, layer.bias.columns))
        row[layer.bias.start : layer.bias.start + layer.bias.columns] = drawn.float()
    for layer in own.every:
        gain = 0.1 if layer in own.output else 1.0 if layer.recurrent else 2.0**0.5
        for part in (layer.weight, layer.recurrent):
            if part:
                row[part.start : part.start + part.rows * part.columns] = _orthogonal(
                    part.rows, part.columns, gain, rng
                )
        if layer.recurrent:
            forget = layer.bias.start + lstm.FORGET * layer.bias.units
            row[forget : forget + layer.bias.units] = 1.0
        if layer.gain:
            row[layer.gain.start : layer.gain.start + layer.gain.columns] = 1.0
    return row


def _orthogonal(rows: int, columns: int, gain: float, rng: Any) -> torch.Tensor:
    """Semi-orthogonal `[rows · columns]`, by QR of a Gaussian with the signs of R's diagonal made positive."""
    tall = torch.from_numpy(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q, r = torch.linalg.qr(tall)
    q = q * torch.sign(torch.diagonal(r))
    flat: torch.Tensor = (gain * (q if rows >= columns else q.T)).float().reshape(-1)
    return flat


def named(arch: Arch, widths: Widths, row: torch.Tensor) -> dict[str, torch.Tensor]:
    """Split a member's own flat row into its named tensors (views): `encoder.0.weight` `[in, out]` and so on."""
    parts = [part for layer in own_layout(arch, widths).every for part in layer.parts if isinstance(part, Part)]
    return {
        p.name: row[p.start : p.start + p.rows * p.columns].view(
            (p.rows, p.columns) if p.name.endswith("weight") else -1
        )
        for p in parts
    }
