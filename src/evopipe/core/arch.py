"""The architecture of a perceptron, and the weights that it starts with.

A network is observation → encoder → latent → head → output. If the observation has images, they pass a convolutional
stem first. A network may be split behind the latent, so that several heads share one encoder.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from evopipe.core import lstm, renorm
from evopipe.core.copies import Copies
from evopipe.core.layout import Block, Layer, Layout, Part
from evopipe.core.morph import Change, options
from evopipe.core.padded import WIDTH_MULTIPLE, Padded, widest
from evopipe.core.stem import Conv, Stem
from evopipe.core.structure import Option, Structure, Widths
from evopipe.errors import ParamsError
from evopipe.schema.evolution import ArchitectureBounds
from evopipe.schema.network import EncoderKind, NetworkConfig
from evopipe.schema.stored import StoredArch, in_a_sentence
from evopipe.types import Image, Tensor

_NO_STEM = Stem()


@dataclass(frozen=True)
class Arch:
    """The architecture of one member's perceptrons, as plain data.

    The class implements the protocol `Architecture`, which documents the methods that have no docstring here.

    Attributes:
        encoder: the hidden layers of the encoder.
        latent: the width of the layer between encoder and head.
        head: the hidden layers of the head.
        activation: the name of the activation's class in `torch.nn`.
        layer_norm: whether the hidden layers are normalised.
        stem: the convolutions that read the images of an observation.
        kind: the kind of encoder: `mlp`, `simba` or `resnet` (residual), or `lstm`.
    """

    encoder: tuple[Block, ...]
    latent: int
    head: tuple[Block, ...]
    activation: str
    layer_norm: bool
    stem: Stem = _NO_STEM
    kind: EncoderKind = "mlp"

    @classmethod
    def start(cls, cfg: NetworkConfig, images: tuple[Image, ...] = ()) -> Arch:
        """Return the initial architecture, which the block `network` of `params.yaml` describes.

        `images` are the images in an observation.

        Raises:
            ParamsError: an image is smaller than a convolution's kernel.
        """
        encoder, head = (tuple(Block(width) for width in part) for part in (cfg.encoder, cfg.head))
        convs = tuple(Conv(c.channels, c.kernel, c.stride) for c in cfg.conv)
        stem = Stem(images, convs) if images and convs else _NO_STEM
        misfit = stem.misfit()
        if misfit:
            raise ParamsError(f"network.conv: {misfit}")
        return cls(encoder, cfg.latent, head, cfg.activation, cfg.layer_norm, stem, cfg.encoder_kind)

    @property
    def layers(self) -> dict[str, Block]:
        """The hidden layers by name, in order: `encoder.0` …, `latent`, `head.0` …

        The latent is the layer between encoder and head. In a residual encoder all blocks read and write one stream,
        which is as wide as the latent. The latent therefore comes before the layers of such an encoder.
        """
        latent = {"latent": Block(self.latent)}
        encoder, head = (
            {f"{name}.{i}": block for i, block in enumerate(blocks)}
            for name, blocks in (("encoder", self.encoder), ("head", self.head))
        )
        return latent | encoder | head if self.residual else encoder | latent | head

    @property
    def residual(self) -> bool:
        return self.kind in ("simba", "resnet")

    @property
    def recurrent(self) -> int:
        """The number of LSTM layers, which are the first hidden layers; 0 if the network is not recurrent."""
        return len(self.encoder) if self.kind == "lstm" else 0

    def of(self, widths: Widths) -> Arch:
        """Return the architecture of the member's network that has these widths.

        Its hidden layers are `widths.widen` times as wide. It has no layer normalisation if `widths.renorm` is true,
        because its inputs are then renormalised.
        """
        if widths.widen == 1 and not widths.renorm:
            return self
        encoder, head = (
            tuple(Block(b.width * widths.widen, b.blend) for b in part) for part in (self.encoder, self.head)
        )
        normed = self.layer_norm and not widths.renorm
        return replace(self, encoder=encoder, latent=self.latent * widths.widen, head=head, layer_norm=normed)

    def own(self, widths: Widths) -> slice:
        """Return the slice of `layers` that selects the hidden layers of a network with these widths.

        The role `widths.role` decides: `whole` selects all layers, `encoder` the encoder's layers and the latent layer
        behind them, `head` the head's layers.
        """
        behind = 1 + len(self.encoder)
        return {"whole": slice(None), "encoder": slice(behind), "head": slice(behind, None)}[widths.role]

    def layout(self, widths: Widths, line: int = 1) -> Layout:
        """Return where each parameter of a network is stored in its flat row.

        Layers are stored without padding to other members' widths. Unused places, which align later parameters, follow
        two things only: the parameter α of a blended layer (one whose output is mixed with its input), and the numbers
        by which a layer's inputs are renormalised.

        Args:
            widths: the input and output width of the network, and its role.
            line: what follows unused places begins at a multiple of this number; 1 leaves no unused places.
        """
        if widths.widen > 1:
            return self.of(widths).layout(widths._replace(widen=1), line)
        at = 0

        def part(name: str, rows: int, columns: int, groups: int = 1) -> Part:
            nonlocal at
            at += rows * columns * groups
            return Part(name, at - rows * columns * groups, rows, columns * groups, groups)

        def dense(name: str, rows: int, columns: int, groups: int = 1) -> Layer:
            weight, bias = part(f"{name}.weight", rows, columns, groups), part(f"{name}.bias", 1, columns, groups)
            return Layer(columns, weight, bias)

        def reading(name: str, rows: int, columns: int, groups: int = 1) -> Layer:
            nonlocal at
            if not widths.renorm:
                return dense(name, rows, columns, groups)
            norm = part(f"{name}.norm", renorm.ROWS, rows)
            at += -at % line
            return dense(name, rows, columns, groups)._replace(norm=norm)

        head = widths.role == "head"
        convolutions = () if head else tuple(dense(*each) for each in self.stem.parts())
        width = widths.inputs + self.latent if head else self.stem.reads(widths.inputs)
        layers = []
        for name, (own, blend) in list(self.layers.items())[self.own(widths)]:
            gated, residual = (kind and name.startswith("encoder") for kind in (self.kind == "lstm", self.residual))
            layer = reading(name, width, own, lstm.GATES if gated else 1)
            if gated:
                layer = layer._replace(recurrent=part(f"{name}.recurrent.weight", own, own, lstm.GATES))
            if residual:  # the stream stays as wide as it is
                layer = layer._replace(out=width)
            elif blend:
                layer = layer._replace(out=max(width, own))
            in_stream = self.residual and not name.startswith("head")
            if self.kind == "simba" if in_stream else self.layer_norm and not gated and not widths.renorm:
                units = width if residual else own  # a residual block's stand before it
                layer = layer._replace(gain=part(f"{name}.gain", 1, units), shift=part(f"{name}.shift", 1, units))
            if residual:
                back, back_bias = part(f"{name}.back.weight", own, width), part(f"{name}.back.bias", 1, width)
                layer = layer._replace(back=back, back_bias=back_bias)
            elif blend:
                layer = layer._replace(alpha=part(f"{name}.alpha", 1, 1))
                at += -at % line
            width = layer.out
            layers.append(layer)
        output = (reading("output", width, widths.outputs),) if widths.outputs else ()
        return Layout(convolutions, tuple(layers), output, at)

    def describe(self) -> str:
        """Return a short text for people: `128+64|32|64` means two encoder layers, the latent and one head layer.

        The latent is the layer between encoder and head.

        `~` marks a blended layer (one whose output is mixed with its input). Convolutions come first, as channels,
        kernel and stride: `16k3/2+32k3|…`. An encoder that is no MLP is named: `simba 64|32`.
        """
        convs = "+".join(conv.describe() for conv in self.stem.convs)
        encoder, head = ("+".join(f"{b.width}{'~' * b.blend}" for b in part) for part in (self.encoder, self.head))
        if self.kind != "mlp":
            encoder = f"{self.kind} {encoder}"
        return "|".join(part for part in (convs, encoder, str(self.latent), head) if part)

    def to_json(self) -> dict[str, Any]:
        """Return the architecture as JSON data, which `from_json` reads. The key `kind` is missing if the encoder is
        an MLP."""
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
        """Build an architecture from the data that `to_json` returned.

        Raises:
            ValueError: the data is not of that form.
        """
        with in_a_sentence(StoredArch, data):
            told = StoredArch.model_validate(data)
        encoder, head = (tuple(Block(*block) for block in part) for part in (told.encoder, told.head))
        stem = Stem(tuple(Image(*image) for image in told.images), tuple(Conv(*conv) for conv in told.convs))
        misfit = stem.misfit() if stem.images else None
        if misfit:
            raise ValueError(misfit)
        return cls(encoder, told.latent, head, told.activation, told.layer_norm, stem, told.kind)

    def size(self, widths: Widths) -> int:
        return widths.copies * self.layout(widths).size

    def named(self, widths: Widths, row: Tensor) -> dict[str, Tensor]:
        """Split the flat row `[n]` of a network with these widths into named tensors: `encoder.0.weight` `[in, out]`,
        `encoder.0.bias` `[out]` and so on.

        If a network has several copies, the copy's number comes first: `0.encoder.0.weight`.
        """
        if widths.copies > 1:
            one, rows = widths._replace(copies=1), enumerate(row.chunk(widths.copies))
            return {f"{i}.{name}": part for i, own in rows for name, part in self.named(one, own).items()}
        parts = [part for layer in self.layout(widths).every for part in layer.parts if part]
        return {p.name: p.of(row) if p.name.endswith("weight") else p.of(row).view(-1) for p in parts}

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        """Draw the initial weights of a network with these widths, as a flat row `[n]`. `rng` is a
        `numpy.random.Generator`.

        - Weights are orthogonal with gain √2; those of the output layer have the gain in `widths` (Saxe et al., 2014).
        - Biases of hidden layers and convolutions are `zeros` or `uniform` in ±1/√inputs, as `widths.biases` says;
          `auto` chooses zeros except with a ReLU. (With zero biases, a ReLU network passes no gradient for an
          observation that is all zeros.) Output biases are 0.
        - Layer normalisation and batch renormalisation have gains 1 and shifts 0. The running means of batch
          renormalisation are 0, and its running variances 1.
        - The α of a blended layer (one whose output is mixed with its input) is 0.
        - The weights by which a residual block adds to the residual stream are 0, so that the block starts as the
          identity.
        - Weights of LSTM layers are orthogonal with gain 1, their biases uniform in ±1/√units, and the biases of their
          forget gates 1 (Jozefowicz et al., 2015).
        """
        if widths.copies > 1:
            one = widths._replace(copies=1)
            return torch.cat([self.initialise(one, each) for each in rng.spawn(widths.copies)])
        own = self.layout(widths)
        row = torch.zeros(own.size)
        (of_biases,) = rng.spawn(1)  # so that no other draw depends on these
        zeros = widths.biases == "zeros" or (widths.biases == "auto" and self.activation != "ReLU")
        for layer in (*own.stem, *own.hidden):
            if zeros and not layer.recurrent:
                continue
            bound = (layer.recurrent or layer.weight).rows ** -0.5
            drawn = torch.from_numpy(of_biases.uniform(-bound, bound, layer.bias.columns))
            layer.bias.of(row)[:] = drawn
        for layer in own.every:
            gain = widths.gain if layer in own.output else 1.0 if layer.recurrent else 2.0**0.5
            for part in (layer.weight, layer.recurrent):
                if part:
                    part.of(row)[:] = _orthogonal(part, gain, rng)
            if layer.recurrent:
                layer.bias.grouped(row)[:, lstm.FORGET] = 1.0
            if layer.gain:
                layer.gain.of(row)[:] = 1.0
            if layer.norm:
                renorm.start(layer.norm.of(row))
        return row

    @property
    def family(self) -> Hashable:
        """The architecture's convolutions, which must be equal in members that share a cohort; see
        `Architecture.family`.

        A cohort is a batch of members with padded layers, and convolutions are not padded.
        """
        return self.stem

    @property
    def signature(self) -> Hashable:
        """The padded width of every layer, and for every layer whether it needs no padding.

        In the mode `exact` (`runtime.cohorts`), members share a batch only if their signatures are equal. A layer
        without padding is normalised by another formula, which may change the last bits of results.
        """
        return widest([self]), tuple(block.width % WIDTH_MULTIPLE == 0 for block in self.layers.values())

    @staticmethod
    def work(archs: Sequence[Arch]) -> int:
        """Return the number of multiplications for one input in the padded network that these architectures share.

        The architectures do not know the width of the observation, so the first layer counts as if its input were as
        wide as its output.
        """
        shared = widest(archs)
        gates = 8 if shared.recurrent else 1  # an LSTM layer: four gates, each reading its input and its own outputs
        blocks = (*shared.encoder, Block(shared.latent), *shared.head)
        into = (blocks[0], *blocks[:-1])
        times = [gates] * len(shared.encoder) + [1] * (1 + len(shared.head))
        products = sum(n * a.width * b.width for n, a, b in zip(times, into, blocks, strict=True))
        return products + shared.stem.work()

    @staticmethod
    def stack(archs: Sequence[Arch], widths: Widths, device: torch.device) -> Structure:
        if widths.copies == 1:
            return Padded(archs, widths, device)
        each = [arch for arch in archs for _ in range(widths.copies)]
        return Copies(Padded(each, widths._replace(copies=1), device), widths.copies)

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        return options(bounds, self, networks)

    def carry(self, new: Arch, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        if widths.copies > 1:
            one, rows = widths._replace(copies=1), row.chunk(widths.copies)
            return torch.cat([self.carry(new, one, kind, own, rng) for own in rows])
        change = Change(self.of(widths), new.of(widths), widths._replace(widen=1))
        if kind == "parameters":
            return change.parameters(row, rng)
        return change.scales(row) if kind == "scales" else change.moments(row)


def _orthogonal(part: Part, gain: float, rng: Any) -> Tensor:
    """Semi-orthogonal `[rows, columns]`, by QR of a Gaussian with the signs of R's diagonal made positive."""
    tall = torch.from_numpy(rng.standard_normal((max(part.rows, part.columns), min(part.rows, part.columns))))
    q, r = torch.linalg.qr(tall)
    q = q * torch.sign(torch.diagonal(r))
    weight: Tensor = (gain * (q if part.rows >= part.columns else q.T)).float()
    return weight
