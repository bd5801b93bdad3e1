"""Environments in C: rows that do not know each other, a pool's contract, resume, and what is refused."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from evopipe.envs.compiled import CompiledPool
from evopipe.envs.pool import EnvPool
from evopipe.envs.tensors import OFFERED, TensorPool, TensorStep
from evopipe.errors import DataError, ParamsError
from evopipe.schema.env import EnvConfig

CPU = torch.device("cpu")
_MINATAR = pytest.mark.skipif(
    find_spec("minatar") is None, reason="an extra of its own: pip install 'evopipe[minatar]'"
)
_GAMES = [
    f"MinAtar/{game}-{version}"
    for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
    for version in ("v0", "v1")
]
NAMES = [
    *OFFERED, "CliffWalking-v1", "CliffWalkingSlippery-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4",
    pytest.param("MinAtar/Seaquest-v1", marks=_MINATAR),
    *(pytest.param(name, marks=(_MINATAR, pytest.mark.thorough)) for name in _GAMES if name != "MinAtar/Seaquest-v1"),
]  # fmt: skip


def config(env_id: str = "CartPole-v1", backend: str = "c", **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "kwargs": kwargs, "backend": backend})


def begun(cfg: EnvConfig, rows: int) -> CompiledPool:
    pool = CompiledPool(cfg, rows, CPU)
    pool.reset(torch.arange(rows), torch.arange(rows))
    return pool


def random_actions(pool: CompiledPool, rows: int, rng: np.random.Generator) -> torch.Tensor:
    """Some of them beyond the bounds."""
    if pool.spaces.continuous:
        return torch.from_numpy(rng.uniform(-1.2, 1.2, (rows, pool.spaces.actions)).astype(np.float32))
    return torch.from_numpy(rng.integers(pool.spaces.actions, size=rows))


def go_on(pool: CompiledPool, step: TensorStep, seed: int) -> None:
    """Reset the rows that are over."""
    over = (step.terminated | step.truncated).nonzero()[:, 0]
    pool.reset(over, over + seed)


@pytest.mark.parametrize("env_id", NAMES)
def test_it_says_of_itself_what_gymnasium_says(env_id: str) -> None:
    own, pool, spec = CompiledPool(config(env_id), 2, CPU), EnvPool(config(env_id, "sync"), 1), gymnasium.spec(env_id)
    assert own.max_steps == (spec.max_episode_steps or 10_000)
    assert own.limit == (None if spec.max_episode_steps else 10_000)
    assert own.reward_threshold == spec.reward_threshold
    assert own.spaces == pool.spaces
    assert own.actions.to_json() == pool.actions.to_json()
    assert CompiledPool(config(env_id, max_episode_steps=7), 2, CPU).max_steps == 7
    assert own.memory.shape[0] == 2
    assert own.memory.shape[1] % 16 == 0


@pytest.mark.parametrize("env_id", sorted(OFFERED))
def test_classic_control_begins_and_goes_on_as_tensors_do(env_id: str) -> None:
    own, tensors = begun(config(env_id), 7), TensorPool(config(env_id, "torch"), 7, CPU)
    tensors.reset(torch.arange(7), torch.arange(7))
    rng = np.random.default_rng(2)
    for _ in range(50):
        torch.testing.assert_close(own.obs, tensors.obs, rtol=1e-6, atol=1e-6)
        actions = random_actions(own, 7, rng)
        for mine, theirs in zip(own.step(actions), tensors.step(actions), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_an_episode_that_ends_at_its_limit_ends_in_both_ways() -> None:
    """As Gymnasium's TimeLimit has it: the flags do not exclude each other."""
    pushed, steps = torch.zeros(1, dtype=torch.int64), 0
    pool = begun(config(), 1)
    while not (pool.step(pushed).terminated.any() or steps > 50):
        steps += 1
    pool = begun(config(max_episode_steps=steps + 1), 1)
    ends = [(bool(step.terminated), bool(step.truncated)) for step in (pool.step(pushed) for _ in range(steps + 1))]
    assert ends == [(False, False)] * steps + [(True, True)]
    pool = begun(config(max_episode_steps=steps), 1)
    assert [bool(pool.step(pushed).truncated) for _ in range(steps)] == [False] * (steps - 1) + [True]


def test_a_taxi_begins_wherever_gymnasiums_may_and_everywhere_as_often() -> None:
    n = 30_000
    counts = begun(config("Taxi-v4"), n).obs.sum(0).numpy()
    inner: Any = gymnasium.make("Taxi-v4").unwrapped
    expected = inner.initial_state_distrib * n
    assert ((counts > 0) == (expected > 0)).all()
    possible = expected > 0
    chi = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi < 299 + 4 * np.sqrt(2 * 299)


@pytest.mark.parametrize("env_id", NAMES)
def test_a_row_is_the_same_to_the_bit_wherever_it_stands_and_whatever_stands_beside_it(env_id: str) -> None:
    rows, steps, rng = 19, 40, np.random.default_rng(3)
    whole = begun(config(env_id), rows)
    actions = [random_actions(whole, rows, rng) for _ in range(steps)]
    seen = [whole.step(action) for action in actions]
    for places in ([5], [18, 0], rng.permutation(rows).tolist(), [7] * 3):
        index = torch.tensor(places)
        some = CompiledPool(config(env_id), len(places), CPU)
        some.reset(torch.arange(len(places)), index)
        for action, step in zip(actions, seen, strict=True):
            for part, expected in zip(some.step(action[index]), step, strict=True):
                assert torch.equal(part, expected[index])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_rows_that_do_not_step_stay_as_they_are(env_id: str) -> None:
    """Some rows by number, then some by mask: the same steps as in pools of their own."""
    pool, rng = begun(config(env_id), 6), np.random.default_rng(4)
    alone = [CompiledPool(config(env_id), 1, CPU) for _ in range(6)]
    for row, one in enumerate(alone):
        one.reset([0], [row])
    for tick in range(30):
        before, actions = pool.state(), random_actions(pool, 6, rng)
        chosen = torch.from_numpy(rng.permutation(6)[:4].copy())
        if tick % 2:
            step = pool.step(actions[:4], chosen)
        else:
            mask = torch.zeros(6, dtype=torch.bool)
            mask[chosen] = True
            step = TensorStep(*(part[chosen] for part in pool.step_where(actions, mask)))
        for i, row in enumerate(chosen.tolist()):
            expected = alone[row].step(actions[[i]] if tick % 2 else actions[[row]])
            assert all(torch.equal(part[[i]], one) for part, one in zip(step, expected, strict=True))
            assert torch.equal(pool.memory[[row]], alone[row].memory)
        others = [row for row in range(6) if row not in chosen.tolist()]
        for name, kept in pool.state().items():
            np.testing.assert_array_equal(kept[others], before[name][others])


def test_a_step_is_not_overwritten_by_the_next_and_shows_the_true_last_observation() -> None:
    pool = begun(config(max_episode_steps=30), 8)
    steps: list[TensorStep] = []
    kept = []
    while not steps or not steps[-1].terminated.all():
        steps.append(pool.step(torch.ones(8, dtype=torch.int64)))
        kept.append([part.clone() for part in steps[-1]])
    for step, copies in zip(steps, kept, strict=True):
        assert all(torch.equal(part, one) for part, one in zip(step, copies, strict=True))
        assert [part.dtype for part in step] == [torch.float32, torch.float32, torch.bool, torch.bool]
    first = steps[[bool(step.terminated[0]) for step in steps].index(True)]
    assert abs(first.obs[0, 2]) > 12 * np.pi / 180  # beyond the angle that ends it, not a new episode's start
    assert pool.length.tolist() == [len(steps)] * 8


def test_a_time_limit_cuts() -> None:
    pool = begun(config("Pendulum-v1", max_episode_steps=3), 2)
    cut = [pool.step(torch.zeros(2, 1)).truncated.tolist() for _ in range(3)]
    assert cut == [[False] * 2, [False] * 2, [True] * 2]


@pytest.mark.parametrize("env_id", NAMES)
@pytest.mark.thorough
def test_what_was_restored_goes_on_to_the_bit(env_id: str) -> None:
    pool, rng = begun(config(env_id), 5), np.random.default_rng(6)
    for tick in range(25):
        go_on(pool, pool.step(random_actions(pool, 5, rng)), 100 * tick)
    again = CompiledPool(config(env_id), 5, CPU)
    assert again.restore(pool.state()).tolist() == [False] * 5
    assert torch.equal(again.begins, pool.begins)
    for tick in range(60):
        assert torch.equal(again.obs, pool.obs)
        actions = random_actions(pool, 5, rng)
        for one, other in zip(steps := again.step(actions), pool.step(actions), strict=True):
            assert torch.equal(one, other)
        for each in (pool, again):
            go_on(each, steps, 7000 + tick)


def test_a_state_of_another_environment_is_refused() -> None:
    with pytest.raises(DataError, match="the saved environments in C have states"):
        begun(config("Pendulum-v1"), 3).restore(begun(config(), 3).state())


def test_a_pool_steps_them() -> None:
    """Rows in NumPy, for whatever needs arrays: several steps a transition, evaluations that are watched."""
    pool, own = EnvPool(config(), 4), begun(config(), 4)
    pool.reset(np.arange(4), np.arange(4))
    np.testing.assert_array_equal(pool.obs, own.obs.numpy())
    for _ in range(5):
        step, expected = pool.step([1, 0, 1, 0]), own.step(torch.tensor([1, 0, 1, 0]))
        np.testing.assert_array_equal(step.obs, expected.obs.numpy())
    other = EnvPool(config(), 4)
    assert other.restore(pool.state()).tolist() == [False] * 4
    np.testing.assert_array_equal(other.obs, pool.obs)


@pytest.mark.parametrize("numbers", [[np.nan], [np.inf], [-np.inf], [7.0], [-1.0], [0.3]])
def test_an_action_means_what_it_means_to_gymnasium(numbers: list[float]) -> None:
    """By a step of `MountainCarContinuous-v0`, whose reward is a function of its push."""
    pool = begun(config("MountainCarContinuous-v0"), 1)
    action = np.array([numbers], np.float32)
    push = float(pool.actions.own(action)[0, 0])
    assert float(pool.step(torch.from_numpy(action)).reward[0]) == np.float32(0.0 - push * push * 0.1)


@pytest.mark.parametrize(
    ("cfg", "text"),
    [
        (config("LunarLander-v3"), "env.backend: c has no 'LunarLander-v3'; it has Acrobot-v1, CartPole-v0, "),
        (config("CartPole-v2"), "env.backend: c has no 'CartPole-v2', did you mean 'CartPole-v1'?; it has "),
        (config("Pendulum-v1", g="strong"), "env.kwargs: g of 'Pendulum-v1' in C is a number or a bool, not 'strong'"),
        (
            config("FrozenLake-v1", map_name="8x8"),
            "env.kwargs: 'FrozenLake-v1' in C does not take 'map_name': it takes is_slippery, success_rate",
        ),
        (
            config("Taxi-v4", is_rainy=True),
            "env.kwargs: 'Taxi-v4' in C does not take 'is_rainy': it takes no arguments",
        ),
        (config("CartPole-v1", gravity=3.0), "env.kwargs: 'CartPole-v1' does not take {'gravity': 3.0}: "),
    ],
)
def test_what_is_not_offered_is_refused(cfg: EnvConfig, text: str) -> None:
    with pytest.raises(ParamsError) as failed:
        CompiledPool(cfg, 2, CPU)
    assert str(failed.value).startswith(text)
    assert failed.value.exit_code == 65


def test_a_device_is_refused() -> None:
    with pytest.raises(ParamsError, match="c steps on the CPU alone, and members live on cuda:0: set it to torch"):
        CompiledPool(config(), 2, torch.device("cuda", 0))


@pytest.mark.parametrize(
    "env_id", ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Taxi-v4"]
)
def test_an_episode_begins_with_nothing_of_the_one_before(env_id: str) -> None:
    pool = begun(config(env_id), 3)
    first, rng = pool.memory.clone(), np.random.default_rng(1)
    for _ in range(9):
        pool.step(random_actions(pool, 3, rng))
    assert (pool.memory != first).any(dim=1).all()
    pool.reset(torch.arange(3), torch.arange(3))
    assert torch.equal(pool.memory, first)
