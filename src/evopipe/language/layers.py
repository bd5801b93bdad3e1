"""The weights of a base that members can change, the modules that read them, and matrices by name as flat rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from evopipe.core.structure import ViewOf, Widths
from evopipe.errors import DataError
from evopipe.types import Tensor

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"
"""Of matrices and vectors by name, in their order in a row."""


class BaseWeight(NamedTuple):
    """A weight of the base model that members can change.

    The kinds are `linear` [out, in], `conv` [in, out] (a transposed linear layer), `embedding` [V, H], `scale` [H] of a
    normalisation layer, and `bias` [H]; V counts the tokens of the vocabulary, and H is the width of the hidden states.

    Attributes:
        name: the name of the weight; in a result of `linear_layers`, the name of its layer.
        kind: the kind of the weight. If several modules share it (tied weights), its kind in the first module.
        shape: the shape of the weight; in a result of `linear_layers`, always (in, out).
        modules: a pair (module, kind) for each module that uses the weight. Tied weights have several pairs.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    modules: tuple[tuple[str, str], ...]


def _is_linear(module: nn.Module) -> str | None:
    if isinstance(module, nn.Linear):
        return "linear"
    return "conv" if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else None


_FUSED = {"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"}
"""Kinds of models whose fused kernels read the weight of `out_proj` past its module: PEFT refuses an adapter there."""


def linear_layers(model: nn.Module, last: nn.Module, called: str) -> tuple[BaseWeight, ...]:
    """Return every linear layer of a model that can have a LoRA adapter: all except `last`, which computes the logits,
    and except layers of Mamba that PEFT refuses.

    Raises:
        DataError: the model has no such layer. The message names the model as `called`.
    """
    found = []
    fused = getattr(model.config, "model_type", None) in _FUSED
    for name, module in model.named_modules():
        kind = _is_linear(module)
        if kind and module is not last and not (fused and name.rpartition(".")[2] == "out_proj"):
            shape: list[int] = list(module.weight.shape)
            inner, out = reversed(shape) if kind == "linear" else shape
            found.append(BaseWeight(name, kind, (inner, out), ((name, kind),)))
    if not found:
        raise DataError(f"language.model: {called} has no linear layer that an adapter could be put beside")
    return tuple(found)


def all_weights(model: nn.Module, called: str) -> tuple[BaseWeight, ...]:
    """Return every weight of a model, in the order of `named_parameters`.

    Raises:
        DataError: a module uses a weight in a way that does not let a member change it. The message names the model as
            `called`.
    """
    readers: dict[int, list[tuple[str, str]]] = {}
    for name, module in model.named_modules():
        for part, weight in module.named_parameters(recurse=False):
            readers.setdefault(id(weight), []).append((name, _kind_of(module, f"{name}.{part}", part, called)))
    return tuple(
        BaseWeight(name, readers[id(weight)][0][1], tuple(weight.shape), tuple(readers[id(weight)]))
        for name, weight in model.named_parameters()
    )


def _kind_of(module: nn.Module, name: str, part: str, called: str) -> str:
    kind = _is_linear(module) or ("embedding" if type(module) is nn.Embedding else None)
    weight = getattr(module, "weight", None)
    if kind is None and "norm" in type(module).__name__.lower() and weight is not None and bool((weight != 0).all()):
        kind = "scale"  # what it multiplies by must be known to be taken out again
    if kind is None or part not in ("weight", "bias"):
        raise DataError(
            f"language.full: {called} has the weight {name}, of a {type(module).__name__}, which members cannot change "
            "by themselves: set it to false"
        )
    return "bias" if part == "bias" else kind


def numbers(shapes: Shapes) -> int:
    """Return the sum of the sizes of matrices with these shapes.

    This is the length of a flat row, the vector that holds all the matrices one after another.
    """
    return sum(math.prod(shape) for shape in shapes.values())


def size_of(self: Any, widths: Widths) -> int:
    """Return the length of a member's flat row, a vector of all its weights.

    `self` is the member's architecture, and `widths` are the input and output widths of its network.

    Architectures with a method `shapes` use this function as their method `Architecture.size`.
    """
    return numbers(self.shapes(widths))


def parts_of(self: Any, widths: Widths, row: Tensor) -> dict[str, Tensor]:
    return split(row, self.shapes(widths))


def split(row: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return views of the matrices in a flat row, by name. `shapes` has the shape of each matrix by name, in the order
    of the row. Numbers at the end of the row that belong to no matrix are ignored."""
    parts = row[: numbers(shapes)].split([math.prod(shape) for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def place(source: Tensor, target: Tensor) -> None:
    """Copy `source` into `target` in the index range that both have, for example the upper left corner of a larger
    matrix."""
    corner = tuple(slice(min(a, b)) for a, b in zip(source.shape, target.shape, strict=True))
    target[corner] = source[corner]


def pack(self: Any, rows: Sequence[Tensor]) -> Tensor:
    """Stack the flat rows of `P` members as one tensor `[P, N]`, where N is `self.size`.

    A flat row is the vector of all weights of a member. Architectures may differ. Therefore each matrix is padded with
    zeros to its shape in `self.shapes`.

    Classes use this function as their method `Structure.pack`. `self` is then the `Structure` of the members.
    """
    found = torch.zeros(len(rows), self.size)
    for arch, row, whole in zip(self.archs, rows, found, strict=True):
        into = split(whole, self.shapes)
        for name, part in arch.named(self.widths, row).items():
            place(part, into[name])
    return found.to(self.device)


def unpack(self: Any, packed: Tensor) -> list[Tensor]:
    found = []
    for arch, whole in zip(self.archs, packed, strict=True):
        held, row = split(whole, self.shapes), torch.empty(arch.size(self.widths), device=packed.device)
        for name, part in arch.named(self.widths, row).items():
            place(held[name], part)
        found.append(row)
    return found


def part(self: Any, first: int, end: int | None, every: int = 1) -> Any:
    return replace(self, archs=self.archs[first:end:every])


def repeat(self: Any, times: int) -> Any:
    return replace(self, archs=tuple(arch for arch in self.archs for _ in range(times)))


def views_of(of: ViewOf, shapes: Shapes) -> list[Tensor]:
    """Return a view `[P, rows, columns]` of every matrix in the flat rows of `P` members. A vector counts as a matrix
    with one row.

    `shapes` has each matrix's shape by name, in the order in which a flat row holds the matrices. The function `of`
    takes (start, rows, columns), and returns the view of the matrix whose numbers begin at `start` in each flat row.
    """
    found, start = [], 0
    for shape in shapes.values():
        rows, columns = shape if len(shape) == 2 else (1, *shape)
        found.append(of(start, rows, columns))
        start += rows * columns
    return found
