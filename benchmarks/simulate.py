"""Replay search strategies over the table of learning curves: `python benchmarks/simulate.py [STRATEGY…] [options]`.

The searchers are the package's own; only members' lives come from the table (`make_curves.py`). A new trial is a row
drawn from it, with replacement. A child goes on with the row whose values are nearest to its own, from where that row
first has its parent's score, which is a guess: the table knows no schedules. Confirmations cost what they cost a trial
that searches alone, which is too much where an earlier one had a score to beat. Printed are environment steps of every
kind to a confirmed target, cut at the budget: their mean over simulated runs with its standard error.

    python benchmarks/simulate.py growth --set factor=2 --size 16 --slices 2 --runs 1000
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

import numpy as np  # noqa: E402
import yaml  # noqa: E402
from harness import curves  # noqa: E402
from harness.curves import Row, Task  # noqa: E402
from harness.simulated import Course, Search  # noqa: E402

from evopipe.searchers.contract import About, Bound  # noqa: E402
from evopipe.searchers.propose import share_of  # noqa: E402

BUDGET = 1_000_000
ALONE = {"random": 1}  # slots of strategies whose members all live


class Table:
    """Courses of trials, drawn from the rows of a table; that of the first one from `first`, if there are any."""

    def __init__(
        self, rows: Sequence[Row], space: Mapping[str, Bound], draw: np.random.Generator, first: Sequence[Row] = ()
    ) -> None:
        self.rows, self.space, self.draw, self.first = rows, space, draw, first
        self.places = np.array([self._place(row.values) for row in rows])

    def _place(self, values: Mapping[str, float]) -> list[float]:
        return [share_of(bound, values[name]) for name, bound in sorted(self.space.items())]

    def new(self, number: int) -> Course:
        """Return a row, drawn with replacement."""
        rows = self.first if self.first and not number else self.rows
        return _course(rows[int(self.draw.integers(len(rows)))])

    def child(self, course: Course, slices: int, values: Mapping[str, float]) -> Course:
        """Return what a child scores: after as many slices as its parent, the course of the nearest row."""
        away = ((self.places - np.array(self._place(values))) ** 2).sum(axis=1)
        row = self.rows[int(self.draw.choice(np.flatnonzero(away == away.min())))]
        score = course.at(slices)[0]
        start = next((i for i, each in enumerate(row.scores) if each >= score), len(row.scores) - 1)
        begun = [score] * slices, [0] * slices
        return replace(
            _course(row), scores=[*begun[0], *row.scores[start:]], evaluated=[*begun[1], *row.evaluated[start:]]
        )


def _course(row: Row) -> Course:
    return Course(row.scores, row.evaluated, row.confirmed, row.values)


def simulate(
    strategy: str, config: Mapping[str, Any], task: Task, rows: Sequence[Row], space: Mapping[str, Bound], size: int,
    slices: int, runs: int, target: bool = True, first: Sequence[Row] = (),
) -> list[tuple[int, bool]]:  # fmt: skip
    """Return of each run the steps that it took, and whether it reached the target."""
    coarse, found = [row.coarse(slices) for row in rows], []
    begun = [row.coarse(slices) for row in first]
    for seed in range(runs):
        about = About(size, task.life, task.slice * slices, space, seed, BUDGET, task.target if target else None)
        table = Table(coarse, space, np.random.default_rng(seed), begun)
        search = Search(strategy, config, about, table.new, table.child)
        reached = search.finish() == "target" and search.spent <= BUDGET
        found.append((min(search.spent, BUDGET), reached))
    return found


def share_that_solves(rows: Sequence[Row]) -> float:
    """Return the share of draws that solve the task, each the mean over its seeds."""
    solved = defaultdict(list)
    for row in rows:
        solved[row.draw].append(row.confirmed)
    return statistics.fmean(statistics.fmean(each) for each in solved.values())


def lines(args: argparse.Namespace) -> Iterator[str]:
    """Return the lines to print."""
    config = yaml.safe_load("{" + ", ".join(each.replace("=", ": ", 1) for each in args.set) + "}")
    for name, task in curves.TASKS.items():
        for kind in curves.SPACES:
            rows = curves.read(curves.path_of(name, kind))
            if not rows or (args.task and name not in args.task):
                continue
            space, seeds = curves.space(task, kind), len({row.seed for row in rows})
            share, values = share_that_solves(rows), curves.configured(task, space)
            own = [replace(row, values=values) for row in curves.read(curves.path_of(name, curves.OWN))]
            first = own if args.first == "configured" else []
            yield f"{name}, {kind}: {share:.0%} of {len({row.draw for row in rows})} draws solve it ({seeds} seeds)"
            for strategy in args.strategy:
                size = ALONE.get(strategy, args.size)
                set_to = {} if strategy == "random" else config
                known = not args.no_target
                found = simulate(strategy, set_to, task, rows, space, size, args.slices, args.runs, known, first)
                steps = [each / 1e3 for each, _ in found]
                error = statistics.stdev(steps) / math.sqrt(len(steps))
                solved = statistics.fmean(done for _, done in found)
                yield (
                    f"  {strategy:10} {statistics.fmean(steps):7.0f} ± {error:.0f} thousand steps, median "
                    f"{statistics.median(steps):.0f}, {solved:.0%} within {BUDGET:,}"
                )


def main(arguments: list[str] | None = None) -> int:
    """Print what strategies need; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategy", nargs="*", default=["random", "halving", "growth"])
    parser.add_argument("--task", action="append", choices=curves.TASKS)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the strategy")
    parser.add_argument("--size", type=int, default=8, help="slots of the population; random search has one")
    parser.add_argument("--slices", type=int, default=1, help="slices of the table that make one of the search's")
    parser.add_argument("--first", choices=("configured", "drawn"), default="drawn", help="values of the first trial")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--no-target", action="store_true", help="do not tell the strategy the target")
    for line in lines(parser.parse_args(arguments)):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
