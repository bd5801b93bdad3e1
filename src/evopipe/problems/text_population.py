"""The stage `population` for language models: the members that a run starts with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from evopipe.algos import get
from evopipe.core.member import Member
from evopipe.errors import DataError
from evopipe.language import peft, player
from evopipe.language.adapters import Full
from evopipe.language.policy import CHANGE, POLICY, described, need_base, read_change
from evopipe.mutations import NONE, Mutation
from evopipe.params.text import LanguageParams
from evopipe.problems.text import make_spec
from evopipe.run.population import read_start
from evopipe.run.spec import first_members, go_on
from evopipe.run.text import TextSpec
from evopipe.storage.files import parse_json
from evopipe.storage.folders import read_folder
from evopipe.types import Tensor


def begun(params: LanguageParams) -> tuple[TextSpec, list[Member], list[Mutation], str]:
    """Return a run's configuration, its initial members, the mutation that made each member, and a text.

    The text has the name of the base model. The stage `population` prints it in its message.

    With `population.start` the members continue from those of an earlier run, from an adapter in PEFT's format, or from
    an exported player of games.
    """
    spec = make_spec(params)
    return spec, *members_of(params, spec), f"over {spec.base.name}"


def members_of(params: LanguageParams, spec: TextSpec) -> tuple[list[Member], list[Mutation]]:
    """Return the initial members of a run, and the mutation that made each.

    `population.start` may name a folder: the members of an earlier run, an adapter, an exported language model or an
    exported player of games. The members then continue from this folder's weights.

    Raises:
        MissingInputError: the files of `population.start` are missing.
        DataError: these files are damaged, or do not fit the run.
    """
    members, mutations = first_members(spec, params.population.size)
    if params.population.start is None:
        return members, mutations
    start = Path(params.population.start)
    if (start / player.WEIGHTS).exists():
        return _play_on(spec, start, len(members))
    return go_on(spec, _read_start(start, spec, members[0]), members)


def _read_start(folder: Path, spec: TextSpec, fresh: Member) -> list[Member]:
    """Read trained members to continue from, the elite first, or one adapter."""
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
        print(f"warning: {text}", file=sys.stderr)
    if adapter:
        return [peft.member_of(folder, spec.base, fresh, spec.algo.POLICY)]
    if change:
        if not isinstance(fresh.arch, Full):
            raise DataError(f"{folder}: holds a change of all weights: set language.full to true")
        return [replace(fresh, tensors={**fresh.tensors, spec.algo.POLICY: read_change(folder, spec.base)})]
    return read_start(folder, spec, remedy)


def _play_on(spec: TextSpec, folder: Path, size: int) -> tuple[list[Member], list[Mutation]]:
    """Return members whose policy is an exported one; other networks begin as it, too, but for their outputs.
    `DataError` if it is damaged, or over other tokens, or of another width."""
    about = parse_json(read_folder(folder, only=(player.POLICY,))[player.POLICY], str(folder / player.POLICY))
    wanted = "population.start names a player over the same tokens, as `evopipe export` writes it"
    if not isinstance(about, dict) or not about.get("tokens"):
        raise DataError(f"{folder}: is no exported player of games; {wanted}")
    if about.get("base") != spec.base.digest:
        had, now = " ".join(map(str, about.get("tokens", ()))), " ".join(spec.base.tokenizer)
        raise DataError(
            f"{folder}: was trained over other tokens ({had:.200}) than {spec.language.task} has here ({now:.200}), or "
            f"over games of another length; {wanted}"
        )
    *_, arch, rows = player.read(folder, about, get(str(about.get("algo"))))
    calm = spec.mutation.model_copy(update={"before_training": False})
    members, _ = first_members(replace(spec, begun=arch, mutation=calm), size)
    begun = [replace(member, tensors=_begin(spec, member, rows["policy"])) for member in members]
    wrong = spec.check(begun)
    if wrong is not None:
        raise DataError(f"{folder}: {wrong}")
    return begun, [NONE] * size


def _begin(spec: TextSpec, member: Member, row: Tensor) -> dict[str, Tensor]:
    """Return a fresh member's tensors with what a policy knows in all its networks."""
    widths, found = spec.widths, dict(member.tensors)
    known = member.arch.named(widths[spec.algo.POLICY], row)
    for name, (kind, network) in spec.traits.kinds.items():
        if kind == "parameters":
            found[name] = found[name].clone()
            for part, place in member.arch.named(widths[network], found[name]).items():
                if part != "output" or network == spec.algo.POLICY:
                    place.copy_(known[part])
    return found
