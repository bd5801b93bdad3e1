"""Networks over the population axis: architectures, their padded structure, storage and forward pass.

A member's network is observation → encoder → latent → head → output, described by an `Arch`. The networks of several
members with unlike architectures share one `Structure`: layers are padded to common widths, members that lack a layer
pass it by. Parameters of all of them lie in one flat tensor `[P, N]` (`Net.values`); pads are exactly zero and stay so.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field

from evopipe.core.layers import NOT_ZERO_AT_ZERO, activate, layer_norm
from evopipe.types import Schema

Activation = Literal["ReLU", "ELU", "GELU", "Tanh", "LeakyReLU", "SiLU", "Softsign", "Sigmoid", "Softplus", "Identity"]
Width = Annotated[int, Field(ge=1, le=4096)]
LINE = 16  # float32 numbers in a cache line
WIDTH_MULTIPLE = 16  # hidden widths are padded to a multiple of this


class NetworkConfig(Schema):
    """Architecture that members start from: observation → encoder → latent → head → output."""

    encoder: tuple[Width, ...] = Field((128,), max_length=8, strict=False, description="hidden widths of the encoder")
    latent: Width = Field(128, description="width between encoder and head")
    head: tuple[Width, ...] = Field((), max_length=8, strict=False, description="hidden widths of the head")
    activation: Activation = Field("ReLU", description="activation after every hidden layer")
    layer_norm: bool = Field(False, description="layer normalisation before every activation")


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

    @classmethod
    def start(cls, cfg: NetworkConfig) -> Arch:
        """Return the architecture that `params.yaml` describes."""
        encoder, head = (tuple(Block(width) for width in part) for part in (cfg.encoder, cfg.head))
        return cls(encoder, cfg.latent, head, cfg.activation, cfg.layer_norm)

    @property
    def hidden(self) -> tuple[Block, ...]:
        """All hidden layers in order: encoder, latent, head."""
        return (*self.encoder, Block(self.latent), *self.head)

    def describe(self) -> str:
        """Return a short text: `128+64|32|64` is two encoder layers, the latent, one head layer; `~` marks a blend."""
        encoder, head = ("+".join(f"{b.width}{'~' * b.blend}" for b in part) for part in (self.encoder, self.head))
        return "|".join(part for part in (encoder, str(self.latent), head) if part)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "encoder": [list(block) for block in self.encoder],
            "latent": self.latent,
            "head": [list(block) for block in self.head],
            "activation": self.activation,
            "layer_norm": self.layer_norm,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Arch:
        """Build from what `to_json` returned."""
        encoder, head = (tuple(Block(int(w), bool(b)) for w, b in data[part]) for part in ("encoder", "head"))
        return cls(encoder, int(data["latent"]), head, str(data["activation"]), bool(data["layer_norm"]))


class Part(NamedTuple):
    """Where one parameter tensor lies in a flat row: shape `[rows, columns]` from `start`."""

    name: str
    start: int
    rows: int
    columns: int


class LayerLayout(NamedTuple):
    """One layer's parts; `gain` and `shift` where normalised, `alpha` where blended or passed by."""

    weight: Part
    bias: Part
    gain: Part | None
    shift: Part | None
    alpha: Part | None
    out: int  # effective width that the next layer reads


@dataclass(frozen=True)
class Layout:
    """Offsets of all parts in a flat row of `size` numbers."""

    hidden: tuple[LayerLayout, ...]
    output: LayerLayout
    size: int

    @property
    def layers(self) -> tuple[LayerLayout, ...]:
        """Hidden layers, then the output layer."""
        return (*self.hidden, self.output)


def layout(inputs: int, hidden: Sequence[tuple[str, int, bool]], outputs: int, norm: bool) -> Layout:
    """Lay the parts of a network out, one after another.

    Args:
        inputs: input width.
        hidden: (name, own width, whether its input also passes by) of every hidden layer.
        outputs: output width.
        norm: whether hidden layers are normalised.
    """
    at, width, layers = 0, inputs, []

    def part(name: str, rows: int, columns: int) -> Part:
        nonlocal at
        at += rows * columns
        return Part(name, at - rows * columns, rows, columns)

    for name, own, passes in hidden:
        weight, bias = part(f"{name}.weight", width, own), part(f"{name}.bias", 1, own)
        gain = part(f"{name}.gain", 1, own) if norm else None
        shift = part(f"{name}.shift", 1, own) if norm else None
        alpha = part(f"{name}.alpha", 1, 1) if passes else None
        width = max(width, own) if passes else own
        layers.append(LayerLayout(weight, bias, gain, shift, alpha, width))
    weight, bias = part("output.weight", width, outputs), part("output.bias", 1, outputs)
    return Layout(tuple(layers), LayerLayout(weight, bias, None, None, None, outputs), at)


def layer_names(encoder: int, head: int) -> list[str]:
    """Name hidden layers: `encoder.0` …, `latent`, `head.0` …"""
    return [*(f"encoder.{i}" for i in range(encoder)), "latent", *(f"head.{i}" for i in range(head))]


def own_layout(arch: Arch, inputs: int, outputs: int) -> Layout:
    """Return the unpadded layout of one member's network."""
    names = layer_names(len(arch.encoder), len(arch.head))
    hidden = [(name, block.width, block.blend) for name, block in zip(names, arch.hidden, strict=True)]
    return layout(inputs, hidden, outputs, arch.layer_norm)


def round_up(value: float, multiple: int) -> int:
    """Return the least multiple that is not below the whole part of a value."""
    return -(-int(value) // multiple) * multiple


class Structure:
    """The padded structure that the networks of several members share.

    Args:
        archs: one a row; rows must be ordered by activation.
        inputs: input width, the same for all.
        outputs: output width, the same for all.
        device: where masks live.
    """

    def __init__(self, archs: Sequence[Arch], inputs: int, outputs: int, device: torch.device) -> None:
        self.archs, self.inputs, self.outputs, self.device = tuple(archs), inputs, outputs, device
        self.norm = archs[0].layer_norm
        self.runs = _runs([arch.activation for arch in archs])
        encoder, head = max(len(a.encoder) for a in archs), max(len(a.head) for a in archs)
        self.aligned = [_align(arch, encoder, head) for arch in archs]
        columns = list(zip(*self.aligned, strict=True))  # one tuple of blocks a layer
        hidden = [
            (
                name,
                max(round_up(block.width, WIDTH_MULTIPLE) for block in column if block),
                any(block is None or block.blend for block in column),
            )
            for name, column in zip(layer_names(encoder, head), columns, strict=True)
        ]
        fitted = layout(inputs, hidden, outputs, self.norm)
        # Rows of whole cache lines, so that a kernel over many rows treats each as it would alone.
        self.layout = replace(fitted, size=round_up(fitted.size, LINE))
        self.masks = [self._mask(column, width) for column, (_, width, _) in zip(columns, hidden, strict=True)]
        self.blends = [
            self._blend(column) if passes else None for column, (_, _, passes) in zip(columns, hidden, strict=True)
        ]
        zero_stays = not any(arch.activation in NOT_ZERO_AT_ZERO for arch in archs)
        # Pads are 0 by themselves, and nobody reads them; but where a layer is blended, or the next one is, its pads
        # share places with units that are read, and a gradient would come back.
        self.mask_after = [
            None if mask is None or (zero_stays and blend is None and next_blend is None) else mask
            for mask, blend, next_blend in zip(self.masks, self.blends, [*self.blends[1:], None], strict=True)
        ]
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

    def _scatter_index(self, row: int) -> torch.Tensor:
        """Positions `[n]` in the padded row of every number of this member's own flat row."""
        own = own_layout(self.archs[row], self.inputs, self.outputs)
        present = [layer for layer, block in zip(self.layout.hidden, self.aligned[row], strict=True) if block]
        index = torch.empty(own.size, dtype=torch.int64)
        for mine, padded in zip(own.layers, (*present, self.layout.output), strict=True):
            for a, b in zip(mine[:5], padded[:5], strict=True):
                if isinstance(a, Part) and isinstance(b, Part):
                    grid = torch.arange(a.rows)[:, None] * b.columns + torch.arange(a.columns) + b.start
                    index[a.start : a.start + a.rows * a.columns] = grid.reshape(-1)
        return index.to(self.device)

    def part(self, first: int, end: int) -> Structure:
        """Return the structure of some of the rows, padded as before: what they compute stays the same to the bit."""
        part = copy(self)
        cut = slice(first, end)
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
    return (
        *arch.encoder,
        *(none * (encoder - len(arch.encoder))),
        Block(arch.latent),
        *arch.head,
        *(none * (head - len(arch.head))),
    )


class Views(NamedTuple):
    """One layer's parameters as views `[P, rows, columns]` into the flat storage."""

    weight: torch.Tensor
    bias: torch.Tensor
    gain: torch.Tensor | None
    shift: torch.Tensor | None
    alpha: torch.Tensor | None


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
        return tuple(Views(*(self._view(part) for part in layer[:5])) for layer in self.structure.layout.layers)  # type: ignore[arg-type]

    def _view(self, part: Part | None) -> torch.Tensor | None:
        if part is None:
            return None
        _, start, rows, columns = part
        view = self.values[:, start : start + rows * columns].view(-1, rows, columns)
        if self.trainable:
            view = view.detach().requires_grad_(True)
            view.grad = self.grad[:, start : start + rows * columns].view(-1, rows, columns)
        return view

    def copy(self, trainable: bool = False) -> Net:
        """Return an independent copy of the parameters."""
        return replace(self, values=self.values.clone(), trainable=trainable)


def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Run every row's network on its own batch: `[P, B, inputs]` → `[P, B, outputs]`."""
    s = net.structure
    for layer, mask, mask_after, blend, padded in zip(
        net.views[:-1], s.masks, s.mask_after, s.blends, s.layout.hidden, strict=True
    ):
        f = torch.baddbmm(layer.bias, x, layer.weight)  # [P, B, H]
        if layer.gain is not None and layer.shift is not None:
            f = layer_norm(f, layer.gain, layer.shift, mask)
        f = activate(f, s.runs)
        if mask_after is not None:
            f = f * mask_after
        x = f if blend is None else _mix(x, f, blend, layer.alpha, padded.out)
    return torch.baddbmm(net.views[-1].bias, x, net.views[-1].weight)


def _mix(
    x: torch.Tensor, f: torch.Tensor, blend: tuple[torch.Tensor, torch.Tensor], alpha: torch.Tensor | None, width: int
) -> torch.Tensor:
    """(1 − α) x + α f, both widened to `width`. Written so that α = 1 gives f, and α = 0 gives x, to the bit."""
    fixed, learned = blend
    a = fixed if alpha is None else fixed + learned * alpha
    pad = torch.nn.functional.pad
    return (1 - a) * pad(x, (0, width - x.shape[-1])) + a * pad(f, (0, width - f.shape[-1]))


def initialise(arch: Arch, inputs: int, outputs: int, rng: Any) -> torch.Tensor:
    """Draw one member's own flat row `[n]` on the CPU.

    Weights are orthogonal with gain √2, 0.1 at the output so that first values are small (Saxe et al., 2014); biases 0,
    norm gains 1, norm shifts 0, blends 0.

    Args:
        arch: the architecture.
        inputs: input width.
        outputs: output width.
        rng: a `numpy.random.Generator`.
    """
    own = own_layout(arch, inputs, outputs)
    row = torch.zeros(own.size)
    for layer in own.layers:
        gain = 0.1 if layer is own.output else 2.0**0.5
        part = layer.weight
        row[part.start : part.start + part.rows * part.columns] = _orthogonal(part.rows, part.columns, gain, rng)
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


def named(arch: Arch, widths: tuple[int, int], row: torch.Tensor) -> dict[str, torch.Tensor]:
    """Split a member's own flat row into its named tensors (views): `encoder.0.weight` `[in, out]` and so on."""
    parts = [part for layer in own_layout(arch, *widths).layers for part in layer[:5] if isinstance(part, Part)]
    return {
        p.name: row[p.start : p.start + p.rows * p.columns].view(
            (p.rows, p.columns) if p.name.endswith("weight") else -1
        )
        for p in parts
    }
