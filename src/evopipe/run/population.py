"""Members as the stages hand them on: written for one algorithm and problem, and of no use to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evopipe import layout
from evopipe.core.member import Member
from evopipe.errors import DataError, MissingInputError
from evopipe.mutations import Mutation, read_births
from evopipe.run.spec import Job
from evopipe.storage import members


def about_spec(spec: Job) -> dict[str, Any]:
    """Return what members were made for: they are of no use to another algorithm, environment or base."""
    about = {"algo": spec.train.algo, "env": spec.name, **spec.made_for}
    return dict(json.loads(json.dumps(about)))  # as it reads when it comes back


def read_members(folder: Path, out: Path, spec: Job) -> tuple[list[Member], dict[str, Any]]:
    """Read the members that an earlier stage wrote, and what it said of them; `MissingInputError` if they are not
    there, `DataError` if they are damaged or were written for another algorithm, environment or base."""
    stage, path = layout.WRITER[out], layout.need(folder, out)
    return members.read(path, about_spec(spec), f"run `evopipe {stage}` or `dvc repro {stage}` again", spec.check)


def read_population(folder: Path, spec: Job) -> tuple[list[Member], list[Mutation]]:
    """Read the members that a training begins with, and how each was made; for errors see `read_members`."""
    found, about = read_members(folder, layout.POPULATION, spec)
    return found, read_births(about.get("mutations"), len(found))


def read_start(folder: Path, spec: Job, remedy: str) -> list[Member]:
    """Read trained members to go on from, the elite first, without those that diverged; `MissingInputError` or
    `DataError` if that cannot be done."""
    if not folder.exists():
        raise MissingInputError(f"{folder}: not there; {remedy}")
    found, about = members.read(folder, about_spec(spec), remedy)
    if "elite" in about:
        found = [found[-1], *found[:-1]]
    healthy = [member for member in found if member.healthy]
    if not healthy:
        raise DataError(f"{folder}: every member has diverged; {remedy}")
    return healthy
