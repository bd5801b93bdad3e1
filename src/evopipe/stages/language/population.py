"""Stage `population` of language models: the initial members."""

from __future__ import annotations

from pathlib import Path

from evopipe.core.member import Member
from evopipe.errors import DataError, MissingInputError
from evopipe.language import peft
from evopipe.layout import POPULATION
from evopipe.machine import configure
from evopipe.run.language import LanguageSpec
from evopipe.run.spec import first_members, go_on
from evopipe.schema.text import LanguageParams
from evopipe.stages.language import games
from evopipe.stages.language.setup import about_spec, make_spec
from evopipe.stages.tell import tell
from evopipe.storage import members as stored


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `models/population`: members, their keys, hyper-parameters and first adapters.

    With `population.start` they are those of an earlier run, or one that PEFT wrote; or a player's policy is theirs.

    Raises:
        MissingInputError: the base, or `population.start`, is not there.
        DataError: one of them is damaged, or they do not belong together.
    """
    configure(params.runtime)  # the number of threads decides the last bits of wide networks' first weights
    spec, start = make_spec(params), params.population.start
    members, mutations = first_members(spec, params.population.size)
    if start is not None and games.is_export(Path(start)):
        members, mutations = games.go_on(spec, Path(start), len(members))
    elif start is not None:
        members, mutations = go_on(spec, _read_start(Path(start), spec, members[0]), members)
    about = {**about_spec(spec), "mutations": [mutation.to_json() for mutation in mutations]}
    stored.write(folder / POPULATION, members, about)
    tell(f"{POPULATION}: {len(members)} members, {members[0].arch.describe()} over {spec.base.name}", quiet)


def _read_start(folder: Path, spec: LanguageSpec, fresh: Member) -> list[Member]:
    """Read trained members to go on from, the elite first, or one adapter."""
    remedy = "population.start names a copy of models/trained with the same algorithm and base, or an adapter of PEFT's"
    if not folder.exists():
        raise MissingInputError(f"{folder}: not there; {remedy}")
    if (folder / peft.CONFIG).exists():
        return [peft.member_of(folder, spec.base, fresh, spec.algo.POLICY)]
    members, about = stored.read(folder, about_spec(spec), remedy)
    if "elite" in about:
        members = [members[-1], *members[:-1]]
    healthy = [member for member in members if member.healthy]
    if not healthy:
        raise DataError(f"{folder}: every member has diverged; {remedy}")
    return healthy
