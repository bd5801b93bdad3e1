"""From params to a spec and its first members: what several stages begin with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evopipe.algos import get, names
from evopipe.core.graphs import Paths
from evopipe.core.member import Member
from evopipe.envs.make import ActionSpace, make_env
from evopipe.envs.observations import ObservationSpace
from evopipe.errors import DataError, MissingInputError, ParamsError
from evopipe.run.spec import Spec
from evopipe.schema.blocks import EnvConfig
from evopipe.schema.params import Params
from evopipe.storage import members as stored
from evopipe.storage import safeio
from evopipe.types import Spaces

MEMBERS, TENSORS = "members.json", "members.safetensors"


def make_spec(params: Params, device: torch.device | None = None) -> Spec:
    """Bundle what a run is about.

    Raises:
        ParamsError: the environment is unknown, or the algorithm does not serve its spaces.
    """
    return Spec(
        seed=params.seed,
        env=params.env,
        train=params.train,
        tournament=params.evolution.tournament,
        mutation=params.evolution.mutation,
        algo=get(params.train.algo),
        algo_config=params.algo_config,
        spaces=spaces_of(params.env, params.train.algo),
        device=device or torch.device("cpu"),
        cohorts=params.runtime.cohorts,
        paths=Paths.choose(params.runtime.compile, device or torch.device("cpu")),
    )


def spaces_of(env_config: EnvConfig, algo: str) -> Spaces:
    """Return what an algorithm needs to know of an environment's spaces.

    Raises:
        ParamsError: the environment is unknown, its spaces are not served, or not by this algorithm.
    """
    env = make_env(env_config)
    try:
        spaces = ActionSpace.of(env.action_space).spaces(ObservationSpace.of(env.observation_space))
    finally:
        env.close()
    if spaces.kind not in get(algo).ACTIONS:
        able = [name for name in names() if spaces.kind in get(name).ACTIONS]
        raise ParamsError(
            f"train.algo: {algo} serves {' and '.join(get(algo).ACTIONS)} actions, {env_config.id} has "
            f"{spaces.kind} ones ({env.action_space}); " + (f"take {', '.join(able)}" if able else "none can yet")
        )
    return spaces


def write_members(folder: Path, members: Sequence[Member], about: dict[str, Any]) -> None:
    """Write members as a folder of safetensors and JSON, byte-deterministic, with checksums."""
    tensors, described = stored.pack(members, "members")
    data = safeio.dump_json({**about, "members": described}, str(folder / MEMBERS), indent=2)
    safeio.write_folder(folder, {MEMBERS: data, TENSORS: safeio.dump_tensors(tensors)})


def about_spec(spec: Spec) -> dict[str, Any]:
    """Return what members were made for: they are of no use to another algorithm or environment."""
    about = {"algo": spec.train.algo, "env": spec.env.id, **spec.spaces.to_json()}
    return dict(json.loads(json.dumps(about)))  # as it reads when it comes back


def read_members(folder: Path, spec: Spec, stage: str) -> tuple[list[Member], dict[str, Any]]:
    """Read what a stage wrote by `write_members`, on the spec's own terms.

    Raises:
        MissingInputError: the folder is not there.
        DataError: it is damaged, or was written for another algorithm or environment.
    """
    command = f"run `evopipe {stage}` or `dvc repro {stage}`"
    return _read_members(folder, spec, f"{command} first", f"{command} again")


def read_start(folder: Path, spec: Spec) -> list[Member]:
    """Read trained members to go on from, the elite first, without those that diverged; see `read_members`."""
    remedy = "population.start names a copy of models/trained of a run with the same algorithm and environment"
    members, about = _read_members(folder, spec, remedy, remedy)
    if "elite" in about:
        members = [members[-1], *members[:-1]]
    healthy = [member for member in members if member.healthy]
    if not healthy:
        raise DataError(f"{folder}: every member has diverged; {remedy}")
    return healthy


def _read_members(folder: Path, spec: Spec, if_missing: str, if_other: str) -> tuple[list[Member], dict[str, Any]]:
    """Read members; the last two arguments are the remedies where there are none, or those of another run."""
    if not folder.exists():
        raise MissingInputError(f"{folder}: not there; {if_missing}")
    files = safeio.read_folder(folder, only=(MEMBERS, TENSORS))
    about = safeio.parse_json(files[MEMBERS], str(folder / MEMBERS))
    for name, value in about_spec(spec).items():
        if about.get(name) != value:
            made = f"written for {name} {about.get(name)!r}, params.yaml says {value!r}"
            raise DataError(f"{folder}: {made}; {if_other}")
    tensors = safeio.load_tensors(files[TENSORS], str(folder / TENSORS))
    return stored.unpack(tensors, about["members"], "members"), about


def with_slots(members: Sequence[Member]) -> list[Member]:
    """Renumber slots, so that members of different populations can be evaluated side by side."""
    return [replace(member, slot=slot) for slot, member in enumerate(members)]
