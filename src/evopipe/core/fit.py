"""Checks that tensors read from a file belong to a member of the stated architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from evopipe.core import normalise
from evopipe.core.arch import Arch
from evopipe.core.cohort import create
from evopipe.core.layout import Block
from evopipe.core.member import Member, tensor_kinds
from evopipe.core.structure import Architecture, Widths
from evopipe.schema.train import NormaliseConfig
from evopipe.types import Spaces

Forms: TypeAlias = "dict[str, tuple[tuple[int, ...], torch.dtype]]"
"""Shape and type of tensors, by name."""

_LEAST = Arch((), 1, (Block(1),), "ReLU", False)


def forms_of_rows(
    state_type: type[Any], init: Callable[[Mapping[str, Any]], Any], widths: Mapping[str, Widths], spaces: Spaces
) -> Forms:
    """Return the form (shape and type) of some tensors of a member, by name: those that have the same form in all
    architectures.

    These are the tensors of the algorithm's state that belong to no network, such as update counts (see
    `core.member.row`), and all tensors that a normaliser may have. To find the forms, a member with the smallest
    possible architecture is made.

    Args:
        state_type: the algorithm's class `State`.
        init: the algorithm's function that makes the initial state from the networks by name.
        widths: the input and output width of every network.
        spaces: the environment's spaces.
    """
    rows = {name: [torch.zeros(_LEAST.size(each))] for name, each in widths.items()}
    (made,) = create([Member(0, 0, None, 0, _LEAST, {}, {})], init, rows, widths)
    kinds = tensor_kinds(state_type, widths)
    own = {name: tensor for name, tensor in made.tensors.items() if kinds[name][0] == "row"}
    seen = normalise.start(NormaliseConfig(observations=True, rewards=True), spaces)
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in {**own, **seen}.items()}


def forms_of_networks(state_type: type[Any], arch: Architecture, widths: Mapping[str, Widths]) -> Forms:
    """Return the forms (shape and type) of a member's tensors that depend on its architecture, by name.

    These tensors are the parameters, noise scales and optimiser moments of the member's networks. No tensor is
    allocated.

    Args:
        state_type: the algorithm's class `State`.
        arch: the member's architecture.
        widths: the input and output width of every network.
    """
    kinds = tensor_kinds(state_type, widths)
    return {
        name: ((arch.size(widths[network]),), torch.float32) for name, (kind, network) in kinds.items() if kind != "row"
    }


def misfit(
    tensors: Mapping[str, torch.Tensor], forms: Forms, arch: Architecture, spaces: Spaces, recurrent: bool
) -> str | None:
    """Return what is wrong with a member's tensors or architecture, as a sentence; None if everything fits.

    Args:
        tensors: the member's tensors by name.
        forms: the expected form (shape and type) of each tensor, by name. Every tensor must be present, except those of
            a normaliser.
        arch: the member's architecture.
        spaces: the environment's spaces.
        recurrent: whether the algorithm allows recurrent networks.
    """
    if isinstance(arch, Arch):
        if arch.recurrent and not recurrent:
            return "its network keeps a memory, its algorithm none"
        if arch.stem.images not in ((), spaces.images):
            return "its network reads other images than the observations have"
    seen = tensors.keys() & normalise.KINDS.keys()
    if seen and frozenset(seen) not in normalise.GROUPS:
        return f"of a normaliser there are only {', '.join(sorted(seen))}"
    missing = [name for name in forms if name not in tensors and name not in normalise.KINDS]
    if missing:
        return f"there is no tensor {missing[0]!r}"
    for name, (shape, dtype) in forms.items():
        if name in tensors and (tuple(tensors[name].shape), tensors[name].dtype) != (shape, dtype):
            found = f"{tensors[name].dtype} of the shape {list(tensors[name].shape)}"
            return f"the tensor {name!r} is {found}, expected {dtype} of the shape {list(shape)}"
    columns = tensors.get(normalise.COLUMNS)
    if columns is not None and not torch.equal(columns, normalise.plain_columns(spaces)):
        return f"{normalise.COLUMNS!r} names columns that are not those of the observations"
    return None
