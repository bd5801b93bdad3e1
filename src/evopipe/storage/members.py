"""Members as tensors and plain JSON data, in checkpoints and in folders of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evopipe.core.member import Member, read_architecture
from evopipe.errors import DataError
from evopipe.schema.stored import StoredMember, in_a_sentence
from evopipe.storage.files import dump_json, parse_json
from evopipe.storage.folders import read_folder, write_folder
from evopipe.storage.tensors import dump_tensors, load_tensors

_MEMBERS, _TENSORS = "members.json", "members.safetensors"


def pack(members: Sequence[Member], prefix: str) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Return the tensors of all members by name, and one JSON object for each member.

    The names are `<prefix>.<index>.<name>`: the argument `prefix`, the member's index, and the tensor's name in the
    member.
    """
    tensors = {f"{prefix}.{i}.{name}": t for i, member in enumerate(members) for name, t in member.tensors.items()}
    return tensors, [_describe(member) for member in members]


def _describe(member: Member) -> dict[str, Any]:
    """Return everything but the tensors. JSON has no −∞: such a fitness is null."""
    plain = {name: getattr(member, name) for name in ("slot", "id", "parent", "key", "healthy")}
    fitness = [f if math.isfinite(f) else None for f in member.fitness]
    return {**plain, "arch": member.arch.to_json(), "hyper": dict(member.hyper), "fitness": fitness}


def unpack(tensors: Mapping[str, torch.Tensor], described: Sequence[Mapping[str, Any]], prefix: str) -> list[Member]:
    """Rebuild members from the tensors and JSON objects (`described`) that `pack` returned for the same `prefix`.

    Raises:
        DataError: a member's JSON object is invalid, or its tensors are missing.
    """
    members = []
    for i, data in enumerate(described):
        start = f"{prefix}.{i}."
        own = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        try:
            with in_a_sentence(StoredMember, data):
                told = StoredMember.model_validate(data)
            fitness = tuple(-math.inf if f is None else float(f) for f in told.fitness)
            made = {"arch": read_architecture(told.arch), "fitness": fitness, "tensors": own}
            member = Member(**{**dict(told), **made})
        except ValueError as error:
            raise DataError(f"member {i} of {prefix!r} cannot be rebuilt from its description: {error}") from error
        if not own:
            raise DataError(f"member {i} of {prefix!r} has no tensors")
        members.append(member)
    return members


def write(folder: Path, members: Sequence[Member], about: Mapping[str, Any]) -> None:
    """Write members to a folder as safetensors and JSON.

    `about` is JSON data that is stored with the members, such as the environment or base model for which they were
    made; `read` returns it.
    """
    tensors, described = pack(members, "members")
    data = dump_json({**about, "members": described}, str(folder / _MEMBERS), indent=2)
    write_folder(folder, {_MEMBERS: data, _TENSORS: dump_tensors(tensors)})


def read(
    folder: Path,
    wanted: Mapping[str, Any],
    remedy: str,
    check: Callable[[list[Member]], str | None] = lambda members: None,
) -> tuple[list[Member], dict[str, Any]]:
    """Read a folder that `write` wrote; return the members and the stored JSON data (`about`).

    Args:
        folder: the folder.
        wanted: the values that `about` must have, by key: those of the present params.yaml.
        remedy: the end of error messages, which says what the user should do.
        check: a function that returns a fault of the members as text, or None if there is none.

    Raises:
        MissingInputError: the folder does not exist.
        DataError: the folder is damaged, `about` differs from `wanted`, or `check` finds a fault.
    """
    files = read_folder(folder, only=(_MEMBERS, _TENSORS))
    about = parse_json(files[_MEMBERS], str(folder / _MEMBERS))
    described = about.get("members") if isinstance(about, dict) else None
    if not isinstance(described, list) or not described:
        raise DataError(f"{folder / _MEMBERS}: is not what members are described by (no `members`); {remedy}")
    for name, value in wanted.items():
        if about.get(name) != value:
            made = f"written for {name} {about.get(name)!r}, params.yaml says {value!r}"
            raise DataError(f"{folder}: {made}; {remedy}")
    members = unpack(load_tensors(files[_TENSORS], str(folder / _TENSORS)), described, "members")
    slots = [member.slot for member in members[: len(members) - ("elite" in about)]]
    wrong = check(members) if slots == [*range(len(slots))] else f"its members have the slots {slots[:8]}"
    if wrong is not None:
        raise DataError(f"{folder}: {wrong}; {remedy}")
    return members, about
