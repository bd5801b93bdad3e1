"""A tuner in an environment of its own, asked and told over its standard streams, a line of JSON each.

`python tuner.py NAME '{"space": …, "slices": 16, "seed": 1, "told": null}'` writes what is to be trained next,
`{"values": …, "slices": 4}`, and reads that configuration's score then, `{"score": -110.0}`, in turns without an end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def space_of(bounds: Mapping[str, Mapping[str, Any]], told: Mapping[str, float] | None, seed: int) -> Any:
    """Return the space of a search, whose default is the point that the tuner is told."""
    from ConfigSpace import ConfigurationSpace, Float, Integer

    space = ConfigurationSpace(seed=seed)
    for name, bound in sorted(bounds.items()):
        kind = Integer if bound["whole"] else Float
        default = None if told is None else told[name]
        space.add(kind(name, (bound["low"], bound["high"]), default=default, log=bound["log"]))
    return space


def smac(setting: Mapping[str, Any], folder: Path) -> Iterator[tuple[dict[str, Any], float]]:
    """SMAC's facade for several fidelities: random forests and Hyperband (Lindauer et al., 2022)."""
    from smac import MultiFidelityFacade, Scenario
    from smac.runhistory.dataclasses import TrialValue

    space = space_of(setting["space"], setting["told"], setting["seed"])
    scenario = Scenario(
        space, output_directory=folder, deterministic=True, n_trials=100_000, min_budget=1,
        max_budget=setting["slices"], seed=setting["seed"], use_default_config=setting["told"] is not None,
    )  # fmt: skip
    # As it does by itself, it begins with configurations for a quarter of its budget, here one of full lives.
    design = MultiFidelityFacade.get_initial_design(scenario, n_configs=setting["first"])
    facade = MultiFidelityFacade(
        scenario, lambda config, seed, budget: 0.0, initial_design=design, overwrite=True, logging_level=False
    )
    while True:
        info = facade.ask()
        score = yield dict(info.config), info.budget
        facade.tell(info, TrialValue(cost=-score), save=False)


def dehb(setting: Mapping[str, Any], folder: Path) -> Iterator[tuple[dict[str, Any], float]]:
    """DEHB: differential evolution and Hyperband (Awad et al., 2021), as its page has it."""
    from dehb import DEHB

    space = space_of(setting["space"], setting["told"], setting["seed"])
    search = DEHB(
        f=None, cs=space, dimensions=len(space), min_fidelity=1, max_fidelity=setting["slices"], n_workers=1,
        seed=setting["seed"], output_path=str(folder), log_level="ERROR",
    )  # fmt: skip
    while True:
        job = search.ask()
        score = yield dict(job["config"]), job["fidelity"]
        search.tell(job, {"fitness": -score, "cost": job["fidelity"]})


def main() -> None:
    """Answer until nobody asks any more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a tuner prints is none of the answers
    with tempfile.TemporaryDirectory() as folder:
        asked = {"smac": smac, "dehb": dehb}[sys.argv[1]](json.loads(sys.argv[2]), Path(folder))
        values, slices = next(asked)
        while True:
            plain = {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}
            print(json.dumps({"values": plain, "slices": float(slices)}), file=out, flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            values, slices = asked.send(json.loads(line)["score"])  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
