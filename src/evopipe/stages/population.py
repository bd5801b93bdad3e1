"""Stage `population`: the initial members."""

from __future__ import annotations

from pathlib import Path

from evopipe.config import Params
from evopipe.loops.problem import first_members
from evopipe.stages.paths import POPULATION
from evopipe.stages.setup import about_problem, make_problem, write_members
from evopipe.stages.tell import tell


def run(params: Params, quiet: bool = False, folder: Path = Path()) -> None:
    """Write `models/population`: members, their keys, architectures, hyper-parameters and first weights.

    Raises:
        ParamsError: the environment is unknown, or the algorithm does not serve its spaces.
    """
    problem = make_problem(params)
    members, mutations = first_members(problem, params.population.size)
    about = {
        **about_problem(problem),
        "mutations": [mutation.to_json() for mutation in mutations],
    }
    write_members(folder / POPULATION, members, about)
    tell(f"{POPULATION}: {len(members)} members, {members[0].arch.describe()} {members[0].arch.activation}", quiet)
