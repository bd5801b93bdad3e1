"""Search by real runs: `python benchmarks/search.py TASK --space narrow|hard --seeds 20 [--strategies NAME …]`.

Our strategies and tuners train the same learner until a score is confirmed, and every environment step counts, see
`harness/search.py`. With `--confirm sequential` all of them confirm by as few episodes as tell. Every run is kept at
once in `benchmarks/results/search_TASK_SPACE.json`, or `…_sequential.json`: a run of this script that was interrupted
goes on where it was, and one with more seeds or strategies adds to it. Seeds are in the outer loop, so
that what is there is balanced at any time. `--show` prints the table of what is there and runs nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

for _threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

from harness import curves, search, survival, venvs  # noqa: E402
from harness.kept import Kept  # noqa: E402

CHILDREN = {"SMAC", "SMAC, told", "DEHB"}  # contestants in an environment of their own


def main(arguments: list[str] | None = None) -> int:
    """Make the runs that are not there yet, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=curves.TASKS)
    parser.add_argument("--space", choices=curves.SPACES, default="narrow")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--strategies", nargs="+", choices=search.CONTESTANTS, default=list(search.CONTESTANTS))
    parser.add_argument("--confirm", choices=curves.CONFIRMATIONS, default="full")
    parser.add_argument("--lives", type=int, default=search.LIVES, help="budget, in full lives of a trial (20)")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--show", action="store_true", help="run nothing")
    args = parser.parse_args(arguments)
    kept = Kept(args.results, args.task, args.space, args.lives, args.confirm)
    task = replace(curves.TASKS[args.task], confirmation=args.confirm)
    if not args.show:
        if CHILDREN & set(args.strategies):
            venvs.make("tuners")
        for seed in range(1, args.seeds + 1):
            known: search.Known = {}
            for name in args.strategies:
                if not kept.has(name, seed):
                    outcome = search.run(name, task, args.space, seed, args.lives, known)
                    kept.add(name, seed, outcome)
                    end = "solved" if outcome.solved else "not solved"
                    print(
                        f"{args.task} {args.space} {seed} {name}: {end}, {outcome.steps:,} steps, {outcome.trials} "
                        f"trials, {outcome.seconds:.0f} s", flush=True,
                    )  # fmt: skip
    print("\n".join(survival.lines(kept.data)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
