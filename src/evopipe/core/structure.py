"""The padded structure that the networks of several members with unlike architectures share.

Layers are padded to common widths, members that lack a layer pass it by.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch

from evopipe.core.arch import (
    LINE,
    NO_STEM,
    WIDTH_MULTIPLE,
    Arch,
    Block,
    Part,
    Widths,
    layer_names,
    layout,
    of_role,
    own_layout,
    round_up,
)  # fmt: skip
from evopipe.core.layers import NOT_ZERO_AT_ZERO


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
