"""What the signals cost: `python benchmarks/signals.py [--generations 6] [--turns 3] [--members 1 4 16]`.

Runs of three pipelines, by our own kernels and by torch's, each once with the probe that signals come from and once
without, a generation of the one after a generation of the other. No bit depends on the probe, so both learn the same;
it ends with a sentence if they do not. Told are seconds of a processor in a generation, evaluation and evolution
included, without the probe; what the probe adds, in % of these; and the median of single turns, and between which
shares they lay. Every turn does the same work, so a generation's least seconds of all turns are those that others' work
on the machine disturbed least: the first two columns are of these.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

from harness import tournament  # noqa: E402
from torch import Tensor  # noqa: E402

from evopipe.core.cohort import Cohort  # noqa: E402
from evopipe.formats import columns, number  # noqa: E402
from evopipe.params.load import Params, parse_params  # noqa: E402
from evopipe.population import Population  # noqa: E402
from evopipe.regimes.probe import Probe  # noqa: E402
from evopipe.run.tally import Tally  # noqa: E402

PIPELINES = ("ppo-cartpole", "dqn-cartpole", "sac-pendulum")
KERNELS = ("native", "torch")
MOST = 2.0  # % of a run's time that signals may cost


class Silent(Probe):
    """A probe that is never due, and takes note of nothing."""

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        pass

    def ahead(self, updates: float, moment: int, moments: int) -> int:
        return moments - moment + 1

    def end(
        self, cohorts: Sequence[Cohort], more: Callable[[Cohort], Mapping[str, Tensor]] = lambda cohort: {},
        tally: Tally | None = None,
    ) -> None:  # fmt: skip
        pass


def params_of(pipeline: str, kernels: str, members: int) -> Params:
    """Return a pipeline's parameters with so many members, which never ends by itself and stays in this process."""
    data = tournament.of(ROOT / "pipelines" / pipeline / "params.yaml")
    data["population"]["size"] = members
    data["train"] |= {"target": None, "max_steps": 10**9}
    data["runtime"] |= {"kernels": kernels, "env_workers": 0, "learners": 1, "device": "cpu"}
    return parse_params(data)


def silenced(population: Population) -> Population:
    """Take a population's probe away."""
    regime = population._run.regime
    regime._probe = Silent(regime.spec, regime.clock)
    return population


def measure(params: Params, generations: int) -> tuple[list[float], list[float]]:
    """Return the seconds of a processor that each generation takes with signals, and without.

    Raises:
        SystemExit: members did not learn the same.
    """
    with Population(params) as told, silenced(Population(params)) as silent:
        spent: dict[Population, list[float]] = {told: [], silent: []}
        for turn in range(generations + 1):
            for each in (told, silent) if turn % 2 else (silent, told):
                began = time.process_time()
                each.train(1)
                spent[each].append(time.process_time() - began)
        if told.lineage != silent.lineage:
            raise SystemExit("signals: the members learned otherwise without a probe")
    return spent[told][1:], spent[silent][1:]  # the first one is not like the others


def share(told: Sequence[float], silent: Sequence[float]) -> float:
    """Return what signals add, in % of the seconds without."""
    return 100 * (sum(told) / sum(silent) - 1)


def main() -> int:
    """Measure, and print a table; return 1 if signals cost more than they may."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--generations", type=int, default=6, help="of each run in a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=PIPELINES)
    options = parser.parse_args()
    lines: list[tuple[Any, ...]] = [("pipeline", "kernels", "members", "generation", "signals", "turns")]
    most = 0.0
    for pipeline in options.pipelines:
        for kernels in KERNELS:
            for members in options.members:
                params = params_of(pipeline, kernels, members)
                found = [measure(params, options.generations) for _ in range(options.turns)]
                shares = sorted(share(*each) for each in found)
                told, silent = ([min(each) for each in zip(*way, strict=True)] for way in zip(*found, strict=True))
                least, seconds = share(told, silent), sum(silent) / len(silent)
                most = max(most, least)
                turns = f"{statistics.median(shares):.1f} ({shares[0]:.1f} to {shares[-1]:.1f}) %"
                lines.append((pipeline, kernels, str(members), f"{number(seconds)} s", f"{least:.1f} %", turns))
                print("  ".join(map(str, lines[-1])), file=sys.stderr, flush=True)
    for line in columns(lines):
        print(line)
    return int(most > MOST)


if __name__ == "__main__":
    sys.exit(main())
