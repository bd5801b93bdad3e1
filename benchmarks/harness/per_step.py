"""Learning curves by environment step, with equal values and networks on both sides: figures and their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness import datasets, stats, venvs
from harness.results import MISSING, Result, Results, made_by, number, table, values
from harness.rows import ENVIRONMENTS, PACKAGES, ROWS, UNLIKE

PREFIX = "per_step_"
EVOPIPE = "evopipe"
_RESAMPLES = 10_000


def prepare(s: Mapping[str, Any]) -> None:
    """Make what both sides of a row read, where it is not there yet: a dataset, environments of plain Python."""
    if "data" in s:
        datasets.make(s["data"])
    if str(s.get("env", "")).startswith("curve_envs:"):
        venvs.make_games()


class Curves(NamedTuple):
    """One contestant's curves: training steps `[T]`, mean returns `[seeds, T]`."""

    steps: np.ndarray
    returns: np.ndarray

    @classmethod
    def of(cls, result: Result, contestant: str, kind: str) -> Curves:
        """Read the curves of one kind of evaluation, `greedy` or `sampled`, of all seeds that ran."""
        found = values(result, contestant, kind)
        return cls(np.array(values(result, contestant, "steps")[0]), np.array(found, float))

    def areas(self, floor: float) -> np.ndarray:
        """Return each seed's mean return above `floor` over the curve, `[seeds]`: the area under it by its length."""
        spent = np.diff(self.steps, prepend=0)
        areas: np.ndarray = ((self.returns - floor) * spent).sum(axis=1) / spent.sum()
        return areas

    def first(self, target: float) -> list[stats.Time]:
        """Return the steps of each seed's first evaluation that reaches `target`; censored where none does."""
        reached = self.returns >= target
        return [
            stats.Time(float(self.steps[row.argmax() if row.any() else -1]), censored=not row.any()) for row in reached
        ]


def ratio_of_means(over: Sequence[float], under: Sequence[float]) -> stats.Ratio:
    """Return the ratio of two groups' means and its 95 % bootstrap interval; seeds of the two groups are no pairs, so
    each group is drawn again by itself (Efron and Tibshirani, 1993, section 8.3).

    Raises:
        ValueError: a group is empty.
    """
    if not len(over) or not len(under):
        raise ValueError("no values")
    a, b, draw = np.array(over, float), np.array(under, float), np.random.default_rng(0)
    means = [x[draw.integers(len(x), size=(_RESAMPLES, len(x)))].mean(axis=1) for x in (a, b)]
    low, high = np.quantile(means[0] / means[1], [(1 - stats.LEVEL) / 2, (1 + stats.LEVEL) / 2])
    return stats.Ratio(float(a.mean() / b.mean()), float(low), float(high), min(len(a), len(b)))


def section(results: Results) -> list[str]:
    """Return the page's section."""
    lines = ["## Learning by environment step", ""]
    there = [name for name in ROWS if name in results]
    if not there:
        return [*lines, MISSING]
    lines += [
        "One member, no evolution, the same values and network widths on both sides; a seed each turn. Between "
        "stretches of training both play the same held-out episodes (20, of HalfCheetah 5), greedily and, where a "
        "policy draws its actions, by drawing too; these steps are not counted. Steps of an offline row are updates "
        "on one file. The area is the mean return over the curve above what a policy scores that learned nothing. "
        "Ratios are of the means over seeds, with a 95 % bootstrap interval. Peers: "
        + ", ".join(f"{peer} {venvs.version(ENVIRONMENTS[peer], package)}" for peer, package in PACKAGES.items())
        + f" (d3rlpy with Gymnasium {venvs.version('d3rlpy', 'gymnasium')}, which it asks for: its CartPole and "
        "Pendulum go the same way step by step).", "",
    ]  # fmt: skip
    rows = []
    for name in there:
        rows += _rows(results[name], ROWS[name].peer)
    missing = [f"`{name}`" for name in ROWS if name not in results]
    header = (
        "", "peer", "evaluation", "seeds", "area, evopipe", "area, peer", "ratio", "≥ 0.95", "first solved, evopipe",
        "peer",
    )  # fmt: skip
    lines += [*table(header, rows), *made_by(*(results[name] for name in there))]
    lines += ["What is not equal:", "", *_unlike(there), ""]
    return [*lines, *(["Not measured yet: " + ", ".join(missing) + "."] if missing else [])]


def _unlike(names: Sequence[str]) -> list[str]:
    """Tell what no value made equal, and in which rows."""
    lines = []
    for key, sentence in UNLIKE.items():
        which = [name.removeprefix(PREFIX) for name in names if key in ROWS[name].unlike]
        lines += [f"- {sentence} ({', '.join(f'`{name}`' for name in which)})"] if which else []
    return lines


def _rows(result: Result, peer: str) -> list[tuple[str, ...]]:
    s, found = result["settings"], []
    kinds = [kind for kind in ("greedy", "sampled") if None not in values(result, EVOPIPE, kind)]
    for kind in kinds:
        sides = [Curves.of(result, name, kind) for name in (EVOPIPE, peer)]
        areas = [each.areas(s["floor"]) for each in sides]
        r = ratio_of_means(*areas)
        # A bootstrap over few seeds is narrow: over one it has no width at all.
        few = r.pairs < stats.LEAST_PAIRS
        said = "open" if few or r.low < 0.95 <= r.high else "reached" if r.low >= 0.95 else "not reached"
        recurrent, env = "recurrent " if s.get("recurrent") else "", s["env"].rpartition(":")[2]
        title = f"{recurrent}{s['algo'].upper()}, {env}, {s['steps']:,} steps" if kind == "greedy" else ""
        found.append((
            title, peer if kind == "greedy" else "", kind, ", ".join(str(len(each.returns)) for each in sides),
            *(number(float(a.mean())) for a in areas), f"{r.median:.2f} [{r.low:.2f}, {r.high:.2f}]", said,
            *(_first(each, s["target"]) for each in sides),
        ))  # fmt: skip
    return found


def _first(curves: Curves, target: float) -> str:
    times = curves.first(target)
    median = stats.median_time(times)
    solved = sum(not time.censored for time in times)
    return f"{'> ' if median.censored else ''}{number(median.value)} ({solved} of {len(times)})"
