"""Members as changes to one frozen base: low-rank adapters, or changes of every weight, stacked in rows `[P, N]`.

Hu et al., "LoRA: low-rank adaptation of large language models", 2021: a linear layer W x becomes W x + s · B A x. The
base runs once for a batch `[P · B, L]`, see `hooks`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from evopipe.core.structure import LINE, Option, ViewOf, Widths
from evopipe.language import hooks
from evopipe.language.base import Base
from evopipe.language.layers import Layer
from evopipe.schema.blocks import ArchitectureBounds
from evopipe.types import Scored, Tensor, Text


class Adapted(Widths):
    """Width of a network that adapts a base, which it knows; `Widths` of any other."""

    base: Base

    @classmethod
    def of(cls, base: Base) -> Adapted:
        made = cls(base.words.hidden, base.words.vocabulary)
        made.base = base
        return made


@dataclass(frozen=True)
class LoRA:
    """Adapters of a rank on every linear layer: of each A `[in, rank]`, then B `[rank, out]`.

    Of a plain head, as of values, a row is a linear layer: weights, then biases.
    """

    rank: int
    scale: float = 2.0
    activation: str = ""

    @property
    def family(self) -> tuple[str, float]:
        return "lora", self.scale

    @property
    def signature(self) -> int:
        return self.rank

    def describe(self) -> str:
        return f"adapters of rank {self.rank}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "lora", "rank": self.rank, "scale": self.scale}

    def size(self, widths: Widths) -> int:
        if not isinstance(widths, Adapted):
            return _head_size(widths)
        return sum(self.rank * sum(layer.shape) for layer in widths.base.linear)

    def named(self, widths: Widths, row: Tensor) -> dict[str, Tensor]:
        """Split a row: `<layer>.a` `[in, rank]` and `<layer>.b` `[rank, out]`."""
        if not isinstance(widths, Adapted):
            return _head(widths, row)
        found, start = {}, 0
        for layer in widths.base.linear:
            for part, shape in (("a", (layer.shape[0], self.rank)), ("b", (self.rank, layer.shape[1]))):
                end = start + math.prod(shape)
                found[f"{layer.name}.{part}"] = row[start:end].view(shape)
                start = end
        return found

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        """Draw A from U(−1/√in, 1/√in), as PEFT does; B is 0, so that the member begins as the base."""
        row = torch.zeros(self.size(widths))
        for name, part in self.named(widths, row).items():
            if name.endswith(".a"):
                bound = len(part) ** -0.5
                part.copy_(torch.from_numpy(rng.uniform(-bound, bound, tuple(part.shape))).float())
        return row

    @staticmethod
    def work(archs: Sequence[LoRA]) -> int:
        return max(arch.rank for arch in archs)

    @staticmethod
    def stack(archs: Sequence[LoRA], widths: Widths, device: torch.device) -> Any:
        if not isinstance(widths, Adapted):
            return Head(len(archs), widths, device)
        return Adapters(tuple(archs), widths, max(arch.rank for arch in archs), device)

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        """A rank may grow, to `bounds.max_nodes`: A has new columns, B new rows of 0, so that the member stays what it
        is."""
        for more in (1, 2, 4):
            if self.rank + more <= bounds.max_nodes:
                yield "add_rank", "rank", self.rank, self.rank + more, replace(self, rank=self.rank + more)

    def carry(self, new: LoRA, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        if not isinstance(widths, Adapted):
            return row.clone()
        carried = new.initialise(widths, rng) if kind == "parameters" else torch.zeros(new.size(widths))
        held, kept = self.named(widths, row), min(self.rank, new.rank)
        for name, part in new.named(widths, carried).items():
            if name.endswith(".a"):
                part[:, :kept] = held[name][:, :kept]
            else:
                part[:kept] = held[name][:kept]
        return carried

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LoRA:
        """Build what `to_json` returned; ValueError where it is another thing."""
        rank, scale = data.get("rank"), data.get("scale")
        if type(rank) is not int or not 1 <= rank <= 4096:
            raise ValueError(f"rank: must be a whole number from 1 to 4096, got {rank!r:.40}")
        if not isinstance(scale, (int, float)) or not 0 < scale <= 1000:
            raise ValueError(f"scale: must be a number above 0, at most 1000, got {scale!r:.40}")
        return cls(rank, float(scale))


@dataclass(frozen=True)
class Full:
    """A change of every weight of the base, 0 at first: what a tiny model learns from scratch."""

    activation: str = ""
    family: str = "full"
    signature: str = "full"

    def describe(self) -> str:
        return "every weight"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "full"}

    def size(self, widths: Widths) -> int:
        if not isinstance(widths, Adapted):
            return _head_size(widths)
        return sum(math.prod(layer.shape) for layer in widths.base.weights)

    def named(self, widths: Widths, row: Tensor) -> dict[str, Tensor]:
        if not isinstance(widths, Adapted):
            return _head(widths, row)
        layers = widths.base.weights
        parts = row.split([math.prod(layer.shape) for layer in layers])
        return {layer.name: part.view(layer.shape) for layer, part in zip(layers, parts, strict=True)}

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        return torch.zeros(self.size(widths))

    @staticmethod
    def work(archs: Sequence[Full]) -> int:
        return 1

    @staticmethod
    def stack(archs: Sequence[Full], widths: Widths, device: torch.device) -> Any:
        if not isinstance(widths, Adapted):
            return Head(len(archs), widths, device)
        return Changes(len(archs), widths, device)

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        return iter(())

    def carry(self, new: Full, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        return row.clone()


Adapter: TypeAlias = LoRA | Full


def read_adapter(data: dict[str, Any]) -> Adapter:
    """Build what `to_json` of either returned; ValueError where it is another thing."""
    return Full() if data.get("kind") == "full" else LoRA.from_json(data)


# --- rows of several members ------------------------------------------------------------------------------------------


def _whole_lines(numbers: int) -> int:
    return -(-numbers // LINE) * LINE


@dataclass(frozen=True)
class Head:
    """Linear layers of plain widths, one a member, `y = x W + b`, 0 at first."""

    members: int
    widths: Widths
    device: torch.device
    memory: int = 0
    memory_widths: tuple[int, ...] = ()
    copies: int = 1

    @property
    def size(self) -> int:
        return _whole_lines(_head_size(self.widths))

    def pack(self, rows: Sequence[Tensor]) -> Tensor:
        return _packed(rows, self.size, self.device)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        return list(packed[:, : _head_size(self.widths)].clone().unbind(0))

    def part(self, first: int, end: int | None, every: int = 1) -> Head:
        return replace(self, members=len(range(self.members)[first:end:every]))

    def repeat(self, times: int) -> Head:
        return replace(self, members=self.members * times)

    def views(self, of: ViewOf) -> tuple[Tensor, Tensor]:
        inputs, outputs = self.widths.inputs, self.widths.outputs
        return of(0, inputs, outputs), of(inputs * outputs, 1, outputs)

    def forward(self, views: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        weight, bias = views
        return torch.baddbmm(bias, x.to(weight.dtype), weight)


def _head_size(widths: Widths) -> int:
    return (widths.inputs + 1) * widths.outputs


def _head(widths: Widths, row: Tensor) -> dict[str, Tensor]:
    weight, bias = row.split([widths.inputs * widths.outputs, widths.outputs])
    return {"weight": weight.view(widths.inputs, widths.outputs), "bias": bias}


def _packed(rows: Sequence[Tensor], size: int, device: torch.device) -> Tensor:
    packed = torch.zeros(len(rows), size)
    for own, place in zip(rows, packed, strict=True):
        place[: len(own)] = own
    return packed.to(device)


@dataclass(frozen=True)
class Adapters:
    """Adapters of unlike ranks in rows: those of a lower one have columns of A and rows of B that are 0."""

    archs: tuple[LoRA, ...]
    widths: Adapted
    rank: int
    device: torch.device
    memory: int = 0
    memory_widths: tuple[int, ...] = ()
    copies: int = 1

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return self.widths.base.linear

    @cached_property
    def size(self) -> int:
        return _whole_lines(sum(self.rank * sum(layer.shape) for layer in self.layers))

    def pack(self, rows: Sequence[Tensor]) -> Tensor:
        packed, padded = torch.zeros(len(rows), self.size), replace(self.archs[0], rank=self.rank)
        whole = padded.size(self.widths)
        for arch, own, place in zip(self.archs, rows, packed, strict=True):
            into = padded.named(self.widths, place[:whole])
            for name, part in arch.named(self.widths, own).items():
                into[name][: part.shape[0], : part.shape[1]] = part
        return packed.to(self.device)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        padded, found = replace(self.archs[0], rank=self.rank), []
        whole = padded.size(self.widths)
        for arch, row in zip(self.archs, packed, strict=True):
            own = torch.empty(arch.size(self.widths), device=packed.device)
            held = padded.named(self.widths, row[:whole])
            for name, part in arch.named(self.widths, own).items():
                part.copy_(held[name][: part.shape[0], : part.shape[1]])
            found.append(own)
        return found

    def part(self, first: int, end: int | None, every: int = 1) -> Adapters:
        return replace(self, archs=self.archs[first:end:every])

    def repeat(self, times: int) -> Adapters:
        return replace(self, archs=tuple(arch for arch in self.archs for _ in range(times)))

    def views(self, of: ViewOf) -> list[tuple[Tensor, Tensor]]:
        found, start = [], 0
        for layer in self.layers:
            inner, out = layer.shape
            found.append((of(start, inner, self.rank), of(start + inner * self.rank, self.rank, out)))
            start += (inner + out) * self.rank
        return found

    def active(self, views: Any) -> AbstractContextManager[Any]:
        """See `hooks.adapting`."""
        pairs, scale = zip(self.layers, views, strict=True), self.archs[0].scale
        return hooks.adapting(self.widths.base, {layer.name: hooks.LowRank(a, b, scale) for layer, (a, b) in pairs})

    def score(self, views: Any, text: Text, entropy: bool, hidden: bool) -> tuple[Tensor | None, Scored]:
        """See `hooks.score`."""
        leaves = [leaf for pair in views for leaf in pair]
        return hooks.score(self.widths.base, text, entropy, hidden, lambda: self.active(views), leaves)

    def forward(self, views: Any, x: Tensor) -> Tensor:
        """Return the logits `[P, B, L, V]` of rows of tokens `[P, B, L]` without pads."""
        with self.active(views) as model:
            return _logits(model, x)


@dataclass(frozen=True)
class Changes:
    """Changes of every weight of the base, a row a member."""

    members: int
    widths: Adapted
    device: torch.device
    memory: int = 0
    memory_widths: tuple[int, ...] = ()
    copies: int = 1

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return self.widths.base.weights

    @cached_property
    def own(self) -> int:
        return sum(math.prod(layer.shape) for layer in self.layers)

    @property
    def size(self) -> int:
        return _whole_lines(self.own)

    def pack(self, rows: Sequence[Tensor]) -> Tensor:
        return _packed(rows, self.size, self.device)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        return list(packed[:, : self.own].clone().unbind(0))

    def part(self, first: int, end: int | None, every: int = 1) -> Changes:
        return replace(self, members=len(range(self.members)[first:end:every]))

    def repeat(self, times: int) -> Changes:
        return replace(self, members=self.members * times)

    def views(self, of: ViewOf) -> list[Tensor]:
        found, start = [], 0
        for layer in self.layers:
            rows, columns = layer.shape if len(layer.shape) == 2 else (1, layer.shape[0])
            found.append(of(start, rows, columns))
            start += rows * columns
        return found

    def active(self, views: Any) -> AbstractContextManager[Any]:
        """See `hooks.adapting`."""
        found: dict[str, hooks.Change] = {}
        for layer, view in zip(self.layers, views, strict=True):
            for module, kind in layer.modules:
                found.setdefault(module, hooks.Change({})).parts[kind] = view
        return hooks.adapting(self.widths.base, found)

    def score(self, views: Any, text: Text, entropy: bool, hidden: bool) -> tuple[Tensor | None, Scored]:
        """See `hooks.score`."""
        return hooks.score(self.widths.base, text, entropy, hidden, lambda: self.active(views), views)

    def forward(self, views: Any, x: Tensor) -> Tensor:
        """Return the logits `[P, B, L, V]` of rows of tokens `[P, B, L]` without pads."""
        with self.active(views) as model:
            return _logits(model, x)


def _logits(model: Any, x: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=x.flatten(0, 1), use_cache=False).logits.unflatten(0, x.shape[:2])
    return logits
