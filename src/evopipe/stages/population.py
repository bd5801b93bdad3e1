"""Stage `population`: the initial members."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evopipe.core.member import Member
from evopipe.errors import DataError, MissingInputError
from evopipe.evolve.mutate import Mutation
from evopipe.layout import POPULATION
from evopipe.machine import configure
from evopipe.problems.specs import make_spec
from evopipe.run.population import about_spec
from evopipe.run.spec import Spec, first_members, go_on
from evopipe.schema.params import Params
from evopipe.stages.tell import tell
from evopipe.storage import members as stored

if TYPE_CHECKING:
    from evopipe.run.language import LanguageSpec


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `models/population`: members, their keys, architectures, hyper-parameters and first weights; with
    `population.start` those of an earlier run, as it left them: so an offline run goes on online."""
    configure(params.runtime)  # the number of threads decides the last bits of wide networks' first weights
    spec = make_spec(params)
    members, mutations = members_of(params, spec)
    write(folder, spec, members, mutations, members[0].arch.activation, quiet)


def members_of(params: Params, spec: Spec) -> tuple[list[Member], list[Mutation]]:
    """Return the members that a run begins with, and how each was made; for errors see `read_start`."""
    members, mutations = first_members(spec, params.population.size)
    if params.population.start is None:
        return members, mutations
    remedy = "population.start names a copy of models/trained of a run with the same algorithm and environment"
    return go_on(spec, read_start(Path(params.population.start), spec, remedy), members)


def write(
    folder: Path, spec: Spec | LanguageSpec, members: list[Member], mutations: list[Mutation], of: str, quiet: bool
) -> None:
    """Write the initial members, and how each was mutated; tell of them, and what they are `of`."""
    about = {**about_spec(spec), "mutations": [mutation.to_json() for mutation in mutations]}
    stored.write(folder / POPULATION, members, about)
    tell(f"{POPULATION}: {len(members)} members, {members[0].arch.describe()} {of}", quiet)


def read_start(folder: Path, spec: Spec | LanguageSpec, remedy: str) -> list[Member]:
    """Read trained members to go on from, the elite first, without those that diverged; `MissingInputError` or
    `DataError` if that cannot be done."""
    if not folder.exists():
        raise MissingInputError(f"{folder}: not there; {remedy}")
    members, about = stored.read(folder, about_spec(spec), remedy)
    if "elite" in about:
        members = [members[-1], *members[:-1]]
    healthy = [member for member in members if member.healthy]
    if not healthy:
        raise DataError(f"{folder}: every member has diverged; {remedy}")
    return healthy
