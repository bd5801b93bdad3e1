"""Train the trials of a table of learning curves: `python benchmarks/make_curves.py TASK --draws 128 --seeds 3`.

Values are a scrambled Sobol sequence over the space; each trial is a `Population` of one. Every row is kept at once: a
run of this script that was interrupted goes on where it was, and a longer one adds rows.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

from harness import curves  # noqa: E402
from harness.curves import Row, Task  # noqa: E402

import evopipe  # noqa: E402
from evopipe.errors import DivergedError  # noqa: E402
from evopipe.searchers.propose import at  # noqa: E402

_SCRAMBLE = 7  # the seed of the sequence: all draws of a task are points of one


def draw(task: Task, kind: str, number: int) -> list[dict[str, float]]:
    """Return the first so many draws from a space; there is one alone where nothing is drawn."""
    import torch

    space = curves.space(task, kind)
    if not space:
        return [{}]
    engine = torch.quasirandom.SobolEngine(len(space), scramble=True, seed=_SCRAMBLE)
    shares = engine.draw(number, dtype=torch.float64).tolist()
    return [{name: _short(value) for name, value in at(space, each).items()} for each in shares]


def _short(value: float) -> float:
    """Return a value as the table keeps it."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def trial(task: Task, values: Mapping[str, float], number: int, seed: int) -> Row:
    """Train one trial until its score is confirmed, it diverges, or its life is over."""
    with evopipe.Population(curves.params_of(task, values, seed)) as population:
        healthy = True
        while not population.reason and healthy:
            try:
                (record,) = population.train(generations=1)
            except DivergedError:
                break
            healthy = record.members[0].healthy
        with tempfile.TemporaryDirectory() as folder:
            population.save(folder)
            with (Path(folder) / "reports/fitness.csv").open(newline="") as file:
                table = list(csv.DictReader(file))
        confirmed = population.reason == "target"
    scores = [float(line["best"] or -math.inf) for line in table]
    spent = [0, *(int(line["eval_steps"]) for line in table)]
    evaluated = [after - before for before, after in itertools.pairwise(spent)]
    return Row(number, seed, values, confirmed, tuple(scores), tuple(evaluated))


def main(arguments: list[str] | None = None) -> int:
    """Add the rows that are not there yet; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=curves.TASKS)
    parser.add_argument("--space", choices=(*curves.SPACES, curves.OWN), default="narrow")
    parser.add_argument("--draws", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args(arguments)
    task, path = curves.TASKS[args.task], curves.path_of(args.task, args.space)
    rows = {(row.draw, row.seed): row for row in curves.read(path)}
    for seed in range(1, args.seeds + 1):
        for number, values in enumerate(draw(task, args.space, args.draws)):
            if (number, seed) in rows:
                continue
            began = time.perf_counter()
            row = rows[number, seed] = trial(task, values, number, seed)
            curves.write(path, rows.values())
            end = "solved" if row.confirmed else f"{row.scores[-1]:.1f}"
            seconds = time.perf_counter() - began
            print(
                f"{args.task} {args.space} {number}/{seed}: {len(row.scores)} slices, {end}, {seconds:.0f} s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
