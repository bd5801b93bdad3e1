"""Which rows datasets have: hand-made episodes through every format, and collected ones played anew by Gymnasium."""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image

import populations
from evopipe import parse_params
from evopipe.data.collect import collect, totals
from evopipe.data.d4rl import read_d4rl
from evopipe.data.episodes import RecordedEpisode
from evopipe.data.minari import read_minari, read_own, write_minari
from evopipe.data.transitions import Transitions, pack, read_transitions, statistics, write_transitions
from evopipe.envs.pool import EnvPool
from evopipe.errors import DataError
from evopipe.layout import DATASET, TRANSITIONS
from evopipe.policies import policy
from evopipe.problems.specs import make_spec
from evopipe.regimes.warm import read_warm
from evopipe.run.spec import first_members
from evopipe.schema.env import EnvConfig
from evopipe.schema.fetch import CollectConfig
from evopipe.stages import buffer, fetch

LENGTHS = (3, 1, 4, 2)
TERMINATED = (True, False, False, True)


def episodes(continuous: bool = False, start: int = 0) -> list[RecordedEpisode]:
    """Step t of episode e shows (e, t, 10 e + t), pays e + t / 8, and its action tells both."""
    found = []
    for e, (steps, terminated) in enumerate(zip(LENGTHS, TERMINATED, strict=True)):
        t = np.arange(steps + 1.0)
        obs = np.stack((np.full(steps + 1, float(e)), t, 10.0 * e + t), axis=1).astype(np.float32)
        index = np.array([(e + k) % 4 for k in range(steps)])
        action = np.stack((index / 2 - 1, 1 - index / 4), axis=1).astype(np.float32) if continuous else index + start
        last = np.arange(steps) == steps - 1
        reward = (e + t[:-1] / 8).astype(np.float32)
        found.append(RecordedEpisode(obs, action, reward, last & terminated, last & (not terminated), 100 + e))
    return found


def steps() -> list[tuple[int, int, int]]:
    """Of every step its episode, its number, and how many its episode has."""
    return [(e, t, n) for e, n in enumerate(LENGTHS) for t in range(n)]


def assert_rows(found: Any, of: list[tuple[int, int, int]]) -> None:
    assert found.obs.tolist() == [[e, t, 10 * e + t] for e, t, _ in of]
    assert found.next_obs.tolist() == [[e, t + 1, 10 * e + t + 1] for e, t, _ in of]
    assert found.reward.tolist() == [e + t / 8 for e, t, _ in of]
    assert found.terminated.tolist() == [t == n - 1 and TERMINATED[e] for e, t, n in of]
    assert found.truncated.tolist() == [t == n - 1 and not TERMINATED[e] for e, t, n in of]
    assert found.episode.tolist() == [e for e, _, _ in of]


def test_packed_rows_are_the_steps_in_order(tmp_path: Path) -> None:
    packed = pack(episodes(start=5), lambda own: own - 5)
    assert_rows(packed, steps())
    assert packed.action.tolist() == [(e + t) % 4 for e, t, _ in steps()]
    write_transitions(tmp_path / "t.h5", packed, {})
    whole = read_transitions(tmp_path / "t.h5")
    for limit in (1, 4, 7, len(packed), 99, None):
        few = read_transitions(tmp_path / "t.h5", limit)
        assert_rows(few, steps()[:limit])
        assert few.action.tolist() == packed.action.tolist()[:limit]
        assert all(getattr(few, each.name).dtype == getattr(whole, each.name).dtype for each in fields(few))


def test_numbers_of_packed_rows_are_counted_anew() -> None:
    found = statistics(pack(episodes(), lambda own: own), 5)
    rewards = {e: [e + t / 8 for t in range(n)] for e, n in enumerate(LENGTHS)}
    returns, every = [sum(each) for each in rewards.values()], [x for each in rewards.values() for x in each]
    assert (found["transitions"], found["episodes"], found["terminations"], found["truncations"]) == (10, 4, 2, 2)
    for name, values in (("return", returns), ("length", LENGTHS), ("reward", every)):
        described = {"mean": np.mean(values), "std": np.std(values), "min": min(values), "max": max(values)}
        assert found[name] == pytest.approx(described)
    shown = np.array([[e, t, 10 * e + t] for e, t, _ in steps()])
    assert found["obs"]["mean"] == pytest.approx([column.mean() for column in shown.T])
    assert found["obs"]["max"] == [3.0, 3.0, 31.0]
    assert found["actions"] == [[(e + t) % 4 for e, t, _ in steps()].count(action) for action in range(5)]
    told = totals(episodes())
    assert (told["episodes"], told["transitions"]) == (4, 10)
    assert told["return"] == pytest.approx({"mean": np.mean(returns), "std": np.std(returns)})


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("own", [True, False])
def test_minaris_files_give_every_episode_back(continuous: bool, own: bool, tmp_path: Path) -> None:
    """By Minari itself too: the last observation, the seeds and the order."""
    from minari import MinariDataset

    written = episodes(continuous, start=0 if continuous else 5)
    action = spaces.Box(-1.0, 1.0, (2,), np.float32) if continuous else spaces.Discrete(4, start=5)
    write_minari(
        tmp_path / "set", written, name="T-v0/c", observation_space=spaces.Box(-np.inf, np.inf, (3,), np.float32),
        action_space=action, env_spec=None, algorithm="a", description="d",
    )  # fmt: skip
    if not own:
        (tmp_path / "set/manifest.json").unlink()
    found = (read_own if own else read_minari)(tmp_path / "set")
    assert found.action_space == action
    for one, two in zip(written, found.episodes, strict=True):
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            assert getattr(one, name).tolist() == getattr(two, name).tolist()
        assert one.seed == two.seed
    theirs = [*MinariDataset(tmp_path / "set/data").iterate_episodes()]
    for number, (one, two) in enumerate(zip(written, theirs, strict=True)):
        assert two.id == number
        assert two.observations.tolist() == one.obs.tolist()
        assert np.array_equal(two.actions, one.action)
        assert two.terminations.tolist() == one.terminated.tolist()
    assert_rows(pack(found.episodes, lambda own: own), steps())


def test_more_than_ten_episodes_stay_in_order(tmp_path: Path) -> None:
    """In a file `episode_10` stands before `episode_2`."""
    ends = np.array([True]), np.array([False])
    written = [
        RecordedEpisode(np.full((2, 1), k, np.float32), np.array([k % 2]), np.array([k], np.float32), *ends, k)
        for k in range(12)
    ]
    write_minari(tmp_path / "set", written, name="T-v0/c", observation_space=spaces.Box(-99.0, 99.0, (1,), np.float32),
                 action_space=spaces.Discrete(2), env_spec=None, algorithm="a", description="d")  # fmt: skip
    assert [float(each.reward[0]) for each in read_own(tmp_path / "set").episodes] == list(range(12))


def d4rl(path: Path, following: bool, timed: bool = True) -> Path:
    """The episodes as D4RL has them; the last one was cut by the file's end, where it is not terminated."""
    packed = pack(episodes()[:3], lambda own: own)
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"], file["rewards"] = packed.obs, packed.action, packed.reward
        file["terminals"] = packed.terminated
        if timed:
            file["timeouts"] = packed.truncated
        if following:
            file["next_observations"] = packed.next_obs
    return path


@pytest.mark.parametrize("timed", [True, False])
def test_d4rls_rows_with_what_followed_are_all_there(timed: bool, tmp_path: Path) -> None:
    found = read_d4rl(d4rl(tmp_path / "d.h5", True, timed))
    assert_rows(pack(found.episodes, lambda own: own), steps()[:8])
    assert (found.dropped, found.notes) == (0, ())


def test_d4rls_rows_without_what_followed_leave_out_what_is_not_known(tmp_path: Path) -> None:
    found = read_d4rl(d4rl(tmp_path / "d.h5", False))
    packed = pack(found.episodes, lambda own: own)
    kept = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)]
    assert [(int(e), int(t)) for e, t, _ in packed.obs.tolist()] == kept
    after = [(0, 1), (0, 2), (0, 2), (2, 1), (2, 2), (2, 3)]  # the terminal one repeats its own
    assert [(int(e), int(t)) for e, t, _ in packed.next_obs.tolist()] == after
    assert packed.terminated.tolist() == [False, False, True, False, False, False]
    assert packed.truncated.tolist() == [False] * 5 + [True]
    assert found.dropped == 2
    assert found.notes == ("2 last steps of cut episodes left out: the file has no next observation for them",)
    untimed = read_d4rl(d4rl(tmp_path / "e.h5", False, timed=False))
    assert [len(each) for each in untimed.episodes] == [3, 4], "what was cut is not known"
    assert "the file has no timeouts" in untimed.notes[0]


# --- collected --------------------------------------------------------------------------------------------------------


def collected(seed: int = 1, env: str = "CartPole-v1", **more: Any) -> tuple[list[RecordedEpisode], dict[str, Any]]:
    cfg = CollectConfig.model_validate({"episodes": 6, "policies": {"random": 1.0}, **more})
    with closing(EnvPool(EnvConfig(id=env), 1, what="behaviour")) as pool:
        return collect(cfg, pool, env, seed)


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"max_steps": 7}),
        ("CartPole-v1", {"policies": {"heuristic": 1.0}, "episodes": 1}),
        ("CartPole-v1", {"policies": {"medium": 1.0}}),
        ("Pendulum-v1", {"episodes": 1}),
    ],
)
def test_collected_episodes_are_those_of_their_seeds(env: str, more: dict[str, Any]) -> None:
    """Gymnasium's own environment gives the same observations, rewards and ends for their actions."""
    found, _ = collected(env=env, **more)
    cap = more.get("max_steps")
    for episode in found:
        alone = gymnasium.make(env)
        obs, over = alone.reset(seed=episode.seed)[0], False
        for t in range(len(episode)):
            assert not over
            np.testing.assert_array_equal(episode.obs[t], obs)
            action = episode.action[t] if episode.action.ndim == 2 else int(episode.action[t])
            obs, reward, terminated, truncated, _ = alone.step(action)
            assert episode.reward[t] == np.float32(reward)
            assert bool(episode.terminated[t]) == terminated
            over = terminated or truncated or t + 1 == cap
            assert bool(episode.truncated[t]) == (over and not terminated)
        assert over
        np.testing.assert_array_equal(episode.obs[-1], obs)
        assert len(episode.obs) == len(episode) + 1
    assert len({episode.seed for episode in found}) == len(found)


def test_episodes_draw_by_their_own_number_and_the_runs_seed() -> None:
    few, many, others = collected()[0], collected(episodes=9)[0], collected(seed=2)[0]
    assert [each.seed for each in few] == [each.seed for each in many][:6]
    assert [each.action.tolist() for each in few] == [each.action.tolist() for each in many][:6]
    assert not {each.seed for each in few} & {each.seed for each in others}


def test_mixes_have_their_shares_and_scores() -> None:
    """The rule holds the pole for 500 steps, chance does not."""
    found, told = collected(policies={"random": 3.0, "heuristic": 1.0}, episodes=60, max_steps=60)
    held = [each for each in found if len(each) == 60 and not each.terminated[-1]]
    ruled = told["policies"]["heuristic"]
    assert abs(ruled["episodes"] - 15) < 4 * (60 * 3 / 16) ** 0.5
    assert len(held) >= ruled["episodes"]
    assert ruled["return"] == {"mean": 60.0, "std": 0.0}
    random = told["policies"]["random"]
    assert random["episodes"] == 60 - ruled["episodes"]
    assert random["transitions"] == sum(map(len, found)) - 60 * ruled["episodes"]
    assert random["return"]["mean"] == pytest.approx(random["transitions"] / random["episodes"])


def test_a_policy_with_a_memory_begins_each_episode_with_none(tmp_path: Path) -> None:
    """Its actions are those of the policy by itself, which remembers its own episode."""
    p = populations.problem(algo="ppo", config={"network": {"encoder_kind": "lstm", "latent": 16}, "learn_step": 64})
    member = first_members(p, 1)[0][0]
    g = torch.Generator().manual_seed(2)  # as it begins, what it remembers decides nothing
    tensors = {**member.tensors, "actor": torch.randn(member.tensors["actor"].shape, generator=g)}
    with closing(EnvPool(p.env, 1)) as pool:
        about: dict[str, Any] = {"algo": "ppo", "env": {"id": "CartPole-v1", "kwargs": {}}}
        spaces_of = {**pool.actions.to_json(), **pool.observations.to_json()}
        about |= {"config": p.algo_config.model_dump(mode="json"), **spaces_of}
    policy.save(tmp_path / "elite", "ppo", replace(member, tensors=tensors), about, False, "", True)
    actor = policy.load(tmp_path / "elite").on_rows()
    cfg = CollectConfig.model_validate({"episodes": 6, "policies": {"policy": 1.0}, "policy_path": "elite"})
    with closing(EnvPool(EnvConfig(id="CartPole-v1"), 1, what="behaviour")) as pool:
        found, _ = collect(cfg, pool, "CartPole-v1", 1, actor)
    without = []
    for episode in found:
        memory, actions = None, []
        for obs in episode.obs[:-1]:
            without.append(int(actor.step(obs, None)[0]))
            action, memory = actor.step(obs, memory)
            actions.append(int(action))
        assert episode.action.tolist() == actions
    assert without != [int(a) for episode in found for a in episode.action]


def test_medium_is_the_poor_rule_with_three_tenths_of_chance() -> None:
    """Of them half agree with it."""
    found, _ = collected(policies={"medium": 1.0}, episodes=40)
    obs, action = (np.concatenate([getattr(each, name)[: len(each)] for each in found]) for name in ("obs", "action"))
    rule = (obs @ np.array([-0.4, -0.4, 1.0, 0.5]) > 0.0).astype(int)
    assert (rule == action).mean() == pytest.approx(0.85, abs=0.04)


@pytest.mark.parametrize(("most", "fits"), [(0, True), (1, True), (2, False)])
def test_a_run_begins_with_as_many_rows_as_it_asks_for_if_it_has_their_actions(
    most: int, fits: bool, tmp_path: Path
) -> None:
    """CartPole has two: not every one need be in a dataset, and a third is none."""
    flags, obs = np.zeros(5, bool), np.arange(20, dtype=np.float32).reshape(5, 4)
    action = np.array([0, most, 0, 0, most])
    told = Transitions(obs, action, np.ones(5, np.float32), flags, flags, obs + 1, np.zeros(5, np.int64))
    (tmp_path / TRANSITIONS).parent.mkdir(parents=True)
    write_transitions(tmp_path / TRANSITIONS, told, {})
    spec = make_spec(parse_params({"env": {"id": "CartPole-v1"}, "train": {"algo": "dqn", "warm_start": 3}}))
    if fits:
        found = read_warm(spec, tmp_path)
        assert found is not None
        assert (found.action.tolist(), found.obs.tolist()) == (action[:3].tolist(), obs[:3].tolist())
    else:
        with pytest.raises(DataError, match="3 discrete actions, CartPole-v1 has 4 and 2 discrete ones"):
            read_warm(spec, tmp_path)


def test_stages_hand_on_every_row_and_a_run_begins_with_the_first(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env": {"id": "CartPole-v1"}, "train": {"algo": "dqn", "warm_start": 25},
        "fetch": {"source": "collect", "collect": {"episodes": 5, "policies": {"random": 1.0}}},
    }  # fmt: skip
    params = parse_params(settings)
    fetch.run(params, quiet=True, folder=tmp_path)
    buffer.run(params, quiet=True, folder=tmp_path)
    source = read_own(tmp_path / DATASET)
    packed, whole = pack(source.episodes, lambda own: own), read_transitions(tmp_path / TRANSITIONS)
    for each in fields(packed):
        assert np.array_equal(getattr(whole, each.name), getattr(packed, each.name))
    warm = read_warm(make_spec(params), tmp_path)
    assert warm is not None
    assert warm.obs.tolist() == packed.obs[:25].tolist()
    assert len(whole) > 25
    offline = parse_params({**settings, "train": {"algo": "cqn", "mode": "offline"}})
    everything = read_warm(make_spec(offline), tmp_path)
    assert everything is not None
    assert len(everything) == len(whole)


# --- observations -----------------------------------------------------------------------------------------------------


def test_nested_observations_are_laid_out_by_the_environments_space(tmp_path: Path) -> None:
    """Parts by name, choices counted from their first, images turned and scaled; rows stay in the file's order."""
    space = spaces.Dict({"b": spaces.Box(-9.0, 9.0, (2,), np.float32), "a": spaces.Discrete(3, start=1),
                         "c": spaces.Box(0, 255, (4, 5, 3), np.uint8)})  # fmt: skip
    g, n = np.random.default_rng(0), 4
    a, b, c = np.array([1, 3, 2, 1]), g.normal(size=(n, 2)), g.integers(256, size=(n, 4, 5, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        for name, values in (("a", a.astype(float)[:, None]), ("b", b), ("c", c)):
            file[f"observations/{name}"] = values
        file["actions"], file["rewards"], file["terminals"] = np.zeros(n, int), np.arange(n), np.arange(n) == n - 1
    (episode,) = read_d4rl(tmp_path / "d.h5", space).episodes
    for t in range(n):
        expected = [*np.eye(3)[a[t] - 1], *b[t], *(c[t].transpose(2, 0, 1).reshape(-1) / 255)]
        np.testing.assert_allclose(episode.obs[t], expected, atol=1e-6)


def test_compressed_images_are_their_own_steps(tmp_path: Path) -> None:
    import io

    space = spaces.Box(0, 255, (8, 9, 3), np.uint8)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        stored = file.create_dataset("observations", (4,), h5py.vlen_dtype(np.uint8))
        for k in range(4):
            stream = io.BytesIO()
            Image.fromarray(np.full((8, 9, 3), 60 * k, np.uint8)).save(stream, "JPEG", quality=95)
            stored[k] = np.frombuffer(stream.getvalue(), np.uint8)
        file["actions"], file["rewards"], file["terminals"] = np.zeros(4, int), np.arange(4), np.arange(4) == 3
    (episode,) = read_d4rl(tmp_path / "d.h5", space).episodes
    assert episode.obs[:4].mean(axis=1) * 255 == pytest.approx([0.0, 60.0, 120.0, 180.0], abs=2.0)
