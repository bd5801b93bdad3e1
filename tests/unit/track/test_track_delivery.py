"""What trackers hold after a delivery, after two, and after one that was cut off: real records, real stores."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

import populations
import tiny
from evopipe.envs.make import opened
from evopipe.envs.team import read_spaces
from evopipe.errors import MissingInputError, ParamsError, TrackerError, UsageError
from evopipe.policies import policy
from evopipe.run.spec import first_members
from evopipe.schema.tracking import TrackingConfig
from evopipe.track import outbox
from evopipe.track.backends import wandb
from evopipe.track.backends.mlflow import connect, serve
from evopipe.track.events import End, Generation, JsonlSink, MemberRow, Progress, Start, Tracker
from evopipe.track.outbox import _Trackers, sync
from evopipe.track.record import FILES, Kept, New, TrackedRun, TrainingRecord, md5_of

KEY = "0123456789abcdef0123456789abcdef"
MLFLOW = TrackingConfig(backends=("mlflow",))


@pytest.fixture(autouse=True)
def foreign_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trackers warn of their own dependencies."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", os.devnull)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that MLflow has just made, beside half of one: making one takes seconds."""
    root = tmp_path_factory.mktemp("empty")
    (root / ".evopipe/mlflow").mkdir(parents=True)
    (root / ".evopipe/mlflow/.mlflow.db.new").write_bytes(b"half of a database")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        connect(MLFLOW, root).close()
    return root / ".evopipe/mlflow/mlflow.db"


@pytest.fixture
def root(tmp_path: Path, empty: Path) -> Path:
    """A project with a fresh database and no runs."""
    (tmp_path / ".evopipe/mlflow").mkdir(parents=True)
    shutil.copy(empty, tmp_path / ".evopipe/mlflow/mlflow.db")
    return tmp_path


def member(generation: int, slot: int) -> MemberRow:
    fitness = math.nan if (generation, slot) == (2, 1) else 10.0 * generation + slot
    return MemberRow(
        slot=slot,
        id=10 * generation + slot,
        parent=None if generation == 1 else 10 * (generation - 1),
        fitness=fitness,
        mutation="rl_hp",
        change="lr 3e-4 → 2.4e-4",
        architecture="64|32",
        activation="ELU",
        hyper={"lr": 3e-4 * generation, "batch_size": 64.0},
        healthy=math.isfinite(fitness),
        loss=0.5,
        signals={"losses/entropy": (0.5 * generation, 0.25), "charts/episodic_return": (2.0, 3.0)},
    )


def generation(number: int, nan: bool = False) -> Generation:
    rows = tuple(member(number, slot) for slot in range(2))
    if nan:
        rows = tuple(replace(row, signals={**row.signals, "losses/grad_norm": (math.nan, math.inf)}) for row in rows)
    return Generation(number, 100 * number, 200 * number, 20 * number, 1.5, rows, 10.0 * number, 5.0, 9.0, 10)


def made(root: Path, generations: int = 3, ended: bool = True, key: str = KEY, **overrides: Any) -> Path:
    """A record, written as a training writes it."""
    folder = root / ".evopipe/train" / key
    params = tiny.params({"train.max_steps": 300, **overrides})
    TrainingRecord(folder).begin(params, revision="f" * 40, experiment=None, version="0.1")
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(Start("train", "CartPole-v1", "dqn", 2, 300))
        for number in range(1, generations + 1):
            log.emit(Progress(number, 100 * number, 300, 0, 0, "learning", 1.0, None))
            log.emit(generation(number))
        if ended:
            log.emit(End("all steps taken", 4.5, 600, 60))
    return folder


def outputs(root: Path, folder: Path) -> None:
    """What the stages leave, put into the record."""
    for place in FILES.values():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix:
            path.write_text("{}")
        else:
            path.mkdir()
            (path / "policy.json").write_text("{}")
    (root / "models/trained").mkdir()
    (root / "models/trained/manifest.json").write_text(str(folder))
    scores = {"mean": 42.0, "std": 3.0, "interval": [40.0, 44.0]}
    (root / FILES["evaluation"]).write_text(json.dumps({"elite": scores, "episodes": 4}))
    TrainingRecord(folder).keep(root, FILES, ended=True)


def client(root: Path) -> Any:
    from mlflow import MlflowClient

    uri = f"sqlite:///{root}/.evopipe/mlflow/mlflow.db"
    return MlflowClient(uri, registry_uri=uri)


def contents(root: Path) -> dict[str, Any]:
    """All that a person could see in MLflow, by run name."""
    asked = client(root)
    seen = {}
    for experiment in asked.search_experiments():
        for run in asked.search_runs([experiment.experiment_id]):
            history = {
                name: sorted((m.step, m.timestamp, m.value) for m in asked.get_metric_history(run.info.run_id, name))
                for name in run.data.metrics
            }
            files = sorted(entry.path for entry in asked.list_artifacts(run.info.run_id))
            info = (run.info.status, run.info.start_time, run.info.end_time, experiment.name)
            seen[run.info.run_name] = (info, history, run.data.params, run.data.tags, files)
    return seen


def silent(_: str) -> None:
    """Nobody listens."""


def synced(root: Path, config: TrackingConfig = MLFLOW) -> dict[str, New]:
    return sync(root, config, silent, silent)


# --- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_training_in_mlflow(root: Path) -> None:
    folder = made(root)
    outputs(root, folder)
    assert synced(root) == {"mlflow": New(run=1, generation=3, file=len(FILES))}
    seen = contents(root)
    assert set(seen) == {"dqn-01234567", "dqn-01234567 · member 0", "dqn-01234567 · member 1"}
    (status, began, ended, experiment), history, params, tags, files = seen["dqn-01234567"]
    about = json.loads((folder / "run.json").read_text())
    assert (status, experiment) == ("FINISHED", "CartPole-v1")
    assert began == round(1000 * about["started"]) <= ended
    assert [(step, value) for step, _, value in history["fitness/best"]] == [(200, 10.0), (400, 20.0), (600, 30.0)]
    times = [json.loads(line)["time"] for line in (folder / "events.jsonl").read_text().splitlines() if "best" in line]
    assert [clock for _, clock, _ in history["fitness/best"]] == [round(1000 * time) for time in times]
    assert [value for _, _, value in history["population/healthy"]] == [2.0, 1.0, 2.0]
    scored = round(1000 * about["files"]["evaluation"]["time"])
    assert history["evaluation/mean"] == [(600, scored, 42.0)], "where training ended, when it was written"
    assert history["evaluation/interval_low"][0][2] == 40.0
    assert params["train.max_steps"] == "300"
    assert params["algos.dqn.network.encoder"] == "[16]"
    assert not any(name.startswith("tracking") for name in params)
    assert tags["mlflow.source.git.commit"] == "f" * 40
    assert tags["evopipe.result"] == md5_of(root / "models/trained")
    assert files == sorted(Path(place).name for place in FILES.values())
    (status, *_), history, _, tags, _ = seen["dqn-01234567 · member 1"]
    assert status == "FINISHED"
    assert [(step, value) for step, _, value in history["fitness"]] == [(200, 11.0), (600, 31.0)]  # not the diverged
    assert [value for _, _, value in history["hyper/lr"]] == [3e-4, 6e-4, 9e-4]
    assert [value for _, _, value in history["losses/entropy"]] == [0.5, 1.0, 1.5]
    assert [value for _, _, value in history["charts/episodic_return"]] == [2.0, 2.0, 2.0]
    assert (tags["network"], tags["mutation"], tags["change"]) == ("64|32", "rl_hp", "lr 3e-4 → 2.4e-4")
    assert tags["mlflow.parentRunId"]


@pytest.mark.thorough
def test_a_signal_that_is_no_number_is_shown_as_such_and_breaks_no_tracker(root: Path) -> None:
    trackers = [MLFLOW]
    if find_spec("tensorboard"):
        trackers.append(TrackingConfig(backends=("tensorboard",)))
    folder = made(root, generations=1, ended=False)
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(generation(2, nan=True))
        log.emit(End("all steps taken", 4.5, 600, 60))
    for config in trackers:
        assert synced(root, config)[config.backends[0]] == New(run=1, generation=2)
    history = contents(root)["dqn-01234567 · member 0"][1]
    assert [math.isnan(value) for _, _, value in history["losses/grad_norm"]] == [True]
    assert [value for _, _, value in history["losses/entropy"]] == [0.5, 1.0]
    for file in root.glob(".evopipe/tensorboard/CartPole-v1/*/member-0/events.out.*"):
        accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
        read = accumulator.EventAccumulator(str(file)).Reload()
        assert [math.isnan(event.value) for event in read.Scalars("losses/grad_norm")] == [True]
        assert [event.value for event in read.Scalars("losses/entropy")] == [0.5, 1.0]


@pytest.mark.thorough
def test_members_that_waited_in_the_last_generation_are_in_mlflow_too(root: Path) -> None:
    folder = made(root, generations=1, ended=False)
    log = JsonlSink(folder / "events.jsonl")
    for number, slot in ((2, 0), (3, 1)):
        log.emit(replace(generation(number), members=(replace(member(number, slot), steps=100 * number),)))
    log.close()
    assert synced(root)["mlflow"] == New(run=1, generation=3)
    seen = contents(root)
    for slot, numbers in ((0, (1, 2)), (1, (1, 3))):
        history = seen[f"dqn-01234567 · member {slot}"][1]
        assert [step for step, _, _ in history["fitness"]] == [200 * number for number in numbers]
        assert [value for _, _, value in history["steps"]] == [100.0 * numbers[1]]
    assert [value for _, _, value in seen["dqn-01234567"][1]["population/living"]] == [1.0, 1.0]


@pytest.mark.thorough
def test_twice_is_as_good_as_once(root: Path) -> None:
    outputs(root, made(root))
    synced(root)
    once = contents(root)
    for _ in range(2):
        assert synced(root) == {"mlflow": New()}
    assert contents(root) == once


@pytest.mark.thorough
def test_a_run_of_a_tracker_ends_when_the_training_did_and_not_when_its_last_generation_did(root: Path) -> None:
    run = TrainingRecord(made(root, generations=1)).run()
    assert run.ended is not None
    run = replace(run, ended=(run.last[0] + 77.0, run.ended[1]))
    connect(MLFLOW, root).deliver(run)
    assert {info[2] for info, *_ in contents(root).values()} == {round(1000 * (run.last[0] + 77.0))}


def test_a_training_that_is_repeated_learned_from_the_data_that_is_there_now(tmp_path: Path) -> None:
    folder, data = made(tmp_path), tmp_path / "data/transitions.h5"
    outputs(tmp_path, folder)
    data.parent.mkdir()
    for content in (b"one", b"another"):
        data.write_bytes(content)
        assert TrainingRecord(folder).keep(tmp_path, [], ended=True)
        assert TrainingRecord(folder).run().transitions == md5_of(data)


def test_what_was_just_brought_is_not_asked_for_again(root: Path) -> None:
    record = TrainingRecord(made(root))
    with _Trackers(MLFLOW, root) as trackers:
        assert trackers.deliver(record.run()) == {"mlflow": New(run=1, generation=3)}
        assert trackers.deliver(record.run()) == {}
        outputs(root, record.folder)
        assert trackers.deliver(record.run()) == {"mlflow": New(file=len(FILES))}


def test_of_two_runs_of_one_training_the_oldest_goes_on_and_keeps_its_first_outcome(root: Path) -> None:
    run = TrainingRecord(made(root, generations=1)).run()
    backend = connect(MLFLOW, root)
    backend.deliver(replace(run, result="a" * 32))
    asked = client(root)
    (experiment,) = (each for each in asked.search_experiments() if each.name == "CartPole-v1")
    runs = asked.search_runs([experiment.experiment_id])
    (first,) = (each for each in runs if each.data.tags["evopipe.kind"] == "training")
    asked.create_run(experiment.experiment_id, first.info.start_time + 10_000, first.data.tags)  # a later copy
    later = TrainingRecord(made(root, generations=2, key="f" * 32)).run()
    backend.deliver(replace(later, key=run.key, result="b" * 32))
    held = asked.get_run(first.info.run_id).data
    assert held.tags["evopipe.generations"] == "2"
    assert held.tags["evopipe.result"] == "a" * 32


def test_of_two_runs_of_one_training_the_one_that_was_not_deleted_goes_on(root: Path) -> None:
    run = TrainingRecord(made(root, generations=1)).run()
    backend, asked = connect(MLFLOW, root), client(root)
    backend.deliver(run)
    (experiment,) = (each for each in asked.search_experiments() if each.name == "CartPole-v1")
    (first,) = asked.search_runs([experiment.experiment_id], "tags.`evopipe.kind` = 'training'")
    copy = asked.create_run(experiment.experiment_id, first.info.start_time + 10_000, first.data.tags)
    asked.delete_run(first.info.run_id)
    later = replace(TrainingRecord(made(root, generations=2, key="f" * 32)).run(), key=run.key)
    assert backend.deliver(later) == New(generation=1)
    assert asked.get_run(copy.info.run_id).data.tags["evopipe.generations"] == "2"
    assert asked.get_run(first.info.run_id).data.tags["evopipe.generations"] == "1"


def test_a_tracker_that_failed_is_asked_once_and_not_for_every_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    for key in ("a" * 32, "b" * 32, "c" * 32):
        made(root, generations=1, key=key)
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one = server.accept()[0]
                    calls.append(one.recv(4096).partition(b" HTTP")[0])
                    one.close()

        threading.Thread(target=refuse, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(TrackerError):
            synced(root)
        server.shutdown(socket.SHUT_RDWR)
    assert 1 <= len(calls) <= 2, calls  # with the one retry of its own


@pytest.mark.parametrize("fails_at", [5, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2, 3, 8, 11))])
def test_a_delivery_that_was_cut_off_is_completed(root: Path, fails_at: int) -> None:
    """Cut at any of its calls, by a store that raises; the same rows are there in the end, each once."""
    from mlflow import MlflowClient

    outputs(root, made(root))
    backend = connect(MLFLOW, root)
    calls = 0

    class Cut(MlflowClient):
        def __getattribute__(self, name: str) -> Any:
            nonlocal calls
            if name in ("create_run", "log_batch", "log_artifact", "log_artifacts", "set_tag", "set_terminated"):
                calls += 1
                if calls > fails_at:
                    raise ConnectionError("cut")
            return super().__getattribute__(name)

    uri = f"sqlite:///{root}/.evopipe/mlflow/mlflow.db"
    backend._client = Cut(uri, registry_uri=uri)  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        backend.deliver(TrainingRecord(root / ".evopipe/train" / KEY).run())
    synced(root)
    seen = contents(root)
    assert synced(root) == {"mlflow": New()}
    assert len(seen) == 3
    assert seen["dqn-01234567"][0][0] == "FINISHED"
    assert len(seen["dqn-01234567"][1]["fitness/best"]) == 3
    assert len(seen["dqn-01234567 · member 0"][1]["fitness"]) == 3
    assert len(seen["dqn-01234567"][4]) == len(FILES)
    assert len(seen["dqn-01234567"][2]) == len(TrainingRecord(root / ".evopipe/train" / KEY).run().flat_params())


@pytest.mark.thorough
def test_a_run_that_goes_on(root: Path) -> None:
    """A killed run repeats what came after its checkpoint: the first word on a generation counts, once."""
    folder = made(root, generations=2, ended=False)
    assert synced(root)["mlflow"] == New(run=1, generation=2)
    assert contents(root)["dqn-01234567"][0][0] == "KILLED"
    first = contents(root)["dqn-01234567"][1]["fitness/best"]
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(Start("train", "CartPole-v1", "dqn", 2, 300, 100))
        for number in (2, 3):
            log.emit(generation(number))
        log.emit(End("all steps taken", 4.5, 600, 60))
    assert synced(root)["mlflow"] == New(generation=1)
    (status, *_), history, *_ = contents(root)["dqn-01234567"]
    assert status == "FINISHED"
    assert history["fitness/best"][:2] == first
    assert len(history["fitness/best"]) == 3


def test_half_a_line_is_waited_for(root: Path) -> None:
    folder = made(root, generations=1, ended=False)
    log = folder / "events.jsonl"
    whole = log.read_bytes()
    reader = TrainingRecord(folder)
    log.write_bytes(whole[:-20])
    assert reader.run(writing=True).generations == []
    log.write_bytes(whole)
    assert [event.generation for _, event in reader.run(writing=True).generations] == [1]


_SERVE = """
import sys
for name in ("evopipe", "evopipe.track"):
    sys.modules[name] = None  # cannot be imported
import json, mlflow, numpy
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/cart/1")
gave = model.predict({k: numpy.array(v, "float32") for k, v in told.items()} if isinstance(
    told := json.loads(sys.argv[2]), dict) else numpy.array(told, "float32"))
example = model.predict(model.input_example)
assert example.keys() == gave.keys() == {output.name for output in model.metadata.signature.outputs}
print(json.dumps({name: each.tolist() for name, each in gave.items()}))
"""


def served(root: Path, given: Any) -> dict[str, Any]:
    """What the registered model answers where evopipe cannot be imported."""
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        _SERVE,
        f"sqlite:///{root}/.evopipe/mlflow/mlflow.db",
        json.dumps(given),
    ]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def registered(root: Path, algo: str, env: str = "CartPole-v1", **config: Any) -> Any:
    """An elite, exported with its programs, and registered as `cart` by two deliveries."""
    problem = populations.problem(env, algo, config=config)
    with opened(problem.env) as example:
        _, spaces = read_spaces(example)
    (elite,) = first_members(problem, 1)[0]
    folder = made(root)
    outputs(root, folder)
    about = {**spaces, "config": problem.algo_config.model_dump(mode="json")}
    policy.save(root / FILES["elite"], algo, elite, about, True, "")
    TrainingRecord(folder).keep(root, ["elite"])
    for _ in range(2):
        synced(root, MLFLOW.model_copy(update={"register_as": "cart"}))
    (version,) = client(root).search_model_versions("name = 'cart'")
    assert version.tags["evopipe.elite"] == md5_of(root / FILES["elite"])
    return policy.load(root / FILES["elite"])


@pytest.mark.slow
def test_the_registered_elite_predicts_without_evopipe(root: Path) -> None:
    own = registered(root, "dqn")
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    gave = served(root, obs.tolist())
    assert gave["action"] == own.act(obs).tolist()
    assert np.allclose(gave["values"], own.q_values(obs), rtol=1e-4, atol=1e-5)
    assert not list(root.rglob("*.pkl"))


@pytest.mark.slow
def test_a_registered_elite_with_a_memory_takes_and_returns_it(root: Path) -> None:
    own = registered(root, "ppo", network={"encoder_kind": "lstm", "encoder": [16], "latent": 16})
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    _, memory = own.step(obs)
    gave = served(root, {"obs": obs.tolist(), "memory": memory.tolist()})
    action, after = own.step(obs, memory)
    assert gave["action"] == action.tolist()
    assert np.allclose(gave["memory"], after, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "kind"), [("maddpg", "mlp"), ("ippo", "lstm")])
def test_a_registered_team_answers_by_agent(algo: str, kind: str, root: Path) -> None:
    own = registered(root, algo, populations.TEAM, network={"encoder_kind": kind, "encoder": [16], "latent": 16})
    g, widths = np.random.default_rng(0), [space.size for space in own.team.observations]
    obs = {agent: g.normal(size=(5, o)).astype(np.float32) for agent, o in zip(own.agents, widths, strict=True)}
    memory = own.step(obs)[1]
    shown = {f"{agent}.memory": memory[:, k] for k, agent in enumerate(own.agents)} if own.memory else {}
    gave = served(root, {name: rows.tolist() for name, rows in (obs | shown).items()})
    actions, after = own.step(obs, memory)
    assert {agent: gave[agent] for agent in own.agents} == {agent: each.tolist() for agent, each in actions.items()}
    for k, name in enumerate(shown):
        assert np.allclose(gave[name], after[:, k], rtol=1e-4, atol=1e-5)


def asked_over_http(root: Path, inputs: Any) -> dict[str, Any]:
    """What MLflow's own server answers that serves the registered model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["models", "serve", "-m", "models:/cart/1", "--env-manager", "local", "-h", "127.0.0.1", "-p", str(port)]
    uri = f"sqlite:///{root}/.evopipe/mlflow/mlflow.db"
    with (root / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "mlflow", *words], cwd=root, stdout=log, stderr=log,
            env={**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": ""}, start_new_session=True,
        )  # fmt: skip
    told = json.dumps({"inputs": inputs}).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", told, headers={"Content-Type": "application/json"}
    )
    try:
        while server.poll() is None:
            with contextlib.suppress(ConnectionError, urllib.error.URLError), urllib.request.urlopen(asked) as answer:
                return dict(json.loads(answer.read())["predictions"])
            time.sleep(0.5)
        raise AssertionError((root / "server.log").read_text())
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_mlflows_own_server_answers_as_the_policy_acts(root: Path) -> None:
    own = registered(root, "dqn")
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    gave = asked_over_http(root, obs.tolist())
    assert gave["action"] == own.act(obs).tolist()
    assert np.allclose(gave["values"], own.q_values(obs), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_mlflows_own_server_answers_a_policy_with_a_memory(root: Path) -> None:
    own = registered(root, "ppo", network={"encoder_kind": "lstm", "encoder": [16], "latent": 16})
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    _, memory = own.step(obs)
    gave = asked_over_http(root, {"obs": obs.tolist(), "memory": memory.tolist()})
    action, after = own.step(obs, memory)
    assert gave["action"] == action.tolist()
    assert np.allclose(gave["memory"], after, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_trainings_with_one_elite_are_registered_each_and_once(root: Path) -> None:
    registered(root, "dqn")
    (root / "models/trained/manifest.json").write_text("of another training")
    TrainingRecord(made(root, key="f" * 32)).keep(root, FILES, ended=True)
    for _ in range(2):
        synced(root, MLFLOW.model_copy(update={"register_as": "cart"}))
        versions = client(root).search_model_versions("name = 'cart'")
        assert len(versions) == len({version.run_id for version in versions}) == 2


def test_an_elite_without_its_program_is_not_registered(root: Path) -> None:
    outputs(root, made(root))
    synced(root, MLFLOW.model_copy(update={"register_as": "cart"}))
    assert client(root).search_model_versions("name = 'cart'") == []


@pytest.mark.thorough
@pytest.mark.parametrize("learned", [0, 120])
def test_the_dataset_is_an_input_of_who_learned_from_it(root: Path, learned: int) -> None:
    folder = made(root)
    (root / "data").mkdir()
    (root / "data/transitions.h5").write_bytes(b"transitions")
    outputs(root, folder)
    (root / FILES["train"]).write_text(json.dumps({"warm_start": learned}))
    TrainingRecord(folder).keep(root, ["train"], ended=True)
    synced(root)
    (run,) = client(root).search_runs(["1"], "tags.`evopipe.kind` = 'training'")
    found = [(each.dataset.name, each.dataset.digest) for each in run.inputs.dataset_inputs]
    assert found == ([("CartPole-v1/collect", hashlib.md5(b"transitions").hexdigest())] if learned else [])


def test_a_run_that_was_deleted_stays_deleted(root: Path) -> None:
    made(root)
    synced(root)
    asked = client(root)
    (parent,) = (run for run in asked.search_runs(["1"]) if run.info.run_name == "dqn-01234567")
    asked.delete_run(parent.info.run_id)
    assert synced(root) == {"mlflow": New()}


def test_a_deleted_experiment_is_named(root: Path) -> None:
    made(root)
    asked = client(root)
    asked.delete_experiment(asked.create_experiment("CartPole-v1"))
    with pytest.raises(TrackerError, match=r"'CartPole-v1' was deleted: restore it .* another name"):
        synced(root)


def test_another_experiment_name_does_not_make_another_run(root: Path) -> None:
    made(root)
    synced(root)
    assert synced(root, MLFLOW.model_copy(update={"experiment": "mine"})) == {"mlflow": New()}


def _open(root: Path) -> None:
    connect(MLFLOW, root).close()


@pytest.mark.slow
def test_four_processes_make_the_database_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_open, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    assert not list((tmp_path / ".evopipe/mlflow").glob(".mlflow.db.new*"))


@pytest.mark.thorough
def test_a_half_made_database_is_thrown_away(empty: Path) -> None:
    with contextlib.closing(sqlite3.connect(empty)) as database:
        assert database.execute("select name from experiments").fetchall() == [("Default",)]
    assert not list(empty.parent.glob(".mlflow.db.new*"))


# --- the others -------------------------------------------------------------------------------------------------------


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = TrackingConfig(backends=("tensorboard",))
    folder = made(tmp_path, generations=2, ended=False)
    assert synced(tmp_path, config)["tensorboard"] == New(run=1, generation=2)
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(generation(3))
        log.emit(End("all steps taken", 4.5, 600, 60))
    outputs(tmp_path, folder)
    assert synced(tmp_path, config)["tensorboard"]["file"] == 1
    assert synced(tmp_path, config) == {"tensorboard": New()}
    (run,) = (tmp_path / ".evopipe/tensorboard/CartPole-v1").iterdir()
    for name, tag, values in (
        (".", "fitness/best", [10.0, 20.0, 30.0]),
        (".", "evaluation/mean", [42.0]),
        ("member-1", "fitness", [11.0, 31.0]),
    ):
        (file,) = (run / name).glob("events.out.*")
        read = accumulator.EventAccumulator(str(file)).Reload()
        assert [event.value for event in read.Scalars(tag)] == values
    events = accumulator.EventAccumulator(str(next(run.glob("events.out.*")))).Reload().Scalars("fitness/best")
    assert [event.step for event in events] == [200, 400, 600]
    times = [clock for clock, _ in TrainingRecord(folder).run().generations]
    assert [event.wall_time for event in events] == pytest.approx(times, rel=0, abs=1e-4)
    (scored,) = accumulator.EventAccumulator(str(next(run.glob("events.out.*")))).Reload().Scalars("evaluation/mean")
    assert (scored.step, scored.wall_time) == (600, pytest.approx(times[-1], rel=0, abs=1e-4)), "where training ended"
    (file,) = (run / "member-1").glob("events.out.*")
    events = accumulator.EventAccumulator(str(file)).Reload().Scalars("fitness")
    assert [event.step for event in events] == [200, 600], "a member's numbers stand beside the population's"


def _logged(data: bytes) -> Iterator[bytes]:
    """The entries of a file in LevelDB's log format: blocks of 32 KiB, entries in pieces with 7 bytes of head."""
    place, entry = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        entry += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield entry
            entry = b""


@pytest.mark.slow
def test_wandb_is_offline_without_a_key(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    config = TrackingConfig(backends=("wandb",))
    folder = made(tmp_path, generations=2, ended=False)
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(generation(3, nan=True))
        log.emit(End("all steps taken", 4.5, 600, 60))
    outputs(tmp_path, folder)
    assert synced(tmp_path, config)["wandb"] == New(run=1, generation=3, file=4)
    assert synced(tmp_path, config) == {"wandb": New()}
    (file,) = tmp_path.glob(f".evopipe/wandb/wandb/offline-run-*-{KEY}/run-{KEY}.wandb")
    rows = []
    for data in _logged(file.read_bytes()):
        one = Record()
        one.ParseFromString(data)
        if one.HasField("history"):
            rows.append({"/".join(item.nested_key) or item.key: item.value_json for item in one.history.item})
    best = [float(row["fitness/best"]) for row in rows if "fitness/best" in row]
    assert best == [10.0, 20.0, 30.0]
    assert [json.loads(row["env_steps"]) for row in rows if "fitness/best" in row] == [200, 400, 600]
    assert float(rows[0]["member-1/fitness"]) == 11.0
    assert float(rows[0]["member-1/losses/entropy"]) == 0.5
    assert math.isnan(float(rows[2]["member-1/losses/grad_norm"]))


class Wandb:
    """Weights & Biases' package, as far as it is called; it keeps what it was told."""

    class Settings(dict[str, Any]):
        pass

    class Artifact:
        def __init__(self, name: str, type: str) -> None:
            self.name, self.type, self.held = name, type, list[str]()

        def add_file(self, path: str) -> None:
            self.held.append(f"file {path}")

        def add_dir(self, path: str) -> None:
            self.held.append(f"folder {path}")

    def __init__(self, key: bool, summary: dict[str, Any] | None = None) -> None:
        self.key, self.summary, self.resumed = key, dict(summary or {}), summary is not None
        self.rows: list[dict[str, Any]] = []
        self.artifacts: list[Any] = []
        self.codes: list[int] = []
        self.metrics: list[Any] = []

    def login(self, prompt: bool, verify: bool) -> bool:
        assert not prompt
        return self.key

    def init(self, **told: Any) -> Wandb:
        self.told = told
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def log_artifact(self, artifact: Any) -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int) -> None:
        self.codes.append(exit_code)

    def Html(self, text: str, inject: bool) -> str:  # noqa: N802
        return f"page {text} {inject}"


@pytest.mark.parametrize("key", [False, True])
def test_what_weights_and_biases_is_told(key: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key its own run goes on after the generations that it has; without one all is written anew."""
    package = Wandb(key, {"population/generation": 1} if key else None)
    monkeypatch.setitem(sys.modules, "wandb", package)  # type: ignore[arg-type]
    config = TrackingConfig(backends=("wandb",))
    old = tmp_path / f".evopipe/wandb/wandb/offline-run-1-{KEY}"
    old.mkdir(parents=True)
    folder = made(tmp_path, generations=2, ended=False)
    with contextlib.closing(wandb.connect(config, tmp_path)) as backend:
        assert backend.deliver(TrainingRecord(folder).run(writing=True)) == New(run=1, generation=2)
        assert not old.exists()
        assert package.codes == []
        with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
            log.emit(generation(3))
            log.emit(End("all steps taken", 4.5, 600, 60))
        outputs(tmp_path, folder)
        assert backend.deliver(TrainingRecord(folder).run()) == New(run=1, generation=3, file=4)
        assert backend.deliver(TrainingRecord(folder).run()) == New()
    told = package.told
    assert (told["project"], told["id"], told["name"]) == ("CartPole-v1", KEY, "dqn-01234567")
    assert (told["mode"], told["resume"]) == (("online", "allow") if key else ("offline", None))
    assert told["dir"] == str(tmp_path / ".evopipe/wandb")
    assert told["config"] == TrainingRecord(folder).run().flat_params()
    assert package.metrics == [("*", "env_steps")]
    *rows, last = package.rows
    times = [clock for clock, _ in TrainingRecord(folder).run().generations]
    numbers = [2, 3] if key else [1, 2, 3]
    assert [row["env_steps"] for row in rows] == [200 * number for number in numbers]
    assert [row["_timestamp"] for row in rows] == times[-len(numbers) :]
    for row, number in zip(rows, numbers, strict=True):
        shown = generation(number)
        own = {f"member-{m.slot}/{name}": value for m in shown.members for name, value in m.metrics().items()}
        assert row == {"env_steps": 200 * number, "_timestamp": row["_timestamp"], **shown.metrics(), **own}
    assert last == {"report": "page {} False"}
    assert package.summary["evaluation/mean"] == 42.0
    kept = TrainingRecord(folder).run().files
    assert [(a.name, a.type, a.held) for a in package.artifacts] == [
        (f"lineage-{KEY}", "lineage", [f"file {kept['lineage'].path}"]),
        (f"elite-{KEY}", "model", [f"folder {kept['elite'].path}"]),
    ]
    assert package.codes == [0]


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_that_was_killed_ends_as_failed_in_weights_and_biases(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Wandb(False)
    monkeypatch.setitem(sys.modules, "wandb", package)  # type: ignore[arg-type]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    config = TrackingConfig(backends=("wandb",), experiment="a/b:c")
    record = TrainingRecord(made(tmp_path, ended=ended))
    wandb.connect(config, tmp_path).deliver(record.run())
    assert package.codes == [0 if ended else 1]
    assert (package.told["project"], package.told["mode"]) == ("a-b-c", "disabled")
    other = wandb.connect(config, tmp_path)
    other.deliver(TrainingRecord(made(tmp_path, ended=False, key="f" * 32)).run(writing=True))
    other.close()
    assert package.codes[1:] == [1], "what is closed before it is complete is not complete"


def test_an_extra_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for module in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, module)
    made(tmp_path)
    with pytest.raises(TrackerError, match=r"tensorboard is not installed.*pip install 'evopipe\[tensorboard\]'"):
        synced(tmp_path, TrackingConfig(backends=("tensorboard",)))


class Paused(threading.Event):
    """An event that remembers how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return super().wait(timeout)


def test_a_record_is_followed_until_nobody_writes_it_and_all_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A problem is told once, however often it comes; it is mended while the training goes on."""
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(outbox, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(outbox, "_LONGEST_PAUSE", 0.05)
    folder, over, (answers, answer) = made(tmp_path, generations=1, ended=False), Paused(), os.pipe()
    os.set_blocking(answers, False)
    home, tried = tmp_path / ".evopipe/tensorboard", TrainingRecord(folder)
    home.write_text("a file, where a folder is to be")
    config, runs = TrackingConfig(backends=("tensorboard",)), []
    monkeypatch.setattr(tried, "run", lambda writing: runs.append(writing) or TrainingRecord(folder).run(writing))
    with _Trackers(config, tmp_path) as trackers:
        follower = threading.Thread(target=outbox._follow, args=(tried, trackers, over, answer), daemon=True)
        follower.start()
        assert tiny.wait_for(lambda: len(runs) > 4, 20)
        said = os.read(answers, 10_000)
        assert said.startswith(b"tensorboard: ")
        assert said.count(b"\n") == 1
        home.unlink()
        assert tiny.wait_for(lambda: not trackers.problems, 20)
        with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
            log.emit(generation(2))
        assert tiny.wait_for(lambda: trackers._brought and trackers._brought["tensorboard"][1] == 2, 20)
        assert trackers._brought["tensorboard"][2] == "running"  # type: ignore[index]
        assert follower.is_alive()
        assert over.pauses[:3] == [0.04, 0.05, 0.05], "twice as long each time that it fails, up to the longest"
        assert over.pauses[-1] == 0.02, "and no longer once it works"
        with pytest.raises(BlockingIOError):
            os.read(answers, 1)
        over.set()
        follower.join(20)
        assert not follower.is_alive()
        assert trackers._brought["tensorboard"][1:3] == (2, "killed")  # type: ignore[index]
    os.close(answer)
    os.close(answers)
    assert runs[-1] is False, "nobody writes it any more"
    assert all(runs[:-1])
    assert json.loads((home / "delivered" / f"{KEY}.json").read_text()) == {"files": {}, "generations": 2}


# --- records, params, pages -------------------------------------------------------------------------------------------


def test_what_is_kept_survives_the_next_run(tmp_path: Path) -> None:
    folder = made(tmp_path)
    outputs(tmp_path, folder)
    report = tmp_path / FILES["report"]
    fresh = report.with_name("fresh")
    fresh.write_text("another")
    os.replace(fresh, report)  # as stages write
    assert TrainingRecord(folder).run().files["report"].path.read_text() == "{}"
    assert TrainingRecord(folder).keep(tmp_path, ["report"])
    assert TrainingRecord(folder).run().files["report"].path.read_text() == "another"
    assert not TrainingRecord(folder).keep(tmp_path, ["report"])
    elite = tmp_path / FILES["elite"]
    (elite / "policy.json").rename(elite / "other.json")
    assert TrainingRecord(folder).keep(tmp_path, ["elite"])
    assert [path.name for path in TrainingRecord(folder).run().files["elite"].path.iterdir()] == ["other.json"]


def test_an_older_file_replaces_no_newer_one() -> None:
    files = {name: Kept(Path(name), "own", 0.0) for name in ("elite", "report", "train")}
    held = {"elite": "other", "report": "own"}
    run = TrackedRun(KEY, {}, 0.0, files=files)
    assert set(run.missing_files(held)) == {"elite", "train"}
    assert set(run.missing_files(held, ["elite", "report", "members"])) == {"elite"}
    run.replace = False
    assert set(run.missing_files(held)) == {"train"}


def test_the_first_word_on_a_generation_counts(tmp_path: Path) -> None:
    folder = made(tmp_path, generations=2, ended=False)
    first = TrainingRecord(folder).run().generations
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(Start("train", "CartPole-v1", "dqn", 2, 300, 100))
        log.emit(replace(generation(2), seconds=9.0))
        log.emit(generation(3))
    (*same, last) = TrainingRecord(folder).run().generations
    assert same == first
    assert last[1].generation == 3


def test_a_record_that_is_there_already_stays(tmp_path: Path) -> None:
    folder = made(tmp_path)
    outputs(tmp_path, folder)
    before = (folder / "run.json").read_bytes()
    TrainingRecord(folder).begin({}, revision="e" * 40, experiment=None, version="0.2")
    assert (folder / "run.json").read_bytes() == before


def test_a_folder_s_hash_is_of_its_files_by_name(tmp_path: Path) -> None:
    """As DVC lists them: those of a folder in it do not come last."""
    (tmp_path / "a").mkdir()
    names = {"a/z": b"1", "b": b"2", "c": b""}
    for name, content in reversed(names.items()):
        (tmp_path / name).write_bytes(content)
    md5 = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in names.items()}
    listed = ", ".join(f'{{"md5": "{md5[name]}", "relpath": "{name}"}}' for name in ("a/z", "b", "c"))
    expected = hashlib.md5(f"[{listed}]".encode(), usedforsecurity=False).hexdigest()
    assert md5_of(tmp_path) == f"{expected}.dir"


def test_a_training_that_ended_and_is_repeated_has_ended_as_it_did_first(tmp_path: Path) -> None:
    """One that ended without an outcome, as where its disk was full, goes on."""
    folder = made(tmp_path)
    first = TrainingRecord(folder).run(writing=True)
    assert (first.status, first.ended and first.ended[1]) == ("finished", "all steps taken")
    reader = TrainingRecord(folder)
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(Start("train", "CartPole-v1", "dqn", 2, 300, 300))
    assert (reader.run(writing=True).status, reader.run().status) == ("running", "killed")
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(End("target reached", 4.5, 600, 60))
    outputs(tmp_path, folder)
    ended = reader.run().ended
    assert ended is not None
    assert ended[1] == "target reached"
    with Tracker([JsonlSink(folder / "events.jsonl")]) as log:
        log.emit(Start("train", "CartPole-v1", "dqn", 2, 300, 300))
        log.emit(End("all steps taken", 4.5, 600, 60))
    assert (reader.run().status, reader.run().ended) == ("finished", ended)


def test_a_log_of_another_version_costs_its_lines_only(tmp_path: Path) -> None:
    folder = made(tmp_path)
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    odd = json.dumps({"event": "generation", "time": 1.0, "colour": "red"}) + "\n"
    (folder / "events.jsonl").write_text("".join([odd, "[]\n", *lines]))
    assert len(TrainingRecord(folder).run().generations) == 3


def test_params_of_tracking(tmp_path: Path) -> None:
    from evopipe.params.load import load_params

    for overrides, sentence in [
        ({"tracking.backends": ["mlflow", "mlflow"]}, "a name stands twice"),
        ({"tracking.backends": ["mlfow"]}, "tracking.backends"),
        ({"tracking.finish_seconds": -1.0}, "tracking.finish_seconds"),
        ({"tracking.register_as": "cart"}, "register_as: MLflow serves the elite's program: set export.program to tr"),
    ]:
        with pytest.raises(ParamsError, match=sentence):
            load_params(tiny.write_params(tmp_path, overrides))


def test_the_pages_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="nothing was tracked yet"):
        serve(tmp_path, 5000, False, silent)


@pytest.mark.thorough
def test_a_port_that_is_taken(root: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            UsageError, match=f"port {port} cannot be used .* choose another, such as --port {port + 1}"
        ):
            serve(root, port, False, silent)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_pages_open_and_end(root: Path, signum: int) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "evopipe", "track", "ui", "--no-browser", "--port", str(port)]
    pages = subprocess.Popen(words, cwd=root, env=tiny.environment(), stdout=subprocess.PIPE, text=True)
    assert pages.stdout is not None
    assert pages.stdout.readline() == f"http://127.0.0.1:{port}/#/experiments (Ctrl-C ends it)\n"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
        assert b"MLflow" in page.read()
    pages.send_signal(signum)
    assert pages.wait(20) == 0
    pages.stdout.close()
    time.sleep(0.2)
    with pytest.raises(OSError, match=r"refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_sync_without_a_tracker_says_what_to_set(tmp_path: Path) -> None:
    tiny.write_params(tmp_path)
    answer = tiny.call(tmp_path, "track", "sync")
    assert answer == (64, "", "error: params.yaml: tracking.backends is empty: name a tracker, such as [mlflow]\n")


@pytest.mark.slow
def test_a_whole_pipeline_is_delivered_while_it_runs(root: Path) -> None:
    """Training by the process beside it, what later stages wrote by theirs; nothing is left for sync."""
    tiny.write_params(root, {"tracking.backends": ["mlflow"], "train.max_steps": 800})
    for stage in ("population", "train", "evaluate", "export", "report"):
        assert tiny.evopipe(root, stage).returncode == 0
    expected = sorted(Path(place).name for place in FILES.values())
    (log,) = root.glob(".evopipe/train/*/track.log")

    def files() -> list[str]:
        return next((entry[4] for name, entry in contents(root).items() if "member" not in name), [])

    assert tiny.wait_for(lambda: files() == expected, 60), log.read_text()
    seen = contents(root)
    assert len(seen) == 4
    assert {entry[0][0] for entry in seen.values()} == {"FINISHED"}
    (lock,) = root.glob(".evopipe/train/*/track.lock")
    with FileLock(lock, timeout=30):  # whoever delivers has ended
        pass
    assert tiny.evopipe(root, "track", "sync").stdout == "mlflow: 0 new\n"


def test_new_says_what_it_is() -> None:
    assert str(New()) == str(New(run=0, file=0)) == "0 new"
    new = New(run=1, generation=0, file=2)
    new += New(generation=1)
    assert str(new) == "1 new run, 1 new generation, 2 new files"
