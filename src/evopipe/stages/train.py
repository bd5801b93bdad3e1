"""Stage `train`: trains and evolves the population."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from evopipe.params.load import AnyParams
from evopipe.problems import problem_of
from evopipe.run.callbacks import Callback
from evopipe.run.population import read_population
from evopipe.run.session import Home, Session
from evopipe.scale.divide import divided, served
from evopipe.track.tracking import Tracked


def run(
    params: AnyParams, quiet: bool = False, folder: Path = Path(),
    functions: Mapping[str, Callback | None] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Run the stage `train`: train the members of `models/population`, and write `models/trained` and `reports/`.

    A run that was stopped or killed continues from its last checkpoint, bit for bit. Inputs and outputs are below
    `folder`. `quiet` suppresses messages on progress. `functions` are callbacks by their kind, such as `on_best`,
    beside those of `train.callbacks`.
    """
    if served(params.runtime.shards):
        return
    problem = problem_of(params, folder)
    tracked = Tracked(params.tracking, params.model_dump(mode="json"))
    home = Home.of_stage(problem, folder, params.runtime.checkpoint_seconds)
    members, births = read_population(folder, problem.spec)
    with (
        divided(problem, params, len(members), folder) as problem,
        Session.opened(problem, members, births, tracked, home, quiet, functions=functions) as session,
    ):
        session.write(session.train())
        session.end()
