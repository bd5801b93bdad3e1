"""Members as tensors and plain JSON data, for checkpoints and models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evopipe.core.member import Member, read_architecture
from evopipe.errors import DataError


def pack(members: Sequence[Member], prefix: str) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Return tensors named `<prefix>.<index>.<name>` and one JSON object a member."""
    tensors = {f"{prefix}.{i}.{name}": t for i, member in enumerate(members) for name, t in member.tensors.items()}
    return tensors, [describe(member) for member in members]


def describe(member: Member) -> dict[str, Any]:
    """Return everything but the tensors. JSON has no −∞: such a fitness is null."""
    return {
        "slot": member.slot,
        "id": member.id,
        "parent": member.parent,
        "key": member.key,
        "arch": member.arch.to_json(),
        "hyper": dict(member.hyper),
        "healthy": member.healthy,
        "fitness": [f if math.isfinite(f) else None for f in member.fitness],
    }


def unpack(tensors: Mapping[str, torch.Tensor], described: Sequence[Mapping[str, Any]], prefix: str) -> list[Member]:
    """Build members from what `pack` returned.

    Raises:
        DataError: the description lacks something, or has no tensors.
    """
    members = []
    for i, data in enumerate(described):
        start = f"{prefix}.{i}."
        own = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        try:
            members.append(_build(data, own))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"member {i} of {prefix!r} cannot be rebuilt from its description: {error!r}") from error
        if not own:
            raise DataError(f"member {i} of {prefix!r} has no tensors")
    return members


def _build(data: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Member:
    return Member(
        slot=int(data["slot"]),
        id=int(data["id"]),
        parent=data["parent"],
        key=int(data["key"]),
        arch=read_architecture(data["arch"]),
        hyper=dict(data["hyper"]),
        tensors=dict(tensors),
        healthy=bool(data["healthy"]),
        fitness=tuple(-math.inf if f is None else float(f) for f in data["fitness"]),
    )
