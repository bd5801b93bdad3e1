"""Running contestants in turns, and keeping what they said."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from evopipe.storage.files import dump_json, read_json, write_bytes
from harness import machine, venvs
from harness.measurements import Contestant, Measurement, Options, Settings

RESULTS = Path(__file__).parents[1] / "results"
CONTESTANTS = Path(__file__).parents[1] / "contestants"


class ContestantFailed(Exception):
    """A contestant's process failed."""


class Record:
    """The results file of a measurement, written after every run.

    Raises:
        SystemExit: the file holds results of other settings or code, which must not be mixed with new ones.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], fresh: bool, others: bool = False) -> None:
        """Go on with a file, or begin anew where `fresh`; `others` then keeps the runs of contestants that `about` does
        not name: a peer's steps depend neither on our code nor on what else the machine does, its seconds do."""
        self.path, self._lock = path, threading.Lock()
        self.data: dict[str, Any] = {**about, "choices": {}, "runs": []}
        old = read_json(path) if path.exists() else {}
        alike = {key for key in ("settings", "contestants", "lanes") if _plain(old.get(key)) == _plain(about[key])}
        here = old and all(old["machine"].get(key) == about["machine"][key] for key in ("cpu", "torch"))
        if fresh and here and "settings" in alike:
            self.data["choices"] = old["choices"]  # how a peer runs best does not depend on our code
            named = {each["name"]: each for each in about["contestants"]}
            if others and named.keys() <= {each["name"] for each in old["contestants"]}:
                self.data["contestants"] = [named.get(each["name"], each) for each in old["contestants"]]
                self.data["runs"] = [run for run in old["runs"] if run["contestant"] not in named]
        elif old and not fresh:
            if len(alike) < 3 or old["machine"]["source"] != about["machine"]["source"]:
                raise SystemExit(
                    f"{path}: holds results of other settings or other code; --fresh replaces them, "
                    "or take them away to keep them"
                )
            self.data = old

    def has(self, turn: int, contestant: Contestant) -> bool:
        """Whether this run was made."""
        return any(run["turn"] == turn and run["contestant"] == contestant.name for run in self.data["runs"])

    def add(self, run: Mapping[str, Any]) -> None:
        """Keep a run."""
        with self._lock:
            self.data["runs"] = sorted((*self.data["runs"], run), key=lambda r: r["turn"])
            write_bytes(self.path, dump_json(self.data, str(self.path), indent=2))

    def choose(self, contestant: str, choice: Mapping[str, Any]) -> None:
        """Keep which variant of a contestant runs."""
        with self._lock:
            self.data["choices"][contestant] = choice
            write_bytes(self.path, dump_json(self.data, str(self.path), indent=2))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def measure(m: Measurement, options: Options, repeats: int, lanes: Sequence[Sequence[int]], record: Record) -> None:
    """Let the contestants of a measurement run in turns, `repeats` times.

    Raises:
        ContestantFailed: one of them failed; what ran before is kept.
    """
    settings = m.settings(options)
    changes = {c.name: {**c.changes, **_choice(m, c, settings, lanes[0], record)} for c in m.contestants}

    def lane(number: int) -> None:
        for turn in range(number, repeats, len(lanes)):
            for contestant in m.contestants:
                if not record.has(turn, contestant):
                    given = {**settings, **changes[contestant.name], "seed": turn + 1}
                    began, load = time.perf_counter(), machine.load()
                    result = run(m, contestant, given, lanes[number])
                    record.add(
                        {"turn": turn, "contestant": contestant.name, "lane": number, "load": load, "result": result}
                    )
                    _tell(m, contestant, turn, result, time.perf_counter() - began)

    with ThreadPoolExecutor(len(lanes)) as executor:
        for done in [executor.submit(lane, number) for number in range(len(lanes))]:
            done.result()


def _choice(
    m: Measurement, c: Contestant, settings: Settings, cores: Sequence[int], record: Record
) -> Mapping[str, Any]:
    """Return the fastest of a contestant's variants: each runs twice, in turns, for one generation."""
    variants = m.chosen.get(c.name, ())[: 1 if record.data["quick"] else None]
    if not variants:
        return {}
    known = record.data["choices"].get(c.name, {"tried": []})["tried"]
    if [{k: v for k, v in tried.items() if k != "seconds"} for tried in known] != [*variants]:
        short = {**settings, "max_steps": settings["evo_steps"], "seed": 1}
        seconds: list[list[float]] = [[] for _ in variants]
        for _ in range(1 if record.data["quick"] else 2):
            for i, variant in enumerate(variants):
                seconds[i].append(run(m, c, {**short, **c.changes, **variant}, cores)["seconds"])
        medians = [statistics.median(s) for s in seconds]
        best = variants[medians.index(min(medians))]
        record.choose(
            c.name,
            {"chosen": best, "tried": [{**v, "seconds": s} for v, s in zip(variants, medians, strict=True)]},
        )
        print(f"{m.name}: {c.name} runs with {best}", flush=True)
    chosen: Mapping[str, Any] = record.data["choices"][c.name]["chosen"]
    return chosen


def run(m: Measurement, c: Contestant, settings: Settings, cores: Sequence[int]) -> dict[str, Any]:
    """Run a contestant's process on these cores and return what it said.

    Raises:
        ContestantFailed: it failed, or said nothing.
    """
    command = [str(venvs.python_of(c.environment)), str(CONTESTANTS / c.script), m.task, json.dumps(settings)]
    environment = {**os.environ, "PYTHONPATH": str(machine.ROOT / "src") if c.environment == "ours" else ""}
    pin = (lambda: os.sched_setaffinity(0, cores)) if hasattr(os, "sched_setaffinity") else None
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, preexec_fn=pin, timeout=m.timeout, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ContestantFailed(f"{m.name}: {c.name} ran longer than {m.timeout:.0f} s") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or not lines[-1].startswith("{"):
        raise ContestantFailed(f"{m.name}: {c.name} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _tell(m: Measurement, c: Contestant, turn: int, result: Mapping[str, Any], seconds: float) -> None:
    said = {k: v for k, v in result.items() if isinstance(v, bool | int | float)}
    words = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in said.items())
    print(f"{m.name}: turn {turn + 1}, {c.name}: {words or 'done'} ({seconds:.0f} s)", flush=True)
    sys.stdout.flush()
