"""Agents on disk: a folder of safetensors and JSON, with checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evopipe.compat.agilerl.breed import Breed, build, by_agent, device_of, params_of
from evopipe.core.member import Member
from evopipe.data.described import space_from, space_to_text
from evopipe.errors import DataError, EvopipeError
from evopipe.storage import members

_FORMAT, _REMEDY = "agent 1", "save the agent again"


def write(folder: Path, breed: Breed, member: Member, counters: Mapping[str, Any]) -> None:
    """Write an agent to a folder of safetensors and JSON files. An existing folder is replaced.

    Args:
        folder: the folder.
        breed: what the agent's population shares.
        member: the agent's weights and hyper-parameters.
        counters: further data of the agent, such as its steps, as JSON data.

    Raises:
        DiskError: the folder cannot be written.
    """
    spaces = [_text(each) for each in (breed.observation_space, breed.action_space)]
    params = breed.params.model_dump(mode="json")
    about = {"format": _FORMAT, "index": member.slot, "params": params, "spaces": spaces, "counters": dict(counters)}
    members.write(folder, [replace(member, slot=0)], about)


def read(folder: Path, device: Any = None) -> tuple[Member, Breed, dict[str, Any]]:
    """Return the member, the breed and the counters of an agent from a folder that `write` wrote.

    The breed is what all agents of a population share: algorithm, parameters and spaces. `device` is `cpu` or `cuda`;
    None for the device of the saved agent.

    Raises:
        MissingInputError: the folder does not exist.
        DataError: the folder is damaged, or does not hold an agent.
    """
    (member, *_), about = members.read(folder, {"format": _FORMAT}, _REMEDY)
    try:
        params = params_of(about["params"])
        if device is not None:
            runtime = params.runtime.model_copy(update={"device": device_of(device)})
            params = params.model_copy(update={"runtime": runtime})
        breed = build(params, *(_space(each) for each in about["spaces"]))
        counters, index = dict(about["counters"]), int(about["index"])
    except (EvopipeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: is no agent of this version ({error}); {_REMEDY}") from error
    if (wrong := breed.spec.check([member])) is not None:
        raise DataError(f"{folder}: {wrong}; {_REMEDY}")
    return replace(member, slot=index), breed, counters


def _text(space: Any) -> Any:
    if by_agent(space):
        return [[agent, space_to_text(each)] for agent, each in space.items()]
    return space_to_text(space)


def _space(text: Any) -> Any:
    if isinstance(text, list):
        return {agent: space_from(each) for agent, each in text}
    return space_from(text)
