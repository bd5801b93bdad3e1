"""Stage `population`: makes the initial members."""

from __future__ import annotations

from pathlib import Path

from evopipe.layout import POPULATION
from evopipe.machine import configure
from evopipe.params.load import AnyParams
from evopipe.problems import part_of
from evopipe.run.population import about_spec
from evopipe.stages.tell import tell
from evopipe.storage import members as stored


def run(params: AnyParams, quiet: bool = False, folder: Path = Path()) -> None:
    """Run the stage `population`: write the initial members to `models/population`.

    A member has a random key, an architecture, hyper-parameters and initial weights. With `population.start` the
    members continue from those of an earlier run. Outputs are below `folder`. `quiet` suppresses messages.
    """
    configure(params.runtime)  # the number of threads decides the last bits of wide networks' first weights
    spec, members, mutations, of = part_of(params, "population").begun(params)
    about = {**about_spec(spec), "mutations": [mutation.to_json() for mutation in mutations]}
    stored.write(folder / POPULATION, members, about)
    tell(f"{POPULATION}: {len(members)} members, {members[0].arch.describe()} {of}", quiet)
