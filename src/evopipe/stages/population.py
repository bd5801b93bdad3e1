"""Stage `population`: the initial members."""

from __future__ import annotations

from pathlib import Path

from evopipe.loops.problem import first_members, go_on
from evopipe.schema.params import Params
from evopipe.stages.paths import POPULATION
from evopipe.stages.setup import about_problem, make_problem, read_start, write_members
from evopipe.stages.tell import tell


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `models/population`: members, their keys, architectures, hyper-parameters and first weights.

    With `population.start` they are those of an earlier run, as it left them: so an offline run goes on online.

    Raises:
        ParamsError: the environment is unknown, or the algorithm does not serve its spaces.
        MissingInputError: `population.start` is not there.
        DataError: it is damaged, or belongs to another algorithm or environment.
    """
    problem, start = make_problem(params), params.population.start
    members, mutations = first_members(problem, params.population.size)
    if start is not None:
        members, mutations = go_on(problem, read_start(Path(start), problem), members)
    about = {
        **about_problem(problem),
        "mutations": [mutation.to_json() for mutation in mutations],
    }
    write_members(folder / POPULATION, members, about)
    tell(f"{POPULATION}: {len(members)} members, {members[0].arch.describe()} {members[0].arch.activation}", quiet)
