"""Members on disk, as stages pass them on. They belong to one algorithm and one problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evopipe import layout
from evopipe.core.member import Member
from evopipe.errors import DataError, MissingInputError
from evopipe.mutations import Mutation, read_births
from evopipe.run.spec import Spec
from evopipe.storage import members


def about_spec(spec: Spec) -> dict[str, Any]:
    """Return JSON data that identifies what stored members were made for: their algorithm, and the environment or base
    model."""
    about = {"algo": spec.train.algo, "env": spec.name, **spec.made_for}
    return dict(json.loads(json.dumps(about)))  # as it reads when it comes back


def read_members(folder: Path, out: Path, spec: Spec) -> tuple[list[Member], dict[str, Any]]:
    """Read the members that an earlier stage stored, and the metadata stored with the members.

    `folder` is the project's folder, `out` the path in it to which the stage wrote, and `spec` the configuration of the
    run that reads them.

    Raises:
        MissingInputError: there is nothing at this path.
        DataError: the members are damaged, or were written for another algorithm, environment or base model.
    """
    stage, path = layout.WRITER[out], layout.need(folder, out)
    return members.read(path, about_spec(spec), f"run `evopipe {stage}` or `dvc repro {stage}` again", spec.check)


def read_population(folder: Path, spec: Spec) -> tuple[list[Member], list[Mutation]]:
    """Read the members that training starts with, and the mutation that made each. `folder` is the project's folder.

    Raises:
        MissingInputError: the stage `population` has not run.
        DataError: the members are damaged, or were written for another algorithm, environment or base model.
    """
    found, about = read_members(folder, layout.POPULATION, spec)
    return found, read_births(about.get("mutations"), len(found))


def read_start(folder: Path, spec: Spec, remedy: str) -> list[Member]:
    """Read the trained members of an earlier run in `folder`, from which a new run with the configuration `spec`
    continues.

    The elite (the best member) is the first of the list. Members that diverged are left out.

    Raises:
        MissingInputError: the folder does not exist; the message ends with `remedy`.
        DataError: the members are damaged, do not fit this configuration, or have all diverged.
    """
    if not folder.exists():
        raise MissingInputError(f"{folder}: not there; {remedy}")
    found, about = members.read(folder, about_spec(spec), remedy)
    if "elite" in about:
        found = [found[-1], *found[:-1]]
    healthy = [member for member in found if member.healthy]
    if not healthy:
        raise DataError(f"{folder}: every member has diverged; {remedy}")
    return healthy
