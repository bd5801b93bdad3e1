"""Perceptrons of several members with different architectures as one `Structure` (`core.structure`).

Layers are padded to common widths, and members that lack a layer skip it. Pads are exactly zero and stay so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from evopipe.core import lstm, renorm
from evopipe.core.layers import NOT_ZERO_AT_ZERO, activate, layer_norm
from evopipe.core.layout import Block
from evopipe.core.net import Net
from evopipe.core.stem import Stem
from evopipe.core.structure import Structure, ViewOf, Widths
from evopipe.native import dense
from evopipe.native.networks import LINE
from evopipe.rng import Stream
from evopipe.types import Tensor

if TYPE_CHECKING:
    from evopipe.core.arch import Arch

WIDTH_MULTIPLE = 16  # hidden widths are padded to a multiple of this


def round_up(value: float, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least int(`value`)."""
    return -(-int(value) // multiple) * multiple


def widest(archs: Sequence[Arch]) -> Arch:
    """Return the smallest architecture in which all of `archs` fit.

    Each layer has the largest of its widths in `archs`, rounded up to a multiple of `WIDTH_MULTIPLE`. A layer that
    members can skip is called blended. A layer becomes blended if one of `archs` lacks it or has it as a blended layer.
    Residual blocks are never blended: if a member lacks one, its padding adds 0.
    """

    def room(parts: Sequence[Sequence[Block]], residual: bool = False) -> tuple[Block, ...]:
        return tuple(
            Block(
                round_up(max(block.width for block in column if block), WIDTH_MULTIPLE),
                not residual and any(block is None or block.blend for block in column),
            )
            for column in itertools.zip_longest(*parts)
        )

    encoder, head = room([a.encoder for a in archs], archs[0].residual), room([a.head for a in archs])
    latent = round_up(max(a.latent for a in archs), WIDTH_MULTIPLE)
    return replace(archs[0], encoder=encoder, latent=latent, head=head)


class Views(NamedTuple):
    weight: Tensor
    bias: Tensor
    gain: Tensor | None
    shift: Tensor | None
    alpha: Tensor | None
    back: Tensor | None
    back_bias: Tensor | None
    recurrent: Tensor | None
    norm: Tensor | renorm.Minibatch | None


class Padded:
    """The structure of one perceptron of several members whose layers are padded to common widths.

    The class implements the protocol `Structure`, which documents the methods that have no docstring here.

    Args:
        archs: the members' architectures. Those with the same activation must be side by side, and all must have the
            same convolutions.
        widths: the input and output width of the network.
        device: the device of the structure's masks.
    """

    def __init__(self, archs: Sequence[Arch], widths: Widths, device: torch.device) -> None:
        if any(arch.stem != archs[0].stem for arch in archs):
            raise ValueError("members with unlike convolutions cannot share a structure")
        shared = widest(archs).of(widths)  # rounded up before, so that equal signatures pad to equal widths
        archs, widths = [arch.of(widths) for arch in archs], widths._replace(widen=1)
        self.archs, self.widths, self.device, self.copies = tuple(archs), widths, device, 1
        self.runs = _runs([arch.activation for arch in archs])
        rooms, own = list(shared.layers.items()), shared.own(widths)
        columns = [[arch.layers.get(name) for arch in archs] for name, _ in rooms]
        self.masks = [self._mask(column, room.width) for column, (_, room) in zip(columns, rooms, strict=True)]
        self.blends = [
            self._blend(column) if room.blend else None for column, (_, room) in zip(columns, rooms, strict=True)
        ]
        self.mask_after = self._mask_after(1 + len(shared.encoder) if shared.residual else 0)
        # Of the whole network what the role has.
        self.masks, self.blends, self.mask_after = self.masks[own], self.blends[own], self.mask_after[own]
        self.names = [name for name, _ in rooms[own]]
        begins = widths.role != "head"  # with the observation, not with another network's features
        self.stem = shared.stem if begins else Stem()
        self.residual = 1 + len(shared.encoder) if begins and shared.residual else 0  # layers, the latent first
        self.recurrent = shared.recurrent if begins else 0  # LSTM layers, the first ones
        # One column alone would be multiplied by another kernel in a cohort of one: other bits than among neighbours.
        outputs = max(widths.outputs, 2) if widths.outputs else 0
        # A blend more would else move all behind it within their lines, by which the gradient's norm is summed.
        fitted = shared.layout(widths._replace(outputs=outputs), LINE)
        self.layout = replace(fitted, size=round_up(fitted.size, LINE))
        self.size = self.layout.size
        self.behind_latent = sum(not name.startswith("head") for name in self.names)  # where noisy layers begin
        # Every LSTM layer's outputs, then its cells.
        self.memory_widths = [room.width for _, room in rooms[: self.recurrent] for _ in range(2)]
        self.memory = sum(self.memory_widths)
        self.index = [self._scatter_index(arch) for arch in archs]
        self.plans: dict[tuple[int, int], dense.LayerPlan] = {}  # of its dense layers, by what they read
        self.served: dict[tuple[int, int], tuple[Views, Views]] = {}  # first and last layers known to be in place
        self._own_inputs: list[Tensor | None] | None = None

    def _mask(self, column: Sequence[Block | None], width: int) -> Tensor | None:
        """`[P, 1, H]`: 1 on own units; None where every row fills the layer."""
        own = [block.width if block else 0 for block in column]
        if all(n == width for n in own):
            return None
        unit = torch.arange(width, device=self.device)
        return (unit < torch.tensor(own, device=self.device)[:, None]).float()[:, None, :]

    def _blend(self, column: Sequence[Block | None]) -> tuple[Tensor, Tensor]:
        """α = fixed + learned · parameter, each `[P, 1, 1]`: 1 + 0 for a plain layer, 0 + 0 for a missing one."""
        fixed = [float(block is not None and not block.blend) for block in column]
        learned = [float(block is not None and block.blend) for block in column]
        return tuple(torch.tensor(x, device=self.device)[:, None, None] for x in (fixed, learned))  # type: ignore[return-value]

    def _mask_after(self, residual: int) -> list[Tensor | None]:
        """Return the masks of the layers whose outputs need one; `residual` of the layers belong to a residual encoder.

        Pads are 0 and have no readers. Only if a layer or the next one is blended do its pads share places with units
        that are read, so that a gradient would flow back.
        """
        zero_stays = not any(arch.activation in NOT_ZERO_AT_ZERO for arch in self.archs)
        read_next = [*self.blends[1:], None]
        if residual:  # what leaves a residual encoder is its stream, as wide as the latent
            read_next[0] = [*self.blends, None][residual]
        return [
            None if mask is None or (zero_stays and blend is None and next_blend is None) else mask
            for mask, blend, next_blend in zip(self.masks, self.blends, read_next, strict=True)
        ]

    def _scatter_index(self, arch: Arch) -> Tensor:
        own = arch.layout(self.widths)
        present = [layer for name, layer in zip(self.names, self.layout.hidden, strict=True) if name in arch.layers]
        index = torch.empty(own.size, dtype=torch.int64)
        for mine, padded in zip(own.every, (*self.layout.stem, *present, *self.layout.output), strict=True):
            for a, b in zip(mine.parts, padded.parts, strict=True):
                if a and b:
                    columns = torch.arange(b.columns).view(b.groups, -1)[:, : a.units].reshape(-1)
                    a.of(index)[:] = torch.arange(a.rows)[:, None] * b.columns + columns + b.start
        return index.to(self.device)

    def own_places(self, last: int) -> Tensor | None:
        """Number the last `last` layers of each member, and return the numbers, `[last, P]`.

        The output layer is included. Numbers begin at 0. A layer that a member lacks (it is padding) is skipped: its
        entry in the result is arbitrary. If a member lacks the second of three layers, its entries are 0, arbitrary, 1.
        The result is None if no member lacks a layer.
        """
        hidden = self.names[len(self.names) + 1 - last :]
        present = [[name in arch.layers for arch in self.archs] for name in hidden]
        if all(map(all, present)):
            return None
        counted = torch.tensor([*present, [True] * len(self.archs)]).cumsum(dim=0)
        return (counted - 1).clamp(min=0).to(self.device)

    def own_inputs(self) -> list[Tensor | None]:
        """Return for each layer which of its inputs are a member's own, `[P, 1, inputs]`: 1, or 0 for padding.

        The list also has the convolutions and the output layer. An element is None if the layer's inputs are not
        normalised by batch renormalisation.
        """
        if self._own_inputs is None:
            own = self.pack([torch.ones(len(index)) for index in self.index])
            norms = [layer.norm for layer in self.layout.every]
            self._own_inputs = [norm and own[:, None, norm.start : norm.start + norm.columns] for norm in norms]
        return self._own_inputs

    def repeat(self, times: int) -> Padded:
        return self._of(
            [i for i in range(len(self.archs)) for _ in range(times)], lambda x: x.repeat_interleave(times, dim=0)
        )

    def part(self, first: int, end: int | None, every: int = 1) -> Padded:
        cut = slice(first, end, every)
        return self._of(range(len(self.archs))[cut], lambda x: x[cut])

    def _of(self, rows: Sequence[int], pick: Callable[[Tensor], Tensor]) -> Padded:
        """Return the structure of these rows, of the same padded widths; `pick` chooses them from a tensor `[P, …]`."""
        part = copy(self)
        part.archs, part.index = tuple(self.archs[i] for i in rows), [self.index[i] for i in rows]
        part.plans, part.served, part._own_inputs = {}, {}, None
        part.runs = _runs([arch.activation for arch in part.archs])
        part.masks, part.mask_after = (
            [None if mask is None else pick(mask) for mask in masks] for masks in (self.masks, self.mask_after)
        )
        part.blends = [None if blend is None else (pick(blend[0]), pick(blend[1])) for blend in self.blends]
        return part

    def pack(self, rows: Sequence[Tensor]) -> Tensor:
        packed = torch.zeros(len(rows), self.size, device=self.device)
        for out, index, row in zip(packed, self.index, rows, strict=True):
            out[index] = row.to(self.device)
        return packed

    def unpack(self, packed: Tensor) -> list[Tensor]:
        return [row[index] for row, index in zip(packed, self.index, strict=True)]

    def views(self, of: ViewOf) -> tuple[Views, ...]:
        return tuple(
            Views(*(of(part.start, part.rows, part.columns) if part else None for part in layer.parts))  # type: ignore[arg-type]
            for layer in self.layout.every
        )

    def forward(self, views: Sequence[Views], x: Tensor) -> Tensor:
        x, layers = self._convolved(views, x)
        if self.residual:
            x = self._residual_encoder(layers[: self.residual], x)
        if self.recurrent:
            x, _ = self._lstm_step(layers, x, x.new_zeros(*x.shape[:2], self.memory))
        return self._dense(layers, x)

    def remember(self, views: Sequence[Views], x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        x, layers = self._convolved(views, x)
        x, memory = self._lstm_step(layers, x, memory)
        return self._dense(layers, x), memory

    def unroll(self, views: Sequence[Views], x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        x, begins = x.transpose(1, 2), begins.transpose(1, 2)  # [P, L, B, …]: a step's rows lie together
        shape = x.shape[1:3]
        x, layers = self._convolved(views, x.flatten(1, 2))
        x = self._lstm_sequence(layers, x, memory, begins)
        y: Tensor = self._dense(layers, x).unflatten(1, shape)
        return y.transpose(1, 2)

    def _convolved(self, views: Sequence[Views], x: Tensor) -> tuple[Tensor, Sequence[Views]]:
        convolutions, layers = views[: len(self.layout.stem)], views[len(self.layout.stem) :]
        if not convolutions:
            return x, layers
        return self.stem.run(x, [(view.weight, view.bias) for view in convolutions], self.runs), layers

    def _dense(self, layers: Sequence[Views], x: Tensor) -> Tensor:
        """Plain hidden layers, behind residual or recurrent ones, and the output layer where there is one."""
        first, end = self.residual + self.recurrent, len(self.masks)
        native = None if self.widths.renorm else dense.run(self, first, layers[first:], x)
        if native is not None:
            return native
        for i, layer in enumerate(layers[first:end], first):
            f = torch.baddbmm(layer.bias, renorm.read(x, layer.norm), layer.weight)  # [P, B, H]
            if layer.gain is not None and layer.shift is not None:
                f = layer_norm(f, layer.gain, layer.shift, self.masks[i])
            f = activate(f, self.runs)
            dense.saw(f, self.masks[i])
            x = self._leave(i, layer, x, f)
        if not self.widths.outputs:
            return x
        # A member's outputs begin a cache line: from elsewhere a product has other last bits on some processors.
        rows, last = x.shape[1], layers[end]
        x = renorm.read(x, last.norm)
        spare = 0 if torch.compiler.is_compiling() else -rows % (LINE // math.gcd(last.weight.shape[-1], LINE))
        if spare:
            x = torch.nn.functional.pad(x, (0, 0, 0, spare))
        out = torch.baddbmm(last.bias, x, last.weight)
        outputs = self.widths.outputs
        return out if out.shape[1:] == (rows, outputs) else out[:, :rows, :outputs]

    def _leave(self, i: int, layer: Views, x: Tensor, f: Tensor) -> Tensor:
        """What leaves hidden layer `i`, which made f of x: masked, and (1 − α) x + α f; α = 1 gives f to the bit."""
        mask, blend = self.mask_after[i], self.blends[i]
        if mask is not None:
            f = f * mask
        if blend is None:
            return f
        fixed, learned = blend
        alpha = fixed if layer.alpha is None else fixed + learned * layer.alpha
        width = self.layout.hidden[i].out
        x, f = (y if y.shape[-1] == width else torch.nn.functional.pad(y, (0, width - y.shape[-1])) for y in (x, f))
        return torch.lerp(x, f, alpha)

    def _lstm_step(self, layers: Sequence[Views], x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One step of all LSTM layers: x `[P, B, inputs]`, memory `[P, B, M]` → `[P, B, H]` and the memory after it."""
        pieces = memory.split(self.memory_widths, dim=-1)
        kept: list[Tensor] = []
        for i, layer in enumerate(layers[: self.recurrent]):
            assert layer.recurrent is not None
            sums = torch.baddbmm(layer.bias, x, layer.weight)
            h, c = lstm.cell(torch.baddbmm(sums, pieces[2 * i], layer.recurrent), pieces[2 * i + 1])
            kept += (h, c)
            x = self._leave(i, layer, x, h)
        return x, torch.cat(kept, dim=-1)

    def _lstm_sequence(self, layers: Sequence[Views], x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        """Steps of all LSTM layers: x `[P, L · B, …]`, memory `[P, B, M]`, begins `[P, L, B]` → `[P, L · B, H]`."""
        pieces = memory.split(self.memory_widths, dim=-1)
        for i, layer in enumerate(layers[: self.recurrent]):
            assert layer.recurrent is not None
            sums = torch.baddbmm(layer.bias, x, layer.weight).unflatten(1, begins.shape[1:])
            h = lstm.sequence(sums, layer.recurrent, pieces[2 * i], pieces[2 * i + 1], begins)
            x = self._leave(i, layer, x, h.flatten(1, 2))
        return x

    def _residual_encoder(self, layers: Sequence[Views], x: Tensor) -> Tensor:
        """`[P, B, inputs]` → `[P, B, latent]`: x₀ = W s + b, xᵢ = xᵢ₋₁ + back(act(out(pre(xᵢ₋₁)))), then pre(x) again.

        pre is a normalisation (SimBa, Lee et al., 2025) or the activation (ResNet, He et al., 2016).
        """
        latent, *blocks = layers
        x = torch.baddbmm(latent.bias, x, latent.weight)
        inner = slice(1, self.residual)
        for block, mask, mask_after in zip(blocks, self.masks[inner], self.mask_after[inner], strict=True):
            f = activate(torch.baddbmm(block.bias, self._before(block, x), block.weight), self.runs)
            if mask_after is not None:
                f = f * mask_after
            assert block.back is not None
            assert block.back_bias is not None
            # Where a member lacks the block its first unit is a pad, and its bias must not learn.
            bias = block.back_bias if mask is None else block.back_bias * mask[..., :1]
            x = x + torch.baddbmm(bias, f, block.back)
        return self._before(latent, x)

    def _before(self, block: Views, x: Tensor) -> Tensor:
        if block.gain is not None and block.shift is not None:
            x = layer_norm(x, block.gain, block.shift, self.masks[0])
        else:
            x = activate(x.clone(), self.runs)
        return x if self.mask_after[0] is None else x * self.mask_after[0]


def _runs(names: Sequence[str]) -> list[tuple[str, int, int]]:
    runs, at = [], 0
    for name, equal in itertools.groupby(names):
        first, at = at, at + len(list(equal))
        runs.append((name, first, at))
    return runs


def noisy(net: Net, scale: Net, draw: Stream) -> list[Views]:
    """Return a network's parameters, in the form of `Net.views`, with factorised Gaussian noise.

    Only the layers that follow the encoder get noise.

    Weights are w + σ f(ε_in) f(ε_out) and biases b + σ f(ε_out), with f(x) = sign(x) √|x| (Fortunato et al., 2018, §
    3.1 b). One noise sample serves a member's whole batch.

    Args:
        net: the network.
        scale: a network like `net` that holds a σ for each parameter. Only the σ of weights and biases are used.
        draw: the stream of random numbers.
    """
    shape = net.structure
    assert isinstance(shape, Padded)
    first = len(shape.layout.stem) + shape.behind_latent
    found, layers = list(net.views[:first]), net.views[first:]
    most = max(max(layer.weight.shape[1:]) for layer in layers)
    drawn = draw.parts(len(layers)).normal(2 * most).view(len(layers), -1, most, 2)  # in pairs: pads shift nothing
    noise = drawn.sign() * drawn.abs().sqrt()
    own_places = shape.own_places(len(layers))
    if own_places is not None:
        noise = noise[own_places, torch.arange(noise.shape[1], device=noise.device)]
    for layer, sigma, own in zip(layers, scale.views[first:], noise, strict=True):
        rows, columns = layer.weight.shape[1:]
        into, out = own[:, :rows, 0], own[:, :columns, 1]
        weight = torch.addcmul(layer.weight, sigma.weight, into[:, :, None] * out[:, None, :])
        found.append(layer._replace(weight=weight, bias=torch.addcmul(layer.bias, sigma.bias, out[:, None, :])))
    return found


def noise_scale(structure: Structure, sigma: float) -> Tensor:
    """Return the initial noise scales σ `[P, N]` of noisy networks with this structure: `sigma` / √(inputs) for weights
    and biases, 0 on padding.

    P is the number of members, N the length of a row of parameters.
    """
    assert isinstance(structure, Padded)
    rows = []
    for arch in structure.archs:
        own = arch.layout(structure.widths)
        row = torch.zeros(own.size)
        for layer in (*own.hidden, *own.output):
            for part in (layer.weight, layer.bias):
                part.of(row)[:] = sigma * layer.weight.rows**-0.5
        rows.append(row)
    return structure.pack(rows)
