"""Members as changes of one frozen base, stacked in rows `[P, N]`: low-rank adapters, or changes of every weight.

Hu et al., "LoRA: low-rank adaptation of large language models", 2021: a linear layer W x becomes W x + s · B A x. The
base runs once for a batch `[P · B, L]`, see `hooks`. A head, such as a value head, is a linear layer in a row: weights,
then biases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from evopipe.core.structure import Option, ViewOf, Widths
from evopipe.language import hooks, layers
from evopipe.language.base import Base
from evopipe.language.layers import Shapes, numbers, place, views_of
from evopipe.native.networks import LINE
from evopipe.schema.evolution import ArchitectureBounds
from evopipe.types import Tensor, Text, TokenScores


class Adapted(Widths):
    """The shape of a network that is an adapter of a frozen base model: the widths of its input and output, which
    `Widths` holds, and the base model `base`."""

    base: Base

    @classmethod
    def of(cls, base: Base) -> Adapted:
        made = cls(base.words.hidden, base.words.vocabulary)
        made.base = base
        return made


def _of_head(widths: Widths) -> Shapes:
    return {"weight": (widths.inputs, widths.outputs), "bias": (widths.outputs,)}


@dataclass(frozen=True)
class LoRA:
    """The architecture of a member that is a low-rank adapter (LoRA) of the base model: matrices A `[in, rank]` and B
    `[rank, out]` for every linear layer.

    Attributes:
        rank: the rank of the matrices.
        scale: the factor of the product of A and B, LoRA's α divided by the rank.
        activation: always empty: there is no activation to mutate.
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

    def shapes(self, widths: Widths) -> Shapes:
        if not isinstance(widths, Adapted):
            return _of_head(widths)
        found: dict[str, tuple[int, ...]] = {}
        for layer in widths.base.linear:
            found |= {f"{layer.name}.a": (layer.shape[0], self.rank), f"{layer.name}.b": (self.rank, layer.shape[1])}
        return found

    size, named = layers.size_of, layers.parts_of

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        """Draw first weights; return them as a flat row, one vector. A is drawn from U(−1/√in, 1/√in), as PEFT does; B
        is 0, so that the member starts as the base model.

        `widths` are the network's input and output widths, and `rng` is a NumPy generator.
        """
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
        return _Members(tuple(archs), widths, replace(archs[0], rank=LoRA.work(archs)), device)

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        """Yield the possible mutations of the architecture: a rank that is higher by 1, 2 or 4, up to
        `bounds.max_nodes`.

        Such a mutation changes no output, because the new rows of B are 0. `networks`, the widths of the member's
        networks, have no effect.
        """
        for more in (1, 2, 4):
            if self.rank + more <= bounds.max_nodes:
                yield "add_rank", "rank", self.rank, self.rank + more, replace(self, rank=self.rank + more)

    def carry(self, new: LoRA, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        if not isinstance(widths, Adapted):
            return row.clone()
        carried, held = torch.zeros(new.size(widths)), self.named(widths, row)
        if kind == "parameters":
            carried = new.initialise(widths, rng)
        for name, part in new.named(widths, carried).items():
            place(held[name], part)
        return carried

    def beside(self, base: Base, views: Sequence[Tensor]) -> dict[str, Any]:
        """Return what P members add to the base's linear layers, as a dict: name of a layer's module → `LowRank`. The
        function `hooks.adapting` takes this dict.

        `views` holds the matrices A `[P, in, rank]` and B `[P, rank, out]` of the first layer, then of the second, and
        so on.
        """
        pairs = zip(base.linear, views[::2], views[1::2], strict=True)
        return {layer.name: hooks.LowRank(a, b, self.scale) for layer, a, b in pairs}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LoRA:
        """Build the architecture from JSON data that `to_json` returned.

        Raises:
            ValueError: the data does not have that form, or a number is out of range.
        """
        rank, scale = data.get("rank"), data.get("scale")
        if type(rank) is not int or not 1 <= rank <= 4096:
            raise ValueError(f"rank: must be a whole number from 1 to 4096, got {rank!r:.40}")
        if not isinstance(scale, (int, float)) or not 0 < scale <= 1000:
            raise ValueError(f"scale: must be a number above 0, at most 1000, got {scale!r:.40}")
        return cls(rank, float(scale))


@dataclass(frozen=True)
class Full:
    """The architecture of a member that changes every weight of the base model by an added term, which is 0 at first.
    If the base is a tiny model with random weights, such a member learns a language model from scratch.

    Attributes:
        activation: always empty: there is no activation to mutate.
        family, signature: constants, so that all such members may train in one batch; see
            `core.structure.Architecture`.
    """

    activation: str = ""
    family: str = "full"
    signature: str = "full"

    def describe(self) -> str:
        return "every weight"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "full"}

    def shapes(self, widths: Widths) -> Shapes:
        if not isinstance(widths, Adapted):
            return _of_head(widths)
        return {layer.name: layer.shape for layer in widths.base.weights}

    size, named = layers.size_of, layers.parts_of

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        return torch.zeros(self.size(widths))

    @staticmethod
    def work(archs: Sequence[Full]) -> int:
        return 1

    @staticmethod
    def stack(archs: Sequence[Full], widths: Widths, device: torch.device) -> Any:
        return _Members(tuple(archs), widths, archs[0], device)

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        return iter(())

    def carry(self, new: Full, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        return row.clone()

    def beside(self, base: Base, views: Sequence[Tensor]) -> dict[str, Any]:
        """Return what P members add to the base's weights, as a dict: name of a module → `WeightDelta`. The function
        `hooks.adapting` takes this dict.

        `views` has one tensor for each weight of the base: the numbers that each of the P members adds to that weight.
        """
        found: dict[str, hooks.WeightDelta] = {}
        for layer, view in zip(base.weights, views, strict=True):
            for module, kind in layer.modules:
                found.setdefault(module, hooks.WeightDelta({})).parts[kind] = view
        return found


Adapter: TypeAlias = LoRA | Full


def read_adapter(data: dict[str, Any]) -> Adapter:
    """Build an architecture, `LoRA` or `Full`, from JSON data that its `to_json` returned.

    Raises:
        ValueError: the data does not have that form.
    """
    return Full() if data.get("kind") == "full" else LoRA.from_json(data)


@dataclass(frozen=True)
class _Members:
    """A network of several members, a row each; its methods are those of a `Structure`. Adapters of a lower rank have
    columns of A and rows of B that are 0."""

    archs: tuple[Any, ...]
    widths: Widths
    shared: Adapter
    device: torch.device
    memory: int = 0
    memory_widths: tuple[int, ...] = ()
    copies: int = 1

    @cached_property
    def shapes(self) -> Shapes:
        return self.shared.shapes(self.widths)

    @cached_property
    def size(self) -> int:
        return -(-numbers(self.shapes) // LINE) * LINE

    pack, unpack, part, repeat = layers.pack, layers.unpack, layers.part, layers.repeat

    def views(self, of: ViewOf) -> list[Tensor]:
        return views_of(of, self.shapes)

    def active(self, views: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """See `hooks.adapting`."""
        assert isinstance(self.widths, Adapted)
        return hooks.adapting(self.widths.base, self.shared.beside(self.widths.base, views))

    def score(self, views: Any, text: Text, entropy: bool, hidden: bool) -> tuple[Tensor | None, TokenScores]:
        """See `hooks.score`."""
        assert isinstance(self.widths, Adapted)
        return hooks.score(self.widths.base, text, entropy, hidden, lambda: self.active(views), views)

    def forward(self, views: Any, x: Tensor) -> Tensor:
        """Return the logits `[P, B, L, V]` of rows of tokens `[P, B, L]` without pads; a head's outputs of its inputs,
        `[P, B, …]`."""
        if not isinstance(self.widths, Adapted):
            weight, bias = views
            if weight.shape[-1] == 1:  # products with one column sum otherwise in a batch of one than in a larger one
                column: Tensor = (x.to(weight.dtype) * weight.mT).sum(-1, keepdim=True) + bias
                return column
            return torch.baddbmm(bias, x.to(weight.dtype), weight)
        with self.active(views) as model:
            logits: Tensor = model(input_ids=x.flatten(0, 1), use_cache=False).logits.unflatten(0, x.shape[:2])
            return logits
