"""Continuous actions in the environment pool: bounds, clipping, workers, envpool, and resume."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envs_for_tests import Chain
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.envs.spaces import ActionSpace
from evopipe.envs.workers import Workers
from evopipe.errors import DataError, ParamsError
from evopipe.schema.env import EnvConfig

BOXES = {
    "pendulum": spaces.Box(-2.0, 2.0, (1,), np.float32),
    "upper": spaces.Box(0.0, 1.0, (3,), np.float32),
    "odd": spaces.Box(np.array([-0.1, 3.0], np.float32), np.array([0.3, 7.7], np.float32)),
    "flat": spaces.Box(np.array([1.0, -1.0], np.float32), np.array([1.0, 2.0], np.float32)),
    "double": spaces.Box(-1 / 3, 2 / 3, (2, 2), np.float64),
}


def config(env_id: str = "Pendulum-v1", **more: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, **more})


def started(cfg: EnvConfig, rows: int, **options: Any) -> EnvPool:
    pool = EnvPool(cfg, rows, **options)
    pool.reset(np.arange(rows), np.arange(rows))
    return pool


def fields(step: RowStep) -> list[bytes]:
    return [part.tobytes() for part in step.parts]


def play(pool: EnvPool, ticks: int, seed: int = 3) -> list[list[bytes]]:
    """Random actions, some beyond the bounds; ended rows begin anew. All there is to see."""
    rng, seen = np.random.default_rng(seed), []
    for tick in range(ticks):
        step = pool.step(rng.uniform(-1.2, 1.2, (pool.rows, pool.num_actions)))
        over = np.flatnonzero(step.over)
        pool.reset(over, 1000 * tick + over)
        seen.append([*fields(step), pool.obs.tobytes(), *(a.tobytes() for a in pool.state().values())])
    return seen


@pytest.mark.parametrize("name", sorted(BOXES))
def test_the_ends_of_the_interval_are_the_bounds_to_the_bit(name: str) -> None:
    box = BOXES[name]
    space = ActionSpace.of(box)
    ends = space.own(np.repeat([[-1.0], [1.0], [0.0]], space.size, axis=1).astype(np.float32))
    assert ends.shape == (3, *box.shape)
    low, high = box.low.astype(np.float32), box.high.astype(np.float32)
    np.testing.assert_array_equal(ends[0], low)
    np.testing.assert_array_equal(ends[1], high)
    np.testing.assert_allclose(ends[2], (low + high) / 2, atol=1e-6)
    inside = space.own(np.random.default_rng(0).uniform(-1, 1, (500, space.size)).astype(np.float32))
    assert all(box.contains(action.astype(box.dtype)) for action in inside)


@pytest.mark.parametrize("name", sorted(BOXES))
def test_what_is_beyond_is_clipped_and_what_is_no_number_is_the_middle(name: str) -> None:
    space = ActionSpace.of(BOXES[name])
    n = space.size
    wild = np.array([[-7.0] * n, [np.inf] * n, [-np.inf] * n, [np.nan] * n], np.float32)
    tame = np.array([[-1.0] * n, [1.0] * n, [-1.0] * n, [0.0] * n], np.float32)
    np.testing.assert_array_equal(space.own(wild), space.own(tame))


@pytest.mark.parametrize("name", ["pendulum", "upper", "odd", "double"])
def test_there_and_back_is_the_identity(name: str) -> None:
    space = ActionSpace.of(BOXES[name])
    relative = np.random.default_rng(1).uniform(-1, 1, (200, space.size)).astype(np.float32)
    np.testing.assert_allclose(space.relative(space.own(relative)), relative, atol=2e-6)
    again = ActionSpace.from_json(space.to_json())
    np.testing.assert_array_equal(again.own(relative), space.own(relative))
    assert (again.size, again.shape, again.continuous) == (space.size, space.shape, True)


@pytest.mark.parametrize(
    ("box", "words"),
    [
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), "unbounded"),
        (spaces.Box(0, 5, (2,), np.int32), "not served"),
        (spaces.Sequence(spaces.Discrete(2)), "not served"),
        (spaces.Text(3), "not served"),
    ],
)
def test_action_spaces_that_cannot_be_served_are_refused(box: spaces.Space[Any], words: str) -> None:
    with pytest.raises(ParamsError, match=words):
        ActionSpace.of(box)


def test_the_wrapper_advised_for_unbounded_actions_bounds_them() -> None:
    env: gymnasium.Env[Any, Any] = Chain(kind="continuous")
    env.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    with pytest.raises(ParamsError, match=r"give it bounds in the environment's own action_space, or wrap") as caught:
        ActionSpace.of(env.action_space)
    advice = str(caught.value).partition("or wrap it: ")[2].partition(", with bounds that suit it")[0]
    wrapped = eval(advice, {"env": env, "gymnasium": gymnasium, "Box": spaces.Box})
    space = ActionSpace.of(wrapped.action_space)
    assert (space.size, space.continuous) == (1, True)
    wrapped.reset(seed=0)
    before = env.unwrapped.cell
    wrapped.step(space.own(np.ones((1, 1), np.float32))[0])
    assert env.unwrapped.cell == before + 1


def test_the_pool_steps_as_the_environment_itself_does() -> None:
    pool, env = started(config(), 1), gymnasium.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(pool.obs[0], obs.astype(np.float32))
    for action in np.random.default_rng(2).uniform(-1.3, 1.3, 40).astype(np.float32):
        step = pool.step([[action]])
        obs, reward, *_ = env.step(np.array([2.0 * np.clip(action, -1, 1)], np.float32))
        np.testing.assert_allclose(step.obs[0], obs, rtol=1e-6, atol=1e-6)
        assert float(step.reward[0]) == pytest.approx(float(reward), rel=1e-5, abs=1e-6)
    env.close()
    pool.close()


def test_an_action_that_is_no_number_breaks_nothing() -> None:
    pool, other = started(config(), 2), started(config(), 2)
    step = pool.step([[math.nan], [0.3]])
    assert not step.broken.any()
    assert fields(step) == fields(other.step([[0.0], [0.3]]))


def test_a_subset_of_rows_steps_alone() -> None:
    pool, whole = started(config(), 3), started(config(), 3)
    step = pool.step([[0.5], [-0.5]], rows=[2, 0])
    all_rows = whole.step([[-0.5], [0.0], [0.5]])
    np.testing.assert_array_equal(step.obs, all_rows.obs[[2, 0]])
    assert pool.episode_length.tolist() == [1, 0, 1]


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "LunarLanderContinuous-v3"])
@pytest.mark.thorough
def test_worker_processes_give_what_this_process_gives(env_id: str) -> None:
    with Workers(2) as workers:
        here, there = started(config(env_id), 5), started(config(env_id), 5, workers=workers)
        assert there.worker_count == 2
        assert play(here, 230) == play(there, 230)
        there.close()


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "LunarLanderContinuous-v3"])
def test_envpool_depends_on_seeds_and_actions_alone(env_id: str) -> None:
    pytest.importorskip("envpool")
    cfg = config(env_id, backend="envpool")
    with Workers(2) as workers:
        one, many = started(cfg, 5), started(cfg, 5, workers=workers)
        assert play(one, 230) == play(many, 230)
    alone = EnvPool(cfg, 1)
    alone.reset([0], [3])
    crowd = started(cfg, 5)
    for action in (-1.0, 0.3, 1.0):
        each = crowd.step(np.full((5, crowd.num_actions), action))
        assert alone.step(np.full((1, crowd.num_actions), action)).obs.tobytes() == each.obs[3:4].tobytes()


def test_envpools_pendulum_takes_torques_up_to_its_bounds() -> None:
    """A torque of 2, which 1 stands for, speeds a resting pendulum up by 3/(m l²) · 2 · dt = 0.3 beside gravity."""
    pytest.importorskip("envpool")
    for backend in ("sync", "envpool"):
        pools = [started(config(backend=backend), 4) for _ in range(3)]
        after = [pool.step(np.full((4, 1), a)).obs[:, 2] for pool, a in zip(pools, (-1.0, 0.0, 1.0), strict=True)]
        np.testing.assert_allclose(after[2] - after[1], 0.3, atol=1e-4)
        np.testing.assert_allclose(after[1] - after[0], 0.3, atol=1e-4)


@pytest.mark.parametrize("backend", ["sync", "envpool"])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "LunarLanderContinuous-v3"])
@pytest.mark.thorough
def test_a_pool_is_rebuilt_in_the_midst_of_its_episodes(env_id: str, backend: str) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    cfg = config(env_id, backend=backend)
    pool = started(cfg, 4)
    play(pool, 70)
    state = {name: array.copy() for name, array in pool.state().items()}
    assert state["actions"].shape == (int(state["length"].sum()), pool.num_actions)
    assert state["actions"].dtype == np.float32
    again = EnvPool(cfg, 4)
    assert not again.restore(state).any()
    assert play(again, 150, seed=8) == play(pool, 150, seed=8)


def test_a_state_of_another_action_space_is_refused() -> None:
    pool = started(config("LunarLander-v3"), 2)
    pool.step([0, 1])
    with pytest.raises(DataError, match="action log that does not fit"):
        EnvPool(config("LunarLanderContinuous-v3"), 2).restore(pool.state())
