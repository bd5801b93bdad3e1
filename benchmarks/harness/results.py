"""Reading results, and the words and tables in which they are told."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness import stats
from harness.stats import Ratio

Run = Mapping[str, Any]
Result = Mapping[str, Any]
Results = Mapping[str, Result]

MISSING = "Not measured yet."
EQUAL_UPDATES = 0.02  # how far two contestants' numbers of updates may be apart


class UnequalWork(ValueError):
    """Contestants of one comparison did not do the same work."""


# --- reading results --------------------------------------------------------------------------------------------------


def names(result: Result) -> list[str]:
    """Return the contestants that ran, in their order."""
    ran = {run["contestant"] for run in result["runs"]}
    return [c["name"] for c in result["contestants"] if c["name"] in ran]


def values(
    result: Result, contestant: str, of: Callable[[Run], Any] | str, turns: Sequence[int] | None = None
) -> list[Any]:
    """Return a value of every turn, of all that the contestant ran where none are named; None where a run, as older
    ones, lacks the value that is named."""
    by_turn = {run["turn"]: run["result"] for run in result["runs"] if run["contestant"] == contestant}
    pick = (lambda r: r.get(of)) if isinstance(of, str) else of
    return [pick(by_turn[turn]) for turn in (sorted(by_turn) if turns is None else turns)]


def turns(result: Result, *contestants: str) -> list[int]:
    """Return the turns in which all of these ran."""
    ran = {name: {run["turn"] for run in result["runs"] if run["contestant"] == name} for name in contestants}
    return sorted(set.intersection(*ran.values())) if ran else []


def paired(result: Result, over: str, under: str, of: Callable[[Run], Any] | str) -> Ratio | None:
    """Return the ratio of two contestants' values over the turns that both ran; None where there is none, or a run has
    no value."""
    both = turns(result, over, under)
    above, below = values(result, over, of, both), values(result, under, of, both)
    return stats.ratio(above, below) if both and None not in (*above, *below) else None


def check_updates(result: Result) -> None:
    """Check that contestants made as many updates.

    Raises:
        UnequalWork: they did not.
    """
    if result["quick"]:
        return
    counts = {name: statistics.median(values(result, name, "updates")) for name in names(result)}
    if max(counts.values()) > (1 + EQUAL_UPDATES) * min(counts.values()):
        raise UnequalWork(f"{result['measurement']}: numbers of updates differ by more than 2 %: {counts}")


# --- words ------------------------------------------------------------------------------------------------------------


def number(x: float) -> str:
    """Three significant digits, thousands apart."""
    if x != x or x in (float("inf"), float("-inf")):
        return "∞" if x > 0 else "–"
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    digits = 0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2 if abs(x) >= 1 else 3
    return f"{x:.{digits}f}"


def spread(many: Sequence[float | None]) -> str:
    """Median, smallest and largest; a dash where there is nothing, or some runs have no value."""
    known = [x for x in many if x is not None]
    return _spread(known) if known and len(known) == len(many) else "–"


def _spread(many: Sequence[float]) -> str:
    return f"{number(statistics.median(many))} ({number(min(many))} – {number(max(many))})"


def told(r: Ratio | None, wide: bool = False) -> str:
    """A ratio with its interval, INCONCLUSIVE where it says too little."""
    if r is None:
        return "–"
    least = "≥ " if r.high == float("inf") else ""
    text = f"{least}{number(r.median)} × [{number(r.low)}, {number(r.high)}]"
    unclear = r.low <= 1 <= r.high if wide else stats.too_wide(r)
    return f"{text} INCONCLUSIVE" if unclear or r.pairs < stats.LEAST_PAIRS else text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def made_by(*results: Result) -> list[str]:
    """The commands that made results, and when they were made under load."""
    lines = []
    for result in results:
        cores = sorted({core for lane in result["machine"]["cores"] for core in lane})
        busy = max((run["load"] for run in result["runs"]), default=0.0)
        lanes = f", {result['lanes']} lanes" if result["lanes"] > 1 else ""
        count = 1 + max((run["turn"] for run in result["runs"]), default=-1)
        lines.append(
            f"`{result['command']}` · {count} turns, cores {_cores(cores)}{lanes}, {result['machine']['device']}, "
            f"revision {result['machine']['revision']}, highest load average {busy:.1f}{_kernels(result)}"
        )
    return ["<small>" + "<br>".join(lines) + "</small>", ""]


def where(result: Result) -> str:
    """The processor, or the GPU, and how many cores each run had."""
    m = result["machine"]
    cores = len(m["cores"][0])
    return f"{m['cpu'] if m['device'] == 'cpu' else m['device']}, {cores} core{'s' * (cores > 1)}"


def _kernels(result: Result) -> str:
    """With which kernels our contestants computed, where the results say it."""
    used = {run["contestant"]: run["result"]["kernels"] for run in result["runs"] if "kernels" in run["result"]}
    if len({*used.values()}) < 2:
        return "".join(f", {kernels} kernels" for kernels in {*used.values()})
    return ", kernels: " + ", ".join(f"{name} {kernels}" for name, kernels in used.items())


def _cores(cores: Sequence[int]) -> str:
    return f"{cores[0]}–{cores[-1]}" if len(cores) > 1 else str(cores[0])
