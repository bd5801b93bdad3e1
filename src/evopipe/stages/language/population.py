"""Stage `population` of language models: the initial members."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evopipe.core.member import Member
from evopipe.errors import DataError
from evopipe.evolve.mutate import Mutation
from evopipe.language import peft, player
from evopipe.language.adapters import Full
from evopipe.language.policy import CHANGE, POLICY, described, need_base, read_change
from evopipe.machine import configure
from evopipe.problems.text import make_spec
from evopipe.run.language import LanguageSpec
from evopipe.run.spec import first_members, go_on
from evopipe.schema.text import LanguageParams
from evopipe.stages.language import games
from evopipe.stages.population import read_start, write
from evopipe.stages.tell import warn


def run(params: LanguageParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `models/population`: members, their keys, hyper-parameters and first adapters; with `population.start`
    those of an earlier run, or one that PEFT wrote; or a player's policy is theirs."""
    configure(params.runtime)  # the number of threads decides the last bits of wide networks' first weights
    spec = make_spec(params)
    write(folder, spec, *members_of(params, spec), f"over {spec.base.name}", quiet)


def members_of(params: LanguageParams, spec: LanguageSpec) -> tuple[list[Member], list[Mutation]]:
    """Return the members that a run begins with, and how each was made; for errors see `run`."""
    members, mutations = first_members(spec, params.population.size)
    if params.population.start is None:
        return members, mutations
    start = Path(params.population.start)
    if (start / player.WEIGHTS).exists():
        return games.go_on(spec, start, len(members))
    return go_on(spec, _read_start(start, spec, members[0]), members)


def _read_start(folder: Path, spec: LanguageSpec, fresh: Member) -> list[Member]:
    """Read trained members to go on from, the elite first, or one adapter."""
    remedy = (
        "population.start names a copy of models/trained with the same algorithm and base, an elite, or an adapter of "
        "PEFT's"
    )
    adapter, change = (folder / peft.CONFIG).exists(), (folder / CHANGE).exists()
    if change or (adapter and (folder / POLICY).exists()):
        about = described(folder)
        if about is None:
            raise DataError(f"{folder / POLICY}: is of no language model; {remedy}")
        need_base(
            folder, about, spec.base, "set language.model to its base, or population.start to an elite of this one"
        )
    elif adapter and (text := peft.doubt(folder, spec.base)) is not None:
        warn(text)
    if adapter:
        return [peft.member_of(folder, spec.base, fresh, spec.algo.POLICY)]
    if change:
        if not isinstance(fresh.arch, Full):
            raise DataError(f"{folder}: holds a change of all weights: set language.full to true")
        return [replace(fresh, tensors={**fresh.tensors, spec.algo.POLICY: read_change(folder, spec.base)})]
    return read_start(folder, spec, remedy)
