"""What the signals cost: `python benchmarks/signals.py [--generations 12] [--turns 5] [--members 1 4]`.

Runs of three pipelines, by our own kernels and by torch's, each once with the probe that signals come from and once
without, a generation of the one after a generation of the other. No bit depends on the probe, so both learn the same;
it ends with a sentence if they do not. Told are seconds of a processor:

- generation: the median one, without signals, evaluation and evolution included;
- inside: what the signals' own code takes, in % of all generations without signals;
- ordinary: what generations with signals take more than those without, in %: the median of the turns and their
  spread, of generations that take less than twice the median's seconds. The others have a confirmation, which takes
  many times as long, and on a busy machine varies by more than all signals take.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

from harness import tournament  # noqa: E402
from torch import Tensor  # noqa: E402

from evopipe.core.cohort import Cohort  # noqa: E402
from evopipe.formats import columns, number  # noqa: E402
from evopipe.params.load import Params, parse_params  # noqa: E402
from evopipe.population import Population  # noqa: E402
from evopipe.regimes import on_policy  # noqa: E402
from evopipe.regimes.learn import ReplayLearning  # noqa: E402
from evopipe.regimes.probe import Probe  # noqa: E402
from evopipe.run.diagnostics import Diagnostics  # noqa: E402
from evopipe.run.tally import Tally  # noqa: E402

OWN = ((ReplayLearning, "probe"), (on_policy, "probe_rollout"), (Probe, "adopt"), (Probe, "end"), (Diagnostics, "told"))
"""What computes signals and nothing else: no two call each other."""
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


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """Record in the list the seconds of a processor of every call of `OWN` while the block lasts."""
    spent: list[float] = []

    def timing(of: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(of)
        def call(*args: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return of(*args, **named)
            finally:
                spent.append(time.process_time() - began)

        return call

    with contextlib.ExitStack() as stack:
        for owner, name in OWN:
            stack.enter_context(mock.patch.object(owner, name, timing(getattr(owner, name))))
        yield spent


def measure(params: Params, generations: int, turn: int) -> tuple[list[float], list[float], float]:
    """Return the seconds of a processor that each generation takes with signals, and without, and those that all
    generations spend inside the signals' own code.

    Which of the two begins a generation is another in the next one, and in the next turn: who comes second finds the
    processor's caches warm.

    Raises:
        SystemExit: members did not learn the same.
    """
    with Population(params) as told, silenced(Population(params)) as silent, timed() as inside:
        spent: dict[Population, list[float]] = {told: [], silent: []}
        for generation in range(generations + 1):
            for each in (told, silent) if (generation + turn) % 2 else (silent, told):
                began = time.process_time()
                each.train(1)
                spent[each].append(time.process_time() - began)
            if not generation:  # the first one is not like the others
                inside.clear()
        if told.lineage != silent.lineage:
            raise SystemExit("signals: the members learned otherwise without a probe")
        return spent[told][1:], spent[silent][1:], sum(inside)


def added(told: Sequence[float], silent: Sequence[float]) -> float:
    """Return what signals add to the generations that take less than twice the median's seconds, in %."""
    most = 2 * statistics.median(silent)
    kept = [pair for pair in zip(told, silent, strict=True) if pair[1] < most]
    with_signals, without = (sum(each) for each in zip(*kept, strict=True))
    return 100 * (with_signals / without - 1)


def main() -> int:
    """Measure, and print a table; return 1 if signals cost more than they may."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--generations", type=int, default=12, help="of each run in a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=PIPELINES)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    options = parser.parse_args()
    lines: list[tuple[Any, ...]] = [("pipeline", "kernels", "members", "generation", "inside", "ordinary")]
    most = 0.0
    for pipeline, kernels, members in itertools.product(options.pipelines, options.kernels, options.members):
        params = params_of(pipeline, kernels, members)
        found = [measure(params, options.generations, turn) for turn in range(options.turns)]
        seconds = [each for _, silent, _ in found for each in silent]
        inside = 100 * sum(own for _, _, own in found) / sum(seconds)
        turns = sorted(added(told, silent) for told, silent, _ in found)
        most = max(most, inside)
        lines.append((
            pipeline, kernels, str(members), f"{number(statistics.median(seconds))} s", f"{inside:.2f} %",
            f"{statistics.median(turns):.1f} ({turns[0]:.1f} to {turns[-1]:.1f}) %",
        ))  # fmt: skip
        print("  ".join(map(str, lines[-1])), file=sys.stderr, flush=True)
    for line in columns(lines):
        print(line)
    return int(most > MOST)


if __name__ == "__main__":
    sys.exit(main())
