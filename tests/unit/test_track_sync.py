"""`evopipe track sync` with real DVC: experiments of every kind, other branches, restored runs, a wiped record."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from dvc.fs import LocalFileSystem

import tiny
from evopipe.errors import DataError
from evopipe.schema.read import read_yaml
from evopipe.track.locks import Locked
from evopipe.track.record import md5_of

PIPELINE = """\
stages:
  population:
    cmd: python -m evopipe population
    params: [seed, env.id, population.size, algos.dqn]
    outs: [models/population]
  train:
    cmd: python -m evopipe train
    deps: [models/population]
    params: [seed, env, train, evolution, algos.dqn]
    outs: [models/trained, reports/lineage.jsonl, reports/fitness.csv, reports/timing.csv]
    metrics:
      - reports/train.json: {cache: false}
  evaluate:
    cmd: python -m evopipe evaluate
    deps: [models/trained]
    params: [seed, evaluate]
    outs: [reports/members.json]
    metrics:
      - reports/evaluation.json: {cache: false}
  export:
    cmd: python -m evopipe export
    deps: [models/trained, reports/evaluation.json, reports/lineage.jsonl]
    outs: [models/elite]
"""
IGNORED = "/models\n/reports/*.jsonl\n/reports/*.csv\n/reports/members.json\n"


class Project:
    """A small pipeline in a git repository of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_folder = str(Path(sys.executable).parent)
        more = {"PATH": os.pathsep.join((bin_folder, os.environ["PATH"])), "DVC_NO_ANALYTICS": "1"}
        self.env = {k: v for k, v in tiny.environment(**more).items() if not k.startswith(("GIT_", "MLFLOW"))}
        tiny.write_params(folder, {"train.max_steps": 800, "tracking.backends": ["mlflow"]})
        (folder / "dvc.yaml").write_text(PIPELINE)
        (folder / ".gitignore").write_text(IGNORED)
        self.run("git", "init", "-q", "-b", "main")
        for name, value in (("user.name", "test"), ("user.email", "test@localhost"), ("commit.gpgsign", "false")):
            self.run("git", "config", name, value)
        self.run("dvc", "init", "-q")
        self.commit()

    def run(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def commit(self) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", "state")

    def sync(self) -> list[str]:
        return self.run("evopipe", "track", "sync").splitlines()

    def trainings(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mlflow import MlflowClient

            uri = f"sqlite:///{self.folder}/.evopipe/mlflow/mlflow.db"
            client = MlflowClient(uri, registry_uri=uri)
            ids = [experiment.experiment_id for experiment in client.search_experiments()]
            runs = client.search_runs(ids, "tags.`evopipe.kind` = 'training'")
        return {run.info.run_name: run for run in runs}


@pytest.mark.slow
def test_every_training_that_dvc_knows(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.run("dvc", "repro")
    lock = read_yaml(project.folder / "dvc.lock").data["stages"]
    for stage in lock.values():
        for out in stage["outs"]:
            assert md5_of(project.folder / out["path"]) == out["md5"]
    project.commit()
    project.run("dvc", "exp", "run", "-q", "-n", "workspace", "-S", "train.max_steps=400")
    project.run("git", "checkout", "-q", "--", ".")  # the results stay behind, the reports are the old ones again
    project.run("dvc", "exp", "run", "--queue", "-n", "queued", "-S", "seed=2")
    project.run("dvc", "exp", "run", "--run-all", "-q")
    project.run("dvc", "exp", "run", "--temp", "-q", "-n", "temporary", "-S", "seed=3")
    project.run("git", "checkout", "-q", "-b", "other")
    project.run("dvc", "exp", "run", "-q", "-S", "seed=4", "--name", "gone")
    project.run("git", "commit", "-q", "-a", "-m", "other")
    project.run("dvc", "exp", "remove", "gone")
    project.run("git", "checkout", "-q", "main")
    # What ran on this machine has been delivered while it ran, or is now; nothing twice.
    assert tiny.wait_for(lambda: not _deliverers(project.folder), 90)
    project.sync()
    live = project.trainings()
    assert {"workspace", "queued", "temporary", "gone"} < set(live)
    assert len(live) == 5
    assert project.sync() == ["mlflow: 0 new"]
    # Without a trace of all that: from git and the cache alone.
    shutil.rmtree(project.folder / ".evopipe")
    assert project.sync()[-1].startswith("mlflow: 5 new runs, 9 new generations, ")
    assert project.sync() == ["mlflow: 0 new"]
    restored = project.trainings()
    assert len(restored) == 5
    for name in ("workspace", "queued", "temporary"):
        one, other = live[name].data, restored[name].data
        assert one.params == other.params
        same = {k for k in one.metrics if k.startswith(("fitness", "steps", "population", "evaluation"))}
        assert {k: one.metrics[k] for k in same} == {k: other.metrics[k] for k in same}
        assert one.tags["evopipe.files"] == other.tags["evopipe.files"]
        assert other.tags["evopipe.result"] == one.tags["evopipe.result"]
        assert restored[name].info.status == "FINISHED"


@pytest.mark.slow
def test_a_run_restored_from_the_run_cache(tmp_path: Path) -> None:
    """DVC executes nothing, and the workspace's training is brought all the same."""
    project = Project(tmp_path / "project")
    params = (project.folder / "params.yaml").read_text()
    project.run("dvc", "repro", "-q")
    (project.folder / "params.yaml").write_text(params.replace("seed: 1\n", "seed: 5\n", 1))
    project.run("dvc", "repro", "-q")
    (project.folder / "params.yaml").write_text(params)
    assert tiny.wait_for(lambda: not _deliverers(project.folder), 90)
    shutil.rmtree(project.folder / ".evopipe")
    assert "Running stage" not in project.run("dvc", "repro")
    assert project.sync()[-1].startswith("mlflow: 1 new run, 2 new generations, ")
    (run,) = project.trainings().values()
    assert run.data.params["seed"] == "1"
    assert "evaluation/mean" in run.data.metrics
    assert project.sync() == ["mlflow: 0 new"]
    # Training alone runs on: the reports that have not followed are another training's.
    (project.folder / "params.yaml").write_text(params.replace("seed: 1\n", "seed: 7\n", 1))
    project.run("dvc", "repro", "-q", "train")
    assert tiny.wait_for(lambda: not _deliverers(project.folder), 90)
    project.sync()
    (fresh,) = (run for run in project.trainings().values() if run.data.params["seed"] == "7")
    assert not [name for name in fresh.data.metrics if name.startswith("evaluation")]
    assert "elite" not in fresh.data.tags["evopipe.files"]


def _deliverers(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if "evopipe.track.outbox" in words and str(folder) in words:
            found.append(path.parent.name)
    return found


def locked(tmp_path: Path, lock: str) -> list[Locked]:
    (tmp_path / "dvc.lock").write_text(lock)
    about = {"where": "workspace", "time": 0.0, "cache": tmp_path / "cache"}
    found = Locked.of(LocalFileSystem(), str(tmp_path / "dvc.lock"), **about)
    return [] if found is None else [found]


TRAINED = """\
schema: '2.0'
stages:
  train:
    cmd: python -m evopipe train
    params:
      params.yaml: {seed: 3, train.max_steps: 10}
    outs:
    - {path: models/trained, md5: aa.dir}
    - {path: reports/lineage.jsonl, md5: bb}
"""


def test_locks_without_a_training_are_passed_over(tmp_path: Path) -> None:
    for text in ("", "stages: 3", "stages: {a: {outs: [{path: x}]}}", "stages: {}", "[", "\0"):
        assert locked(tmp_path, text) == []
    (one,) = locked(tmp_path, TRAINED)
    assert (one.where, one.result, one.params["train.max_steps"]) == ("workspace", "aa.dir", 10)


def test_outs_of_stages_that_have_not_followed_are_left_out(tmp_path: Path) -> None:
    evaluate = """\
  evaluate:
    cmd: python -m evopipe evaluate
    deps:
    - {path: models/trained, md5: MD5}
    outs:
    - {path: reports/evaluation.json, md5: cc}
  report:
    cmd: python -m evopipe report
    deps:
    - {path: reports/evaluation.json, md5: cc}
    outs:
    - {path: reports/report.html, md5: dd}
"""
    later = {"reports/evaluation.json", "reports/report.html"}
    (fresh,) = locked(tmp_path, TRAINED + evaluate.replace("MD5", "aa.dir"))
    assert later < set(fresh.outs)
    (stale,) = locked(tmp_path, TRAINED + evaluate.replace("MD5", "old.dir"))
    assert not later & set(stale.outs)


def test_a_cache_that_names_files_outside_is_refused(tmp_path: Path) -> None:
    """A pulled cache is not trusted: `../` in a folder's listing could overwrite anything."""
    import hashlib
    import json

    listing = json.dumps([{"md5": "ee", "relpath": "../../outside"}]).encode()
    md5 = hashlib.md5(listing, usedforsecurity=False).hexdigest()
    cached = tmp_path / "cache" / md5[:2] / f"{md5[2:]}.dir"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(listing)
    (one,) = locked(tmp_path, f"{TRAINED}    - {{path: models/elite, md5: {md5}.dir}}\n")
    with pytest.raises(DataError, match="names a file outside the folder"):
        one.run(tmp_path / "copy")
    assert not (tmp_path / "outside").exists()
