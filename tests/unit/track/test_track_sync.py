"""`evopipe track sync` with real DVC: experiments of every kind, other branches, restored runs, a wiped record."""

from __future__ import annotations

import json
import math
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
from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.errors import DataError, MissingInputError
from evopipe.mutations import Mutation
from evopipe.schema.read import read_yaml
from evopipe.schema.tracking import TrackingConfig
from evopipe.searchers.history import Best, Born, Record, Scored
from evopipe.track.events import Generation
from evopipe.track.locks import Locked
from evopipe.track.outbox import sync
from evopipe.track.record import New, TrackedRun, TrainingRecord, md5_of
from lineages import WAITED

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
    """And of those after them, which the lock may name before them."""
    evaluate = """\
  report:
    cmd: python -m evopipe report
    deps:
    - {path: reports/evaluation.json, md5: cc}
    outs:
    - {path: reports/report.html, md5: dd}
  evaluate:
    cmd: python -m evopipe evaluate
    deps:
    - {path: models/trained, md5: MD5}
    outs:
    - {path: reports/evaluation.json, md5: cc}
"""
    later = {"reports/evaluation.json", "reports/report.html"}
    (fresh,) = locked(tmp_path, TRAINED + evaluate.replace("MD5", "aa.dir"))
    assert later < set(fresh.outs)
    (stale,) = locked(tmp_path, TRAINED + evaluate.replace("MD5", "old.dir"))
    assert not later & set(stale.outs)


def test_a_cache_that_names_files_outside_is_refused(tmp_path: Path) -> None:
    """A pulled cache is not trusted: `../` in a folder's listing could overwrite anything."""
    import hashlib

    listing = json.dumps([{"md5": "ee", "relpath": "../../outside"}]).encode()
    md5 = hashlib.md5(listing, usedforsecurity=False).hexdigest()
    cached = tmp_path / "cache" / md5[:2] / f"{md5[2:]}.dir"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(listing)
    (one,) = locked(tmp_path, f"{TRAINED}    - {{path: models/elite, md5: {md5}.dir}}\n")
    with pytest.raises(DataError, match="names a file outside the folder"):
        one.run(tmp_path / "copy")
    assert not (tmp_path / "outside").exists()


def test_a_cached_file_that_is_damaged_is_not_taken(tmp_path: Path) -> None:
    import hashlib

    (one,) = locked(tmp_path, TRAINED)
    md5 = hashlib.md5(b"right", usedforsecurity=False).hexdigest()
    cached = tmp_path / "cache" / md5[:2] / md5[2:]
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"wrong")
    with pytest.raises(MissingInputError, match=r"x\.csv is not in the cache"):
        one._content("x.csv", md5)
    (tmp_path / "x.csv").write_bytes(b"right")
    assert one._content("x.csv", md5) == b"right", "as git has it"


def test_a_lock_and_its_reports_give_the_events_of_a_training(tmp_path: Path) -> None:
    """The second generation diverged, so the first one's children came back: they were made as they had been."""
    arch, hyper = Arch((Block(16),), 8, (), "ReLU", False), {"lr": 2e-3, "tau": 0.01}
    scored = [Scored(0, 0, None, 7, arch, hyper, True, 5.0)]
    scored += [Scored(0, 4, 0, 7, arch, hyper, healthy, score) for healthy, score in ((False, -math.inf), (True, 3.0))]
    first = Born(0, 0, None, None, arch, hyper, Mutation("activation", "activation", "ELU", "ReLU"))
    second = Born(0, 4, 0, 0, arch, hyper, Mutation("rl_hp", "lr", 1e-3, 2e-3))
    records = [
        Record(0, 0, children=(first,)),
        Record(1, 10, (scored[0],), Best(0, 5.0), children=(second,)),
        Record(2, 20, (scored[1],), Best(0, 5.0), restored=True),
        Record(3, 30, (scored[2], scored[2]), Best(0, 5.0)),  # two, whose steps no table says
    ]
    params = {"env": {"id": "E-v0"}, "train": {"algo": "dqn"}, "algos": {"dqn": {"evolve": {"lr": {"min": 1e-5}}}}}
    written = {
        "params.yaml": json.dumps(params),
        "reports/lineage.jsonl": "".join(json.dumps(record.to_json()) + "\n" for record in records),
        "reports/fitness.csv": "generation,env_steps,eval_steps\n1,40,6\n2,80,12\n",
        "reports/timing.csv": "generation,seconds\n1,2.5\n",
        "reports/train.json": '{"reason": "target"}',
        "reports/signals.csv": "generation,slot,losses/entropy,losses/entropy.last,charts/episodes,"
        "charts/episodes.last\n1,0,0.5,0.25,,\n3,0,nan,inf,2.0,2.0\n",
    }
    lock = TRAINED.partition("    - {path: reports")[0]
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        lock += f"    - {{path: {name}, md5: {md5_of(tmp_path / name)}}}\n"
    (one,) = locked(tmp_path, f"{lock}    - {{path: data/transitions.h5, md5: cafe}}\n")
    run = one.run(tmp_path / "copy")
    assert run.transitions == "cafe", "what it may have learned from"
    assert not run.replace, "a commit's files may be older than those that a tracker holds"
    one.folder = tmp_path
    assert one.run(tmp_path / "workspace").replace
    assert (run.env, run.key, run.status, run.ended) == ("E-v0", "dvc-aa", "finished", (4.5, "target reached"))
    assert [(clock, event.generation, event.step, event.seconds) for clock, event in run.generations] == [
        (2.5, 1, 10, 2.5), (3.5, 2, 20, 1.0), (4.5, 3, 30, 1.0),
    ]  # fmt: skip
    assert [(event.env_steps, event.eval_steps) for _, event in run.generations] == [(40, 6), (80, 12), (60, 0)]
    rows = [event.members[0] for _, event in run.generations]
    assert [(row.mutation, row.change) for row in rows] == [
        ("activation", "activation ELU → ReLU"), ("rl_hp", "lr 1e-3 → 2e-3"), ("rl_hp", "lr 1e-3 → 2e-3"),
    ]  # fmt: skip
    assert [(row.fitness, row.healthy, row.id, row.parent) for row in rows] == [
        (5.0, True, 0, None), (-math.inf, False, 4, 0), (3.0, True, 4, 0),
    ]  # fmt: skip
    assert {(row.architecture, row.activation, *row.hyper.items()) for row in rows} == {("16|8", "ReLU", ("lr", 2e-3))}
    assert run.generations[1][1].metrics() == {
        "fitness/elite": 5.0,
        "population/generation": 2.0,
        "population/healthy": 0.0,
        "population/elite_id": 0.0,
        "steps/each_member": 20.0,
        "steps/evaluation": 12.0,
        "time/generation_seconds": 1.0,
    }  # nobody has a score: no best, no mean
    told = [event.members[0].signals for _, event in run.generations]
    assert told[0] == {"losses/entropy": (0.5, 0.25)}
    assert told[1] == {}
    assert repr(told[2]) == "{'losses/entropy': (nan, inf), 'charts/episodes': (2.0, 2.0)}"
    last = run.generations[2][1].members[0].metrics()
    assert math.isnan(last.pop("losses/entropy")), "a signal that is no number says that something went wrong"
    assert last == {
        "fitness": 3.0, "healthy": 1.0, "id": 4.0, "parent": 0.0, "hyper/lr": 2e-3, "charts/episodes": 2.0,
    }  # fmt: skip


def test_a_training_in_which_some_waited_has_the_steps_of_those_who_lived(tmp_path: Path) -> None:
    """Its steps are counted from the lineage where no table has them; a child that waited has its birth's mutation."""
    params = {"env": {"id": "E-v0"}, "train": {"algo": "dqn"}, "algos": {"dqn": {"evolve": {"lr": {"min": 1e-5}}}}}
    written = {
        "params.yaml": json.dumps(params),
        "reports/lineage.jsonl": "".join(json.dumps(record.to_json()) + "\n" for record in WAITED),
    }
    lock = TRAINED.partition("    - {path: reports")[0]
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        lock += f"    - {{path: {name}, md5: {md5_of(tmp_path / name)}}}\n"
    (one,) = locked(tmp_path, lock)
    events = [event for _, event in one.run(tmp_path / "copy").generations]
    assert [event.env_steps for event in events] == [100, 200, 300, 500]
    assert [[(row.slot, row.id, row.mutation, row.steps) for row in event.members] for event in events] == [
        [(0, 0, "none", None)], [(0, 0, "none", None)], [(1, 2, "rl_hp", 200)],
        [(0, 3, "none", 100), (1, 2, "none", 300)],
    ]  # fmt: skip
    assert "steps/each_member" in events[0].metrics()
    assert "steps/each_member" not in events[3].metrics(), "they are not of one age"
    assert events[3].metrics()["population/living"] == 2
    assert events[3].members[1].metrics()["steps"] == 300


def committed(root: Path, folder: Path, seed: int, result: str, when: int, kept: bool = True) -> str:
    """Commit the lock of a training at a time, which names the lineage in git if it is `kept`; return the commit."""
    lineage = "".join(json.dumps(record.to_json()) + "\n" for record in WAITED)
    places = {"reports/lineage.jsonl": lineage, "params.yaml": json.dumps({**PARAMS, "seed": seed})}
    for name, text in places.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    md5 = md5_of(folder / "reports/lineage.jsonl") if kept else "f" * 32
    lock = (
        TRAINED.replace("aa.dir", f"{result}.dir").replace("md5: bb", f"md5: {md5}").replace("seed: 3", f"seed: {seed}")
    )
    (folder / "dvc.lock").write_text(lock)
    date = {"GIT_AUTHOR_DATE": f"{when} +0000", "GIT_COMMITTER_DATE": f"{when} +0000"}
    git(root, "add", "-A", ".", env=date)
    git(root, "commit", "-q", "-m", "state", env=date)
    return git(root, "rev-parse", "HEAD")


def git(root: Path, *words: str, env: dict[str, str] | None = None) -> str:
    own = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"HOME": str(root)} | (env or {})
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ("git", *who, *words), cwd=root, env=own, capture_output=True, text=True, check=True
    ).stdout.strip()


PARAMS = {"env": {"id": "E-v0"}, "train": {"algo": "dqn"}, "algos": {"dqn": {"evolve": {"lr": {"min": 1e-5}}}}}


@pytest.mark.thorough
def test_trainings_of_the_workspace_of_branches_tags_and_experiments_are_delivered_once(tmp_path: Path) -> None:
    """Each by the time, the commit and the experiment of its own; those without files are counted; and one that this
    machine recorded is the run that a tracker has of it."""
    root = tmp_path / "above/project"  # git's root lies above DVC's
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc/config").write_text("")
    top = tmp_path / "above"
    git(top, "init", "-q", "-b", "main")
    commits = {
        "tag": committed(top, root, 1, "1" * 32, 1_000_000_001),
        "main": committed(top, root / "pipelines/inner", 2, "2" * 32, 1_000_000_002),
        "trial": committed(top, root, 3, "3" * 32, 1_000_000_003),
        "gone": committed(top, root, 4, "4" * 32, 1_000_000_004, kept=False),
    }
    git(top, "checkout", "-q", "-B", "main", commits["main"])
    git(top, "tag", "v1", commits["tag"])
    git(top, "branch", "other", commits["gone"])
    git(top, "update-ref", f"refs/exps/{commits['main'][:2]}/{commits['main'][2:]}/trial", commits["trial"])
    committed_now = committed(top, root, 5, "5" * 32, 1_000_000_005)
    git(top, "reset", "-q", "--soft", commits["main"])  # the workspace is newer than any commit
    os.utime(root / "dvc.lock", (2_000_000_000, 2_000_000_000))
    deep = root / "a/b/c/d"
    deep.mkdir(parents=True)
    for hidden in (deep, root / "data", root / ".hidden"):
        hidden.mkdir(exist_ok=True)
        (hidden / "dvc.lock").write_text(TRAINED)
    found = [
        (each.where, each.result, each.time, each.experiment, each.revision, each.folder) for each in Locked.all(root)
    ]
    inner, dirs = root / "pipelines/inner", {letter * 32: f"{letter * 32}.dir" for letter in "12345"}
    assert [(where, result) for where, result, *_ in found] == [
        ("workspace", dirs["5" * 32]), ("workspace", dirs["2" * 32]),
        ("main", dirs["1" * 32]), ("main", dirs["2" * 32]),
        ("other", dirs["4" * 32]), ("other", dirs["2" * 32]), ("v1", dirs["1" * 32]),
        ("trial", dirs["3" * 32]), ("trial", dirs["2" * 32]),
    ]  # fmt: skip
    assert [folder for *_, folder in found] == [root, inner, *[None] * 7]
    assert found[0][2:5] == (2_000_000_000.0, None, None)
    assert found[2][2:5] == (1_000_000_002.0, None, commits["main"])
    assert found[4][2:5] == (1_000_000_004.0, None, commits["gone"])
    assert found[6][2:5] == (1_000_000_001.0, None, commits["tag"])
    assert found[7][2:5] == (1_000_000_003.0, "trial", commits["trial"])
    assert committed_now != commits["gone"]
    record = TrainingRecord(root / ".evopipe/train" / ("e" * 32))
    record.begin({**PARAMS, "seed": 3}, revision=None, experiment="trial", version="0")
    about = json.loads((record.folder / "run.json").read_text())
    (record.folder / "run.json").write_text(json.dumps({**about, "result": dirs["3" * 32]}))
    said: list[str] = []
    warned: list[str] = []
    config = TrackingConfig(backends=("tensorboard",))
    new = sync(root, config, said.append, warned.append)
    assert new == {"tensorboard": New(run=4, generation=4 * len(WAITED[1:]))}
    assert warned == ["1 more known to git have no outputs in the cache: `dvc fetch --all-commits` brings them"]
    home = root / ".evopipe/tensorboard"
    assert {path.name for path in (home / "E-v0").iterdir()} == {
        f"dqn-{'5' * 8}-{'5' * 6}", f"dqn-{'2' * 8}-{'2' * 6}", f"dqn-{'1' * 8}-{'1' * 6}", f"trial-{'e' * 6}",
    }  # fmt: skip
    assert sync(root, config, said.append, warned.append) == {"tensorboard": New()}


def test_what_the_lock_says_of_parameters_wins_and_a_tracker_sees_those_in_use(tmp_path: Path) -> None:
    """The file may have been changed since the stages ran."""
    (tmp_path / "params.yaml").write_text(json.dumps({**PARAMS, "seed": 9, "train": {"algo": "dqn", "max_steps": 7}}))
    (one,) = locked(tmp_path, TRAINED)
    params = one._all_params()
    assert (params["seed"], params["train"]) == (3, {"algo": "dqn", "max_steps": 10})
    given = {
        **params,
        "algos": {"dqn": {"lr": 1.0}, "ppo": {"lr": 2.0}},
        "fetch": {"source": "collect", "collect": 1, "minari": 2},
    }
    flat = TrackedRun("k" * 32, given, 0.0).flat_params()
    assert {name: value for name, value in flat.items() if name.startswith(("algos", "fetch"))} == {
        "algos.dqn.lr": "1.0", "fetch.source": "collect", "fetch.collect": "1",
    }  # fmt: skip


def test_a_members_loss_is_that_of_its_slot_though_others_wait() -> None:
    losses, births = [0.5, 1.5, 2.5], dict.fromkeys(range(3), Mutation("none"))
    for record in WAITED[1:]:
        rows = Generation.of(record, births, [], 1.0, (0, 0), losses).members
        assert [row.loss for row in rows] == [losses[row.slot] for row in rows]
    assert [row.slot for row in Generation.of(WAITED[3], births, [], 1.0, (0, 0), losses).members] == [1]


def test_a_repository_of_dvcs_whose_git_is_gone_is_told_so(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    analytics = false\n")
    with pytest.raises(DataError, match=r"there is none: git init, or dvc config core\.no_scm true"):
        Locked.all(tmp_path)
