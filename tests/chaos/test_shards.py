"""Shards in processes of their own, Ray's and Accelerate's: whatever is killed, the same bits, and nothing is left."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import players
import words
from evopipe import layout
from evopipe.algos import get
from evopipe.schema.read import read_yaml
from evopipe.schema.write import dump_yaml
from tiny import call, digests, environment, prepared, wait_for

SHARDED = {
    "population.size": 4, "runtime.cohorts": "exact", "train.replay.sharing": "own", "runtime.env_workers": 0,
    "runtime.learners": 1, "train.max_steps": 8000, "runtime.checkpoint_seconds": 1e-3,
}  # fmt: skip
ENGINES = ("ray", "accelerate")
SHM = Path("/dev/shm")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is ready to train in."""
    return prepared(tmp_path_factory.mktemp("ready"), SHARDED)


@pytest.fixture(scope="module")
def whole(ready: Path) -> Path:
    """A folder in which one process trained."""
    folder = Path(shutil.copytree(ready, ready.parent / "whole"))
    assert call(folder, "--quiet", "train").code == 0
    return folder


@pytest.fixture(scope="module")
def expected(whole: Path) -> dict[str, str]:
    """What one process writes."""
    return digests(whole)


@pytest.fixture
def copy(ready: Path, tmp_path: Path) -> Callable[..., Path]:
    def made(engine: str, name: str = "run", **shards: Any) -> Path:
        """A copy of the folder, with two shards."""
        pytest.importorskip(engine, reason=f"an extra of its own: pip install 'evopipe[{engine}]'")
        return divide(Path(shutil.copytree(ready, tmp_path / name)), engine=engine, **shards)

    return made


def divide(folder: Path, **shards: Any) -> Path:
    data = read_yaml(folder / "params.yaml").data
    whole = {"engine": "ray", "count": 2, "ranks": 1, "resources": {"cpu": 1.0}, "address": None, "ray_init": {}}
    data["runtime"]["shards"] = whole | shards
    (folder / "params.yaml").write_text(dump_yaml(data), encoding="utf-8")
    return folder


class Training:
    """`evopipe train`, or another stage, in a process of its own, and what comes with it."""

    def __init__(self, folder: Path, stage: str = "train", **more: str) -> None:
        self.folder, self.log = folder, folder / f"log-{time.monotonic_ns()}.txt"
        command = [sys.executable, "-m", "evopipe", stage]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=folder, env=environment(**more), stdout=out, stderr=out)
        self.seen: set[psutil.Process] = set()

    def processes(self, name: str = "") -> list[psutil.Process]:
        """The processes below it whose command line holds this."""
        try:
            self.seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.Error:
            return []
        return [each for each in self.seen if lives(each) and name in command_of(each)]

    def trains(self) -> bool:
        return self.process.poll() is not None or "generation 1," in self.log.read_text()

    def wait(self, seconds: float = 600) -> int:
        return self.process.wait(seconds)

    def leaves_nothing(self) -> bool:
        return not any(lives(each) for each in self.seen)


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def shared_files() -> set[str]:
    return {path.name for path in SHM.iterdir()} if SHM.is_dir() else set()


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """No file is left in /dev/shm."""
    before = shared_files()
    yield
    assert wait_for(lambda: shared_files() <= before, 10), shared_files() - before


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_give_the_bits_of_one(engine: str, copy: Callable[..., Path], expected: dict[str, str]) -> None:
    run = Training(copy(engine))
    assert wait_for(run.trains, 300)
    listening = [c for p in run.processes() for c in connections(p) if c.status == psutil.CONN_LISTEN]
    assert run.wait() == 0, run.log.read_text()
    assert digests(run.folder) == expected
    assert wait_for(run.leaves_nothing, 10)
    if engine == "ray":  # torch's launcher listens for other machines' ranks, whatever it is told
        assert {c.laddr.ip.removeprefix("::ffff:") for c in listening} == {"127.0.0.1"}


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["none", pytest.param("accelerate", marks=pytest.mark.slow),
                                    pytest.param("ray", marks=pytest.mark.slow)])  # fmt: skip
def test_members_are_scored_in_shards_as_in_one_process(engine: str, whole: Path, tmp_path: Path) -> None:
    """Five of them, the elite the last, on held-out seeds."""
    outs = tuple(out.as_posix() for out in layout.OUTS["evaluate"])
    assert call(whole, "--quiet", "evaluate").code == 0
    folder = divide(Path(shutil.copytree(whole, tmp_path / "run")), engine=engine, count=3)
    for out in outs:
        (folder / out).unlink()
    run = Training(folder, "evaluate")
    assert run.wait() == 0, run.log.read_text()
    assert digests(run.folder, outs) == digests(whole, outs)
    assert wait_for(run.leaves_nothing, 10)


def connections(process: psutil.Process) -> list[Any]:
    try:
        found: list[Any] = process.net_connections(kind="tcp")
    except psutil.Error:
        return []
    return found


@pytest.mark.parametrize(
    "kills", [pytest.param(1, marks=pytest.mark.thorough), pytest.param(20, marks=pytest.mark.slow)]
)
def test_actors_that_are_killed_are_made_anew(kills: int, copy: Callable[..., Path], expected: dict[str, str]) -> None:
    draw, done, number = random.Random(kills), 0, 0
    while done < kills:
        number += 1
        run = Training(copy("ray", f"run-{number}"))
        assert wait_for(run.trains, 300)
        mine = 0
        while run.process.poll() is None and done < kills:
            time.sleep(draw.uniform(0.0, 1.0))
            actors = run.processes("ray::_Actor")
            if actors and run.process.poll() is None:
                draw.choice(sorted(actors, key=lambda each: each.pid)).send_signal(signal.SIGKILL)
                mine, done = mine + 1, done + 1
                told = partial(lambda run, n: run.log.read_text().count("made anew") >= n, run, mine)
                wait_for(lambda told=told, run=run: told() or run.process.poll() is not None, 30)
        assert run.wait() == 0, run.log.read_text()
        assert digests(run.folder) == expected
        assert wait_for(run.leaves_nothing, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kills"), [("ray", 20), ("accelerate", 20)])
def test_a_training_whose_driver_is_killed_goes_on_to_the_same_end(
    engine: str, kills: int, copy: Callable[..., Path], expected: dict[str, str]
) -> None:
    folder, draw, done, runs = copy(engine), random.Random(kills), 0, []
    while done < kills:
        run = Training(folder)
        runs.append(run)
        assert wait_for(run.trains, 300)
        time.sleep(draw.uniform(0.0, 1.5))
        everyone = run.processes()
        ranks = [each for each in everyone if command_of(each).endswith("-m evopipe train")]
        victim = run.process if engine == "ray" else draw.choice(ranks or [run.process])  # none: it has ended
        victim.send_signal(signal.SIGKILL)
        done += run.wait() != 0
        actors = partial(run.processes, "ray::_Actor")
        assert wait_for(lambda actors=actors: not actors(), 10)
        if run.process.returncode == 0:
            assert digests(folder) == expected
            shutil.rmtree(folder / "models/trained")
    run = Training(folder)
    assert run.wait() == 0, run.log.read_text()
    assert "goes on at step" in run.log.read_text()
    assert digests(folder) == expected
    for run in runs:
        assert wait_for(run.leaves_nothing, 20), [command_of(each) for each in run.seen if lives(each)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_saves_what_all_shards_are(engine: str, copy: Callable[..., Path], expected: dict[str, str]) -> None:
    run = Training(copy(engine))
    assert wait_for(run.trains, 300)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() != 0
    assert "saved, the same command continues from there" in run.log.read_text()
    assert wait_for(run.leaves_nothing, 40)
    again = Training(run.folder)
    assert again.wait() == 0
    assert "goes on at step" in again.log.read_text()
    assert digests(run.folder) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20])
def test_a_node_that_dies_takes_no_generation_with_it(
    kills: int, copy: Callable[..., Path], expected: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="an extra of its own: pip install 'evopipe[ray]'")
    with nodes() as cluster:
        draw, done, number = random.Random(kills), 0, 0
        while done < kills:
            number += 1
            run = Training(copy("ray", f"run-{number}", address=cluster.address), **cluster.environment)
            assert wait_for(run.trains, 300)
            mine = 0
            while run.process.poll() is None and done < kills:
                time.sleep(draw.uniform(0.0, 1.0))
                if run.process.poll() is None:
                    cluster.replace_node()
                    mine, done = mine + 1, done + 1
                    told = partial(lambda run, n: run.log.read_text().count("made anew") >= n, run, mine)
                    wait_for(lambda told=told, run=run: told() or run.process.poll() is not None, 60)
            assert run.wait(300) == 0, run.log.read_text()
            assert digests(run.folder) == expected


class nodes:  # noqa: N801
    """Two nodes of a Ray cluster on this machine, as `ray start` makes them, with room for one shard each."""

    def __enter__(self) -> nodes:
        from ray.cluster_utils import Cluster

        self.environment = {"RAY_AUTH_MODE": "disabled"}
        self._monkey = pytest.MonkeyPatch()
        self._monkey.setenv("RAY_AUTH_MODE", "disabled")
        self._monkey.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        self._cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self._second = self._cluster.add_node(num_cpus=1)
        self.address: str = self._cluster.address
        return self

    def replace_node(self) -> None:
        """Kill the second node, and let another come."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._cluster.add_node(num_cpus=1)

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()
        self._monkey.undo()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "sentence"),
    [
        ({"address": "127.0.0.1:9"}, "no Ray cluster answers at '127.0.0.1:9'"),
        ({"resources": {"cpu": 1.0, "gpu": 2.0}}, "no node of the Ray cluster has room for a shard"),
        ({"ray_init": {"nonsense": 1}}, "Ray does not start"),
        ({"ray_init": {"_temp_dir": "/dev/null/folder"}}, "Ray does not start (NotADirectoryError"),
    ],
)
def test_a_ray_that_does_not_start_is_told_in_a_sentence(
    shards: dict[str, Any], sentence: str, copy: Callable[..., Path]
) -> None:
    run = Training(copy("ray", **shards))
    assert run.wait() == 72
    assert sentence in run.log.read_text()
    assert "Traceback" not in run.log.read_text()


@pytest.mark.slow
def test_ray_needs_no_home(copy: Callable[..., Path], expected: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()
    run = Training(copy("ray"), HOME=str(home))
    assert run.wait() == 0, run.log.read_text()
    assert digests(run.folder) == expected


def written(folder: Path, data: dict[str, Any], members: int = 4) -> Path:
    """A folder that is ready to train language models in."""
    data["population"]["size"], data["runtime"]["cohorts"] = members, "exact"
    folder.mkdir()
    (folder / "params.yaml").write_text(dump_yaml(data), encoding="utf-8")
    for stage in ("fetch", "buffer", "population"):
        assert call(folder, "--quiet", stage).code == 0
    return folder


TEXT_OUTS, SCORES = (tuple(out.as_posix() for out in layout.TEXT_OUTS[stage]) for stage in ("train", "evaluate"))


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["grpo", "dpo", "bc_language"])
def test_language_models_learn_and_are_scored_in_shards_as_in_one_process(algo: str, tmp_path: Path) -> None:
    """The elite and the base that is scored beside it are a fifth and a sixth member; of games there is no base."""
    data = players.small_params(algo) if algo == "bc_language" else words.small_params()
    if algo == "dpo":
        small = {**get(algo).Config().model_dump(mode="json"), "batch_size": 8, "evolve": {}}
        data["train"]["algo"], data["algos"] = algo, {algo: small}
    folder, found = written(tmp_path / "ready", data), []
    for count in (1, 2, 4):
        own = divide(Path(shutil.copytree(folder, tmp_path / str(count))), engine="none", count=count)
        for stage in ("train", "evaluate"):
            answer = call(own, "--quiet", stage)
            assert answer.code == 0, answer.err
        found.append(digests(own, (*TEXT_OUTS, *SCORES)))
    assert found[0] == found[1] == found[2]


@pytest.mark.thorough
@pytest.mark.parametrize(("algo", "most"), [("grpo", 2), pytest.param("ppo_language", 3, marks=pytest.mark.slow)])
def test_processes_that_divide_a_members_rows_give_the_bits_of_one(algo: str, most: int, tmp_path: Path) -> None:
    """Five completions a part, of 16: four parts, the last one small, among one process and more."""
    pytest.importorskip("accelerate")
    cfg = {**get(algo).Config().model_dump(mode="json"), "rows": 16, "batch_size": 16, "evolve": {}}
    if algo == "grpo":
        cfg["group_size"] = 4
    data = words.small_params()
    data["train"]["algo"], data["algos"], data["runtime"]["rows_at_once"] = algo, {algo: cfg}, 5
    folder = written(tmp_path / "ready", data, members=2)
    alone = Path(shutil.copytree(folder, tmp_path / "alone"))
    for stage in ("train", "evaluate"):
        assert call(alone, "--quiet", stage).code == 0
    for ranks in range(2, most + 1):
        own = divide(Path(shutil.copytree(folder, tmp_path / str(ranks))), engine="accelerate", count=1, ranks=ranks)
        for stage, outs in (("train", TEXT_OUTS), ("evaluate", SCORES)):
            run = Training(own, stage)
            assert run.wait() == 0, run.log.read_text()
            assert digests(own, outs) == digests(alone, outs)
            assert wait_for(run.leaves_nothing, 10)
