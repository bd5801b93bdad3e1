"""`evopipe verify` with git and DVC as they are: what is the same, what is not, and what is left behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evopipe.verify import compare
from tiny import ROOT, Answer, environment, wait_for, write_params

GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
WARM = {"train.warm_start": 50, "train.max_steps": 800}

# Two stages that need no evopipe, so that these tests take seconds.
PIPELINE = """
stages:
  draw:
    cmd: python draw.py
    deps: [draw.py]
    outs: [data/drawn]
  sum:
    cmd: python -c "import pathlib; pathlib.Path('sum.txt').write_text(str(sum(map(len, open('data/drawn/a.txt')))))"
    deps: [data/drawn]
    outs: [sum.txt]
"""
DRAW = """
import os, pathlib
folder = pathlib.Path("data/drawn")
folder.mkdir(parents=True, exist_ok=True)
(folder / "a.txt").write_text({value})
(folder / "b.txt").write_text({other})
"""


def environ(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in environment(**more).items() if not name.startswith("GIT_")}
    return kept | {"PATH": os.pathsep.join((str(Path(sys.executable).parent), kept["PATH"])), "DVC_NO_ANALYTICS": "1"}


def git(folder: Path, *words: str) -> None:
    subprocess.run([*GIT, *words], cwd=folder, env=environ(), capture_output=True, check=True)


def commit(folder: Path) -> Path:
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
        (folder / ".dvc").mkdir()
        (folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
        (folder / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it is")
    return folder


def verify(folder: Path, *words: str, **more: str) -> Answer:
    """Run `evopipe verify` with a temporary folder of its own, and see to it that nothing stays there."""
    home = folder.parent / f"{folder.name} temporary"
    home.mkdir(exist_ok=True)
    run = subprocess.run(
        [sys.executable, "-m", "evopipe", "verify", *words],
        cwd=folder,
        env=environ(TMPDIR=str(home), **more),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if "--keep" not in words:
        assert list(home.iterdir()) == []
    return Answer(run.returncode, run.stdout, run.stderr)


def drawing(folder: Path, value: str, other: str = "'same'") -> Path:
    """A repository whose first stage writes two values."""
    folder.mkdir()
    (folder / "dvc.yaml").write_text(PIPELINE)
    (folder / "draw.py").write_text(DRAW.format(value=value, other=other))
    (folder / ".gitignore").write_text("/data/drawn\n/sum.txt\n")
    return commit(folder)


def rows(answer: Answer) -> dict[str, str]:
    """The verdict on each out in the table."""
    lines = [line.split() for line in answer.out.splitlines() if line and not line.startswith(" ")]
    return {
        words[0]: " ".join(words[4:]) for words in lines if len(words) >= 5 and words[1] in ("draw", "sum", *STAGES)
    }


STAGES = ("fetch", "buffer", "population", "train", "evaluate", "export", "report")


@pytest.mark.thorough
def test_the_same_twice(tmp_path: Path) -> None:
    folder = drawing(tmp_path / "a project", "'x'")
    (folder / "notes.txt").write_text("not committed")
    answer = verify(folder, "--jobs", "2")
    assert answer.code == 0, answer
    assert rows(answer) == {"data/drawn": "same", "sum.txt": "same"}
    assert answer.out.splitlines()[-1] == "2 outs: 2 same"
    assert answer.err.startswith("warning: 1 file is not as committed: verify looks at HEAD (")
    assert {"clone A: draw", "clone B: sum"} <= set(answer.err.splitlines())
    assert not (folder / "dvc.lock").exists()
    assert not (folder / "data").exists()


@pytest.mark.thorough
def test_chance_and_dependence_on_the_folder_are_found_and_named(tmp_path: Path) -> None:
    answer = verify(drawing(tmp_path / "project", "os.urandom(8).hex()", "os.getcwd()"), "--jobs", "2", "--keep")
    assert answer.code == 65
    assert rows(answer) == {"data/drawn": "DIFFERENT", "sum.txt": "same"}
    where = [line.split(": ")[:2] for line in answer.out.splitlines() if line.startswith("    ")]
    assert where == [["    a.txt", "line 1"], ["    b.txt", "line 1"]]
    assert answer.err.splitlines()[-1] == (
        "error: not reproduced: data/drawn differs between the clones; begin with draw, whose inputs are the same"
    )
    kept = Path(answer.err.partition("warning: the clones are kept in ")[2].splitlines()[0])
    for clone in (kept / "A", kept / "deeper/B"):
        assert (clone / "data/drawn/b.txt").read_text() == str(clone)
    assert not list((kept / "A/.dvc").glob("cache/files/*"))


@pytest.mark.slow
def test_committed_content_comes_from_git_and_the_cache(tmp_path: Path) -> None:
    """Below an out that differs stands where; below one whose committed content neither has, nothing."""
    folder = drawing(tmp_path / "project", "os.urandom(8).hex()")
    more = "for name in ('kept', 'lost'): pathlib.Path(name).write_text(os.urandom(8).hex())"
    (folder / "draw.py").write_text((folder / "draw.py").read_text() + more)
    text = (folder / "dvc.yaml").read_text()
    (folder / "dvc.yaml").write_text(
        text.replace("outs: [data/drawn]", "outs: [data/drawn, lost]\n    metrics: [{kept: {cache: false}}]")
    )
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=folder, env=environ(), check=True, timeout=300)
    commit(folder)
    lost = compare._read_lock(folder)["lost"].md5
    (folder / ".dvc/cache/files/md5" / lost[:2] / lost[2:]).unlink()
    answer = verify(folder, "--lock")
    assert answer.code == 65, answer
    assert rows(answer) == dict.fromkeys(("data/drawn", "kept", "lost"), "DIFFERENT") | {"sum.txt": "same"}
    told = [line for line in answer.out.splitlines() if line.split()[1:2] == ["draw"] or line.startswith("    ")]
    assert [line.split()[0] for line in told] == ["data/drawn", "a.txt:", "kept", "line", "lost"]
    assert f"    line 1: {(folder / 'kept').read_text()} | " in answer.out


@pytest.mark.thorough
def test_a_stage_that_fails_says_so(tmp_path: Path) -> None:
    folder = drawing(tmp_path / "project", "os._exit(7)")
    answer = verify(folder)
    assert answer.code == 7
    assert "error: verify: the pipeline failed in clone A; it said last:" in answer.err.splitlines()
    assert "exited with 7" in answer.err


@pytest.mark.slow
def test_data_that_dvc_tracks_comes_from_the_cache(tmp_path: Path) -> None:
    folder = drawing(tmp_path / "project", "open('input.txt').read()")
    (folder / "input.txt").write_text("given")
    subprocess.run(
        [sys.executable, "-m", "dvc", "add", "-q", "input.txt"],
        cwd=folder,
        env=environ(),
        capture_output=True,
        check=True,
    )
    commit(folder)
    assert verify(folder, "--jobs", "2").code == 0
    shutil.rmtree(folder / ".dvc/cache")
    answer = verify(folder)
    assert answer.code == 66
    assert "error: verify: data that input.txt.dvc name is not in the cache: `dvc fetch` it" in answer.err


@pytest.mark.thorough
def test_a_signal_stops_it_and_all_that_it_started(tmp_path: Path) -> None:
    folder = drawing(tmp_path / "project", "(__import__('time').sleep(600), 'x')[1]")
    (tmp_path / "t").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "evopipe", "verify"],
        cwd=folder,
        env=environ(TMPDIR=str(tmp_path / "t")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_for(lambda: bool(_working(tmp_path / "t")), 60)
    process.send_signal(signal.SIGTERM)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 143
    assert err.splitlines()[-1] == "error: verify: stopped; nothing was compared"
    assert not _working(tmp_path / "t")
    assert list((tmp_path / "t").iterdir()) == []


def _working(home: Path) -> list[int]:
    """Processes of the drawing stage below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            inside = (path / "cwd").resolve().is_relative_to(home.resolve())
            if inside and b"draw.py" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


# --- evopipe's own pipeline -------------------------------------------------------------------------------------------

NOISY = """
import os
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Noisy(CartPoleEnv):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + int.from_bytes(os.urandom(1)) / 1e4, terminated, truncated, info


gymnasium.register("Noisy-v0", entry_point=Noisy, max_episode_steps=100)
"""


def whole(folder: Path, overrides: Mapping[str, Any] | None = None) -> Path:
    """A repository with all of evopipe's pipeline, tiny."""
    folder.mkdir()
    for name in ("dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    write_params(folder, WARM | dict(overrides or {}))
    return commit(folder)


@pytest.mark.slow
def test_the_whole_pipeline_twice_and_against_its_lock(tmp_path: Path) -> None:
    folder = whole(tmp_path / "project", {"export.program": True, "tracking.backends": ["mlflow"]})
    answer = verify(folder, "--jobs", "2", "--keep")
    assert answer.code == 0, answer
    home = Path(answer.err.partition("warning: the clones are kept in ")[2].splitlines()[0])
    assert (home / "A/.evopipe/train").is_dir()
    assert not [path for path in home.rglob("*") if path.name in ("run.json", "mlflow.db")]  # nothing is tracked
    shutil.rmtree(home)
    verdicts = rows(answer)
    assert {"models/trained", "models/elite", "reports/report.html", "reports/timing.csv"} <= verdicts.keys()
    assert verdicts.pop("reports/timing.csv") == "measured"
    assert set(verdicts.values()) == {"same"}

    answer = verify(folder, "--lock")
    assert answer.code == 66
    assert "dvc.lock: not there; run `dvc repro` and commit" in answer.err
    write_params(folder, WARM | {"export.program": True})
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=folder, env=environ(), check=True, timeout=300)
    commit(folder)
    answer = verify(folder, "--lock")
    assert answer.code == 0, answer
    # The elite names the commit that it was made at, which is the one before dvc.lock's.
    assert rows(answer)["models/trained"] == rows(answer)["data/dataset"] == "same"
    assert rows(answer)["models/elite"] in ("close", "learned anew")
    assert any(line.split()[:3] == ["machine", "lock", "here"] for line in answer.out.splitlines())
    assert ": this machine can repeat it to the bit" in answer.out

    # Another machine's lock: its weights are others, and so is the elite's score, a little.
    outs = compare._read_lock(folder)
    evaluation = folder / "reports/evaluation.json"
    told = json.loads(evaluation.read_text())
    told["elite"]["mean"] *= 1.0001
    evaluation.write_text(json.dumps(told))
    text = (folder / "dvc.lock").read_text()
    text = text.replace(outs["models/trained"].md5, "0" * 32 + ".dir")
    text = text.replace(outs["reports/evaluation.json"].md5, hashlib.md5(evaluation.read_bytes()).hexdigest())
    (folder / "dvc.lock").write_text(text)
    commit(folder)
    answer = verify(folder, "--lock")
    assert answer.code == 0, answer
    assert rows(answer)["models/trained"] == "learned anew"  # the cache has nothing by that name to compare with
    assert rows(answer)["reports/evaluation.json"] == "close"
    assert "    elite " in answer.out

    # A lock that does not belong to the code is told at once.
    (folder / "src/evopipe/ops/value.py").write_text((folder / "src/evopipe/ops/value.py").read_text() + "\n")
    commit(folder)
    answer = verify(folder, "--lock")
    assert answer.code == 65
    assert "dvc.lock was made from other code, data or parameters than HEAD's (stale: " in answer.err


LEARNING = """
stages:
  train:
    cmd: python train.py
    deps: [train.py]
    params: [runtime.kernels, runtime.device]
    outs: [models/elite]
"""
TRAINING = """
import json, pathlib
from evopipe.machine import configure, fingerprint
from evopipe.params.load import load_params
configure(load_params("params.yaml").runtime)
arch = {"encoder": [], "latent": 8, "head": [], "activation": "ReLU", "layer_norm": False}
pathlib.Path("models/elite").mkdir(parents=True, exist_ok=True)
about = {"algo": "dqn", "arch": arch, "provenance": {"fingerprint": fingerprint()}}
pathlib.Path("models/elite/policy.json").write_text(json.dumps(about))
"""


@pytest.mark.thorough
def test_a_lock_says_its_kernels_and_whether_they_give_the_same_here(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    write_params(folder, {"runtime.kernels": "torch", "runtime.device": "cpu"})
    for name, text in {"dvc.yaml": LEARNING, "train.py": TRAINING, ".gitignore": "/models\n"}.items():
        (folder / name).write_text(text)
    commit(folder)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=folder, env=environ(), check=True, timeout=300)
    commit(folder)
    answer = verify(folder, "--lock")
    assert answer.code == 0, answer
    begin = "dvc.lock was made with torch's kernels, whose bits are those of its processor ("
    (said,) = (line for line in answer.out.splitlines() if line.startswith(begin))
    assert said in answer.err.splitlines()  # before it runs, too
    assert said.endswith("): this machine can repeat it to the bit")


@pytest.mark.slow
def test_an_environment_with_chance_in_it_is_found(tmp_path: Path) -> None:
    folder = whole(tmp_path / "project", {"env.id": "noisy_env:Noisy-v0"})
    (folder / "noisy_env.py").write_text(NOISY)
    commit(folder)
    answer = verify(folder, "--jobs", "2")
    assert answer.code == 65
    assert rows(answer)["data/dataset"] == rows(answer)["models/trained"] == "DIFFERENT"
    assert rows(answer)["models/population"] == "same"
    assert "begin with fetch, whose inputs are the same" in answer.err


@pytest.mark.slow
def test_a_pipeline_in_a_folder(tmp_path: Path) -> None:
    folder = whole(tmp_path / "project")
    below = folder / "pipelines/small"
    shutil.copytree(ROOT / "pipelines/dqn-cartpole", below, symlinks=True)
    write_params(below)
    commit(folder)
    answer = verify(folder, "--pipeline", "pipelines/small", "--jobs", "2")
    assert answer.code == 0, answer
    assert rows(answer)["models/trained"] == "same"
