"""Networks over the population axis: architectures, their padded structure, storage and forward pass.

A member's network is observation → encoder → latent → head → output, described by an `Arch`; images in the observation
go through a convolutional stem before. It may be cut behind the latent, so that several heads read one encoder. The
networks of several members with unlike architectures share one `Structure`: layers are padded to common widths, members
that lack a layer pass it by. Parameters of all of them lie in one flat tensor `[P, N]` (`Net.values`); pads are exactly
zero and stay so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from evopipe.core import lstm, stem
from evopipe.core.layers import NOT_ZERO_AT_ZERO, activate, layer_norm, mix
from evopipe.core.stem import Conv, Stem
from evopipe.errors import ParamsError
from evopipe.rng import Stream
from evopipe.schema.blocks import EncoderKind, NetworkConfig
from evopipe.types import Image

Role = Literal["whole", "encoder", "head"]
RESIDUAL = frozenset({"simba", "resnet"})
LINE = 16  # float32 numbers in a cache line
WIDTH_MULTIPLE = 16  # hidden widths are padded to a multiple of this
NO_STEM = Stem()
Nets: TypeAlias = "Mapping[str, Net]"


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


class Structure:
    """The padded structure that the networks of several members share.

    Args:
        archs: one a row; rows must be ordered by activation, and all stems equal.
        widths: input and output width, and which part of the architectures it is, the same for all.
        device: where masks live.

    Attributes:
        memory: `M`, how many numbers a network carries from step to step, pads included; 0 without LSTM layers.
    """

    def __init__(self, archs: Sequence[Arch], widths: Widths, device: torch.device) -> None:
        self.archs, self.widths, self.device = tuple(archs), widths, device
        self.inputs, self.outputs, role = widths
        if any(arch.stem != archs[0].stem for arch in archs):
            raise ValueError("members with unlike convolutions cannot share a structure")
        self.runs = _runs([arch.activation for arch in archs])
        encoder, head = max(len(a.encoder) for a in archs), max(len(a.head) for a in archs)
        aligned = [_align(arch, encoder, head) for arch in archs]
        columns = list(zip(*aligned, strict=True))  # one tuple of blocks a layer
        residual = 1 + encoder if archs[0].residual else 0  # layers of a residual encoder, the latent first
        padded = [
            (
                name,
                max(round_up(block.width, WIDTH_MULTIPLE) for block in column if block),
                # A residual block that a member lacks adds the nothing that its pads are.
                i >= residual and any(block is None or block.blend for block in column),
            )
            for i, (name, column) in enumerate(zip(layer_names(encoder, head, archs[0].kind), columns, strict=True))
        ]
        self.masks = [self._mask(column, width) for column, (_, width, _) in zip(columns, padded, strict=True)]
        self.blends = [self._blend(column) if each[2] else None for column, each in zip(columns, padded, strict=True)]
        self.mask_after = self._mask_after(residual)
        # Of the whole network what the role has.
        own = of_role(role, encoder)
        hidden, self.aligned = padded[own], [blocks[own] for blocks in aligned]
        self.masks, self.blends, self.mask_after = self.masks[own], self.blends[own], self.mask_after[own]
        begins = role != "head"  # with the observation, not with another network's features
        self.stem, kind = (archs[0].stem, archs[0].kind) if begins else (NO_STEM, "mlp")
        self.residual = residual if begins else 0
        self.recurrent = encoder if kind == "lstm" else 0  # LSTM layers, the first ones
        latent = padded[0 if residual else encoder][1]
        reads = self.inputs if begins else self.inputs + latent
        # One column alone would be multiplied by another kernel in a cohort of one: other bits than among neighbours.
        outputs = max(self.outputs, 2) if self.outputs else 0
        fitted = layout(reads, hidden, outputs, archs[0].layer_norm, self.stem, kind)
        # Rows of whole cache lines, so that a kernel over many rows treats each as it would alone.
        self.layout = replace(fitted, size=round_up(fitted.size, LINE))
        # What a network carries from step to step, `[P, B, M]`: every LSTM layer's outputs, then its cells.
        self.memory_widths = [width for _, width, _ in hidden[: self.recurrent] for _ in range(2)]
        self.memory = sum(self.memory_widths)
        self.index = [self._scatter_index(row) for row in range(len(archs))]

    def _mask(self, column: Sequence[Block | None], width: int) -> torch.Tensor | None:
        """`[P, 1, H]`: 1 on own units; None where every row fills the layer."""
        own = [block.width if block else 0 for block in column]
        if all(n == width for n in own):
            return None
        unit = torch.arange(width, device=self.device)
        return (unit < torch.tensor(own, device=self.device)[:, None]).float()[:, None, :]

    def _blend(self, column: Sequence[Block | None]) -> tuple[torch.Tensor, torch.Tensor]:
        """α = fixed + learned · parameter, each `[P, 1, 1]`: 1 + 0 for a plain layer, 0 + 0 for a missing one."""
        fixed = [float(block is not None and not block.blend) for block in column]
        learned = [float(block is not None and block.blend) for block in column]
        return tuple(torch.tensor(x, device=self.device)[:, None, None] for x in (fixed, learned))  # type: ignore[return-value]

    def _mask_after(self, residual: int) -> list[torch.Tensor | None]:
        """Return the masks of the layers, `residual` of them of a residual encoder, whose outputs need one.

        Pads are 0 by themselves, and nobody reads them; but where a layer is blended, or the next one is, its pads
        share places with units that are read, and a gradient would come back.
        """
        zero_stays = not any(arch.activation in NOT_ZERO_AT_ZERO for arch in self.archs)
        read_next = [*self.blends[1:], None]
        if residual:  # what leaves a residual encoder is its stream, as wide as the latent
            read_next[0] = [*self.blends, None][residual]
        return [
            None if mask is None or (zero_stays and blend is None and next_blend is None) else mask
            for mask, blend, next_blend in zip(self.masks, self.blends, read_next, strict=True)
        ]

    def _scatter_index(self, row: int) -> torch.Tensor:
        """Positions `[n]` in the padded row of every number of this member's own flat row."""
        own = own_layout(self.archs[row], self.widths)
        present = [layer for layer, block in zip(self.layout.hidden, self.aligned[row], strict=True) if block]
        index = torch.empty(own.size, dtype=torch.int64)
        for mine, padded in zip(own.every, (*self.layout.stem, *present, *self.layout.output), strict=True):
            for a, b in zip(mine.parts, padded.parts, strict=True):
                if isinstance(a, Part) and isinstance(b, Part):
                    own_columns = torch.arange(b.columns).view(b.groups, -1)[:, : a.units].reshape(-1)
                    grid = torch.arange(a.rows)[:, None] * b.columns + own_columns + b.start
                    index[a.start : a.start + a.rows * a.columns] = grid.reshape(-1)
        return index.to(self.device)

    def repeat(self, times: int) -> Structure:
        """Return the structure with every row so many times, one after another."""
        return Structure([a for a in self.archs for _ in range(times)], self.widths, self.device)

    def part(self, first: int, end: int | None, every: int = 1) -> Structure:
        """Return the structure of some of the rows, padded as before: what they compute stays the same to the bit."""
        part = copy(self)
        cut = slice(first, end, every)
        part.archs, part.aligned, part.index = self.archs[cut], self.aligned[cut], self.index[cut]
        part.runs = _runs([arch.activation for arch in part.archs])
        part.masks, part.mask_after = (
            [None if mask is None else mask[cut] for mask in masks] for masks in (self.masks, self.mask_after)
        )
        part.blends = [None if blend is None else (blend[0][cut], blend[1][cut]) for blend in self.blends]
        return part

    def pack(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Place members' own flat rows `[n_p]` into padded rows `[P, N]`, zeros elsewhere."""
        packed = torch.zeros(len(rows), self.layout.size, device=self.device)
        for out, index, row in zip(packed, self.index, rows, strict=True):
            out[index] = row.to(self.device)
        return packed

    def unpack(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """Return members' own flat rows `[n_p]` (copies)."""
        return [row[index] for row, index in zip(packed, self.index, strict=True)]


def _runs(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Group equal neighbours: (name, first, end)."""
    runs: list[tuple[str, int, int]] = []
    for i, name in enumerate(names):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], i + 1)
        else:
            runs.append((name, i, i + 1))
    return runs


def _align(arch: Arch, encoder: int, head: int) -> tuple[Block | None, ...]:
    """Stretch an architecture to the common depth: None where it lacks a layer."""
    none: tuple[None, ...] = (None,)
    blocks = (*arch.encoder, *(none * (encoder - len(arch.encoder))))
    latent = Block(arch.latent)
    front = (latent, *blocks) if arch.residual else (*blocks, latent)
    return (*front, *arch.head, *(none * (head - len(arch.head))))


class Views(NamedTuple):
    """One layer's parameters as views `[P, rows, columns]` into the flat storage."""

    weight: torch.Tensor
    bias: torch.Tensor
    gain: torch.Tensor | None
    shift: torch.Tensor | None
    alpha: torch.Tensor | None
    back: torch.Tensor | None = None
    back_bias: torch.Tensor | None = None
    recurrent: torch.Tensor | None = None


@dataclass(frozen=True)
class Net:
    """Networks of all rows: flat parameters and the structure that gives them meaning.

    Attributes:
        structure: shared padded structure.
        values: `[P, N]`, written in place by the optimiser.
        trainable: whether gradients are kept. Then every layer view is a leaf whose `.grad` is a view of `grad`:
            making the flat tensor the leaf is 1.8 to 2.7 times slower.
    """

    structure: Structure
    values: torch.Tensor
    trainable: bool = field(default=False)

    @cached_property
    def grad(self) -> torch.Tensor:
        """`[P, N]` gradients, filled by backward."""
        return torch.zeros_like(self.values)

    @cached_property
    def views(self) -> tuple[Views, ...]:
        """Layer views: leaves with preset gradients where trainable."""
        return tuple(Views(*(self._view(part) for part in layer.parts)) for layer in self.structure.layout.layers)  # type: ignore[arg-type]

    @cached_property
    def convolutions(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """Weight and bias of each of the stem's convolutions, views as in `views`."""
        return tuple((self._view(layer.weight), self._view(layer.bias)) for layer in self.structure.layout.stem)  # type: ignore[misc]

    @cached_property
    def frozen(self) -> Net:
        """The same parameters as constants: a loss that goes through them leaves them no gradient."""
        return replace(self, trainable=False)

    @cached_property
    def pair(self) -> tuple[Net, Net]:
        """Of two networks a member, all first ones and all second ones, as constants."""
        first, second = (Net(self.structure.part(i, None, 2), self.values[i::2]) for i in range(2))
        return first, second

    def _view(self, part: Part | None) -> torch.Tensor | None:
        if part is None:
            return None
        _, start, rows, columns, _ = part
        view = self.values[:, start : start + rows * columns].view(-1, rows, columns)
        if self.trainable:
            view = view.detach().requires_grad_(True)
            view.grad = self.grad[:, start : start + rows * columns].view(-1, rows, columns)
        return view

    def copy(self, trainable: bool = False) -> Net:
        """Return an independent copy of the parameters."""
        return replace(self, values=self.values.clone(), trainable=trainable)


def forward(net: Net, x: torch.Tensor, views: Sequence[Views] | None = None) -> torch.Tensor:
    """Run every row's network on its own batch: `[P, B, inputs]` → `[P, B, outputs]`, of an encoder `[P, B, latent]`.

    One with a memory takes one step from an empty one.

    Args:
        net: the networks.
        x: inputs.
        views: parameters to use in the place of the network's own, for example `noisy` ones.
    """
    s, views = net.structure, views or net.views
    x = _stem(net, x)
    if s.residual:
        x = _residual_encoder(s, views[: s.residual], x)
    if s.recurrent:
        x, _ = _lstm_step(s, views, x, x.new_zeros(*x.shape[:2], s.memory))
    return _dense(s, views, x)


def encode(encoder: Net | None, obs: torch.Tensor) -> torch.Tensor:
    """Return what networks read: `[P, B, O]` → features `[P, B, latent]` of the encoder that they share, or, where they
    are whole and there is none, the observations."""
    return obs if encoder is None else forward(encoder, obs)


def interleave(*nets: Net) -> Net:
    """Return K like networks of every member as one whose rows are a member's next to each other: `[P · K, N]`."""
    values = torch.stack([net.values for net in nets], dim=1).flatten(0, 1)
    return Net(nets[0].structure.repeat(len(nets)), values, nets[0].trainable)


def forward_each(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Run a member's K networks on its one batch: `[P, B, inputs]` → `[P, K, B, outputs]`."""
    each = len(net.values) // len(x)
    out: torch.Tensor = forward(net, x.repeat_interleave(each, dim=0)).unflatten(0, (len(x), each))
    return out


def remember(net: Net | None, x: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take one step with a memory.

    Args:
        net: the networks; None for a shared encoder where there is none: then x passes.
        x: `[P, B, inputs]`.
        memory: `[P, B, M]`, what the step before returned; zeros where an episode begins. See `Structure.memory`.

    Returns:
        `[P, B, outputs]`, and the memory `[P, B, M]` after the step.
    """
    if net is None or not net.structure.memory:
        return encode(net, x), memory
    x, memory = _lstm_step(net.structure, net.views, _stem(net, x), memory)
    return _dense(net.structure, net.views, x), memory


def unroll(net: Net | None, x: torch.Tensor, memory: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Take `L` steps with a memory; gradients flow back through all of them.

    Args:
        net: the networks; None for a shared encoder where there is none: then x passes.
        x: `[P, B, L, inputs]`.
        memory: `[P, B, M]` before the first step.
        begins: `[P, B, L]` bool: an episode begins at this step, so its memory is empty; no gradient passes.

    Returns:
        `[P, B, L, outputs]`.
    """
    if net is None:
        return x
    s = net.structure
    if not s.memory:
        out: torch.Tensor = forward(net, x.flatten(1, 2)).unflatten(1, x.shape[1:3])
        return out
    x, begins = x.transpose(1, 2), begins.transpose(1, 2)  # [P, L, B, …]: a step's rows lie together
    shape = x.shape[1:3]
    x = _lstm_sequence(s, net.views, _stem(net, x.flatten(1, 2)), memory, begins)
    y: torch.Tensor = _dense(s, net.views, x).unflatten(1, shape)
    return y.transpose(1, 2)


def _stem(net: Net, x: torch.Tensor) -> torch.Tensor:
    """What the encoder reads."""
    s = net.structure
    return stem.run(s.stem, x, net.convolutions, s.runs) if s.stem.convs else x


def _dense(s: Structure, views: Sequence[Views], x: torch.Tensor) -> torch.Tensor:
    """Plain hidden layers, which stand behind residual or recurrent ones, and the output layer where there is one."""
    first, end = s.residual + s.recurrent, len(s.masks)
    for i, layer in enumerate(views[first:end], first):
        f = torch.baddbmm(layer.bias, x, layer.weight)  # [P, B, H]
        if layer.gain is not None and layer.shift is not None:
            f = layer_norm(f, layer.gain, layer.shift, s.masks[i])
        x = _leave(s, i, layer, x, activate(f, s.runs))
    if not s.outputs:
        return x
    # A member's outputs begin a cache line: from elsewhere a product has other last bits on some processors.
    rows, columns = x.shape[1], views[end].weight.shape[-1]
    spare = 0 if torch.compiler.is_compiling() else -rows % (LINE // math.gcd(columns, LINE))
    out = torch.baddbmm(
        views[end].bias, torch.nn.functional.pad(x, (0, 0, 0, spare)) if spare else x, views[end].weight
    )
    return out if out.shape[1:] == (rows, s.outputs) else out[:, :rows, : s.outputs]


def _leave(s: Structure, i: int, layer: Views, x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """What leaves hidden layer `i`, which made f of x: masked, and blended with x, as its rows need."""
    mask, blend = s.mask_after[i], s.blends[i]
    if mask is not None:
        f = f * mask
    return f if blend is None else mix(x, f, blend, layer.alpha, s.layout.hidden[i].out)


def _lstm_step(
    s: Structure, views: Sequence[Views], x: torch.Tensor, memory: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of all LSTM layers: x `[P, B, inputs]`, memory `[P, B, M]` → `[P, B, H]` and the memory after it."""
    pieces = memory.split(s.memory_widths, dim=-1)
    kept: list[torch.Tensor] = []
    for i, layer in enumerate(views[: s.recurrent]):
        assert layer.recurrent is not None
        sums = torch.baddbmm(layer.bias, x, layer.weight)
        h, c = lstm.cell(torch.baddbmm(sums, pieces[2 * i], layer.recurrent), pieces[2 * i + 1])
        kept += (h, c)
        x = _leave(s, i, layer, x, h)
    return x, torch.cat(kept, dim=-1)


def _lstm_sequence(
    s: Structure, views: Sequence[Views], x: torch.Tensor, memory: torch.Tensor, begins: torch.Tensor
) -> torch.Tensor:
    """Steps of all LSTM layers: x `[P, L · B, inputs]`, memory `[P, B, M]`, begins `[P, L, B]` → `[P, L · B, H]`."""
    pieces = memory.split(s.memory_widths, dim=-1)
    for i, layer in enumerate(views[: s.recurrent]):
        assert layer.recurrent is not None
        sums = torch.baddbmm(layer.bias, x, layer.weight).unflatten(1, begins.shape[1:])
        h = lstm.sequence(sums, layer.recurrent, pieces[2 * i], pieces[2 * i + 1], begins)
        x = _leave(s, i, layer, x, h.flatten(1, 2))
    return x


def _residual_encoder(s: Structure, views: Sequence[Views], x: torch.Tensor) -> torch.Tensor:
    """x₀ = W s + b, xᵢ = xᵢ₋₁ + back(act(out(pre(xᵢ₋₁)))), then pre(x) once more: `[P, B, inputs]` → `[P, B, latent]`.

    pre is a normalisation (SimBa, Lee et al., 2025) or the activation (ResNet, He et al., 2016).
    """
    latent, *blocks = views
    x = torch.baddbmm(latent.bias, x, latent.weight)
    inner = slice(1, s.residual)
    for block, mask, mask_after in zip(blocks, s.masks[inner], s.mask_after[inner], strict=True):
        f = torch.baddbmm(block.bias, _before(s, block, x), block.weight)
        f = activate(f, s.runs)
        if mask_after is not None:
            f = f * mask_after
        assert block.back is not None
        assert block.back_bias is not None
        # Where a member lacks the block its first unit is a pad, and its bias must not learn.
        bias = block.back_bias if mask is None else block.back_bias * mask[..., :1]
        x = x + torch.baddbmm(bias, f, block.back)
    return _before(s, latent, x)


def _before(s: Structure, block: Views, x: torch.Tensor) -> torch.Tensor:
    """What stands before a residual block: `[P, B, latent]` of the same shape."""
    if block.gain is not None and block.shift is not None:
        x = layer_norm(x, block.gain, block.shift, s.masks[0])
    else:
        x = activate(x.clone(), s.runs)
    return x if s.mask_after[0] is None else x * s.mask_after[0]


def noisy(net: Net, scale: Net, draw: Stream) -> list[Views]:
    """Return parameters with factorised Gaussian noise behind the latent (Fortunato et al., 2018, § 3.1 b).

    w + σ f(ε_in) f(ε_out), b + σ f(ε_out), f(x) = sign(x) √|x|; one draw a member, the same for its whole batch.

    Args:
        net: means.
        scale: σ of every parameter, a network of the same structure; of it only weights and biases are used.
        draw: the members' draws.
    """
    first = 1 + max(len(arch.encoder) for arch in net.structure.archs) if net.structure.widths.role == "whole" else 0
    found, layers = list(net.views[:first]), net.views[first:]
    most = max(max(layer.weight.shape[1:]) for layer in layers)
    drawn = draw.parts(len(layers)).normal(2 * most).view(len(layers), -1, most, 2)  # in pairs: pads shift nothing
    noise = drawn.sign() * drawn.abs().sqrt()
    for layer, sigma, own in zip(layers, scale.views[first:], noise, strict=True):
        rows, columns = layer.weight.shape[1:]
        into, out = own[:, :rows, 0], own[:, :columns, 1]
        weight = torch.addcmul(layer.weight, sigma.weight, into[:, :, None] * out[:, None, :])
        found.append(layer._replace(weight=weight, bias=torch.addcmul(layer.bias, sigma.bias, out[:, None, :])))
    return found


def noise_scale(structure: Structure, sigma: float) -> torch.Tensor:
    """Return the scales `[P, N]` that noisy networks begin with: σ / √(inputs) for weights and biases, 0 on pads."""
    rows = []
    for arch in structure.archs:
        own = own_layout(arch, structure.widths)
        row = torch.zeros(own.size)
        for layer in own.layers:
            for part in (layer.weight, layer.bias):
                row[part.start : part.start + part.rows * part.columns] = sigma * layer.weight.rows**-0.5
        rows.append(row)
    return structure.pack(rows)


def mu(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Return a deterministic actor's action, tanh(·): `[P, B, …]`, see `encode` → `[P, B, A]` in [−1, 1]."""
    return torch.tanh(forward(net, x))


def action_value(net: Net, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return Q(s, a) of a network that reads both: x `[P, B, …]`, see `encode`, action `[P, B, A]` → `[P, B]`."""
    return forward(net, _with_action(net, x, action)).squeeze(-1)


def action_values(net: Net, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return Q(s, a) of a member's K networks that read both, see `action_value`: `[P, K, B]`."""
    return forward_each(net, _with_action(net, x, action)).squeeze(-1)


def _with_action(net: Net, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """What a network reads: a head's own inputs stand before the latent, so that members' latents may differ."""
    return torch.cat((action, x) if net.structure.widths.role == "head" else (x, action), dim=-1)


def initialise(arch: Arch, widths: Widths, rng: Any) -> torch.Tensor:
    """Draw one member's own flat row `[n]` on the CPU.

    Weights are orthogonal with gain √2, 0.1 at the output so that first values are small (Saxe et al., 2014); biases 0,
    norm gains 1, norm shifts 0, blends 0, and so are the weights back of residual blocks, which begin as identities.
    Weights of LSTM layers are orthogonal with gain 1, and the biases of their forget gates 1 (Jozefowicz et al., 2015).

    Args:
        arch: the architecture.
        widths: input and output width.
        rng: a `numpy.random.Generator`.
    """
    own = own_layout(arch, widths)
    row = torch.zeros(own.size)
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
