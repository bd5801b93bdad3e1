"""What shards cost: `python benchmarks/shards.py [--repeats 5] [--steps 30000] [--env module:Id]`.

One training in several ways, in turns: by one process, by one with local learners and workers, and by a shard a CPU of
either engine. Printed of each: steps a second of the generations alone, the median of all turns with its ratio to the
local learners', and what comes beside them, which is processes that begin and end. All write the same files, or it
ends with a sentence. On a busy machine the figures are worth nothing.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]

from harness.machine import warn_if_busy  # noqa: E402

from evopipe.schema.read import read_yaml  # noqa: E402
from evopipe.schema.write import dump_yaml  # noqa: E402

LOCAL = "local learners"


def ways(count: int) -> dict[str, dict[str, Any]]:
    """What `runtime` holds, by name."""
    shards = {"count": count, "ranks": 1, "resources": {"cpu": 1.0}, "address": None, "ray_init": {}}
    return {
        "one process": {"learners": 1, "env_workers": 0},
        LOCAL: {"learners": count, "env_workers": "auto"},
        "accelerate": {"shards": {"engine": "accelerate", **shards}},
        "ray": {"shards": {"engine": "ray", **shards}},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30000, help="environment steps of each member")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--env", default=None, help="another environment than the repository's own job has")
    parser.add_argument("--algo", default=None)
    parser.add_argument("--only", nargs="*", default=None, help="of " + ", ".join(ways(4)))
    args = parser.parse_args()
    warn_if_busy()
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        ready = _prepared(Path(scratch) / "ready", args)
        bits = set()
        for turn in range(args.repeats):
            for name, runtime in ways(args.shards).items():
                if args.only and name not in args.only:
                    continue
                folder = Path(shutil.copytree(ready, Path(scratch) / f"{turn}-{name.replace(' ', '-')}"))
                speed, beside, digest = _trained(folder, runtime)
                found.setdefault(name, []).append((speed, beside))
                bits.add(digest)
                print(f"turn {turn + 1}: {name}: {speed:,.0f} steps/s, {beside:.1f} s beside", flush=True)
    if len(bits) > 1:
        print("they wrote unlike files: that is a mistake in evopipe")
        return 1
    medians = {name: [statistics.median(x) for x in zip(*each, strict=True)] for name, each in found.items()}
    for name, (speed, beside) in medians.items():
        ratio = f", {speed / medians[LOCAL][0]:.2f} of {LOCAL}" if LOCAL in medians else ""
        print(f"{name}: {speed:,.0f} steps/s{ratio}; {beside:.1f} s to begin and end")
    return 0


def _prepared(folder: Path, args: argparse.Namespace) -> Path:
    """Return a folder that is ready to train in: the repository's own job, as shards must have it."""
    data = read_yaml(ROOT / "params.yaml").data
    data["train"] |= {"max_steps": args.steps, "target": None, "warm_start": 0}
    data["train"]["replay"]["sharing"] = "own"
    data["runtime"]["cohorts"] = "exact"
    data["tracking"]["backends"] = []
    if args.env:
        data["env"] |= {"id": args.env, "kwargs": {}}
        data["fetch"]["collect"]["policies"] = {"heuristic": 0.0, "random": 1.0, "policy": 0.0}
    data["train"]["algo"] = args.algo or data["train"]["algo"]
    data["population"]["size"] = max(args.shards, data["population"]["size"])
    folder.mkdir()
    _write(folder, data)
    _run(folder, "population")
    return folder


def _trained(folder: Path, runtime: dict[str, Any]) -> tuple[float, float, str]:
    """Train; return steps a second of the generations, the seconds beside them, and what was written."""
    data = read_yaml(folder / "params.yaml").data
    data["runtime"] |= runtime
    _write(folder, data)
    began = time.perf_counter()
    _run(folder, "train")
    seconds = time.perf_counter() - began
    with (folder / "reports/timing.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    inside, steps = sum(float(row["seconds"]) for row in rows), sum(int(row["env_steps"]) for row in rows)
    files = [*sorted((folder / "models/trained").rglob("*.*")), folder / "reports/lineage.jsonl"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()
    return steps / inside, seconds - inside, digest


def _write(folder: Path, data: dict[str, Any]) -> None:
    (folder / "params.yaml").write_text(dump_yaml(data), encoding="utf-8")


def _run(folder: Path, stage: str) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-m", "evopipe", "--quiet", stage]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{stage}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
