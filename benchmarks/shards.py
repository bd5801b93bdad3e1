"""What shards cost and give: `python benchmarks/shards.py [--turns 3] [--steps 30000] [--shards 4]`.

Two trainings, each in several ways, in turns: the repository's own job, and one whose environments take a millisecond
of processor time a step. Of each way: steps a second of the generations alone, its ratio to another way of the same
turn, and what a run in shards says of its exchange. Beginning and ending processes is left out. All ways write the same
files, or it ends with a sentence. It takes about five minutes of a quiet machine with a CPU a shard; on a busy one the
figures are worth little.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]

from harness.machine import load, warn_if_busy  # noqa: E402

from evopipe.schema.read import read_yaml  # noqa: E402
from evopipe.schema.write import dump_yaml  # noqa: E402

ONE, LOCAL, ENGINES = "one process", "local learners", ("accelerate", "ray")
SLOW = """
import time
import gymnasium

class Slow(gymnasium.Wrapper):
    def step(self, action):
        end = time.thread_time() + 1e-3
        while time.thread_time() < end:
            pass
        return super().step(action)

gymnasium.register("Slow-v0", lambda: Slow(gymnasium.make("MountainCar-v0")))
"""
# name: (what its ways are compared with, at least how much of it is asked for, changes of the repository's own job)
JOBS: dict[str, tuple[str, float, dict[str, dict[str, Any]]]] = {
    "job": (LOCAL, 0.8, {}),
    "slow environments": (ONE, 3.0, {
        "env": {"id": "slow_env:Slow-v0"}, "train": {"max_steps": 2000, "evo_steps": 1000, "eval_episodes": 2},
    }),
}  # fmt: skip
MOST_EXCHANGE = 2.0  # % of the time of the job
ACCOUNT = re.compile(r"exchange took ([\d.]+)%.* evolution and checkpoints ([\d.]+)%.* waited ([\d.]+)%")


class Turn(NamedTuple):
    """A training: steps a second, and of shards the shares of exchange, evolution and waiting, in %."""

    speed: float
    shares: tuple[float, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30000, help="environment steps of each member of the job")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--engines", nargs="*", default=ENGINES, choices=ENGINES)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    args = parser.parse_args()
    warn_if_busy()
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "slow_env.py").write_text(SLOW, encoding="utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join([scratch, str(ROOT / "src")])
        for job in args.jobs:
            base, asked, changes = JOBS[job]
            found = _turns(Path(scratch) / job.replace(" ", "-"), job, args, base, changes)
            for engine in args.engines:
                ratios = [mine.speed / other.speed for mine, other in zip(found[engine], found[base], strict=True)]
                lines.append(
                    f"{job}, {args.shards} shards of {engine}: {_spread(ratios, '.2f')} of {base}, asked {asked}"
                )
                if base == LOCAL:
                    shares = [
                        _spread(each, ".1f") for each in zip(*(turn.shares for turn in found[engine]), strict=True)
                    ]
                    lines.append(
                        f"{job}, {args.shards} shards of {engine}: exchange {shares[0]} % of the time, asked at most "
                        f"{MOST_EXCHANGE:g}; evolution and checkpoints {shares[1]} %, waiting for the slowest one "
                        f"{shares[2]} %"
                    )
    print("\n".join(["median [least, most] of", *lines]) if lines else "nothing was asked for")
    return 0


def _turns(
    folder: Path, job: str, args: argparse.Namespace, base: str, changes: dict[str, dict[str, Any]]
) -> dict[str, list[Turn]]:
    """Train in every way, so many times."""
    shards = {"count": args.shards, "ranks": 1, "resources": {"cpu": 1.0}, "address": None, "ray_init": {}}
    local = {ONE: {"learners": 1, "env_workers": 0}, LOCAL: {"learners": args.shards, "env_workers": "auto"}}
    ways = {base: local[base], **{engine: {"shards": {"engine": engine, **shards}} for engine in args.engines}}
    _prepare(folder / "ready", args, changes)
    found: dict[str, list[Turn]] = {way: [] for way in ways}
    bits = set()
    for number in range(args.turns):
        for way, runtime in ways.items():
            busy = load()
            turn, digest = _trained(shutil.copytree(folder / "ready", folder / f"{number}-{way}"), runtime)
            found[way].append(turn)
            bits.add(digest)
            told = (
                ", exchange {:.1f} %, evolution {:.1f} %, waiting {:.1f} %".format(*turn.shares) if turn.shares else ""
            )
            print(f"{job}, turn {number + 1}, load {busy:.1f}: {way}: {turn.speed:,.0f} steps/s{told}", flush=True)
    if len(bits) > 1:
        raise SystemExit(f"{job}: the ways wrote unlike files: that is a mistake in evopipe")
    return found


def _spread(values: Any, how: str) -> str:
    return f"{statistics.median(values):{how}} [{min(values):{how}}, {max(values):{how}}]"


def _prepare(folder: Path, args: argparse.Namespace, changes: dict[str, dict[str, Any]]) -> None:
    """Make a folder that is ready to train in: the repository's own job, as shards must have it."""
    data = read_yaml(ROOT / "params.yaml").data
    data["train"] |= {"max_steps": args.steps, "warm_start": 0}
    data["train"]["replay"]["sharing"] = "own"
    data["runtime"]["cohorts"] = "exact"
    data["tracking"]["backends"] = []
    for block, values in changes.items():
        data[block] |= values
    data["population"]["size"] = max(args.shards, data["population"]["size"])
    folder.mkdir(parents=True)
    _write(folder, data)
    _run(folder, "population")


def _trained(folder: Path, runtime: dict[str, Any]) -> tuple[Turn, str]:
    """Train; return how it went, and a digest of what was written."""
    data = read_yaml(folder / "params.yaml").data
    data["runtime"] |= runtime
    _write(folder, data)
    told = ACCOUNT.search(" ".join(_run(folder, "train").split()))
    with (folder / "reports/timing.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    speed = sum(int(row["env_steps"]) for row in rows) / sum(float(row["seconds"]) for row in rows)
    files = [*sorted((folder / "models/trained").rglob("*.*")), folder / "reports/lineage.jsonl"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()
    return Turn(speed, tuple(map(float, told.groups())) if told else ()), digest


def _write(folder: Path, data: dict[str, Any]) -> None:
    (folder / "params.yaml").write_text(dump_yaml(data), encoding="utf-8")


def _run(folder: Path, stage: str) -> str:
    """Run a stage; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "evopipe", stage], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{stage}: {done.stderr.strip()}")
    return done.stderr


if __name__ == "__main__":
    sys.exit(main())
