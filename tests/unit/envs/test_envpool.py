"""envpool behind the pool's contract: a seed for every episode, no phantom rows, resume bit for bit."""

from __future__ import annotations

import sys
from typing import Any

import envpool
import gymnasium
import numpy as np
import pytest

from envs_for_tests import Chain
from evopipe.envs.backends.envpool import AHEAD
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Workers
from evopipe.errors import ParamsError, UsageError
from evopipe.schema.env import EnvConfig


def config(env_id: str, **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "kwargs": kwargs, "backend": "envpool"})


def started(cfg: EnvConfig, rows: int, **options: Any) -> EnvPool:
    pool = EnvPool(cfg, rows, **options)
    pool.reset(np.arange(rows), np.arange(rows))
    return pool


def shown(pool: EnvPool) -> list[bytes]:
    arrays = [pool.obs, pool.mask, pool.episode_return, pool.episode_length, *pool.state().values()]
    return [array.tobytes() for array in arrays]


class Player:
    """Random actions; ended rows begin the next of their episodes, as the training loop does it."""

    def __init__(self, pool: EnvPool, foretell: bool = True, seed: int = 5) -> None:
        self.pool, self.rng = pool, np.random.default_rng(seed)
        self.episodes = np.zeros(pool.rows, np.int64)
        pool.upcoming = self.seeds if foretell else None

    def seeds(self, rows: np.ndarray, ahead: int) -> np.ndarray:
        return rows[:, None] * 7919 + self.episodes[rows][:, None] + np.arange(ahead)

    def reset(self, rows: np.ndarray) -> None:
        now = self.seeds(rows, 1)[:, 0]
        self.episodes[rows] += 1
        self.pool.reset(rows, now)

    def play(self, ticks: int) -> list[list[bytes]]:
        seen = []
        for tick in range(ticks):
            some = tick % 5 == 4 and self.pool.rows > 1
            rows = self.rng.permutation(self.pool.rows)[: self.rng.integers(1, self.pool.rows)] if some else None
            actions = self.rng.integers(self.pool.num_actions, size=self.pool.rows if rows is None else len(rows))
            step = self.pool.step(actions, rows)
            over = np.flatnonzero(step.over)
            self.reset(over if rows is None else rows[over])
            seen.append([*(part.tobytes() for part in step.parts), *shown(self.pool)])
        return seen


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
@pytest.mark.thorough
def test_what_a_pool_gives_depends_on_seeds_and_actions_alone(env_id: str) -> None:
    """Not on threads, nor on which episodes were constructed together."""
    with Workers(2) as workers:
        pools = [EnvPool(config(env_id), 64), EnvPool(config(env_id), 64, workers=workers), EnvPool(config(env_id), 64)]
        players = [Player(pool, foretell) for pool, foretell in zip(pools, (True, True, False), strict=True)]
        for player in players:
            player.reset(np.arange(64))
        first, *others = (player.play(60) for player in players)
        assert all(other == first for other in others)
        assert not workers._pools  # envpool has threads of its own
    assert pools[1]._home._threads == 2


class OutOfOrder:
    """A batch of envpool's whose environments are done in another order than they were asked in, as threads may be."""

    def __init__(self, batch: Any) -> None:
        self.observation_space, self.action_space = batch.observation_space, batch.action_space
        self.batch, self.send = batch, batch.send

    def reset(self, places: Any) -> Any:
        return self.shuffled(self.batch.reset(places))

    def recv(self) -> Any:
        return self.shuffled(self.batch.recv())

    def shuffled(self, answer: Any) -> Any:
        *arrays, info = answer
        order = np.random.default_rng(len(arrays[0])).permutation(len(arrays[0]))
        return *(array[order] for array in arrays), {**info, "env_id": info["env_id"][order]}


def test_rows_are_told_apart_in_whatever_order_environments_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    player = Player(EnvPool(config("CartPole-v1"), 7))
    player.reset(np.arange(7))
    expected = player.play(40)
    make = envpool.make
    monkeypatch.setattr(envpool, "make", lambda *args, **options: OutOfOrder(make(*args, **options)))
    player = Player(EnvPool(config("CartPole-v1"), 7))
    player.reset(np.arange(7))
    assert player.play(40) == expected


def test_an_episode_is_a_function_of_its_seed_whatever_the_row_played_before() -> None:
    pool, fresh = EnvPool(config("LunarLander-v3"), 3), EnvPool(config("LunarLander-v3"), 1)
    player = Player(pool)
    player.reset(np.arange(3))
    player.play(250)
    assert player.episodes.max() > 2
    pool.reset([2], [77])
    fresh.reset([0], [77])
    np.testing.assert_array_equal(pool.obs[2], fresh.obs[0])
    for action in np.random.default_rng(1).integers(4, size=50):
        a, b = pool.step([action], rows=[2]), fresh.step([action])
        assert a.obs.tobytes() == b.obs.tobytes()
        assert a.reward.tobytes() == b.reward.tobytes()
        if a.terminated[0]:
            break
    fresh.reset([0], [78])
    assert (fresh.obs[0] != pool.obs[2]).any()


def test_one_seed_may_be_played_by_many_rows() -> None:
    pool = EnvPool(config("CartPole-v1"), 4)
    pool.reset([0, 1, 2, 3], [9, 9, 9, 8])
    step = pool.step([1, 1, 1, 1])
    assert len({row.tobytes() for row in step.obs[:3]}) == 1
    assert step.obs[3].tobytes() != step.obs[0].tobytes()


def test_an_ended_episode_shows_its_true_last_observation_and_no_row_resets_by_itself() -> None:
    pool = started(config("CartPole-v1"), 2)
    while not (step := pool.step([1, 1])).terminated[0]:
        pass
    assert abs(step.obs[0, 2]) > 0.2095  # beyond the angle that ends it, not a new episode's start
    length = int(pool.episode_length[0])
    assert pool.episode_return[0] == length
    pool.reset([0], [123])
    assert np.abs(pool.obs[0]).max() <= 0.05
    assert pool.episode_length[0] == 0
    step = pool.step([1], rows=[0])  # the first step of the new episode: envpool's own phantom step would pay nothing
    assert step.reward.tolist() == [1.0]
    assert pool.episode_length[0] == 1


def test_the_time_limit_truncates() -> None:
    pool = started(config("MountainCar-v0", max_episode_steps=20), 2)
    flags = [pool.step([1, 1]) for _ in range(20)]
    assert [bool(step.truncated[0]) for step in flags] == [False] * 19 + [True]
    assert not any(step.terminated.any() for step in flags)
    assert (flags[-1].obs != flags[-2].obs).any()
    assert pool.episode_length.tolist() == [20, 20]


@pytest.mark.thorough
def test_it_plays_the_same_game_as_gymnasium() -> None:
    """Not the same bits: its own build. Random play lasts about as long and scores about as much."""
    means = []
    for backend in ("sync", "envpool"):
        for env_id in ("CartPole-v1", "LunarLander-v3"):
            pool = EnvPool(EnvConfig.model_validate({"id": env_id, "backend": backend}), 64)
            player, lengths = Player(pool), []
            player.reset(np.arange(64))
            for _ in range(200):
                step = pool.step(player.rng.integers(pool.num_actions, size=64))
                over = np.flatnonzero(step.terminated | step.truncated)
                lengths.extend(pool.episode_length[over].tolist())
                player.reset(over)
            means.append(np.mean(lengths))
    assert means[:2] == pytest.approx(means[2:], rel=0.1)


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "CartPole-v1"])
def test_a_restored_pool_goes_on_bit_for_bit(env_id: str) -> None:
    player = Player(EnvPool(config(env_id), 6))
    player.reset(np.arange(6))
    player.play(300)
    state, episodes, rng = player.pool.state(), player.episodes.copy(), player.rng.bit_generator.state
    again = Player(EnvPool(config(env_id), 6))
    again.episodes, again.rng.bit_generator.state = episodes.copy(), rng
    assert not again.pool.restore(state).any()
    assert shown(again.pool) == shown(player.pool)
    assert again.play(150) == player.play(150)


def test_rows_play_in_few_batches() -> None:
    """Each batch is a call of its own: episodes that are told ahead come in large ones, and old ones go."""
    pool = EnvPool(config("CartPole-v1"), 32)
    player = Player(pool)
    player.reset(np.arange(32))
    made = set()
    for _ in range(40):
        player.play(10)
        home: Any = pool._home
        made |= {id(batch) for batch in home._batch}
        assert len({id(batch) for batch in home._batch}) <= 4
    assert player.episodes.sum() / (32 * AHEAD) < 4 * len(made)


def test_nothing_changes_until_a_step_is_received() -> None:
    pool, twin = started(config("LunarLander-v3"), 5), started(config("LunarLander-v3"), 5)
    before = shown(pool)
    pool.send([0, 1, 2, 3, 0])
    assert shown(pool) == before
    step = pool.receive()
    assert step.obs.tobytes() == twin.step([0, 1, 2, 3, 0]).obs.tobytes()
    kept = step.obs.copy()
    pool.step([1] * 5)
    np.testing.assert_array_equal(step.obs, kept)
    assert step.obs.dtype == step.reward.dtype == np.float32
    pool.send([1] * 5)
    pool.close()


# --- What cannot be served --------------------------------------------------------------------------------------------


def test_without_the_extra_a_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ParamsError) as failed:
        EnvPool(config("CartPole-v1"), 1)
    assert str(failed.value) == (
        'env.backend: envpool is not installed: `pip install "evopipe[envpool]"`, or set it to sync'
    )
    assert failed.value.exit_code == 65
    EnvPool(config("CartPole-v1").on_gymnasium, 1)  # stages that use Gymnasium go on


@pytest.fixture
def twice_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that both have, with other spaces."""
    for name in ("AcrobotSwingup-v1", "MountainCar-v0"):
        spec = gymnasium.envs.registration.EnvSpec(name, entry_point=Chain)
        monkeypatch.setitem(gymnasium.registry, name, spec)


@pytest.mark.usefixtures("twice_named")
def test_what_envpool_does_not_offer_is_refused() -> None:
    cases = {
        "env.backend: envpool has no 'envs_for_tests:Chain-v0'": config("envs_for_tests:Chain-v0"),
        "env.kwargs: envpool's 'LunarLander-v3' does not take {'gravity': -5.0}": config(
            "LunarLander-v3", gravity=-5.0
        ),
        "env.backend: envpool's 'AcrobotSwingup-v1' has observations of length 6 and 1 continuous actions, ": config(
            "AcrobotSwingup-v1"
        ),
        "env.backend: envpool's 'MountainCar-v0' has observations of length 2 and 3 discrete actions, ": config(
            "MountainCar-v0"
        ),
    }
    for text, cfg in cases.items():
        with pytest.raises(ParamsError) as failed:
            EnvPool(cfg, 2)
        assert str(failed.value).startswith(text)


def test_rules_that_look_inside_an_environment_need_gymnasium() -> None:
    with pytest.raises(UsageError, match="do not live in this process"):
        started(config("CartPole-v1"), 1).env(0)
