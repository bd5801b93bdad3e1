"""What pipelines that search one trial at a time cost beside tournaments: `python benchmarks/defaults.py [PIPELINE …]`.

Every pipeline is run with its own file, and as the tournament of four that benchmarks make of it, with the same seeds.
Counted are environment steps of every kind to the end of the run, the elite's mean over the held-out episodes, and
seconds of a processor, held-out episodes and export included. Every run is kept at once in
`benchmarks/results/defaults.csv`, and is not made again. `--set KEY=VALUE` tries other settings than the file's, and
keeps nothing.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

for _threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

from harness import tournament  # noqa: E402
from harness.machine import ROOT  # noqa: E402

import evopipe  # noqa: E402
from evopipe.schema.read import parse_yaml, read_yaml  # noqa: E402

KEPT = Path(__file__).parent / "results" / "defaults.csv"
SEEDS = {
    "ppo-cartpole": 10,
    "sac-pendulum": 10,
    "ppo-acrobot": 5,
    "dqn-cartpole": 5,
    "qrdqn-cartpole": 5,
    "ppo-mountaincar": 5,
    "dqn-mountaincar": 5,
    "td3-mountaincar-continuous": 5,
    "td3-pendulum": 5,
}
BACKENDS = dict.fromkeys(SEEDS.keys() - {"ppo-cartpole", "sac-pendulum"}, "c")
"""Whose environment steps in another way than the file says: the same steps by other last bits, in fewer seconds."""
SETTINGS = ("tournament", "own")


class Row(NamedTuple):
    """A run: environment steps of every kind and of training alone, generations, trials, why it ended, the elite's
    held-out mean, seconds of a processor."""

    pipeline: str
    settings: str
    seed: int
    steps: int
    training: int
    generations: int
    trials: int
    reason: str
    score: float
    seconds: float


def run(pipeline: str, settings: str, seed: int, more: Sequence[str] = ()) -> Row:
    """Run a pipeline once."""
    path = ROOT / "pipelines" / pipeline / "params.yaml"
    data: dict[str, Any] = tournament.of(path) if settings == "tournament" else read_yaml(path).data
    if pipeline in BACKENDS:
        data["env"]["backend"] = BACKENDS[pipeline]
    for key, _, value in (each.partition("=") for each in more):
        *blocks, name = key.split(".")
        place = data
        for block in blocks:
            place = place[block]
        place[name] = parse_yaml(f"value: {value}", "--set").data["value"]
    data["seed"] = seed
    data["runtime"] |= {"device": "cpu", "env_workers": 0, "learners": 1}
    began = time.process_time()
    result = evopipe.train(data)
    seconds, steps = time.process_time() - began, result.summary["steps"]
    trials = len({each.id for record in result.lineage for each in record.members if each.parent is None})
    return Row(
        pipeline, settings, seed, steps["all"], steps["training"], len(result.lineage) - 1, trials,
        result.summary["reason"], round(result.evaluation["elite"]["mean"], 2), round(seconds, 1),
    )  # fmt: skip


def read(path: Path = KEPT) -> list[Row]:
    """Read the runs that are kept."""
    if not path.is_file():
        return []
    kinds = (str, str, int, int, int, int, int, str, float, float)
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    return [Row(*(kind(cell) for kind, cell in zip(kinds, row, strict=True))) for row in rows]


def write(rows: Sequence[Row], path: Path = KEPT) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows(
            [
                Row._fields,
                *sorted(
                    {row[:3]: row for row in rows}.values(), key=lambda row: (list(SEEDS).index(row.pipeline), row[1:3])
                ),
            ]
        )


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of the seeds that were run both ways, in Markdown: means, of steps and scores the least and the
    most too."""
    yield "| | runs, solved | steps, thousands | of training | elite, held out | CPU seconds |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for pipeline, settings in itertools.product(SEEDS, SETTINGS):
        ran = [{row.seed for row in rows if row[:2] == (pipeline, each)} for each in SETTINGS]
        mine = [row for row in rows if row[:2] == (pipeline, settings) and row.seed in set.intersection(*ran)]
        if mine:
            solved = sum(row.reason == "target" for row in mine)
            cells = (
                f"`{pipeline}`, {settings}", f"{len(mine)}, {solved}", _spread([row.steps / 1000 for row in mine], 0),
                f"{statistics.fmean(row.training / 1000 for row in mine):.0f}", _spread([row.score for row in mine], 1),
                f"{statistics.fmean(row.seconds for row in mine):.0f}",
            )  # fmt: skip
            yield f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.fmean(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def main(arguments: list[str] | None = None) -> int:
    """Make the runs that are not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipelines", nargs="*", metavar="PIPELINE", help=f"of {', '.join(SEEDS)}; none: all")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--seeds", type=int, nargs="+", help="none: 1 to 5, of ppo-cartpole and sac-pendulum 1 to 10")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="try it, and keep nothing")
    args = parser.parse_args(arguments)
    tried: list[Row] = []
    for pipeline in args.pipelines or SEEDS:
        for seed in args.seeds or range(1, SEEDS[pipeline] + 1):
            for settings in args.settings:
                there = {row[:3] for row in read()}
                if not args.set and (pipeline, settings, seed) in there:
                    continue
                row = run(pipeline, settings, seed, args.set)
                print(*row, flush=True)
                tried.append(row)
                if not args.set:
                    write([*read(), row])
    print("\n".join(lines(tried if args.set else read())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
