"""Members that are small GPTs: decoder-only transformers whose layers, heads and feed-forward nodes evolve.

Radford et al., "Language models are unsupervised multitask learners", 2019. Embeddings of token and position are summed
to a residual stream, `H` wide. Each layer adds to it what its heads attend to, then what its feed-forward nodes
compute. A last product gives the outputs for every token: logits, or values. Every part reads the stream normalised,
without gain and shift, and nothing has a bias (Groeneveld et al., "OLMo", 2024, § 2.1).

All pads are therefore zeros that stay zeros: a missing head, node or layer would add 0, and its gradient is 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.nn.functional import embedding, gelu, layer_norm, scaled_dot_product_attention

from evopipe.core.structure import Option, ViewOf, Widths
from evopipe.language import layers
from evopipe.language.layers import Shapes, parts_of, place, size_of, views_of
from evopipe.native.networks import LINE
from evopipe.schema.blocks import ArchitectureBounds
from evopipe.schema.language import LanguageConfig
from evopipe.schema.stored import StoredGPT, in_a_sentence
from evopipe.types import Tensor

_WIDE = 0.5  # standard deviation of first embeddings: what layers add at first is not to drown them
_NARROW = 0.02  # of first outputs


class TransformerLayer(NamedTuple):
    """The size of one transformer layer: its number of attention heads, and of nodes in its feed-forward part."""

    heads: int
    nodes: int  # of the feed-forward part


@dataclass(frozen=True)
class GPT:
    """The architecture of a member that is a small GPT. Methods without a docstring are documented in
    `core.structure.Architecture`.

    Attributes:
        layers: the sizes of the layers.
        hidden: the width `H` of the residual stream, a multiple of 16.
        head: the width of an attention head, a multiple of 16.
        length: the most tokens of a row.
        activation: always empty: there is no activation to mutate.
    """

    layers: tuple[TransformerLayer, ...]
    hidden: int
    head: int
    length: int
    activation: str = ""

    @classmethod
    def start(cls, cfg: LanguageConfig.Gpt, length: int) -> GPT:
        """Return the architecture of the first generation. `cfg` is the block `language.gpt` of `params.yaml`, and
        `length` the most tokens of a row."""
        return cls((TransformerLayer(cfg.heads, cfg.feedforward),) * cfg.layers, cfg.hidden, cfg.head, length)

    @property
    def family(self) -> tuple[str | int, ...]:
        return "gpt", self.hidden, self.head, self.length

    @property
    def signature(self) -> tuple[TransformerLayer, ...]:
        return self.layers

    def describe(self) -> str:
        """Return a short description: `gpt 64: 4h 256, 2h 128` is 64 wide and has two layers, of 4 and 2 heads, and 256
        and 128 nodes."""
        return f"gpt {self.hidden}: " + ", ".join(f"{block.heads}h {block.nodes}" for block in self.layers)

    def to_json(self) -> dict[str, Any]:
        layers = [list(block) for block in self.layers]
        return {"kind": "gpt", "layers": layers, "hidden": self.hidden, "head": self.head, "length": self.length}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> GPT:
        """Build the architecture from JSON data that `to_json` returned.

        Raises:
            ValueError: the data does not have that form.
        """
        with in_a_sentence(StoredGPT, data):
            told = StoredGPT.model_validate(data)
        return cls(tuple(TransformerLayer(*block) for block in told.layers), told.hidden, told.head, told.length)

    def shapes(self, widths: Widths) -> Shapes:
        """Return the shape of every weight matrix by name, in the order in which a member's flat row (a vector of all
        its weights) holds the matrices.

        `widths` are the network's input and output widths. Each layer has a matrix `attend`. Its first columns compute
        query, key and value of the first head, the next columns those of the second head, and so on.
        """
        found = {"tokens": (widths.inputs, self.hidden), "places": (self.length, self.hidden)}
        for i, (heads, nodes) in enumerate(self.layers):
            found |= {
                f"layers.{i}.attend": (self.hidden, 3 * heads * self.head),
                f"layers.{i}.collect": (heads * self.head, self.hidden),
                f"layers.{i}.up": (self.hidden, nodes),
                f"layers.{i}.down": (nodes, self.hidden),
            }
        return {**found, "output": (self.hidden, widths.outputs)}

    size, named = size_of, parts_of

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        """Draw first weights; return them as a flat row, one vector.

        The distributions are normal, with deviation 0.5 for embeddings, 0.02 for the output matrix, and 1/√inputs for
        others. The deviation of matrices that add to the residual stream is divided by √(2 · layers). `widths` are the
        network's input and output widths, and `rng` is a NumPy generator.
        """
        row = torch.zeros(self.size(widths))
        for name, part in self.named(widths, row).items():
            deviation = {"tokens": _WIDE, "places": _WIDE, "output": _NARROW}.get(name, len(part) ** -0.5)
            if name.endswith((".collect", ".down")):
                deviation *= (2 * len(self.layers)) ** -0.5
            part.copy_(torch.from_numpy(deviation * rng.standard_normal(tuple(part.shape))).float())
        return row

    @staticmethod
    def work(archs: Sequence[GPT]) -> int:
        shared = _widest(archs)
        return shared.length * shared.size(Widths(LINE, LINE))

    @staticmethod
    def stack(archs: Sequence[GPT], widths: Widths, device: torch.device) -> Any:
        return _GPTs(tuple(archs), widths, _widest(archs), device)

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        """Yield the possible mutations of the architecture: one layer more or fewer, and other numbers of heads or
        feed-forward nodes.

        The numbers of layers and of nodes stay within the limits that `bounds` has for them. The number of heads stays
        within the limits for channels. `networks`, the widths of the member's networks, have no effect.
        """
        n = len(self.layers)
        if n < bounds.max_layers:
            yield "add_layer", "layers", n, n + 1, replace(self, layers=(*self.layers, self.layers[-1]))
        if n > max(1, bounds.min_layers):
            yield "remove_layer", "layers", n, n - 1, replace(self, layers=self.layers[:-1])
        for i, block in enumerate(self.layers):
            for field, steps, low, high in (
                ("heads", bounds.channel_steps, bounds.min_channels, bounds.max_channels),
                ("nodes", bounds.node_steps, bounds.min_nodes, bounds.max_nodes),
            ):
                had, what = getattr(block, field), f"layers.{i} {field}"
                for step in steps:
                    if had + step <= high:
                        yield f"add_{field}", what, had, had + step, self._with(i, **{field: had + step})
                    if had - step >= low:
                        yield f"remove_{field}", what, had, had - step, self._with(i, **{field: had - step})

    def _with(self, layer: int, **changes: int) -> GPT:
        blocks = list(self.layers)
        blocks[layer] = blocks[layer]._replace(**changes)
        return replace(self, layers=tuple(blocks))

    def carry(self, new: GPT, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        """Return a parent's flat row (a vector of all weights) as a flat row of the mutated architecture `new`.

        Args:
            new: the mutated architecture.
            widths: the input and output widths of the network.
            kind: what the row holds. For `parameters`, new weights are drawn, but new parts add 0 to the residual
                stream at first, so that the outputs are unchanged. For other kinds, such as the optimiser's `moments`,
                new entries are 0.
            row: the parent's row.
            rng: the NumPy generator that draws new weights.
        """
        carried = new.initialise(widths, rng) if kind == "parameters" else torch.zeros(new.size(widths))
        held = self.named(widths, row)
        for name, part in new.named(widths, carried).items():
            if name.endswith((".collect", ".down")):
                part[len(held.get(name, ())) :] = 0.0
            if name in held:
                place(held[name], part)
        return carried


def _widest(archs: Sequence[GPT]) -> GPT:
    columns = itertools.zip_longest(*(arch.layers for arch in archs), fillvalue=TransformerLayer(1, LINE))
    layers = (TransformerLayer(*(max(values) for values in zip(*column, strict=True))) for column in columns)
    return replace(archs[0], layers=tuple(layers))


class Cache:
    """A key-value cache of all layers, for rows of tokens that are extended step by step."""

    def __init__(self) -> None:
        self.held: list[tuple[Tensor, Tensor]] = []
        self.read = 0  # tokens of every row

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's keys and values of `n` new tokens in `R` rows, `[R, heads, n, head]`; return the layer's
        keys and values of all tokens so far. `head` is the width of an attention head."""
        if layer == len(self.held):
            self.held.append((key, value))
        else:
            before = (x[:, :, : self.read] for x in self.held[layer])
            key, value = (torch.cat(pair, dim=2) for pair in zip(before, (key, value), strict=True))
            self.held[layer] = key, value
        return key, value


class _Matrices(NamedTuple):
    """A layer's, of every member."""

    attend: Tensor
    collect: Tensor
    up: Tensor
    down: Tensor


class _Views(NamedTuple):
    tokens: Tensor
    places: Tensor
    layers: tuple[_Matrices, ...]
    output: Tensor


@dataclass(frozen=True)
class _GPTs:
    """One network of several members, padded with zeros to the widest; its methods are those of a `Structure`."""

    archs: tuple[GPT, ...]
    widths: Widths
    shared: GPT
    device: torch.device
    memory: int = 0
    memory_widths: tuple[int, ...] = ()
    copies: int = 1

    @cached_property
    def padded(self) -> Widths:
        """Every matrix begins a cache line: from elsewhere products have other last bits on some processors."""
        return self.widths._replace(outputs=-(-self.widths.outputs // LINE) * LINE)

    @cached_property
    def size(self) -> int:
        return self.shared.size(self.padded)

    @cached_property
    def shapes(self) -> Shapes:
        return self.shared.shapes(self.padded)

    pack, unpack, part, repeat = layers.pack, layers.unpack, layers.part, layers.repeat

    def views(self, of: ViewOf) -> _Views:
        tokens, places, *inner, output = views_of(of, self.shapes)
        return _Views(tokens, places, tuple(_Matrices(*inner[i : i + 4]) for i in range(0, len(inner), 4)), output)

    def forward(self, views: _Views, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the outputs `[P, B, L, outputs]` of every token of rows `[P, B, L]` int64: of it and those before.
        With a `cache` the tokens follow those that it has read, and are read."""
        members, rows, length = x.shape
        first = 0 if cache is None else cache.read
        places = views.places[:, None, first : first + length]
        found = (embedding(x + self._offsets, views.tokens.flatten(0, 1)) + places).flatten(1, 2)  # [P, B · L, H]
        ahead = None
        if first and length > 1:  # which tokens each new one may look at
            ahead = torch.ones(length, first + length, dtype=torch.bool, device=x.device).tril(first)
        for i, layer in enumerate(views.layers):
            packed = torch.bmm(self._normal(found), layer.attend).view(members * rows, length, -1, 3 * self.shared.head)
            query, key, value = packed.transpose(1, 2).chunk(3, dim=-1)  # [R, heads, L, head]
            if cache is not None:
                key, value = cache.extend(i, key, value)
            seen = scaled_dot_product_attention(query, key, value, ahead, is_causal=first == 0 and length > 1)
            seen = seen.transpose(1, 2).reshape(*found.shape[:2], -1)
            found = torch.baddbmm(found, seen, layer.collect)
            found = torch.baddbmm(found, gelu(torch.bmm(self._normal(found), layer.up)), layer.down)
        if cache is not None:
            cache.read += length
        out: Tensor = torch.bmm(self._normal(found), views.output)[..., : self.widths.outputs]
        return out.view(members, rows, length, -1)

    @cached_property
    def _offsets(self) -> Tensor:
        return self.widths.inputs * torch.arange(len(self.archs), device=self.device)[:, None, None]

    @staticmethod
    def _normal(x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:])
