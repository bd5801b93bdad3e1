"""Run the benchmark: `python benchmarks/run.py [MEASUREMENT…] [options]`.

Contestants run in turns on pinned cores, each in an environment of its own, and every run is kept at once: a run of
this script that was interrupted goes on where it was. `make_page.py` writes the page from what was kept.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

from harness import machine, per_step, venvs  # noqa: E402
from harness.measurements import Measurement, Options, measurements  # noqa: E402
from harness.results import UnequalWork, check_updates  # noqa: E402
from harness.turns import RESULTS, ContestantFailed, Record, measure  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for; return the exit code."""
    args = _parser().parse_args(arguments)
    known = measurements()
    wanted = [known[name] for name in known if _asked(name, args.measurements) and _asked(name, args.only)]
    options = Options(args.device, args.threads, args.quick, args.seconds)
    if args.setup:
        for peer in venvs.PEERS:
            venvs.make(peer)
        venvs.make_games()
        return 0
    failed = 0
    for measurement in wanted:
        if args.contestants:
            kept = tuple(c for c in measurement.contestants if c.name in args.contestants)
            measurement = replace(measurement, contestants=kept)
        if measurement.contestants:
            failed += not _one(measurement, options, args)
    return 1 if failed else 0


def _one(m: Measurement, options: Options, args: argparse.Namespace) -> bool:
    """Run one measurement; whether it succeeded."""
    for peer in sorted({c.environment for c in m.contestants} - {"ours"}):
        venvs.make(peer)
    per_step.prepare(m.settings(options))
    count = args.lanes if m.lanes else 1
    cores = machine.lanes_of(count, min(args.cores, m.cores))
    machine.warn_if_busy()
    about = {
        "measurement": m.name,
        "command": shlex.join(["python", "benchmarks/run.py", m.name, *_options(args)]),
        "quick": options.quick,
        "repeats": args.repeats or m.repeats,
        "lanes": count,
        "settings": m.settings(options),
        "contestants": [{"name": c.name, "environment": c.environment, "changes": c.changes} for c in m.contestants],
        "machine": machine.fingerprint(cores, options.device),
    }
    device = "" if options.device == "cpu" else f"_{options.device}"
    record = Record(args.results / f"{m.name}{device}.json", about, args.fresh, m.task == "per-step")
    record.data["repeats"] = args.repeats or m.repeats
    began = time.perf_counter()
    try:
        measure(m, options, args.repeats or m.repeats, cores, record)
        if m.task == "end-to-end":
            check_updates(record.data)
    except (ContestantFailed, UnequalWork) as error:
        print(error, file=sys.stderr)
        return False
    print(
        f"{m.name}: {len(record.data['runs'])} runs in {record.path} ({time.perf_counter() - began:.0f} s)", flush=True
    )
    return True


def _asked(name: str, names: list[str] | None) -> bool:
    """Whether a measurement is named, or a group of them by what their names begin with: `per_step`."""
    return not names or name in names or ("per_step" in names and name.startswith(per_step.PREFIX))


def _options(args: argparse.Namespace) -> list[str]:
    """The options that matter, as they were given."""
    given = []
    for name, usual in (
        ("device", "cpu"),
        ("threads", 1),
        ("cores", 2),
        ("lanes", 1),
        ("repeats", None),
        ("seconds", None),
    ):
        value = getattr(args, name)
        if value != usual:
            given += [f"--{name}", str(value)]
    return [*given, *(["--quick"] if args.quick else [])]


def _parser() -> argparse.ArgumentParser:
    names = list(measurements())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="*", metavar="MEASUREMENT", help=f"all, or of {', '.join(names)}")
    parser.add_argument("--only", action="append", choices=names, help="leave out every other measurement")
    parser.add_argument("--contestants", action="append", metavar="NAME", help="leave out every other contestant")
    parser.add_argument("--repeats", type=int, help="turns of each measurement (5; of a curve 3 to 10)")
    parser.add_argument("--cores", type=int, default=2, help="processor cores of a lane (2)")
    parser.add_argument("--lanes", type=int, default=1, help="seeds of time to solved that run side by side (1)")
    parser.add_argument("--seconds", type=float, help="budget of a run to a solved elite (240)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of everyone (1); peers use their best")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, to see that it runs")
    fresh = "begin anew, forget results that are there; of a learning curve those of all that --contestants names"
    parser.add_argument("--fresh", action="store_true", help=fresh)
    parser.add_argument("--setup", action="store_true", help="only make the peers' environments")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
