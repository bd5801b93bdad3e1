"""On systems other than Linux the package is imported, trains without workers, and plays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import ROOT

IMPORTS = """
import pkgutil

import evopipe

found, absent = 0, {"ray", "vllm", "aiohttp", "textarena", "reasoning_gym"}
for module in pkgutil.walk_packages(evopipe.__path__, "evopipe."):
    if not module.name.endswith(".__main__"):
        try:
            __import__(module.name)
        except ModuleNotFoundError as error:
            if error.name not in absent:
                raise
        found += 1
print(found)
"""
TRAIN = """
import numpy as np
import evopipe

params = {
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "population": {"size": 2},
    "train": {"algo": "dqn", "max_steps": 800, "evo_steps": 400, "eval_episodes": 2, "confirm_episodes": 2},
    "evaluate": {"episodes": 2},
    "runtime": {"env_workers": 0},
}
result = evopipe.train(params, folder="run")
policy = evopipe.load("run/models/elite")
assert policy.act(np.zeros(4, np.float32)) in (0, 1)
print(evopipe.evaluate(policy, episodes=2).min() > 0)
try:
    evopipe.train({**params, "runtime": {"env_workers": 2}}, folder="other")
except evopipe.errors.ParamsError as error:
    print(error)
"""
PLAY = """
import sys
from evopipe.__main__ import main

sys.argv[1:] = ["play", "run/models/elite", "--gif", "play.gif", "--max-steps", "5"]
sys.exit(main())
"""
LOCK = """
from pathlib import Path
from evopipe.errors import BusyError
from evopipe.storage.lock import RunLock

path = Path("deep/run.lock")
for _ in range(2):
    with RunLock(path) as lock:
        note = path.read_text()
        for other in (RunLock(path), lock):
            try:
                with other:
                    print("both hold it")
            except BusyError as error:
                print(error)
        assert path.read_text() == note
    assert not [*path.parent.iterdir()]
"""


def elsewhere(folder: Path, code: str, builds: str = "elsewhere.BUILDS") -> subprocess.CompletedProcess[str]:
    """Run Python on a system that is not Linux, as far as it can tell."""
    path = os.pathsep.join(str(ROOT / each) for each in ("src", "tests"))
    return subprocess.run(
        [sys.executable, "-c", f"import elsewhere\nelsewhere.hide({builds})\n{code}"],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.thorough
def test_every_module_is_imported_where_posix_is_not(tmp_path: Path) -> None:
    done = elsewhere(tmp_path, IMPORTS)
    assert done.returncode == 0, done.stderr
    modules = [path for path in (ROOT / "src/evopipe").rglob("*.py") if "template" not in path.parts]
    assert int(done.stdout.splitlines()[-1]) > 0.95 * len(modules)


@pytest.mark.thorough
def test_a_run_is_trained_and_played_where_posix_is_not(tmp_path: Path) -> None:
    done = elsewhere(tmp_path, TRAIN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "True", "runtime.env_workers: worker processes are not possible on this system; set it to 0",
    ]  # fmt: skip
    assert "networks are computed by torch: kernels are compiled on Linux and macOS alone" in done.stderr
    played = elsewhere(tmp_path, PLAY)
    assert played.returncode == 0, played.stderr
    assert (tmp_path / "play.gif").stat().st_size > 1000


def test_the_lock_of_a_run_names_its_holder_where_fcntl_is_not(tmp_path: Path) -> None:
    done = elsewhere(tmp_path, LOCK, "()")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 4
    for line in said:
        assert re.fullmatch(
            r"\S*run\.lock: this run is being worked on by process \d+ \(since .*\): wait for it.*", line
        )
