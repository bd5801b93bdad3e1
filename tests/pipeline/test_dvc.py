"""The pipeline under DVC, in copies of this tree with tiny params: what runs, what is restored, what is the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tiny import ROOT, digests, environment, wait_for, write_params

pytestmark = pytest.mark.thorough

STAGES = ("fetch", "buffer", "population", "train", "evaluate", "export", "report")
WARM = {"train.warm_start": 50, "train.max_steps": 800}
OUTS = ("data", "models", "reports")
GIT = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")


class Copy:
    """A copy of the project, and DVC in it."""

    def __init__(self, folder: Path, git: bool = True, overrides: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in ("dvc.yaml", "pyproject.toml", ".dvcignore", ".gitignore"):
            if (ROOT / name).exists():
                shutil.copy(ROOT / name, folder / name)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / ".dvc").mkdir()
        shutil.copy(ROOT / ".dvc/config", folder / ".dvc/config")
        self.set(overrides or {})
        if git:
            (folder / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
            self.git("init", "-q", "-b", "main")
            self.commit("the project")
        else:
            (folder / ".dvc/config.local").write_text("[core]\n    no_scm = true\n")

    def clone(self, folder: Path) -> Copy:
        """A clone of its repository."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.git("clone", "-q", str(self.folder), str(folder))
        other = Copy.__new__(Copy)
        other.folder = folder
        return other

    def set(self, overrides: Mapping[str, Any]) -> None:
        write_params(self.folder, WARM | dict(overrides))

    def git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *GIT, *words], cwd=self.folder, env=_environment(), capture_output=True, text=True, check=True
        ).stdout

    def commit(self, message: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `dvc <words>`."""
        return subprocess.Popen(
            ["dvc", *words],
            cwd=self.folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def dvc(self, *words: str) -> str:
        """Run `dvc <words>` to its good end; return what it said."""
        process = self.start(*words)
        said = process.communicate(timeout=400)[0]
        assert process.returncode == 0, said
        return said

    def ran(self, *words: str) -> list[str]:
        """Run `dvc <words>`; return the stages whose commands ran."""
        said = self.dvc(*words)
        return [stage for stage in STAGES if f"Running stage '{stage}'" in said]

    def locked(self) -> dict[str, str]:
        """The hash of every out in dvc.lock but those that hold a measurement."""
        lock = YAML(typ="safe").load((self.folder / "dvc.lock").read_text())
        hashes = {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}
        return {path: md5 for path, md5 in hashes.items() if path not in ("reports/timing.csv", "reports/report.html")}

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


def _environment() -> dict[str, str]:
    bin_folder = str(Path(sys.executable).parent)  # not resolved: the environment's own `dvc` and `python`
    kept = {k: v for k, v in environment().items() if not k.startswith("GIT_")}
    return kept | {
        "PATH": os.pathsep.join((bin_folder, kept["PATH"])),
        "PYTHONPATH": "src",
        "DVC_NO_ANALYTICS": "1",
        "GIT_AUTHOR_NAME": "test",
        "GIT_AUTHOR_EMAIL": "test@localhost",
        "GIT_COMMITTER_NAME": "test",
        "GIT_COMMITTER_EMAIL": "test@localhost",
    }


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy in which everything ran once, without git as in an unpacked archive."""
    copy = Copy(tmp_path_factory.mktemp("dvc") / "first", git=False)
    assert copy.ran("repro") == list(STAGES)
    return copy


def test_a_second_repro_runs_nothing(first: Copy) -> None:
    """And what was run is whole: every out is in the lock, the elite is there, the reports say what was done."""
    assert first.ran("repro") == []
    assert first.ran("repro", "--allow-missing", "--dry") == []
    assert {"data/dataset", "data/transitions.h5", "models/population", "models/trained", "models/elite"} <= set(
        first.locked()
    )
    assert first.json("reports/train.json")["steps"]["each_member"] == 800


def test_what_is_tracked(first: Copy) -> None:
    lock = YAML(typ="safe").load((first.folder / "dvc.lock").read_text())
    stages = [stage.get("params", {}).get("params.yaml", {}) for stage in lock["stages"].values()]
    # Blocks that are not chosen are not tracked: another algorithm's, another source's.
    tracked = {key for params in stages for key in params}
    assert {key for key in tracked if key.partition(".")[0] == "algos"} == {"algos.dqn"}
    assert {key for key in tracked if key.partition(".")[0] == "fetch"} == {"fetch.source", "fetch.collect"}
    # DVC's run cache does not see keys named `size` or `nfiles` inside a tracked mapping, and would give back the outs
    # of another value: each must be tracked by its own full name too.
    for params in stages:
        blind = {name for key, value in params.items() for name in _nested(value, key) if name not in params}
        assert not {name for name in blind if name.rpartition(".")[2] in ("size", "nfiles")}


def _nested(value: Any, name: str) -> Iterator[str]:
    """Every key inside a tracked value, by its full name."""
    for key, entry in value.items() if isinstance(value, dict) else ():
        yield f"{name}.{key}"
        yield from _nested(entry, f"{name}.{key}")


# --- the rest takes minutes -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_change_reruns_what_depends_on_it(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy", git=False)
    copy.dvc("repro")
    so_far: dict[str, Any] = {}
    for change, expected in [
        ({"evaluate.episodes": 6}, ["evaluate", "export", "report"]),
        ({"train.max_steps": 1200}, ["train", "evaluate", "export", "report"]),
        ({"evolution.tournament.size": 3}, ["train", "evaluate", "export", "report"]),
        ({"export.program": True}, ["export", "report"]),
        ({"runtime.checkpoint_seconds": 7.0, "runtime.env_workers": 0}, []),
        ({"fetch.minari.dataset": "elsewhere"}, []),
        ({"population.size": 2}, ["population", "train", "evaluate", "export", "report"]),
        ({"algos.dqn.lr": 2e-3}, ["population", "train", "evaluate", "export", "report"]),
        # Training starts from the first transitions only, which are the same: so are its outs, and the rest is skipped,
        # but for the report: it shows how long training took, and the parameter.
        ({"fetch.collect.episodes": 5}, ["fetch", "buffer", "train", "report"]),
        ({"seed": 2}, list(STAGES)),
    ]:
        so_far |= change
        copy.set(so_far)
        assert copy.ran("repro") == expected, change
        assert copy.ran("repro") == []
    copy.set({})  # All of it is in the run cache still.
    assert copy.ran("repro") == []
    assert copy.json("reports/train.json")["steps"]["each_member"] == 800


@pytest.mark.slow
def test_two_clean_clones_have_equal_hashes(tmp_path: Path, first: Copy) -> None:
    origin = Copy(tmp_path / "origin")
    clones = [origin.clone(tmp_path / name) for name in ("one", "deeper/two")]
    for clone in clones:
        assert clone.ran("repro") == list(STAGES)
    one, two = clones
    assert one.locked() == two.locked()
    assert digests(one.folder, OUTS) == digests(two.folder, OUTS)
    revision = origin.git("rev-parse", "HEAD").strip()
    assert one.json("models/elite/policy.json")["provenance"]["git_revision"] == revision
    # Without git only the elite differs: it names no revision.
    different = {path for path, md5 in first.locked().items() if one.locked()[path] != md5}
    assert different == {"models/elite"}


@pytest.mark.slow
def test_experiments(tmp_path: Path) -> None:
    """`exp run -S`, a queued grid that runs its own revision's code, metrics, params and plots."""
    copy = Copy(tmp_path / "copy")
    copy.dvc("repro")
    copy.commit("results")
    assert copy.ran("exp", "run", "-S", "train.max_steps=400") == [
        "train",
        "evaluate",
        "export",
        "report",
    ]
    assert copy.json("reports/train.json")["steps"]["each_member"] == 400
    metrics = json.loads(copy.dvc("metrics", "diff", "--json"))
    assert metrics["reports/train.json"]["steps.each_member"] == {"old": 800, "new": 400, "diff": -400}
    params = json.loads(copy.dvc("params", "diff", "--json"))
    assert params["params.yaml"] == {"train.max_steps": {"old": 800, "new": 400, "diff": -400}}
    for words in (("show",), ("diff",)):
        assert "fitness" in json.loads(copy.dvc("plots", *words, "--json"))["data"]
    copy.git("checkout", "-q", "--", ".")
    copy.dvc("checkout", "-q")

    # A queued experiment checks out the tree as it was when queued: code that changed since must not run.
    stage = copy.folder / "src/evopipe/stages/population.py"
    code = stage.read_text()
    copy.dvc("exp", "run", "--queue", "-S", "population.size=2,4", "-S", "train.max_steps=400")
    stage.write_text(code + "\nraise RuntimeError('the code of the workspace ran')\n")
    said = copy.dvc("exp", "run", "--run-all")
    assert "the code of the workspace ran" not in said
    stage.write_text(code)
    shown = json.loads(copy.dvc("exp", "show", "--json"))
    queued = {
        exp["data"]["params"]["params.yaml"]["data"]["population"]["size"]: exp["data"]["metrics"]
        for row in shown
        for group in row["experiments"] or []
        for exp in group["revs"]
    }
    assert {2, 4} <= queued.keys()
    for size in (2, 4):
        steps = queued[size]["reports/train.json"]["data"]["steps"]
        assert (steps["each_member"], steps["training"]) == (400, size * 400)
    assert not list(copy.folder.glob(".evopipe/train/*/checkpoints")), "a finished run left its state behind"


def _trainers(folder: Path) -> list[int]:
    """Processes of the stage `train` that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"evopipe" in words and b"train" in words and (path / "cwd").resolve() == folder.resolve():
                found.append(int(path.name))
        except OSError:
            continue
    return found


LONG = {"train.max_steps": 8000, "train.evo_steps": 4000}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy in which a longer run was never disturbed."""
    copy = Copy(tmp_path_factory.mktemp("long") / "straight", git=False, overrides=LONG)
    copy.dvc("repro")
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_dvc_killed_while_training(tmp_path: Path, straight: Copy, signum: signal.Signals) -> None:
    """No orphan stays, and the next `dvc repro` goes on from where the run was, to the very same outs."""
    copy = Copy(tmp_path / "killed", git=False, overrides=LONG)
    repro = copy.start("repro")
    assert wait_for(lambda: bool(_trainers(copy.folder)), 120)
    assert wait_for(lambda: (list(copy.folder.glob(".evopipe/train/*/events.jsonl")) or [None])[0] is not None, 60)
    assert not wait_for(lambda: repro.poll() is not None, 1.0), "training was over before it could be killed"
    repro.send_signal(signum)
    repro.wait(10)
    assert wait_for(lambda: not _trainers(copy.folder), 10), "the stage outlived dvc"
    assert repro.stdout is not None
    repro.stdout.close()
    said = copy.dvc("repro")
    assert "goes on at step" in said
    assert copy.locked() == straight.locked()
    assert digests(copy.folder, OUTS) == digests(straight.folder, OUTS)
