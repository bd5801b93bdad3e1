"""What each stage hands to the next, value by value, against what brute force gives."""

from __future__ import annotations

import csv
import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch

import evopipe
import populations
import reference
from evopipe import algos, formats, layout, rng
from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.data.collect import GOOD, POOR
from evopipe.data.episodes import RecordedEpisode
from evopipe.data.minari import read_own
from evopipe.data.transitions import Transitions, write_transitions
from evopipe.errors import BusyError, DataError, DiskError, EnvironmentFailed, Interrupted
from evopipe.machine import fingerprint
from evopipe.mutations import Mutation
from evopipe.native import build
from evopipe.params.load import Params, parse_params
from evopipe.policies import policy
from evopipe.problems import env_evaluate, problem_of
from evopipe.problems.env import begin
from evopipe.problems.specs import make_spec
from evopipe.regimes.warm import read_warm
from evopipe.rng import Purpose
from evopipe.run import drive
from evopipe.run.outs import write_results
from evopipe.run.population import about_spec, read_members
from evopipe.run.run import Champion
from evopipe.run.session import key_of
from evopipe.run.spec import first_members
from evopipe.searchers.history import Born, Record
from evopipe.signals import StopSignal
from evopipe.stages import buffer, evaluate, export, fetch, population, train
from evopipe.storage import members as stored
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.keys import content_key, state_folder
from evopipe.storage.lock import RunLock
from evopipe.track.events import End, Generation, Progress, Start, read_events
from handover_envs import LIMIT, Drift
from tiny import digests
from tiny import params as tiny_params

SEED = 7
SMALL: dict[str, Any] = {
    "seed": SEED,
    "env.id": "handover_envs:Drift-v0",
    "env.num_envs": 3,
    "fetch.collect.episodes": 9,
    "population.size": 3,
    "train.max_steps": 120,
    "train.evo_steps": 60,
    "train.learning_delay": 12,
    "train.warm_start": 20,
    "train.eval_episodes": 3,
    "train.eval_steps": 5,
    "train.normalise.observations": True,
    "train.normalise.clip": 2.0,
    "evolution.mutation.before_training": True,
    "evolution.mutation.activations": ["ReLU", "GELU", "Sigmoid"],
    "evaluate.episodes": 5,
    "evaluate.steps": 9,
    "runtime.device": "cpu",
    "runtime.env_workers": 0,
    "runtime.learners": 1,
}


def small(changes: Mapping[str, Any] | None = None) -> Params:
    return parse_params(tiny_params({**SMALL, **(changes or {})}))


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def table(path: Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


def held_out(n: int) -> list[int]:
    """The seeds of held-out episodes."""
    drawn: np.ndarray = rng.seeds(np.full(n, rng.run_key(SEED)), Purpose.HELD_OUT, np.arange(n))
    return drawn.tolist()


def test_a_problem_is_what_the_parameters_say() -> None:
    params = small({"runtime.cohorts": "exact", "runtime.compile": "off"})
    problem = make_spec(params)
    assert (problem.seed, problem.env, problem.train) == (SEED, params.env, params.train)
    assert (problem.tournament, problem.mutation) == (params.evolution.tournament, params.evolution.mutation)
    assert problem.algo_config == params.algo_config.at(problem.spaces)
    assert (problem.cohorts, problem.device) == ("exact", torch.device("cpu"))
    spaces = {"observations": 3, "actions": 3, "continuous": False}
    assert about_spec(problem) == {"algo": "dqn", "env": "handover_envs:Drift-v0", **spaces}


# --- fetch and buffer -------------------------------------------------------------------------------------------------


def played(episode: RecordedEpisode, cap: int | None) -> bool:
    """Whether an environment of its own, with this episode's seed and actions, gives this episode."""
    env = gymnasium.make("handover_envs:Drift-v0")
    obs, _ = env.reset(seed=episode.seed)
    seen, rewards, last = [obs], [], len(episode) - 1
    for t, action in enumerate(episode.action.tolist()):
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append(obs)
        rewards.append(reward)
        cut = bool(truncated) or (t + 1 == cap and not terminated)
        assert (episode.terminated[t], episode.truncated[t]) == (terminated, cut)
        assert (terminated or cut) == (t == last)
    return np.array_equal(episode.obs, np.stack(seen)) and np.array_equal(episode.reward, np.float32(rewards))


@pytest.mark.parametrize("cap", [None, 6])
def test_what_was_fetched_is_what_the_environment_gives_and_is_packed_as_it_is(tmp_path: Path, cap: int | None) -> None:
    """Whatever training would step: no tensors know this environment. Of twelve, whose names do not sort as numbers."""
    params = small({"fetch.collect.max_steps": cap, "fetch.collect.episodes": 12, "env.backend": "torch"})
    fetch.run(params, quiet=True, folder=tmp_path)
    buffer.run(params, quiet=True, folder=tmp_path)
    episodes = read_own(tmp_path / "data/dataset").episodes
    assert len(episodes) == 12
    assert all(played(episode, cap) for episode in episodes)
    with h5py.File(tmp_path / "data/dataset/data/main_data.hdf5") as file:  # no reader need mend it
        ends = [[bool(file[f"episode_{i}"][f"{how}ations"][-1]) for how in ("termin", "trunc")] for i in range(12)]
    assert ends == [[bool(e.terminated[-1]), not e.terminated[-1]] for e in episodes]
    assert {int(a) for episode in episodes for a in episode.action} == {2, 3, 4}
    draws = [rng.host(SEED, Purpose.BEHAVIOUR, number) for number in range(12)]
    assert all(draw.choice(1, p=[1.0]) == 0 for draw in draws)  # who plays is drawn first
    assert [episode.seed for episode in episodes] == [int(draw.integers(2**31)) for draw in draws]

    with h5py.File(tmp_path / "data/transitions.h5") as file:
        data = {name: file[name][:] for name in file}
        assert json.loads(file.attrs["stats"]) == read(tmp_path / "reports/buffer.json")
    joined = {
        "obs": [o for e in episodes for o in e.obs[:-1]],
        "action": [a - 2 for e in episodes for a in e.action],
        "reward": [r for e in episodes for r in e.reward],
        "terminated": [t for e in episodes for t in e.terminated],
        "truncated": [t for e in episodes for t in e.truncated],
        "next_obs": [o for e in episodes for o in e.obs[1:]],
        "episode": [i for i, e in enumerate(episodes) for _ in range(len(e))],
    }
    assert data.keys() == joined.keys()
    for name, values in joined.items():
        assert np.array_equal(data[name], np.array(values)), name

    told = read(tmp_path / "reports/buffer.json")
    returns = [float(e.reward.astype(np.float64).sum()) for e in episodes]
    lengths = [len(e) for e in episodes]
    assert (told["episodes"], told["transitions"]) == (12, sum(lengths))
    assert told["terminations"] == sum(bool(e.terminated[-1]) for e in episodes)
    assert told["truncations"] == 12 - told["terminations"] > 0
    assert told["actions"] == [joined["action"].count(a) for a in range(3)]
    for name, values in (("return", returns), ("length", lengths), ("reward", data["reward"].astype(np.float64))):
        expected = {kind: getattr(np.array(values), kind)() for kind in ("mean", "std", "min", "max")}
        assert told[name] == pytest.approx(expected, rel=1e-12), name
    for kind, values in told["obs"].items():
        assert values == pytest.approx(getattr(data["obs"].astype(np.float64), kind)(axis=0).tolist(), rel=1e-12)

    said = read(tmp_path / "reports/fetch.json")
    for block in (said, said["policies"]["random"]):
        assert (block["episodes"], block["transitions"]) == (12, sum(lengths))
        assert block["return"] == pytest.approx({"mean": np.mean(returns), "std": np.std(returns)})
    assert (said["env"], said["source"], said["broken_steps"]) == ("handover_envs:Drift-v0", "collect", 0)


def test_an_episode_that_breaks_ends_with_its_last_whole_step(tmp_path: Path) -> None:
    """Those that start right of 0.2 break with their second step."""
    fetch.run(small({"env.kwargs": {"breaks": 0.2}}), quiet=True, folder=tmp_path)
    episodes = read_own(tmp_path / "data/dataset").episodes
    broken = [episode for episode in episodes if episode.obs[0, 0] > 0.2]
    assert 0 < len(broken) < len(episodes) == 9
    for episode in broken:
        assert (len(episode), episode.terminated.tolist(), episode.truncated.tolist()) == (1, [False], [True])
    assert read(tmp_path / "reports/fetch.json")["broken_steps"] == len(broken)


def test_a_poor_rule_acts_at_random_three_times_in_ten(tmp_path: Path) -> None:
    params = small({"env.id": "CartPole-v1", "fetch.collect.policies": {"medium": 1.0, "heuristic": 1.0}})
    fetch.run(params, quiet=True, folder=tmp_path)
    poor = 0
    for number, episode in enumerate(read_own(tmp_path / "data/dataset").episodes):
        draw = rng.host(SEED, Purpose.BEHAVIOUR, number)
        name = ["heuristic", "medium"][int(draw.choice(2, p=[0.5, 0.5]))]
        assert int(draw.integers(2**31)) == episode.seed
        rule = {"heuristic": GOOD, "medium": POOR}[name]["CartPole-v1"]
        env = gymnasium.make("CartPole-v1")
        for obs, action in zip(episode.obs[:-1], episode.action.tolist(), strict=True):
            by_chance = name == "medium" and draw.random() < 0.3
            assert action == (draw.integers(2) if by_chance else rule(env, obs))
        poor += name == "medium"
    assert 0 < poor < 9
    assert read(tmp_path / "reports/fetch.json")["policies"]["medium"]["episodes"] == poor


def test_a_recurrent_policy_begins_each_episode_without_a_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    network = {"encoder_kind": "lstm", "encoder": [8], "latent": 8}
    block = {"network": network, "learn_step": 64, "batch_size": 32}
    config = algos.get("ppo").Config.model_validate(block).model_dump(mode="json")
    params = small({
        "train.algo": "ppo", "train.warm_start": 0, "train.normalise.observations": False, "algos.ppo": config,
        "fetch.collect.policies": {"policy": 1.0}, "fetch.collect.policy_path": "elite", "fetch.collect.episodes": 4,
    })  # fmt: skip
    problem = make_spec(params)
    member = first_members(problem, 1)[0][0]
    member.tensors["actor"].mul_(4.0)  # so that what it remembers counts
    policy.save(Path("elite"), "ppo", member, {**about_spec(problem), "action_start": 2, "config": config}, False, "")
    fetch.run(params, quiet=True)
    loaded, stale, unlike = policy.load("elite"), None, 0
    for episode in read_own(Path("data/dataset")).episodes:
        memory = None
        for obs, action in zip(episode.obs[:-1], episode.action.tolist(), strict=True):
            chosen, memory = loaded.step(obs, memory)
            assert chosen == action
            other, stale = loaded.step(obs, stale)
            unlike += other != action
    assert unlike > 0


# --- population -------------------------------------------------------------------------------------------------------


def test_the_first_population_is_written_as_it_was_made(tmp_path: Path) -> None:
    params = small()
    population.run(params, quiet=True, folder=tmp_path)
    problem = make_spec(params)
    expected, births = first_members(problem, 3)
    members, about = read_members(tmp_path, layout.POPULATION, problem)
    assert [replace(m, tensors={}) for m in members] == [replace(m, tensors={}) for m in expected]
    assert [m.key for m in members] == rng.member_keys(SEED, range(3)).tolist()
    assert all(populations.same(a, b) for a, b in zip(members, expected, strict=True))
    assert [Mutation(**birth) for birth in about["mutations"]] == births
    assert all(birth["kind"] != "none" for birth in about["mutations"])


def start(folder: Path, healthy: Sequence[bool]) -> list[Member]:
    """Write trained members, of unlike tensors and scores; the last is the elite."""
    problem = make_spec(small())
    members = [
        replace(
            m,
            healthy=well,
            fitness=(0.5 * m.slot,),
            parent=40 + m.slot,
            tensors={**m.tensors, "updates": torch.full_like(m.tensors["updates"], 100 + m.slot)},
        )
        for m, well in zip(first_members(problem, len(healthy))[0], healthy, strict=True)
    ]
    stored.write(folder, members, {**about_spec(problem), "elite": {}})
    return members


def test_a_run_goes_on_from_the_elite_and_the_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, _, third, elite = start(Path("begin"), [True, False, True, True])
    params = small({"population.start": "begin", "population.size": 5, "train.warm_start": 0})
    population.run(params, quiet=True)
    members, about = read_members(Path(), layout.POPULATION, make_spec(params))
    for slot, (member, old) in enumerate(zip(members, [elite, first, third, elite, first], strict=True)):
        assert populations.same(member, old)
        assert (member.arch, member.hyper, member.healthy) == (old.arch, old.hyper, True)
        assert (member.slot, member.id, member.parent, member.fitness) == (slot, slot, None, ())
    assert [m.key for m in members] == rng.member_keys(SEED, range(5)).tolist()
    assert [birth["kind"] for birth in about["mutations"]] == ["none"] * 5
    train.run(params, quiet=True)
    after, _ = read_members(Path(), layout.TRAINED, make_spec(params))
    assert min(int(m.tensors["updates"]) for m in after) > 103, "and they learn on"


def test_a_run_cannot_go_on_from_members_that_all_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start(Path("begin"), [False, False])
    with pytest.raises(DataError, match=r"begin: every member has diverged; population\.start names"):
        population.run(small({"population.start": "begin"}), quiet=True)


# --- train ------------------------------------------------------------------------------------------------------------


def dataset(path: Path, first: int | None) -> Transitions:
    """The first transitions of a file."""
    with h5py.File(path) as file:
        return Transitions(**{name: file[name][:first] for name in Transitions.__slots__})


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_training_writes_what_the_loop_ended_with(tmp_path: Path, mode: str) -> None:
    params = small({"train.mode": mode})
    for stage in (fetch, buffer, population, train):
        stage.run(params, quiet=True, folder=tmp_path)
    problem = make_spec(params)
    warm = dataset(tmp_path / "data/transitions.h5", 20 if mode == "online" else None)
    assert len(warm.action) == 20 or mode == "offline"
    loop = begin(problem, *(lambda made: (made[0], warm, made[1]))(first_members(problem, 3)))
    populations.finish(loop)
    loop.close()
    assert loop.champion is not None

    trained, about = read_members(tmp_path, layout.TRAINED, problem)
    expected = [*loop.members, loop.champion.member]
    assert [replace(m, tensors={}) for m in trained] == [replace(m, tensors={}) for m in expected]
    assert all(populations.same(a, b) for a, b in zip(trained, expected, strict=True))
    lineage = [json.loads(line) for line in (tmp_path / "reports/lineage.jsonl").read_text().splitlines()]
    assert lineage == json.loads(json.dumps([record.to_json() for record in loop.lineage]))
    assert [record["generation"] for record in lineage] == [0, 1, 2]
    assert any(child["mutation"]["kind"] != "none" for child in lineage[0]["children"])

    last = [member["fitness"] for member in lineage[-1]["members"]]
    summary = read(tmp_path / "reports/train.json")
    assert (summary["best_fitness"], summary["mean_fitness"]) == pytest.approx((max(last), sum(last) / 3))
    assert summary["steps"] == {
        "each_member": 120, "training": 360, "evaluation": loop.clock.eval_steps, "all": 360 + loop.clock.eval_steps,
    }  # fmt: skip
    assert (summary["warm_start"], summary["generations"], summary["target"]) == (len(warm.action), 2, None)
    assert summary["elite"] == about["elite"]
    head, *rows = table(tmp_path / "reports/fitness.csv")
    assert head == ["generation", "step", "env_steps", "eval_steps", "best", "mean", "elite"]
    assert [[float(cell) for cell in row] for row in rows] == loop.curve
    assert [row[:3] for row in rows] == [["1", "60", "180"], ["2", "120", "360"]]
    for row, record in zip(rows, lineage[1:], strict=True):
        scores = [member["fitness"] for member in record["members"]]
        assert [float(cell) for cell in row[4:6]] == pytest.approx([max(scores), sum(scores) / 3])
    (log,) = tmp_path.glob(".evopipe/train/*/events.jsonl")
    said = [event for _, event in read_events(log) if not isinstance(event, Progress)]
    assert said[0] == Start("train", "handover_envs:Drift-v0", "dqn", 3, 120, None)
    assert [(event.generation, event.step) for event in said if isinstance(event, Generation)] == [(1, 60), (2, 120)]
    assert isinstance(said[-1], End)
    assert (said[-1].reason, said[-1].env_steps, said[-1].eval_steps) == ("all steps taken", 360, loop.clock.eval_steps)
    timed = table(tmp_path / "reports/timing.csv")
    assert [[row[0], *row[2:]] for row in timed[1:]] == [
        ["1", "180", rows[0][3]], ["2", "180", str(int(rows[1][3]) - int(rows[0][3]))],
    ]  # fmt: skip


@pytest.mark.parametrize(("columns", "most", "text"), [
    (3, 2, None),
    (3, 1, None),
    (3, None, "holds observations of length 3 and 3 continuous actions, .* has 3 and 3 discrete ones"),
    (3, 3, "holds observations of length 3 and 4 discrete actions, handover_envs:Drift-v0 has 3 and 3"),
    (4, 2, "holds observations of length 4 and 3 discrete actions, handover_envs:Drift-v0 has 3 and 3"),
])  # fmt: skip
def test_training_refuses_transitions_that_it_could_not_learn_from(
    tmp_path: Path, columns: int, most: int | None, text: str | None
) -> None:
    """Of discrete actions not every one need have been taken."""
    obs, ends = np.zeros((4, columns), np.float32), np.zeros(4, bool)
    actions = np.zeros((4, 3), np.float32) if most is None else np.array([0, most, 1, 0])
    rows = Transitions(obs, actions, np.zeros(4, np.float32), ends, ends, obs, np.zeros(4, np.int64))
    write_transitions(tmp_path / "data/transitions.h5", rows, {})
    params = small()
    if text is None:
        assert len(read_warm(make_spec(params), tmp_path) or ()) == 4
    else:
        with pytest.raises(DataError, match=text):
            read_warm(make_spec(params), tmp_path)


def test_what_training_writes_by_hand(tmp_path: Path) -> None:
    """The elite is the champion: a snapshot, here of a member that nobody of the last population descends from."""
    params = small({"train.warm_start": 0, "train.max_steps": 60, "train.target": "auto"})
    problem = make_spec(params)
    loop = begin(problem, first_members(problem, 3)[0])
    populations.finish(loop)
    before = first_members(replace(problem, seed=8), 3)[0][2]
    champion = replace(before, id=77, parent=70, slot=1, fitness=(1.0, 12.5))
    loop.champion = Champion(champion, 12.25, 0.75, True, 4, np.zeros(4))
    loop.curve = [[1, 60, 180, 45, None, None, None], [2, 120, 360, 93, 0.0, -2.25, 12.25]]
    clock = loop.clock
    clock.tick, clock.generation, clock.env_steps, clock.eval_steps = 40, 2, 360, 93
    loop.regime.warm, clock.broken, clock.broken_here = 17, 5, 1
    write_results(loop, loop.champion, about_spec(problem), tmp_path)
    loop.close()
    members, about = read_members(tmp_path, layout.TRAINED, problem)
    assert [m.id for m in members] == [*(m.id for m in loop.members), 77]
    assert [m.slot for m in members] == [0, 1, 2, 1]
    assert all(populations.same(a, b) for a, b in zip(members, [*loop.members, champion], strict=True))
    elite = {"id": 77, "generation": 4, "score": 12.25, "standard_error": 0.75, "confirmed": True}
    assert about["elite"] == elite
    assert read(tmp_path / "reports/train.json") == {
        "reason": "max_steps",
        "generations": 2,
        "steps": {"each_member": 120, "training": 360, "evaluation": 93, "all": 453},
        "broken_transitions": 5,
        "elite": elite,
        "best_fitness": 0.0,
        "mean_fitness": -2.25,
        "target": 900.0,
        "warm_start": 17,
    }
    assert table(tmp_path / "reports/fitness.csv")[1:] == [
        ["1", "60", "180", "45", "", "", ""],
        ["2", "120", "360", "93", "0.0", "-2.25", "12.25"],
    ]


# --- checkpoints ------------------------------------------------------------------------------------------------------

OTHER_RUNS: dict[str, Any] = {
    "seed": 8,
    "env.kwargs": {"breaks": 8.0},
    "env.num_envs": 4,
    "env.backend": "torch",
    "train.eval_episodes": 4,
    "train.normalise.clip": 3.0,
    "train.replay.alpha": 0.5,
    "evolution.tournament.size": 3,
    "evolution.tournament.elitism": False,
    "evolution.mutation.sd": 0.2,
    "evolution.mutation.architecture.max_layers": 2,
    "algos.dqn.gamma": 0.9,
    "algos.dqn.evolve": {},
    "algos.dqn.network.latent": 24,
    "runtime.threads": 2,
    "runtime.cohorts": "exact",
    "runtime.compile": "off",
    "runtime.device": "auto",
}
SAME_RUN: dict[str, Any] = {
    "runtime.checkpoint_seconds": 7.0,
    "runtime.env_workers": 2,
    "runtime.learners": 2,
    "evaluate.episodes": 9,
    "export.program": True,
    "tracking.experiment": "other",
    "fetch.collect.episodes": 4,
}


def states(folder: Path) -> set[str]:
    """The runs whose state is kept."""
    return {path.name for path in folder.glob(".evopipe/train/*") if path.is_dir()}


@pytest.mark.thorough
def test_a_checkpoint_serves_the_run_that_wrote_it_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other settings, another population, dataset or environment; and the settings of other stages do not matter."""
    source = Path(__file__).parents[1] / "handover_envs.py"
    (tmp_path / "own_drift.py").write_text(source.read_text().replace("Drift-v0", "OwnDrift-v0"))
    monkeypatch.syspath_prepend(tmp_path)
    made = {"env.id": "own_drift:OwnDrift-v0"}
    for stage in (fetch, buffer, population):
        stage.run(small(made), quiet=True, folder=tmp_path)

    def key(changes: Mapping[str, Any]) -> str:
        return key_of(problem_of(small({**made, **changes}), tmp_path), tmp_path)

    first = key({})
    others = {name: key({name: value}) for name, value in OTHER_RUNS.items()}
    assert {name: key({name: value}) for name, value in SAME_RUN.items()} == dict.fromkeys(SAME_RUN, first)
    for path in ("own_drift.py", "data/transitions.h5", "models/population/members.safetensors"):
        content = (tmp_path / path).read_bytes()
        (tmp_path / path).write_bytes(content + b" ")
        others[path] = key({})
        (tmp_path / path).write_bytes(content)
    assert key({}) == first
    (tmp_path / "package").mkdir()
    monkeypatch.setattr("evopipe.run.session.CODE", tmp_path / "package")
    for code in ("a = 1\n", "a = 2\n"):
        (tmp_path / "package/part.py").write_text(code)
        others[code] = key({})
    whole = problem_of(small(made), tmp_path)
    others["no dataset"] = key_of(replace(whole, inputs=lambda: whole.inputs()[1:]), tmp_path)
    if build.chosen():  # and now `runtime.kernels: auto` finds no compiler

        def load(target: str) -> None:
            raise build.NoKernels("there is no compiler")

        monkeypatch.setattr(build, "load", load)
        others["kernels"] = key({})
    assert len({first, *others.values()}) == 1 + len(others)


@pytest.mark.thorough
@pytest.mark.parametrize("other", [{}, {"seed": 8}])
def test_a_run_that_broke_off_goes_on_with_its_own_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], other: dict[str, Any]
) -> None:
    params = small({"env.id": "handover_envs:Drift-v0"})
    for stage in (fetch, buffer, population):
        stage.run(params, quiet=True, folder=tmp_path)
    monkeypatch.setattr(Drift, "fuse", 300)
    with pytest.raises(EnvironmentFailed, match="the fuse is blown"):
        train.run(params, quiet=True, folder=tmp_path)
    monkeypatch.setattr(Drift, "fuse", None)
    (before,) = states(tmp_path)
    (saved,) = tmp_path.glob(".evopipe/train/*/checkpoints/step-*/meta.json")
    ticks = read(saved)["meta"]["clock"]["tick"]
    assert 0 < ticks < 40
    shutil.copytree(tmp_path, tmp_path / "whole", ignore=shutil.ignore_patterns(".evopipe"))
    train.run(params, quiet=True, folder=tmp_path / "whole")
    if other:
        for stage in (fetch, buffer):
            stage.run(small(other), quiet=True, folder=tmp_path)
    capsys.readouterr()
    train.run(params, folder=tmp_path)
    went_on = re.search(r"goes on at step (\d+)\n", capsys.readouterr().err)
    assert (int(went_on[1]) if went_on else 0) == (0 if other else 3 * ticks)
    assert (states(tmp_path) == {before}) == (digests(tmp_path) == digests(tmp_path / "whole")) == (not other)
    assert not list(tmp_path.rglob(".evopipe/train/*/checkpoints")) or other


def test_a_signal_saves_a_run_that_has_not_ended(tmp_path: Path) -> None:
    """One that has ended is written, whatever comes then."""
    params = small({"train.warm_start": 0})
    problem = make_spec(params)
    loop = begin(problem, first_members(problem, 2)[0])
    store, stop = CheckpointStore(tmp_path / "store"), StopSignal()
    loop.advance()
    stop.signum = 15
    with pytest.raises(Interrupted, match="stopped at step 3 of each member; saved"):
        populations.session(loop, store, stop).train()
    saved = store.load()
    assert saved is not None
    assert saved.meta["clock"]["tick"] == 1
    populations.finish(loop)
    assert populations.session(loop, CheckpointStore(tmp_path / "none"), stop).train() is loop.champion
    loop.close()


def test_one_training_at_a_time_writes_a_state_and_a_folder(tmp_path: Path) -> None:
    """A run of other parameters keeps another state, but writes the same outputs."""
    params = small({"train.warm_start": 0})
    population.run(params, quiet=True, folder=tmp_path)
    outputs = content_key({"outputs": tmp_path.absolute()})
    for kind, key in (("train", key_of(problem_of(params, tmp_path), tmp_path)), ("locks", outputs)):
        held = state_folder(kind, key, tmp_path).with_suffix(".lock")
        with RunLock(held), pytest.raises(BusyError, match=f"{held.name}: this run is being worked on"):
            train.run(params, quiet=True, folder=tmp_path)
    assert not (tmp_path / "models/trained").exists()


def test_first_weights_are_made_with_the_runs_own_number_of_threads(tmp_path: Path) -> None:
    """Of a layer 1024 wide three threads make other last bits than one: a machine's cores must not decide."""
    found = []
    for threads in (3, 1):
        torch.set_num_threads(threads)
        folder = tmp_path / str(threads)
        population.run(small({"algos.dqn.network.latent": 1024}), quiet=True, folder=folder)
        found.append((folder / "models/population/members.safetensors").read_bytes())
    assert torch.get_num_threads() == small().runtime.threads
    assert found[0] == found[1]


def test_a_training_whose_outputs_cannot_be_written_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = small({"train.warm_start": 0})
    population.run(params, quiet=True, folder=tmp_path)
    (tmp_path / "reports").write_text("a file in the folder's place")
    with pytest.raises(DiskError, match="a part of this path is a file"):
        train.run(params, quiet=True, folder=tmp_path)
    (tmp_path / "reports").unlink()
    train.run(params, folder=tmp_path)
    assert "goes on at step 120\n" in capsys.readouterr().err
    assert read(tmp_path / "reports/train.json")["generations"] == 2


def test_saving_waits_its_seconds_and_a_hundred_times_what_it_costs(tmp_path: Path) -> None:
    problem = make_spec(small({"train.warm_start": 0}))
    loop = begin(problem, first_members(problem, 2)[0])
    store = CheckpointStore(tmp_path / "store")
    saver = drive.Saver(loop, store, 100.0)
    for cost, waited, due in ((0.0, 50.0, False), (2.0, 150.0, False), (0.5, 101.0, True), (2.0, 250.0, True)):
        saver.cost, saver.last = cost, time.perf_counter() - waited
        saver.save_if_due()
        assert (store.load() is not None) == due
        assert not due or 0.0 < saver.cost != cost
        assert (time.perf_counter() - saver.last < 49.0) == due
        store.clear()
    saver.save()
    loop.advance()
    saver.save()
    loop.clock.generation += 1  # closing one takes no step
    saver.save()
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-000000000001", "step-000000000002"]
    loop.close()


# --- evaluate and export ----------------------------------------------------------------------------------------------


def trained(folder: Path, params: Params) -> list[Member]:
    """Write three members and an elite of unlike networks, which normalise unlike what they see."""
    problem = make_spec(params)
    members, size = [], problem.observations
    for i, made in enumerate(first_members(problem, 4)[0]):
        seen = {
            "normaliser.count": torch.tensor(10.0 + i, dtype=torch.float64),
            "normaliser.mean": torch.linspace(-0.5, 3.0 - i, size, dtype=torch.float64),
            "normaliser.square": torch.linspace(4.0, 900.0 + i, size, dtype=torch.float64),
        }
        tensors = {**problem.equip(made).tensors, **seen}
        assert tensors.keys() == problem.equip(made).tensors.keys()
        draw = np.random.default_rng(i)
        tensors["q"] = reference.random_row(made.arch, problem.widths["q"], draw) * 2.0
        hyper = {**made.hyper, "lr": 1e-4 * (i + 1)}
        members.append(replace(made, id=20 + i, tensors=tensors, hyper=hyper, slot=i % 3, fitness=(float(i),)))
    elite = {"id": 23, "generation": 3, "score": 4.5, "standard_error": 0.25, "confirmed": True}
    stored.write(folder / "models/trained", members, {**about_spec(problem), "elite": elite})
    return members


def values(params: Params, member: Member, obs: np.ndarray) -> np.ndarray:
    """A member's action values of observations `[n, O]`, without the project's networks."""
    t = member.tensors
    spread = (t["normaliser.square"] / t["normaliser.count"] + 1e-8).sqrt()
    shown = ((torch.from_numpy(obs).double() - t["normaliser.mean"]) / spread).clamp(-2.0, 2.0).float()
    widths = make_spec(params).widths["q"]
    return reference.function(member.arch, widths, t["q"], shown).numpy()


def score(params: Params, member: Member, seed: int, cap: int | None) -> tuple[float, int]:
    """Return and length of a greedy episode in Gymnasium's environment; a NaN return where it breaks."""
    env = gymnasium.make(params.env.id, **params.env.kwargs)
    obs, _ = env.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over and steps != cap and total == total:
        best = int(values(params, member, obs[None])[0].argmax())
        obs, reward, terminated, truncated, _ = env.step(best + int(getattr(env.action_space, "start", 0)))
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
    return total, steps


def interval(returns: np.ndarray, resamples: int, index: int) -> list[float]:
    """The 95 % interval of a mean by the bootstrap."""
    draw = rng.host(rng.run_key(SEED), Purpose.BOOTSTRAP, index)
    picks = draw.integers(0, len(returns), (resamples, len(returns)))
    means = [sum(returns[i] for i in pick) / len(returns) for pick in picks]
    return [float(np.quantile(means, share)) for share in (0.025, 0.975)]


NAMES = ["member_0", "member_1", "member_2", "elite"]


@pytest.mark.parametrize("cap", [9, None])
def test_every_held_out_score_is_that_of_its_member_on_its_seed(tmp_path: Path, cap: int | None) -> None:
    """In whole episodes where evaluation has no cap, whatever cap training's evaluations have."""
    params = small({"evaluate.steps": cap})
    members = trained(tmp_path, params)
    evaluate.run(params, quiet=True, folder=tmp_path)
    seeds = held_out(5)
    found = {
        name: [score(params, member, seed, cap) for seed in seeds] for name, member in zip(NAMES, members, strict=True)
    }
    head, *rows = table(tmp_path / "reports/episodes.csv")
    assert head == ["member", "seed", "return", "length"]
    assert [row[:2] for row in rows] == [[name, str(seed)] for name in NAMES for seed in seeds]
    assert [int(row[3]) for row in rows] == [steps for name in NAMES for _, steps in found[name]]
    assert max(int(row[3]) for row in rows) == (cap or LIMIT)
    np.testing.assert_allclose([float(row[2]) for row in rows], [r for name in NAMES for r, _ in found[name]], 1e-5)
    assert len({row[2] for row in rows}) > 15, "the members play unlike"

    told = read(tmp_path / "reports/evaluation.json")
    scores = {**read(tmp_path / "reports/members.json"), "elite": told["elite"]}
    assert list(scores) == NAMES
    for i, name in enumerate(NAMES):
        returns = np.array([float(row[2]) for row in rows if row[0] == name])
        ordered = sorted(returns)
        assert scores[name].pop("interval") == pytest.approx(interval(returns, 100, i))
        assert scores[name] == pytest.approx({
            "mean": sum(returns) / 5,
            "std": float(np.sqrt(((returns - sum(returns) / 5) ** 2).sum() / 4)),
            "median": ordered[2],
            "iqm": (0.75 * ordered[1] + ordered[2] + 0.75 * ordered[3]) / 2.5,
            "min": ordered[0],
            "max": ordered[-1],
            "mean_length": sum(steps for _, steps in found[name]) / 5,
        })  # fmt: skip
    all_steps = sum(steps for name in NAMES for _, steps in found[name])
    assert {k: v for k, v in told.items() if k != "elite"} == {"episodes": 5, "steps": all_steps, "env": params.env.id}


def test_broken_episodes_count_for_nothing(tmp_path: Path) -> None:
    """At most a tenth of a member's: here those whose seed starts right of 0.61."""
    params = small({"env.kwargs": {"breaks": 0.61}, "evaluate.episodes": 24})
    members = trained(tmp_path, params)
    evaluate.run(params, quiet=True, folder=tmp_path)
    seeds = held_out(24)
    env = gymnasium.make("handover_envs:Drift-v0")
    whole = [seed for seed in seeds if env.reset(seed=seed)[0][0] <= 0.61]
    assert 22 <= len(whole) < 24
    rows = table(tmp_path / "reports/episodes.csv")[1:]
    assert [row[:2] for row in rows] == [[name, str(seed)] for name in NAMES for seed in whole]
    told = read(tmp_path / "reports/evaluation.json")["elite"]
    of_elite = [score(params, members[-1], seed, 9) for seed in whole]
    assert told["mean"] == pytest.approx(np.mean([total for total, _ in of_elite]), rel=1e-5)
    assert told["mean_length"] == pytest.approx(np.mean([steps for _, steps in of_elite]))


def test_too_many_broken_episodes_give_no_score(tmp_path: Path) -> None:
    params = small({"env.kwargs": {"breaks": 0.5}, "evaluate.episodes": 24})
    trained(tmp_path, params)
    with pytest.raises(EnvironmentFailed, match=r"in \d+ of 96 episodes: mend it"):
        evaluate.run(params, quiet=True, folder=tmp_path)
    assert not (tmp_path / "reports").exists()


def test_no_member_is_judged_by_the_few_episodes_that_were_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of each member's may break; three of one member's twenty are too many, few as they are of all eighty."""
    whole = np.ones((4, 20), bool)
    env_evaluate._refuse_or_warn(whole, "E")
    assert capsys.readouterr().err == ""
    whole[:, [3, 7]] = False
    env_evaluate._refuse_or_warn(whole, "E")
    assert "in 8 of 80 episodes; they are left out of the scores" in capsys.readouterr().err
    whole[:] = True
    whole[2, :3] = False
    with pytest.raises(EnvironmentFailed, match="in 3 of 80 episodes: mend it"):
        env_evaluate._refuse_or_warn(whole, "E")


def test_scores_and_datasets_are_gymnasiums_whatever_steps_training(tmp_path: Path) -> None:
    """The tensors' CartPole draws other initial states from a seed."""
    both = []
    for backend in ("sync", "torch"):
        folder = tmp_path / backend
        params = small({"env.id": "CartPole-v1", "env.backend": backend, "evaluate.steps": None})
        trained(folder, params)
        for stage in (fetch, buffer, evaluate):
            stage.run(params, quiet=True, folder=folder)
        both.append([(folder / out).read_bytes() for out in ("reports/episodes.csv", "data/transitions.h5")])
    assert both[0] == both[1]


LINEAGE = [
    (0, [(0, None, "none"), (1, None, "rl_hp"), (2, None, "none")]),
    (1, [(1, 0, "none"), (4, 1, "parameters"), (5, 2, "activation")]),
    (2, [(4, 1, "none"), (21, 0, "rl_hp"), (23, 4, "architecture")]),
    (3, [(23, 4, "none"), (30, 23, "rl_hp"), (31, 21, "none")]),
]
"""Generation, and its children: id, parent and mutation. One that survives stands there again, with its own id."""


def write_lineage(folder: Path) -> None:
    (folder / "reports").mkdir(exist_ok=True)
    arch = Arch((Block(16),), 16, (), "ReLU", False)
    records = [
        Record(generation, 0, children=tuple(Born(0, *ids, None, arch, {}, Mutation(kind)) for *ids, kind in children))
        for generation, children in LINEAGE
    ]
    lines = [record.to_json() for record in records]
    (folder / "reports/lineage.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.thorough
def test_what_is_exported_is_the_elite(tmp_path: Path) -> None:
    for part in ("objects", "refs"):  # by which git knows a repository
        (tmp_path / ".git" / part).mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("0123456789abcdef" * 2 + "01234567\n")
    params = small({"env.kwargs": {"first": 5}, "export.program": True})
    *_, elite = trained(tmp_path, params)
    evaluate.run(params, quiet=True, folder=tmp_path)
    write_lineage(tmp_path)
    export.run(params, quiet=True, folder=tmp_path)
    elites = evopipe.load(tmp_path / "models/elite")
    draw = np.random.default_rng(5)
    obs = (draw.normal(size=(40, 3)) * [1.5, 60.0, 2.0]).astype(np.float32)
    expected = values(params, elite, obs)
    np.testing.assert_allclose(elites.q_values(obs), expected, rtol=1e-3, atol=1e-3)
    clear = np.diff(np.sort(expected, axis=1)[:, -2:], axis=1)[:, 0] > 1e-2
    assert clear.sum() > 30
    assert np.array_equal(elites.act(obs)[clear], expected.argmax(axis=1)[clear] + 5)
    actions, q_values = torch.export.load(tmp_path / "models/elite/policy.pt2").module()(torch.from_numpy(obs))
    np.testing.assert_allclose(q_values.numpy(), expected, rtol=1e-3, atol=1e-3)
    assert np.array_equal(actions.numpy()[clear], expected.argmax(axis=1)[clear] + 5)

    about = read(tmp_path / "models/elite/policy.json")
    evaluation = read(tmp_path / "reports/evaluation.json")
    assert about["hyper"] == elite.hyper
    assert about["arch"] == elite.arch.to_json()
    assert about["evaluation"] == evaluation["elite"]
    assert about["training"] == {
        "id": 23, "generation": 3, "score": 4.5, "standard_error": 0.25, "confirmed": True,
    }  # fmt: skip
    line = [(b["id"], b["parent"], b["generation"], b["mutation"]["kind"]) for b in about["lineage"]]
    assert line == [
        (23, 4, 2, "architecture"), (4, 1, 1, "parameters"), (1, None, 0, "rl_hp"),
    ]  # fmt: skip
    assert (about["observations"], about["actions"], about["action_start"]) == (3, 3, 5)
    assert about["env"] == {"id": params.env.id, "kwargs": {"first": 5}, "wrappers": []}
    assert about["config"] == params.algo_config.model_dump(mode="json")
    assert about["provenance"] == {
        "evopipe": evopipe.__version__,
        "git_revision": "0123456789abcdef" * 2 + "01234567",
        "code_hash": content_key({}, [Path(evopipe.__file__).parent]),
        "params_hash": content_key(params.tracked()),
        "fingerprint": fingerprint(),
    }

    card = (tmp_path / "models/elite/README.md").read_text()
    mean, std, median, iqm = (formats.score(evaluation["elite"][name]) for name in ("mean", "std", "median", "iqm"))
    low, high = map(formats.score, evaluation["elite"]["interval"])
    assert f"| 5 | {mean} | [{low}, {high}] | {std} | {median} | {iqm} |\n" in card
    assert "| held-out episodes | mean | 95 % interval | std | median | IQM |\n" in card
    assert [
        float(value) for _, value in re.findall(r"^\| (\w+) \| ([\d.e-]+) \|$", card, re.MULTILINE)
    ] == pytest.approx([elite.hyper[name] for name in sorted(elite.hyper)], rel=1e-5)


def test_a_policys_provenance_changes_with_what_it_depends_on() -> None:
    def told(changes: Mapping[str, Any]) -> str:
        return content_key(small(changes).tracked())

    first = told({})
    kept = {k: v for k, v in SAME_RUN.items() if k.startswith(("runtime", "tracking"))}
    assert {told({name: value}) for name, value in kept.items()} == {first}
    others = {name: told({name: value}) for name, value in SAME_RUN.items() if name not in kept}
    others |= {name: told({name: value}) for name, value in OTHER_RUNS.items()}
    assert len({first, *others.values()}) == 1 + len(others)
