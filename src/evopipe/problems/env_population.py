"""The stage `population` for environments: the members that a run starts with."""

from __future__ import annotations

from pathlib import Path

from evopipe.core.member import Member
from evopipe.mutations import Mutation
from evopipe.params.load import Params
from evopipe.problems.specs import make_spec
from evopipe.run.population import read_start
from evopipe.run.spec import EnvSpec, first_members, go_on

_REMEDY = "population.start names a copy of models/trained of a run with the same algorithm and environment"


def begun(params: Params) -> tuple[EnvSpec, list[Member], list[Mutation], str]:
    """Return a run's configuration, its initial members, the mutation that made each member, and a text.

    The text is the name of the members' activation function. The stage `population` prints it in its message.

    With `population.start` the members are those of an earlier run, so that an offline run can continue online.
    """
    spec, start = make_spec(params), params.population.start
    members, mutations = first_members(spec, params.population.size)
    if start is not None:
        members, mutations = go_on(spec, read_start(Path(start), spec, _REMEDY), members)
    return spec, members, mutations, str(members[0].arch.activation)
