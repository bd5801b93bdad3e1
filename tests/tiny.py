"""Tiny runs of the whole program: a params.yaml made from the project's own, and ways to run it and compare outs."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from evopipe.__main__ import main
from evopipe.report.page import without_measured
from evopipe.schema.read import read_yaml
from evopipe.schema.write import dump_yaml

ROOT = Path(__file__).resolve().parents[1]

TINY: dict[str, Any] = {
    "env.id": "CartPole-v1",
    "env.num_envs": 4,
    "fetch.collect.episodes": 4,
    "fetch.collect.policies": {"heuristic": 0.0, "random": 1.0, "policy": 0.0},
    "population.size": 3,
    "train.max_steps": 2000,
    "train.evo_steps": 400,
    "train.learning_delay": 50,
    "train.warm_start": 0,
    "train.eval_episodes": 4,
    "train.eval_steps": 100,
    "train.confirm_episodes": 4,
    "train.target": None,
    "train.replay.capacity": 4000,
    "evolution.tournament.size": 2,
    "evolution.tournament.window": 1,
    "evolution.mutation.architecture.min_nodes": 8,
    "evolution.mutation.architecture.max_nodes": 64,
    "evolution.mutation.architecture.max_latent": 64,
    "evolution.mutation.architecture.node_steps": [8, 16],
    "evolution.mutation.architecture.latent_steps": [8],
    "evaluate.episodes": 4,
    "evaluate.steps": 100,
    "evaluate.bootstrap": 100,
    "export.program": False,
    "tracking.backends": [],
    "algos.dqn.batch_size": 32,
    "algos.dqn.learn_step": 4,
    "algos.dqn.eps_steps": 1000,
    "algos.dqn.network.encoder": [16],
    "algos.dqn.network.latent": 16,
}

TRAINED = (
    "models/trained", "reports/lineage.jsonl", "reports/fitness.csv", "reports/signals.csv", "reports/train.json",
)  # fmt: skip
"""What stage `train` writes, but for `reports/timing.csv`: that is a measurement."""
MEASURED = "reports/timing.csv"


@cache
def _own_params() -> dict[str, Any]:
    """The project's own params; none may change them."""
    return read_yaml(ROOT / "params.yaml").data


def params(overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The project's own params with tiny values; `overrides` are dotted keys."""
    data = copy.deepcopy(_own_params())
    for key, value in {**TINY, **(overrides or {})}.items():
        *blocks, name = key.split(".")
        place = data
        for block in blocks:
            place = place[block]
        place[name] = value
    return data


def write_params(folder: Path, overrides: Mapping[str, Any] | None = None) -> Path:
    """Write tiny params into a folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "params.yaml"
    path.write_text(dump_yaml(params(overrides)), encoding="utf-8")
    return path


def environment(**more: str) -> dict[str, str]:
    """The environment of a command in which nothing of DVC is set, and this tree's code and test environments run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC", "EVOPIPE"))}
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


def evopipe(folder: Path, *words: str, timeout: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m evopipe …` in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "evopipe", *words],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class Answer(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def call(folder: Path, *words: str) -> Answer:
    """Run `evopipe …` in a folder, in this process."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["evopipe", *words]
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main()
    finally:
        sys.argv = argv
    return Answer(code, out.getvalue(), err.getvalue())


def digests(folder: Path, outs: tuple[str, ...] = TRAINED) -> dict[str, str]:
    """SHA-256 of every file below `outs`, by name; without what is measured: a file, and a part of the report."""
    files = [f for out in outs for f in ([folder / out] if (folder / out).is_file() else (folder / out).rglob("*"))]
    names = {f: f.relative_to(folder).as_posix() for f in files if f.is_file()}
    return {name: hashlib.sha256(_unmeasured(f)).hexdigest() for f, name in names.items() if name != MEASURED}


def _unmeasured(file: Path) -> bytes:
    """A file's content without its measured part."""
    content = file.read_bytes()
    return without_measured(content.decode()).encode() if file.suffix == ".html" else content


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait until a condition holds; False where it does not in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def checkpoints(folder: Path) -> list[Path]:
    """The published checkpoints of all unfinished runs below a folder, oldest first."""
    return sorted(folder.glob(".evopipe/train/*/checkpoints/step-*"))


# A process that has imported everything and forks one run at a time: a run then starts in milliseconds, so that many
# can be killed. It has computed nothing before it forks.
_STARTER = """
import importlib, json, os, sys
import evopipe.__main__, evopipe.cli, evopipe.watchdog
import evopipe.run.drive
import evopipe.stages.evaluate, evopipe.stages.export, evopipe.stages.population, evopipe.stages.train
import gymnasium.envs.classic_control.cartpole, h5py, safetensors.torch, torch._dynamo
for name in sys.argv[1:]:
    importlib.import_module(name)
evopipe.run.drive.SAVE_SHARE = 0.5  # runs of a second could not save often enough to be worth killing
evopipe.watchdog.GRACE = 0.5
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(order["folder"])
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2), os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["evopipe", *order["words"]]
        code = evopipe.__main__.main()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Run:
    """One run of the program."""

    def __init__(self, starter: Starter, pid: int, log: Path) -> None:
        self._starter, self.pid, self._log = starter, pid, log

    @property
    def log(self) -> str:
        """What it said so far."""
        return self._log.read_text() if self._log.exists() else ""

    def send(self, signum: int) -> None:
        """Send a signal; a process that is gone is left alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def wait(self) -> int:
        """Wait for its end and return its exit code; minus the signal where one killed it."""
        return int(self._starter.line())


class Starter:
    """Starts runs of the program in a fraction of a second, one at a time, with these modules too imported before."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _STARTER, *modules],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "ready"
        self._runs = 0

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, folder: Path, *words: str) -> Run:
        """Start `evopipe <words>` in a folder."""
        assert self._process.stdin is not None
        self._runs += 1
        log = folder / f"log-{self._process.pid}-{self._runs}.txt"
        order = {"folder": str(folder), "log": str(log), "words": words}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Run(self, int(self.line()), log)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@contextlib.contextmanager
def starter(*modules: str) -> Iterator[Starter]:
    """A `Starter` that goes with the block."""
    made = Starter(*modules)
    try:
        yield made
    finally:
        made.close()


def prepared(folder: Path, overrides: Mapping[str, Any]) -> Path:
    """A folder with params and a first population: ready to train in."""
    write_params(folder, overrides)
    assert call(folder, "population").code == 0
    return folder
