"""A run that is killed, asked to stop or damaged ends, once it is started again, as if nothing had happened."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import populations
import tiny
from evopipe import algos, layout
from evopipe.native import build
from evopipe.params.load import Params, load_params
from evopipe.problems.env import begin
from evopipe.problems.specs import make_spec
from evopipe.run.population import read_members
from evopipe.run.run import Run as Training
from evopipe.storage.checkpoint import CheckpointStore
from tiny import TRAINED, Run, Starter, call, checkpoints, digests, evopipe, starter, wait_for, write_params

FAST = {"runtime.checkpoint_seconds": 1e-3}


@pytest.fixture(scope="module")
def start() -> Iterator[Starter]:
    with starter() as made:
        yield made


def prepared(folder: Path, overrides: dict[str, Any] | None = None) -> Path:
    """A folder that is ready to train in."""
    return tiny.prepared(folder, FAST | (overrides or {}))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the uninterrupted run writes."""
    folder = prepared(tmp_path_factory.mktemp("uninterrupted"))
    assert evopipe(folder, "train").returncode == 0
    return digests(folder)


def trains(run: Run) -> bool:
    return "train:" in run.log


# --- killed -----------------------------------------------------------------------------------------------------------


def kill(run: Run, folder: Path, draw: random.Random, inside_a_save: bool) -> str:
    """Kill a run at a random instant, or while its n-th save is being written; tell how it went."""
    if inside_a_save:
        wanted = draw.randrange(1, 3)
        seen: set[str] = set()
        while len(seen) < wanted and os.path.exists(f"/proc/{run.pid}"):
            seen.update(path.name for path in folder.glob(".evopipe/train/*/checkpoints/.tmp-*"))
    else:
        time.sleep(draw.uniform(0.0, 0.9))
    run.send(signal.SIGKILL)
    if run.wait() == 0:
        return "finished"
    left = list(folder.glob(".evopipe/train/*/checkpoints/.tmp-*"))
    return "in a save" if left else "killed"


def kill_again_and_again(
    start: Starter, folder: Path, kills: int, saves: int, expected: dict[str, str], seed: int
) -> None:
    """Kill so often, so many times inside a save; every run that gets to its end must have the expected outs."""
    draw, done, inside, finished = random.Random(seed), 0, 0, 0
    while done < kills or inside < saves:
        how = kill(start.start(folder, "train"), folder, draw, inside_a_save=inside < saves and done % 2 == 1)
        done += how != "finished"
        inside += how == "in a save"
        if how == "finished":
            finished += 1
            assert digests(folder) == expected
            assert not checkpoints(folder)
            for out in TRAINED:
                shutil.rmtree(folder / out) if (folder / out).is_dir() else (folder / out).unlink()
    run = start.start(folder, "train")
    assert run.wait() == 0, run.log
    assert digests(folder) == expected
    generations, timed = (
        [row.split(",") for row in (folder / f"reports/{name}.csv").read_text().splitlines()[1:]]
        for name in ("fitness", "timing")
    )
    assert [row[0] for row in timed] == [row[0] for row in generations], "each generation was timed, once"
    assert all(float(row[1]) > 0 for row in timed)
    print(f"seed {seed}: {done} kills, {inside} of them inside a save, {finished + 1} runs came to their end")


@pytest.mark.thorough
def test_killed_now_and_then(start: Starter, tmp_path: Path, expected: dict[str, str]) -> None:
    kill_again_and_again(start, prepared(tmp_path), kills=4, saves=1, expected=expected, seed=1)


@pytest.mark.slow
def test_killed_fifty_times(start: Starter, tmp_path: Path, expected: dict[str, str]) -> None:
    kill_again_and_again(start, prepared(tmp_path), kills=50, saves=10, expected=expected, seed=2)


@pytest.mark.parametrize("sharing", ["shared", "own"])
def test_every_bit_of_the_state_comes_back(tmp_path: Path, sharing: str) -> None:
    """Replay, moments, environments, counters: the whole state, saved and loaded at random ticks."""
    folder = prepared(tmp_path, {"train.replay.sharing": sharing, "train.max_steps": 1000})
    params = load_params(folder / "params.yaml")
    problem = make_spec(params)
    members, _ = read_members(folder, layout.POPULATION, problem)

    def step(loop: Training) -> None:
        if loop.clock.generation_over:
            loop.close_generation(lambda: False)
        else:
            loop.advance()

    straight = begin(problem, members)
    while not straight.reason:
        step(straight)
    store, draw = CheckpointStore(tmp_path / "store"), random.Random(3)
    loop, count = begin(problem, members), 0
    while not loop.reason:
        step(loop)
        if draw.random() < 0.05:
            store.save(count, *loop.state())
            loop.close()
            loop, loaded, count = begin(problem, members), store.load(), count + 1
            assert loaded is not None
            assert loop.restore(loaded.tensors, loaded.meta) == 0
    assert count > 5
    (tensors, meta), (other, other_meta) = straight.state(), loop.state()
    assert other_meta == meta
    assert other.keys() == tensors.keys()
    same = [name for name in tensors if torch.equal(tensors[name].view(-1), other[name].view(-1))]
    nan = [n for n in tensors if n not in same and torch.allclose(tensors[n], other[n], 0.0, 0.0, equal_nan=True)]
    assert sorted([*same, *nan]) == sorted(tensors)
    assert any(name.startswith("replay.") for name in tensors)
    straight.close()
    loop.close()


ON_POLICY = {"batch_size": 32, "learn_step": 128, "epochs": 2, "max_seq_len": 8, "std": 0.5}


def on_policy(kind: str) -> dict[str, Any]:
    """A run of PPO, whose networks may remember."""
    network = {"encoder": [16], "latent": 16, "encoder_kind": kind}
    block = algos.get("ppo").Config.model_validate({**ON_POLICY, "network": network}).model_dump(mode="json")
    return {"train.algo": "ppo", "algos.ppo": block}


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.thorough
def test_every_bit_of_an_on_policy_state_comes_back(tmp_path: Path, kind: str) -> None:
    """Half-full rollouts, what networks remember, actions that are chosen: saved and loaded at random ticks."""
    folder = prepared(tmp_path, {**on_policy(kind), "train.max_steps": 1000})
    problem = make_spec(load_params(folder / "params.yaml"))
    members, _ = read_members(folder, layout.POPULATION, problem)

    def step(loop: Any, choose: bool = False) -> None:
        if loop.clock.generation_over:
            loop.close_generation(lambda: False)
        elif choose:
            loop.regime.choose()
        else:
            loop.advance()

    straight = begin(problem, members)
    while not straight.reason:
        step(straight)
    store, draw = CheckpointStore(tmp_path / "store"), random.Random(4)
    loop, count, chosen = begin(problem, members), 0, 0
    while not loop.reason:
        step(loop, choose=draw.random() < 0.1)
        if draw.random() < 0.08:
            store.save(count, *loop.state())
            chosen += loop.regime.world.pending is not None
            loop.close()
            loop, loaded, count = begin(problem, members), store.load(), count + 1
            assert loaded is not None
            assert loop.restore(loaded.tensors, loaded.meta) == 0
    assert count > 5
    assert chosen > 0
    (tensors, meta), (other, other_meta) = straight.state(), loop.state()
    assert other_meta == meta
    assert populations.equal_states((tensors, {}), (other, {})) == []
    straight.close()
    loop.close()


@pytest.mark.slow
def test_an_on_policy_run_that_is_killed_comes_to_the_same_end(start: Starter, tmp_path: Path) -> None:
    whole, folder = (prepared(tmp_path / name, on_policy("lstm")) for name in ("whole", "killed"))
    assert evopipe(whole, "train").returncode == 0
    kill_again_and_again(start, folder, kills=6, saves=2, expected=digests(whole), seed=3)


def team(algo: str, **config: Any) -> dict[str, Any]:
    """A run of a team whose agents come and go."""
    block = algos.get(algo).Config.model_validate({"network": {"encoder": [16], "latent": 16}, **config})
    mine = {"env.id": "teams_for_tests:Relay", "train.algo": algo, f"algos.{algo}": block.model_dump(mode="json")}
    if algos.on_policy(algos.get(algo)):
        return mine
    return mine | {"train.replay.n_step": 3, "train.replay.prioritised": True, "env.kwargs": {"kind": "continuous"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        team("matd3", batch_size=32, learn_step=8),
        team("ippo", **ON_POLICY | {"network": {"encoder": [16], "latent": 16, "encoder_kind": "lstm"}}),
    ],
    ids=["matd3", "ippo"],
)
def test_a_teams_run_that_is_killed_twenty_times_comes_to_the_same_end(
    overrides: dict[str, Any], start: Starter, tmp_path: Path
) -> None:
    whole, folder = (prepared(tmp_path / name, overrides) for name in ("whole", "killed"))
    assert evopipe(whole, "train").returncode == 0
    kill_again_and_again(start, folder, kills=20, saves=4, expected=digests(whole), seed=4)


# --- asked to stop ----------------------------------------------------------------------------------------------------


SIGNALS = [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.thorough)]


@pytest.mark.parametrize(("signum", "code"), SIGNALS)
@pytest.mark.thorough
def test_asked_to_stop(
    start: Starter, tmp_path: Path, expected: dict[str, str], signum: signal.Signals, code: int
) -> None:
    folder = prepared(tmp_path)
    run = start.start(folder, "train")
    assert wait_for(lambda: bool(checkpoints(folder)))
    asked = time.monotonic()
    run.send(signum)
    assert run.wait() == code, run.log
    assert time.monotonic() - asked < 10
    step = int(run.log.rsplit("stopped at step ", 1)[1].split()[0])
    assert 0 < step < 2000
    assert run.log.endswith(
        f"error: stopped at step {step} of each member; saved, the same command continues from there\n"
    )
    again = start.start(folder, "train")
    assert again.wait() == 0, again.log
    assert f"goes on at step {step:,}\n" in again.log
    assert digests(folder) == expected


@pytest.mark.thorough
def test_asked_to_stop_in_the_middle_of_an_evaluation(start: Starter, tmp_path: Path) -> None:
    long = {"train.max_steps": 400, "train.eval_episodes": 4000}  # Training takes a moment, evaluation seconds.
    folder, other = prepared(tmp_path / "a", long), prepared(tmp_path / "b", long)
    early, late, wait = 0.0, 20.0, 0.6
    for _ in range(12):  # Machines differ: what is too early on one is too late on another.
        run = start.start(folder, "train")
        assert wait_for(lambda run=run: trains(run))
        time.sleep(wait)
        asked = time.monotonic()
        run.send(signal.SIGTERM)
        code = run.wait()
        assert time.monotonic() - asked < 10
        if "stopped at step 400 of each member; saved" in run.log:
            assert code == 143, run.log
            break
        early, late = (early, wait) if "finished:" in run.log else (wait, late)
        wait = min(2 * wait, (early + late) / 2)
        shutil.rmtree(folder)
        prepared(folder, long)
    assert "stopped at step 400 of each member; saved" in run.log
    assert "generation 1" not in run.log
    for place in (folder, other):
        last = start.start(place, "train")
        assert last.wait() == 0, last.log
    assert digests(folder) == digests(other)


@pytest.mark.parametrize(("signum", "code"), SIGNALS)
@pytest.mark.thorough
def test_stage_evaluate_asked_to_stop(start: Starter, tmp_path: Path, signum: signal.Signals, code: int) -> None:
    folder = prepared(tmp_path, {"train.max_steps": 400, "evaluate.episodes": 20_000})
    assert start.start(folder, "train").wait() == 0
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0):
        run = start.start(folder, "evaluate")
        time.sleep(wait)
        asked = time.monotonic()
        run.send(signum)
        found = run.wait(), run.log
        assert time.monotonic() - asked < 10
        # Machines differ: where it had hardly begun it is asked once more, later.
        if found not in ((-signum, ""), (code, "error: interrupted\n")):
            break
    assert found == (code, "error: stopped, nothing was written; the same command begins it again\n")
    assert not (folder / "reports/evaluation.json").exists()


# --- two at once ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_second_run_leaves_at_once(start: Starter, tmp_path: Path, expected: dict[str, str]) -> None:
    folder = prepared(tmp_path)
    run = start.start(folder, "train")
    assert wait_for(lambda: trains(run))
    answer = call(folder, "train")
    assert answer.code == 75
    assert f"this run is being worked on by process {run.pid} (since " in answer.err
    assert answer.err.endswith("): wait for it, or stop it\n")
    assert run.wait() == 0, run.log
    assert digests(folder) == expected


# --- other and damaged checkpoints ------------------------------------------------------------------------------------


def interrupted(start: Starter, folder: Path, times: int = 1) -> Path:
    """Stop a run so often; return its newest checkpoint."""
    for _ in range(times):
        saved = checkpoints(folder)
        run = start.start(folder, "train")
        assert wait_for(lambda saved=saved: checkpoints(folder)[-1:] != saved[-1:])
        run.send(signal.SIGTERM)
        assert run.wait() == 143, run.log
    return checkpoints(folder)[-1]


@pytest.mark.thorough
def test_a_run_that_our_own_kernels_began_is_begun_anew_where_torch_computes(start: Starter, tmp_path: Path) -> None:
    """`runtime.kernels: auto` finds no compiler any more: one run is computed by one kind alone."""
    build.load()  # else there is none to begin with
    whole, folder = (prepared(tmp_path / name) for name in ("whole", "other"))
    before = interrupted(start, folder)
    for each in (whole, folder):
        ran = evopipe(each, "train", PATH=str(tmp_path), CC="")
        assert ran.returncode == 0, ran.stderr
        assert "networks are computed by torch" in ran.stderr
        assert "goes on at" not in ran.stderr
    assert digests(folder) == digests(whole)
    assert before.exists(), "it is the other kernels' still"


@pytest.mark.thorough
def test_a_checkpoint_of_other_params_is_never_taken(start: Starter, tmp_path: Path) -> None:
    folder, other = prepared(tmp_path / "a"), prepared(tmp_path / "b", {"train.learning_delay": 60})
    interrupted(start, folder)
    write_params(folder, FAST | {"train.learning_delay": 60})
    for place in (folder, other):
        run = start.start(place, "train")
        assert run.wait() == 0, run.log
        assert "goes on at step" not in run.log
    assert digests(folder) == digests(other)


@pytest.mark.thorough
def test_how_often_to_save_is_no_other_run(start: Starter, tmp_path: Path, expected: dict[str, str]) -> None:
    folder = prepared(tmp_path)
    interrupted(start, folder)
    write_params(folder, {"runtime.checkpoint_seconds": 5.0})
    run = start.start(folder, "train")
    assert run.wait() == 0, run.log
    assert "goes on at step" in run.log
    assert digests(folder) == expected


def flip(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.thorough
def test_the_newest_checkpoint_is_damaged(start: Starter, tmp_path: Path, expected: dict[str, str]) -> None:
    folder = prepared(tmp_path)
    damaged = flip(interrupted(start, folder, times=2) / "state.safetensors")
    run = start.start(folder, "train")
    assert run.wait() == 0, run.log
    assert f"warning: {damaged}: is damaged, its checksum does not match" in run.log
    assert "goes on at step" in run.log
    assert digests(folder) == expected


@pytest.mark.thorough
def test_all_checkpoints_are_damaged(start: Starter, tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    interrupted(start, folder, times=2)
    damaged = [flip(path / "state.safetensors") for path in checkpoints(folder)]
    answer = call(folder, "train")
    assert answer.code == 65
    assert "checkpoints is intact" in answer.err
    assert answer.err.endswith("): delete the folder to start over\n")
    assert all(str(path) in answer.err for path in damaged)
    assert not (folder / "models/trained").exists()


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_saving_takes_little_of_the_time(tmp_path: Path) -> None:
    """At the default interval, with a replay memory that is full: at most 2 % of wall time."""
    folder = prepared(
        tmp_path,
        {"train.max_steps": 40_000, "train.evo_steps": 10_000, "train.replay.capacity": 100_000, "train.warm_start": 0},
    )
    params = load_params(folder / "params.yaml")
    problem = make_spec(params)
    members, _ = read_members(folder, layout.POPULATION, problem)
    loop = begin(problem, members)
    while not loop.reason:
        if loop.clock.generation_over:
            loop.close_generation(lambda: False)
        else:
            loop.advance()
    store, costs = CheckpointStore(tmp_path / "store"), []
    for step in range(5):
        began = time.perf_counter()
        store.save(step, *loop.state())
        costs.append(time.perf_counter() - began)
    loop.close()
    seconds = Params().runtime.checkpoint_seconds
    share = sorted(costs)[2] / seconds
    print(f"a save takes {sorted(costs)[2] * 1000:.0f} ms, {100 * share:.2f} % of {seconds:.0f} s")
    assert share <= 0.02
