"""Offline training: the dataset is the memory, steps are learning steps, everything else is as online."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import populations
from evopipe.data.minari import read_own
from evopipe.data.transitions import Transitions, read_transitions, sealed
from evopipe.errors import DataError, EvopipeError, ParamsError
from evopipe.memory.replay import RowLayout
from evopipe.params.load import parse_params
from evopipe.problems.env import begin
from evopipe.regimes.offline import _pack
from evopipe.run.run import Run
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.fetch import FetchConfig
from evopipe.stages import buffer, evaluate, export, fetch, population, train
from evopipe.types import Spaces
from populations import advance, close_generation, equal, equal_states, finish, same

LONG: dict[str, Any] = {"mode": "offline", "evo_steps": 10**6, "max_steps": 10**6}


def dataset(n: int = 300, obs: int = 4, actions: int = 2, continuous: bool = False, seed: int = 0) -> Transitions:
    """Episodes of random lengths from 1 on, that terminate or are cut at random."""
    g = np.random.default_rng(seed)
    ends = g.random(n) < 0.15
    ends[-1] = True
    terminated = ends & (g.random(n) < 0.5)
    action: Any = g.uniform(-1, 1, (n, actions)).astype(np.float32) if continuous else g.integers(actions, size=n)
    return Transitions(
        obs=g.normal(size=(n, obs)).astype(np.float32),
        action=action,
        reward=g.normal(size=n).astype(np.float32),
        terminated=terminated,
        truncated=ends & ~terminated,
        next_obs=g.normal(size=(n, obs)).astype(np.float32),
        episode=np.concatenate(([0], np.cumsum(ends)[:-1])),
    )


def for_problem(p: EnvSpec, n: int = 300) -> Transitions:
    return dataset(n, p.observations, p.actions, p.spaces.continuous)


def offline(algo: str = "cqn", train: Mapping[str, Any] | None = None, **parts: Any) -> EnvSpec:
    return populations.problem(algo=algo, train={"mode": "offline", **(train or {})}, **parts)


@pytest.fixture
def run() -> Iterator[Callable[..., Run]]:
    """Makes runs, and closes them."""
    made: list[Run] = []

    def make(p: EnvSpec, members: int | list[Any] = 2, data: Transitions | None = None) -> Run:
        first = first_members(p, members)[0] if isinstance(members, int) else members
        made.append(begin(p, first, data or for_problem(p)))
        return made[-1]

    yield make
    for each in made:
        each.close()


# --- The loop ---------------------------------------------------------------------------------------------------------


def test_each_tick_learns_by_its_own_draws_and_turns(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tick, updates due and turn of the first ticks of two generations; a learn step of 8 in 4 environments."""
    p = offline("td3bc", {"evo_steps": 16}, config={"learn_step": 8, "policy_delay": 2})
    loop, asked = run(p), []
    monkeypatch.setattr(
        loop.regime.learners, "share_of", lambda tick, due: asked.append((tick, [n[:2] for n in due])) or ()
    )
    for _ in range(4):
        loop.advance()
    loop.close_generation(lambda: False)
    assert asked == [(0, [[0, 0]]), (1, [[1, 0]]), (2, [[0, 1]]), (3, [[1, 1]])]
    loop.advance()
    assert asked[4][0] == 4
    assert [turn for _, turn in asked[4][1]] == [0] * len(loop.cohorts), "a generation begins with the first turn"


@pytest.mark.parametrize(("learn_step", "envs"), [(1, 4), (3, 4), (2, 1), (8, 16)])
def test_a_step_is_a_chance_to_learn(learn_step: int, envs: int, run: Callable[..., Run]) -> None:
    loop = run(offline(train=LONG, config={"learn_step": learn_step}, num_envs=envs), 3)
    advance(loop, 48)
    assert loop.clock.step == 48 * envs
    assert [float(m.tensors["updates"]) for m in loop.members] == [48 * envs // learn_step] * 3
    assert loop.clock.env_steps == 3 * loop.clock.step


def test_no_environment_is_stepped_and_learning_begins_at_once(run: Callable[..., Run]) -> None:
    loop = run(offline(train={**LONG, "learning_delay": 10**6}), 3)
    pool = loop.regime.evaluate.pool  # the only one: what it shows is there since it was asked whether it masks actions
    assert not hasattr(loop.regime, "world")
    before = pool.obs.copy()
    assert before[0].any()
    advance(loop, 20)
    assert pool.episode_length.tolist() == [0] * pool.rows
    np.testing.assert_array_equal(pool.obs, before)
    assert all(float(m.tensors["updates"]) > 0 for m in loop.members)


@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_the_memory_is_the_dataset(sharing: str, run: Callable[..., Run]) -> None:
    """All of it, whatever the replay's own size."""
    p = offline(train={**LONG, "replay": {"capacity": 7, "sharing": sharing}})
    data = for_problem(p)
    loop = run(p, 3, data)
    before = loop.regime.replay.rows.clone()
    advance(loop, 30)
    assert (loop.regime.replay.memories, loop.regime.replay.size.tolist(), loop.regime.warm) == (1, [300], 300)
    assert equal(before, loop.regime.replay.rows)
    batch = loop.regime.replay.layout.unpack(loop.regime.replay.rows, torch.ones(1, 300), torch.tensor([0.9]))
    np.testing.assert_array_equal(batch.obs[0], data.obs)
    np.testing.assert_array_equal(batch.action[0], data.action)
    np.testing.assert_array_equal(batch.next_obs[0], data.next_obs)
    np.testing.assert_allclose(batch.discount[0], 0.9 * ~data.terminated)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_transitions_over_several_steps_against_brute_force(steps: int, seed: int) -> None:
    """Never across an end; a cut episode bootstraps, one that terminated does not."""
    data, gamma = dataset(120, seed=seed), 0.9
    layout = RowLayout.of(Spaces(4, 2), False, steps)
    flags = data.terminated.copy(), data.truncated.copy()
    rows = torch.from_numpy(np.concatenate([*_pack(layout, data)]))[None]
    assert all(np.array_equal(*each) for each in zip(flags, (data.terminated, data.truncated), strict=True))
    batch = layout.unpack(rows, torch.ones(1, len(data)), torch.tensor([gamma], dtype=torch.float64))
    lengths = set()
    for i in range(len(data)):
        total, k = 0.0, 0
        while True:
            total += gamma**k * float(data.reward[i + k])
            over = data.terminated[i + k] or data.truncated[i + k]
            if k + 1 == steps or over:
                break
            k += 1
        lengths.add(k + 1)
        discount = 0.0 if data.terminated[i + k] else gamma ** (k + 1)
        assert float(batch.reward[0, i]) == pytest.approx(total, abs=1e-6)
        assert float(batch.discount[0, i]) == pytest.approx(discount, abs=1e-6)
        np.testing.assert_array_equal(batch.obs[0, i], data.obs[i])
        np.testing.assert_array_equal(batch.next_obs[0, i], data.next_obs[i + k])
    assert lengths == set(range(1, steps + 1))


def test_episodes_end_where_their_number_changes() -> None:
    """As the first part of a dataset, which may stop in the middle of an episode."""
    data = dataset(40)
    flags = np.zeros(40, bool)
    layout = RowLayout.of(Spaces(4, 2), False, 3)
    episode = np.repeat([0, 1], 20)
    rows = np.concatenate([*_pack(layout, replace(data, terminated=flags, truncated=flags, episode=episode))])
    taken = rows[:, -1]
    assert taken[15:20].tolist() == [3, 3, 3, 2, 1]
    assert taken[35:].tolist() == [3, 3, 3, 2, 1]
    assert not flags.any(), "the dataset is not written to"


@pytest.mark.parametrize("algo", ["bc:continuous", "iql:continuous", "bc", "iql"])
def test_a_member_whose_network_is_no_number_acts_legally(algo: str) -> None:
    """Greedily too: the environments of a frozen member go on."""
    p = populations.problem(algo=algo, train={"mode": "offline"})
    (cohort,) = p.form(first_members(p, 2)[0])
    cohort.state.actor.values[0] = torch.nan
    legal = torch.tensor([False, True]) if p.spaces.kind == "discrete" else torch.ones(p.actions, dtype=torch.bool)
    obs = torch.ones(2, 3, p.observations)
    action = p.algo.greedy(p.algo_config, cohort.state, obs, legal.expand(2, 3, -1))
    assert action[0].tolist() == ([1, 1, 1] if p.spaces.kind == "discrete" else [[0.0]] * 3)
    assert torch.isfinite(action[1].float()).all()


@pytest.mark.product
@pytest.mark.parametrize("algo", ["cqn", "bc", "td3bc"])
@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("ticks", [0, 7, 50, 75])
@pytest.mark.thorough
def test_a_restored_run_continues_bit_for_bit(
    algo: str, prioritised: bool, ticks: int, run: Callable[..., Run]
) -> None:
    p = offline(algo, {"replay": {"prioritised": prioritised, "n_step": 2}})
    whole = run(p, 3)
    advance(whole, ticks)
    if ticks == 50:
        close_generation(whole)
    tensors, meta = whole.state()
    assert "replay.rows" not in tensors, "the dataset is not saved again and again"
    tensors, meta = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))
    resumed = run(p, 3)
    advance(resumed, 3)  # whatever it held before is gone
    assert resumed.restore(tensors, meta) == 0
    assert equal_states(whole.state(), resumed.state()) == []
    for loop in (whole, resumed):
        finish(loop)
    assert equal_states(whole.state(), resumed.state()) == []
    assert whole.clock.generation == 3


def test_a_member_trains_alike_alone_and_in_a_crowd(run: Callable[..., Run]) -> None:
    p = offline("cqn", LONG)
    crowd, few = run(p, 5), run(p, [populations.alone(p, 3)])
    for loop in (crowd, few):
        advance(loop, 30)
    assert same(few.members[0], crowd.members[3])


@pytest.mark.thorough
def test_several_processes_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evopipe.regimes.learners.LEAST_WORK", 0.0)
    p = offline(train={"max_steps": 240, "evo_steps": 120})
    states = []
    for learners in (1, 2):
        loop = begin(p, first_members(p, 4)[0], for_problem(p), learners=learners)
        finish(loop)
        states.append(loop.state())
        loop.close()
    assert equal_states(*states) == []


@pytest.mark.parametrize("algo", ["dqn", "td3"])
@pytest.mark.thorough
def test_an_algorithm_that_usually_acts_learns_from_a_dataset_too(algo: str, run: Callable[..., Run]) -> None:
    loop = run(offline(algo), 2)
    finish(loop)
    assert loop.clock.generation == 3
    assert loop.champion is not None


def test_an_empty_dataset_is_refused() -> None:
    p = offline()
    nothing = Transitions(*(getattr(for_problem(p), name)[:0] for name in Transitions.__slots__))
    for data in (None, nothing):
        with pytest.raises(DataError, match=r"train\.mode: offline training needs a dataset"):
            begin(p, first_members(p, 2)[0], data)


def test_masks_and_a_dataset_without_them_do_not_go_together() -> None:
    p = populations.problem("envs_for_tests:Masked-v0", "cqn", train={"mode": "offline"})
    with pytest.raises(ParamsError, match=r"train\.mode: the environment masks actions"):
        begin(p, first_members(p, 2)[0], for_problem(p))


# --- The stages -------------------------------------------------------------------------------------------------------

SMALL = {
    "max_steps": 400, "evo_steps": 200, "learning_delay": 0, "warm_start": 0, "eval_episodes": 2, "eval_steps": 40,
    "confirm_episodes": 2, "target": None,
}  # fmt: skip


def settings(
    env: str = "CartPole-v1", algo: str = "cqn", train: Mapping[str, Any] | None = None, fetch: Any = None
) -> Any:
    """Params of a small run."""
    collect = {"episodes": 6, "policies": {"heuristic": 1.0, "random": 1.0}, "max_steps": 60}
    return parse_params(
        {
            "env": {"id": env, "num_envs": 4},
            "fetch": fetch or {"source": "collect", "collect": collect},
            "population": {"size": 2},
            "train": {"algo": algo, "mode": "offline", **SMALL, **(train or {})},
            "evaluate": {"episodes": 2, "steps": 40, "bootstrap": 100},
            "export": {"program": False},
            "runtime": {"learners": 1, "env_workers": 0, "device": "cpu"},
            "tracking": {"backends": []},
            "algos": {algo: {"network": {"encoder": [16], "latent": 16}, "batch_size": 32}},
        }
    )


def refused(call: Callable[[], object], kind: type[EvopipeError], *parts: str) -> None:
    with pytest.raises(kind) as failed:
        call()
    assert "\n" not in str(failed.value)
    for part in parts:
        assert part in str(failed.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("env", "algo"),
    [("CartPole-v1", "cqn"), ("CartPole-v1", "iql"), ("Pendulum-v1", "iql"), ("Pendulum-v1", "bc")],
)
@pytest.mark.thorough
def test_the_stages_train_from_a_collected_dataset(env: str, algo: str, folder: Path) -> None:
    params = settings(env, algo)
    for stage in (fetch, buffer, population, train, evaluate, export):
        stage.run(params, quiet=True)
    summary = json.loads(Path("reports/train.json").read_text())
    data = read_transitions(Path("data/transitions.h5"))
    assert summary["warm_start"] == len(data)
    assert summary["steps"]["each_member"] == 400
    assert (summary["reason"], summary["generations"]) == ("max_steps", 2)
    assert json.loads(Path("reports/evaluation.json").read_text())["episodes"] == 2


def test_training_needs_the_dataset(folder: Path) -> None:
    params = settings()
    population.run(params, quiet=True)
    refused(lambda: train.run(params, quiet=True), EvopipeError, "data/transitions.h5: not there; run `evopipe buffer`")


def test_a_dataset_of_other_spaces_is_refused(folder: Path) -> None:
    for stage in (fetch, buffer):
        stage.run(settings(), quiet=True)
    for env, algo, text in (
        ("Pendulum-v1", "iql", "discrete actions, Pendulum-v1 has 3 and 1 continuous ones"),
        ("Acrobot-v1", "cqn", "holds observations of length 4 and 2 discrete actions, Acrobot-v1 has 6 and 3"),
    ):
        other = settings(env, algo)
        population.run(other, quiet=True)
        refused(lambda other=other: train.run(other, quiet=True), DataError, "data/transitions.h5", text)


@pytest.mark.parametrize(("env", "algo"), [("CartPole-v1", "cqn"), ("Pendulum-v1", "td3bc")])
def test_the_same_dataset_may_begin_online_training(env: str, algo: str, folder: Path) -> None:
    params = settings(env, algo, {"mode": "online", "warm_start": 100, "replay": {"capacity": 2000}})
    for stage in (fetch, buffer, population, train):
        stage.run(params, quiet=True)
    assert json.loads(Path("reports/train.json").read_text())["warm_start"] == 100


def test_cloning_online_is_refused() -> None:
    text = "train.mode: bc only learns from a dataset: set it to offline"
    refused(lambda: settings(algo="bc", train={"mode": "online"}), ParamsError, text)


def test_an_algorithm_that_the_actions_do_not_suit_is_named(folder: Path) -> None:
    refused(lambda: population.run(settings("Pendulum-v1", "cqn"), quiet=True), ParamsError, "cqn serves discrete")


# --- Continuous actions in datasets -----------------------------------------------------------------------------------


def test_collected_actions_are_the_environments_own_and_packed_ones_relative(folder: Path) -> None:
    params = settings("Pendulum-v1", "iql")
    fetch.run(params, quiet=True)
    buffer.run(params, quiet=True)
    own = np.concatenate([episode.action for episode in read_own(Path("data/dataset")).episodes])
    packed = read_transitions(Path("data/transitions.h5"))
    assert own.shape == packed.action.shape == (360, 1)
    assert 1.5 < np.abs(own).max() <= 2.0
    np.testing.assert_allclose(packed.action, own / 2.0, atol=1e-6)
    report = json.loads(Path("reports/buffer.json").read_text())
    assert report["actions"]["max"] == pytest.approx([float(packed.action.max())])
    assert -1 <= report["actions"]["min"][0] < report["actions"]["mean"][0] < 1


@pytest.mark.thorough
def test_the_pendulums_rule_swings_it_up(folder: Path) -> None:
    collect = {"episodes": 20, "policies": {"heuristic": 1.0}}
    fetch.run(settings("Pendulum-v1", "iql", fetch={"source": "collect", "collect": collect}), quiet=True)
    assert json.loads(Path("reports/fetch.json").read_text())["return"]["mean"] > -300.0


def test_the_poor_rule_of_cartpole_is_better_than_random_and_far_from_good(folder: Path) -> None:
    collect = {"episodes": 60, "policies": {"medium": 1.0, "random": 1.0}}
    fetch.run(settings(fetch={"source": "collect", "collect": collect}), quiet=True)
    found = json.loads(Path("reports/fetch.json").read_text())["policies"]
    assert found["random"]["return"]["mean"] < 40.0
    assert 50.0 < found["medium"]["return"]["mean"] < 200.0


@pytest.mark.thorough
def test_an_exported_continuous_policy_is_a_behaviour(folder: Path) -> None:
    params = settings("Pendulum-v1", "iql")
    for stage in (fetch, buffer, population, train, evaluate, export):
        stage.run(params, quiet=True)
    collect = {"episodes": 2, "policies": {"policy": 1.0}, "policy_path": "models/elite", "max_steps": 30}
    again = settings("Pendulum-v1", "iql", fetch={"source": "collect", "collect": collect})
    fetch.run(again, quiet=True)
    from evopipe.policies.policy import load

    episode = read_own(Path("data/dataset")).episodes[0]
    np.testing.assert_allclose(episode.action, load("models/elite").act(episode.obs[:-1]), atol=1e-5)


def pendulum_file(path: Path, **changes: Any) -> Path:
    """A D4RL file of Pendulum with `[N, 1]` actions; two episodes."""
    g = np.random.default_rng(0)
    content: dict[str, Any] = {
        "observations": g.normal(size=(20, 3)).astype(np.float32),
        "actions": g.uniform(-2, 2, (20, 1)).astype(np.float32),
        "rewards": g.normal(size=20),
        "terminals": np.zeros(20, bool),
        "timeouts": np.arange(20) % 10 == 9,
    }
    with h5py.File(path, "w") as file:
        for name, data in {**content, **changes}.items():
            if data is not None:
                file[name] = data
    return path


def from_file(**changes: Any) -> Any:
    pendulum_file(Path("d.hdf5"), **changes)
    return settings("Pendulum-v1", "iql", fetch={"source": "hdf5", "hdf5": {"path": "d.hdf5"}})


def test_a_d4rl_file_of_vectors_is_a_source(folder: Path) -> None:
    params = from_file()
    fetch.run(params, quiet=True)
    buffer.run(params, quiet=True)
    with h5py.File("d.hdf5") as file:
        own = file["actions"][:]
    kept = np.delete(own, [9, 19], axis=0)
    np.testing.assert_allclose(read_transitions(Path("data/transitions.h5")).action, kept / 2, atol=1e-6)


def test_a_file_without_timeouts_says_what_that_means(folder: Path) -> None:
    """AgileRL's layout."""
    params = from_file(timeouts=None, terminals=np.arange(20) % 10 == 9)
    fetch.run(params, quiet=True)
    buffer.run(params, quiet=True)
    notes = json.loads(Path("reports/fetch.json").read_text())["notes"]
    assert notes == ["the file has no timeouts: an episode that was cut runs on into the next one"]
    assert int(read_transitions(Path("data/transitions.h5")).terminated.sum()) == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"actions": np.full((20, 1), 2.1, np.float32)}, "episode 0 took action [2.0999"),
        ({"actions": np.zeros((20, 2), np.float32)}, "episode 0 took actions of 2 numbers, env's have 1"),
        ({"actions": np.zeros(20, np.int64)}, "took actions that are indices, env's are vectors of numbers"),
        ({"actions": np.full((20, 1), np.nan)}, "dataset 'actions' holds nan at index [0, 0]"),
    ],
)
def test_actions_that_the_environment_has_not_are_refused(changes: dict[str, Any], text: str, folder: Path) -> None:
    params = from_file(**changes)
    refused(lambda: fetch.run(params, quiet=True), DataError, text)


def test_rounding_beyond_the_bounds_is_forgiven(folder: Path) -> None:
    params = from_file(actions=np.full((20, 1), 2.0001, np.float32))
    fetch.run(params, quiet=True)
    buffer.run(params, quiet=True)
    assert read_transitions(Path("data/transitions.h5")).action.max() == 1.0


def test_recorded_bounds_that_differ_are_refused(folder: Path) -> None:
    params = settings("Pendulum-v1", "iql")
    fetch.run(params, quiet=True)
    Path("data/dataset").rename("theirs")
    Path("theirs/manifest.json").unlink()
    other = params.model_copy(
        update={
            "fetch": params.fetch.model_copy(
                update={"source": "minari", "minari": FetchConfig.Minari(dataset="theirs")}
            )
        }
    )
    path = Path("theirs/data/metadata.json")
    metadata = json.loads(path.read_text())
    space = json.loads(metadata["action_space"])
    for changed, text in (
        ({"low": [-1.0], "high": [1.0]}, "its action space is Box(-1.0, 1.0, (1,), float32), env's Box(-2.0, 2.0"),
        ({"dtype": "int64"}, "its action space is Box(-2, 2, (1,), int64), env's Box(-2.0, 2.0, (1,), float32)"),
        ({"type": "Discrete", "n": 3, "start": 0}, "its action space is Discrete(3), env's Box(-2.0, 2.0"),
    ):
        path.write_text(json.dumps({**metadata, "action_space": json.dumps({**space, **changed})}))
        refused(lambda: fetch.run(other, quiet=True), DataError, text)


def test_packed_vectors_outside_of_their_range_are_refused(folder: Path) -> None:
    params = settings("Pendulum-v1", "iql")
    fetch.run(params, quiet=True)
    buffer.run(params, quiet=True)
    with h5py.File("data/transitions.h5", "a") as file:
        file["action"][3, 0] = 1.5
    path = Path("data/transitions.h5")
    path.write_bytes(sealed(memoryview(bytearray(path.read_bytes()))))
    refused(lambda: read_transitions(path), DataError, "'action' holds 1.5 at index [3, 0], not from")
