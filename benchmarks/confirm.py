"""Confirmations that end early: what they save and how often they err: `python benchmarks/confirm.py [TASK …]`.

Candidates are members whose fitness reached the target while draws from the hard space were trained; a table has the
returns of 400 episodes of each (`--record 40` makes it from so many draws). A hundred of these are drawn
again and again, and played by `train.confirmation: sequential` and to the end: at the task's own target, and at targets
a twentieth of a standard deviation above what a candidate's 400 episodes come to, where errors are most likely. `by t`
is what was not taken, a group-sequential test with an O'Brien-Fleming boundary, which knows no lowest return.
"""

from __future__ import annotations

import argparse
import gzip
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

from harness import curves, search  # noqa: E402

from evopipe.ops.statistics import standard_error  # noqa: E402
from evopipe.run.race import batches, hopeless, reached  # noqa: E402
from evopipe.searchers.propose import random_values  # noqa: E402

EPISODES = 400  # of each candidate
ORDERS = 200
ERRORS = (0.0, 2.0)  # standard errors by which the mean has to clear the target


def path_of(name: str) -> Path:
    return curves.CURVES / f"confirm-{name}.csv.gz"


def read(name: str) -> np.ndarray:
    """Return the returns of a task's candidates, `[C, 400]`."""
    return np.loadtxt(path_of(name), delimiter=",", ndmin=2)


def write(name: str, returns: list[np.ndarray]) -> None:
    lines = "".join(",".join(f"{each:.6g}" for each in row) + "\n" for row in returns)
    path_of(name).write_bytes(gzip.compress(lines.encode(), mtime=0))


def record(name: str, draws: int) -> None:
    """Train draws from the hard space, and keep the returns of those who are to be confirmed."""
    import evopipe
    from evopipe.errors import DivergedError
    from evopipe.rng import Purpose

    task, found, draw = curves.TASKS[name], [], np.random.default_rng(7)
    for number in range(draws):
        values = random_values(search.space(task, "hard"), draw)
        with evopipe.Population(curves.params_of(task, values, 1000 + number)) as population:
            while not population.reason:
                try:
                    (last,) = population.train(generations=1)
                except DivergedError:
                    break
                run, (scored,), (member,) = population._run, last.members, population.members
                if not scored.healthy:
                    break
                if scored.fitness >= task.target:
                    seeds = run.spec.seeds(Purpose.CONFIRM, curves.CONFIRM)
                    seeds = np.append(seeds, 10**6 + np.arange(EPISODES - len(seeds)))
                    found.append(run.regime.evaluate(run.spec.form_alone(member), seeds, lambda: False).returns[0])
                    write(name, found)
        print(f"{name} {number}: {len(found)} candidates", flush=True)


class Rates(NamedTuple):
    """Of confirmations: the share of those that would fail which are taken for successes, at worst for one candidate,
    the share of those that would succeed which are given up, and the episodes that either kind plays."""

    wrong: float
    worst: float
    lost: float
    successes: float
    failures: float


Rule = Callable[[np.ndarray, float, int, float], bool]
"""Whether returns `[k]` are as good as a success: with the bar, the number of episodes in all, and standard errors."""


def by_betting(lowest: float) -> Rule:
    """The package's own rule."""
    return lambda returns, bar, n, errors: reached(returns, bar, lowest, n, errors)


def by_t(returns: np.ndarray, bar: float, n: int, errors: float) -> bool:
    """Student's t, at levels of O'Brien & Fleming (1979): 5 % at the last look, and far less at early ones."""
    error = standard_error(returns)
    apart = errors + _quantile(len(returns), n) * math.sqrt(1 - len(returns) / n)
    return bool(returns.mean() - apart * error >= bar)


@cache
def _quantile(k: int, n: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(stats.norm.cdf(stats.norm.ppf(0.95) / math.sqrt(k / n)), k - 1))


def play(returns: np.ndarray, bar: float, rule: Rule, errors: float) -> tuple[int, bool]:
    """Return how many of these episodes are played, and whether they confirm."""
    n = len(returns)
    for part in batches(n):
        some = returns[: part.stop]
        if part.stop < n and rule(some, bar, n, errors):
            return part.stop, True
        if part.stop < n and hopeless(some, bar, n):
            return part.stop, False
    return n, succeeds(returns, bar, errors)


def succeeds(returns: np.ndarray, bar: float, errors: float) -> bool:
    return bool(returns.mean() - errors * standard_error(returns) >= bar)


def rates(candidates: np.ndarray, bars: np.ndarray, rule: Rule, errors: float = 0.0, orders: int = ORDERS) -> Rates:
    """Play a hundred episodes of each candidate `[C, E]`, drawn in so many orders, with a bar for each."""
    draw, rows = np.random.default_rng(1), []
    for number, (returns, bar) in enumerate(zip(candidates, bars, strict=True)):
        for _ in range(orders):
            some = draw.permutation(returns)[: curves.CONFIRM]
            rows.append((number, succeeds(some, bar, errors), *play(some, bar, rule, errors)))
    who, right, played, said = (np.array(each) for each in zip(*rows, strict=True))
    fails = ~right
    each = [said[fails & (who == number)].mean() for number in {*who[fails]} if (fails & (who == number)).sum() >= 20]
    return Rates(
        _mean(said[fails]), max(each, default=math.nan), _mean(~said[right]), _mean(played[right]), _mean(played[fails])
    )


def _mean(x: np.ndarray) -> float:
    return float(x.mean()) if len(x) else math.nan


def bars_of(candidates: np.ndarray, target: float, errors: float, near: bool) -> np.ndarray:
    """Return the task's own target for each candidate, or one that its mean just fails."""
    if not near:
        return np.full(len(candidates), target)
    spread = candidates.std(axis=1)
    return candidates.mean(axis=1) - errors * spread / math.sqrt(curves.CONFIRM) + 0.05 * spread


def main(arguments: list[str] | None = None) -> int:
    """Record, or print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [name for name, task in curves.TASKS.items() if task.lowest is not None]
    parser.add_argument("tasks", nargs="*", metavar="TASK", default=known)
    parser.add_argument("--record", type=int, metavar="DRAWS")
    parser.add_argument("--orders", type=int, default=ORDERS)
    args = parser.parse_args(arguments)
    for name in args.tasks:
        if args.record:
            record(name, args.record)
            continue
        lowest, candidates = curves.TASKS[name].lowest, read(name)
        assert lowest is not None
        for near in (False, True):
            for errors in ERRORS:
                for title, rule in (("betting", by_betting(lowest)), ("by t", by_t)):
                    some = candidates[candidates.std(axis=1) > 1.0] if near else candidates
                    where = "just above" if near else "its own target"
                    bars = bars_of(some, curves.TASKS[name].target, errors, near)
                    found = rates(some, bars, rule, errors, args.orders)
                    print(
                        f"{name}, {len(some)} candidates, {where}, {errors:g} errors, "
                        f"{title}: wrong {found.wrong:.2%} (worst {found.worst:.1%}), given up {found.lost:.2%}, "
                        f"episodes {found.successes:.0f} of a success, {found.failures:.0f} of a failure", flush=True,
                    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
