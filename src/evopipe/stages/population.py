"""Stage `population`: the initial members."""

from __future__ import annotations

from pathlib import Path

from evopipe.run.spec import first_members, go_on
from evopipe.schema.params import Params
from evopipe.stages.paths import POPULATION
from evopipe.stages.setup import about_spec, make_spec, read_start, write_members
from evopipe.stages.tell import tell


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `models/population`: members, their keys, architectures, hyper-parameters and first weights.

    With `population.start` they are those of an earlier run, as it left them: so an offline run goes on online.

    Raises:
        ParamsError: the environment is unknown, or the algorithm does not serve its spaces.
        MissingInputError: `population.start` is not there.
        DataError: it is damaged, or belongs to another algorithm or environment.
    """
    spec, start = make_spec(params), params.population.start
    members, mutations = first_members(spec, params.population.size)
    if start is not None:
        members, mutations = go_on(spec, read_start(Path(start), spec), members)
    about = {
        **about_spec(spec),
        "mutations": [mutation.to_json() for mutation in mutations],
    }
    write_members(folder / POPULATION, members, about)
    tell(f"{POPULATION}: {len(members)} members, {members[0].arch.describe()} {members[0].arch.activation}", quiet)
