"""Members as tensors and plain JSON data, for checkpoints and models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evopipe.core.arch import Arch
from evopipe.core.population import Member
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
            member = Member(
                slot=int(data["slot"]),
                id=int(data["id"]),
                parent=data["parent"],
                key=int(data["key"]),
                arch=Arch.from_json(data["arch"]),
                hyper=dict(data["hyper"]),
                tensors=own,
                healthy=bool(data["healthy"]),
                fitness=tuple(-math.inf if f is None else float(f) for f in data["fitness"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"member {i} of {prefix!r} cannot be rebuilt from its description: {error!r}") from error
        if not own:
            raise DataError(f"member {i} of {prefix!r} has no tensors")
        members.append(member)
    return members
