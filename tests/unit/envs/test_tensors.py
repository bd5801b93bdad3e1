"""Classic control as tensors: Gymnasium's games step for step, rows that do not know each other, a pool's contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from device import DEVICE, Device
from evopipe.envs.make import make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.tensors import OFFERED, TensorPool, TensorStep
from evopipe.envs.workers import Workers
from evopipe.errors import ParamsError, UsageError
from evopipe.schema.env import EnvConfig
from tiny import call, digests, write_params

CPU = torch.device("cpu")
PI = math.pi

Rule = Callable[[np.ndarray], Any]
# From observations [R, O], what reaches the ends that random actions do not: time limits, goals, speed limits.
RULES: dict[str, Rule] = {
    "Acrobot-v1": lambda o: 1 + np.sign(o[:, 5]).astype(np.int64),
    "CartPole-v0": lambda o: (o @ [0.05, 0.1, 1.0, 0.5] > 0).astype(np.int64),
    "CartPole-v1": lambda o: (o @ [0.05, 0.1, 1.0, 0.5] > 0).astype(np.int64),
    "MountainCar-v0": lambda o: np.where(o[:, 1] < 0, 0, 2),
    "MountainCarContinuous-v0": lambda o: np.sign(o[:, 1:]),
    "Pendulum-v1": lambda o: np.sign(o[:, 2:]),
}
# Episode ends that the play below must have met: terminated, truncated.
ENDS = {env_id: (env_id != "Pendulum-v1", True) for env_id in RULES}
# Half the width of the states to step from.
ANYWHERE = {
    "Acrobot-v1": [PI, PI, 4 * PI, 9 * PI],
    "CartPole-v0": [3.0, 4.0, 0.3, 4.0],
    "CartPole-v1": [3.0, 4.0, 0.3, 4.0],
    "MountainCar-v0": [1.2, 0.07],
    "MountainCarContinuous-v0": [1.2, 0.07],
    "Pendulum-v1": [30.0, 8.0],
}
BOUNDS: dict[str, list[tuple[float, float]]] = {
    "Acrobot-v1": [(-0.1, 0.1)] * 4,
    "CartPole-v0": [(-0.05, 0.05)] * 4,
    "CartPole-v1": [(-0.05, 0.05)] * 4,
    "MountainCar-v0": [(-0.6, -0.4), (0.0, 0.0)],
    "MountainCarContinuous-v0": [(-0.6, -0.4), (0.0, 0.0)],
    "Pendulum-v1": [(-PI, PI), (-1.0, 1.0)],
}


def config(env_id: str = "CartPole-v1", **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "kwargs": kwargs, "backend": "torch"})


def begun(cfg: EnvConfig, rows: int, device: torch.device = CPU) -> TensorPool:
    batched = TensorPool(cfg, rows, device)
    batched.reset(torch.arange(rows), torch.arange(rows))
    return batched


def started(cfg: EnvConfig, rows: int, **options: Any) -> EnvPool:
    pool = EnvPool(cfg, rows, **options)
    pool.reset(np.arange(rows), np.arange(rows))
    return pool


def random_actions(batched: TensorPool | EnvPool, rows: int, rng: np.random.Generator) -> np.ndarray:
    """In an algorithm's terms, some of them beyond the bounds."""
    if batched.spaces.continuous:
        return rng.uniform(-1.2, 1.2, (rows, batched.spaces.actions)).astype(np.float32)
    return rng.integers(batched.spaces.actions, size=rows)


class Twins:
    """Rows of Gymnasium's environments, and the same as tensors, begun in the states that Gymnasium drew.

    Args:
        cfg: which environment.
        rows: how many.
        together: after so many steps Gymnasium's state is copied again.
    """

    def __init__(self, cfg: EnvConfig, rows: int, together: int = 1_000_000) -> None:
        self.envs = [make_env(cfg) for _ in range(rows)]
        self.batched, self.together = TensorPool(cfg, rows, CPU), together
        self.rule, self.rng = RULES[cfg.id], np.random.default_rng(7)
        self.episodes, self.ends = 0, [0, 0]
        for row in range(rows):
            self.begin(row)

    def begin(self, row: int) -> None:
        """A new episode in one row: a test of masks on the way."""
        obs, _ = self.envs[row].reset(seed=self.episodes)
        self.episodes += 1
        rows = len(self.envs)
        before = self.batched.physics.clone()
        self.batched.reset_where(torch.arange(rows) == row, torch.arange(rows))
        assert (self.batched.physics == before).all(1).tolist()[:row] == [True] * row
        self.copy(row)
        np.testing.assert_allclose(self.batched.obs[row].numpy(), obs, rtol=0, atol=1e-6)

    def copy(self, row: int) -> None:
        self.batched.physics[row] = torch.tensor(np.array(self.envs[row].unwrapped.state, np.float64))

    def actions(self) -> np.ndarray:
        """Random ones in the even rows; in the odd ones the rule's, but for every fourth."""
        rows = len(self.envs)
        chosen = self.rule(self.batched.obs.numpy().astype(np.float64))
        drawn = random_actions(self.batched, rows, self.rng)
        at_random = (np.arange(rows) % 2 == 0) | (self.rng.random(rows) < 0.25)
        return np.where(at_random.reshape(-1, *[1] * (drawn.ndim - 1)), drawn, chosen).astype(drawn.dtype)

    def play(self, steps: int) -> None:
        """Step both, and compare all there is."""
        for tick in range(1, steps + 1):
            actions = self.actions()
            step = self.batched.step(torch.from_numpy(actions))
            own = self.batched.actions.own(actions)
            theirs = [env.step(action) for env, action in zip(self.envs, own, strict=True)]
            obs, reward, terminated, truncated = (np.array([t[i] for t in theirs]) for i in range(4))
            np.testing.assert_allclose(step.obs.numpy(), obs, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(step.reward.numpy(), reward, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(step.terminated.numpy(), terminated)
            np.testing.assert_array_equal(step.truncated.numpy(), truncated)
            self.ends[0], self.ends[1] = self.ends[0] + terminated.sum(), self.ends[1] + truncated.sum()
            for row in np.flatnonzero(terminated | truncated):
                self.begin(row)
            for row in range(len(self.envs) if tick % self.together == 0 else 0):
                self.copy(row)


# --- The same game ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("env_id", sorted(set(OFFERED) - {"Acrobot-v1"}))
def test_it_is_gymnasiums_environment_step_for_step(env_id: str) -> None:
    """Whole episodes from Gymnasium's initial states, to the time limit, with nothing copied in between."""
    twins = Twins(config(env_id), 10)
    twins.play(1100)
    assert tuple(n > 0 for n in twins.ends) == ENDS[env_id]
    assert twins.episodes > 10


@pytest.mark.thorough
def test_acrobot_is_gymnasiums_environment_step_for_step() -> None:
    """It is chaotic, and what two libraries' sines differ by grows from 1e-16: so the state is copied on the way."""
    twins = Twins(config("Acrobot-v1"), 10, together=50)
    twins.play(1100)
    assert all(n > 0 for n in twins.ends)


@pytest.mark.parametrize("env_id", sorted(OFFERED))
def test_one_step_from_anywhere_is_gymnasiums(env_id: str) -> None:
    """Walls, speed limits and turns beyond a full circle included, which play from the start seldom meets."""
    rows, rng, limits = 300, np.random.default_rng(11), np.array(ANYWHERE[env_id])
    batched, env = begun(config(env_id), rows), make_env(config(env_id))
    states = rng.uniform(-1, 1, (rows, len(limits))) * limits
    if env_id == "MountainCarContinuous-v0":
        states = states.astype(np.float32)
    batched.physics.copy_(torch.from_numpy(states))
    actions = random_actions(batched, rows, rng)
    step, after = batched.step(torch.from_numpy(actions)), []
    for row, action in enumerate(batched.actions.own(actions)):
        env.reset(seed=0)
        env.unwrapped.state = states[row]
        obs, reward, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(step.obs[row].numpy(), obs, rtol=1e-6, atol=1e-6)
        assert step.reward[row].item() == pytest.approx(reward, rel=1e-6, abs=1e-6)
        assert bool(step.terminated[row]) == terminated
        after.append(np.array(env.unwrapped.state, np.float64))
    np.testing.assert_allclose(batched.physics.numpy(), after, rtol=1e-12, atol=1e-12)
    assert len({*map(bool, step.terminated)}) == 1 + ENDS[env_id][0]
    if env_id == "Acrobot-v1":
        assert (np.abs(after)[:, 2:].max(0) == np.array([4, 9]) * PI).all()


@pytest.mark.parametrize(
    "cfg",
    [
        config("CartPole-v1", sutton_barto_reward=True, max_episode_steps=60),
        config("Pendulum-v1", g=3),
        config("MountainCar-v0", goal_velocity=0.04),
        config("MountainCarContinuous-v0", goal_velocity=0.04),
    ],
)
@pytest.mark.thorough
def test_arguments_of_the_constructor_are_honoured(cfg: EnvConfig) -> None:
    twins = Twins(cfg, 6)
    twins.play(1100)
    assert tuple(n > 0 for n in twins.ends) == ENDS[cfg.id]
    twins.batched = begun(config(cfg.id), 6)  # without them
    for row in range(6):
        twins.begin(row)
    with pytest.raises(AssertionError):
        twins.play(1100)


@pytest.mark.parametrize("env_id", sorted(OFFERED))
def test_it_says_of_itself_what_gymnasium_says(env_id: str) -> None:
    batched, pool = TensorPool(config(env_id), 2, CPU), EnvPool(config(env_id).on_gymnasium, 1)
    spec = gymnasium.spec(env_id)
    assert (batched.max_steps, batched.reward_threshold) == (spec.max_episode_steps, spec.reward_threshold)
    assert batched.spaces == pool.spaces
    assert batched.actions.to_json() == pool.actions.to_json()
    assert TensorPool(config(env_id, max_episode_steps=7), 2, CPU).max_steps == 7


# --- Episodes by seed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", sorted(OFFERED))
def test_initial_states_are_drawn_as_gymnasium_draws_them(env_id: str) -> None:
    """Uniform between its bounds (Kolmogorov and Smirnov; 1 in 10⁴ by chance, but seeds are fixed), and unrelated."""
    n = 20_000
    state = begun(config(env_id), n).physics.numpy()
    env = make_env(config(env_id))
    for seed in range(50):
        env.reset(seed=seed)
        for value, (low, high) in zip(env.unwrapped.state, BOUNDS[env_id], strict=True):
            assert low - 1e-7 <= value <= high + 1e-7
    moving = [i for i, (low, high) in enumerate(BOUNDS[env_id]) if high > low]
    for i, (low, high) in enumerate(BOUNDS[env_id]):
        assert state[:, i].min() >= low - 1e-7
        assert state[:, i].max() <= high + 1e-7
    for i in moving:
        low, high = BOUNDS[env_id][i]
        share = (np.sort(state[:, i]) - low) / (high - low)
        assert np.abs(share - (np.arange(n) + 0.5) / n).max() < 2.23 / math.sqrt(n)
    apart = np.corrcoef(state[:, moving], rowvar=False).reshape(len(moving), -1) - np.eye(len(moving))
    assert np.abs(apart).max() < 4 / math.sqrt(n)


def test_a_reset_by_mask_touches_no_other_row_and_no_other_memory() -> None:
    batched = begun(config(), 6)
    for _ in range(3):
        batched.step(torch.ones(6, dtype=torch.int64))
    state, length, before = batched.physics, batched.length, batched.physics.clone()
    mask = torch.tensor([True, False, False, True, False, False])
    batched.reset_where(mask, torch.tensor([40, 41, 42, 0, 44, 45]))
    assert batched.length.tolist() == [0, 3, 3, 0, 3, 3]
    assert torch.equal(batched.physics[~mask], before[~mask])
    assert batched.physics is state
    assert batched.length is length
    fresh = TensorPool(config(), 2, CPU)
    fresh.reset([0, 1], [0, 40])
    assert torch.equal(batched.physics[[3, 0]], fresh.physics)
    assert torch.equal(batched.obs[[3, 0]], fresh.obs)
    assert (fresh.physics[0] != fresh.physics[1]).all()


@pytest.mark.parametrize("env_id", sorted(OFFERED))
def test_a_row_is_the_same_to_the_bit_wherever_it_stands_and_whatever_stands_beside_it(env_id: str) -> None:
    rows, steps, rng = 37, 60, np.random.default_rng(3)
    whole = begun(config(env_id), rows)
    actions = [torch.from_numpy(random_actions(whole, rows, rng)) for _ in range(steps)]
    seen = [whole.step(action) for action in actions]
    for places in ([5], [36, 0], list(range(9)), rng.permutation(rows).tolist(), [7] * 3):
        index = torch.tensor(places)
        some = TensorPool(config(env_id), len(places), CPU)
        some.reset(torch.arange(len(places)), index)
        for action, step in zip(actions, seen, strict=True):
            for part, expected in zip(some.step(action[index]), step, strict=True):
                assert torch.equal(part, expected[index])


def test_a_step_is_not_overwritten_by_the_next_and_shows_the_true_last_observation() -> None:
    batched = begun(config(max_episode_steps=30), 8)
    steps: list[TensorStep] = []
    kept = []
    while not steps or not steps[-1].terminated.all():
        steps.append(batched.step(torch.ones(8, dtype=torch.int64)))
        kept.append([part.clone() for part in steps[-1]])
    for step, copies in zip(steps, kept, strict=True):
        assert all(torch.equal(part, one) for part, one in zip(step, copies, strict=True))
        assert [part.dtype for part in step] == [torch.float32, torch.float32, torch.bool, torch.bool]
        assert step.obs.is_contiguous()
    first = steps[[bool(step.terminated[0]) for step in steps].index(True)]
    assert abs(first.obs[0, 2]) > 12 * PI / 180  # beyond the angle that ends it, not a new episode's start
    assert batched.length.tolist() == [len(steps)] * 8


# --- On a device ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", sorted(OFFERED))
def test_on_a_device_nothing_waits_and_a_graph_can_hold_it(env_id: str) -> None:
    local, rng = begun(config(env_id), 5), np.random.default_rng(1)
    seeds, mask = torch.arange(50, 55), torch.tensor([True, False, False, True, False])
    actions = torch.from_numpy(random_actions(local, 5, rng))
    expected = [*local.step(actions)]
    local.reset_where(mask, seeds)
    expected += [local.obs, local.physics, local.length]
    with Device() as device:
        remote = begun(config(env_id), 5, DEVICE)
        sent = actions.to(DEVICE), seeds.to(DEVICE), mask.to(DEVICE)
        held = remote.physics, remote.length
        device.waits.clear()
        with device.recording():
            given = [*remote.step(sent[0])]
            remote.reset_where(sent[2], sent[1])
            given.append(remote.obs)
        assert not device.waits
        assert device.kept(given) == 0  # a replay finds the state where the last one left it
        for here, there in zip(expected, [*given, *held], strict=True):
            assert torch.equal(there.cpu(), here)


# --- Behind a pool ----------------------------------------------------------------------------------------------------


def shown(pool: EnvPool) -> list[bytes]:
    arrays = [pool.obs, pool.mask, pool.episode_return, pool.episode_length, *pool.state().values()]
    return [array.tobytes() for array in arrays]


def play(pool: EnvPool, ticks: int, rng: np.random.Generator, next_seed: int = 1000) -> list[list[bytes]]:
    """Random actions, some ticks in some rows only; ended rows begin anew. All there is to see."""
    seen = []
    for tick in range(ticks):
        rows = rng.permutation(pool.rows)[: rng.integers(1, pool.rows)] if tick % 5 == 4 else None
        index = np.arange(pool.rows) if rows is None else rows
        step = pool.step(random_actions(pool, len(index), rng), rows)
        over = index[step.over]
        pool.reset(over, next_seed + np.arange(len(over)))
        next_seed += len(over)
        seen.append([*(part.tobytes() for part in step.parts), *shown(pool)])
    return seen


@pytest.mark.parametrize("env_id", sorted(OFFERED))
def test_a_pool_gives_what_the_tensors_give(env_id: str) -> None:
    pool, batched, rng = started(config(env_id), 6), begun(config(env_id), 6), np.random.default_rng(2)
    np.testing.assert_array_equal(pool.obs, batched.obs)
    for _ in range(30):
        actions = random_actions(pool, 6, rng)
        step, expected = pool.step(actions), batched.step(torch.from_numpy(actions))
        for name in TensorStep._fields:
            np.testing.assert_array_equal(getattr(step, name), getattr(expected, name))
        assert not step.broken.any()
        assert step.mask.all()
    assert not pool.masked


@pytest.mark.parametrize("env_id", sorted(OFFERED))
@pytest.mark.thorough
def test_a_restored_pool_goes_on_bit_for_bit(env_id: str) -> None:
    pool = started(config(env_id, max_episode_steps=90), 5)
    play(pool, 170, np.random.default_rng(0))
    state = {name: array.copy() for name, array in pool.state().items()}
    again = EnvPool(config(env_id, max_episode_steps=90), 5)
    assert not again.restore(state).any()
    assert shown(again) == shown(pool)
    assert play(again, 120, np.random.default_rng(1), 9000) == play(pool, 120, np.random.default_rng(1), 9000)


def test_workers_have_nothing_to_do_and_change_nothing() -> None:
    with Workers(2) as workers:
        pools = [
            started(config(), 64),
            started(config(), 64, workers=workers),
            started(config(), 64, workers=workers, overlapped=True),
        ]
        first, *others = (play(pool, 40, np.random.default_rng(4)) for pool in pools)
        assert all(other == first for other in others)
        assert not workers._pools


def test_nothing_changes_until_a_step_is_received() -> None:
    pool, twin = started(config("Pendulum-v1"), 5), started(config("Pendulum-v1"), 5)
    before, actions = shown(pool), np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    pool.send(actions)
    actions[:] = 0.0  # the caller's to use again
    assert shown(pool) == before
    step = pool.receive()
    assert step.obs.tobytes() == twin.step(np.linspace(-1, 1, 5, dtype=np.float32)[:, None]).obs.tobytes()
    kept = step.obs.copy()
    pool.step(actions)
    np.testing.assert_array_equal(step.obs, kept)


def test_an_action_that_is_no_number_counts_as_the_middle_and_harms_no_neighbour() -> None:
    pool, twin = started(config("Pendulum-v1"), 4), started(config("Pendulum-v1"), 4)
    step = pool.step(np.array([[math.nan], [math.inf], [-math.inf], [0.5]], np.float32))
    assert step.obs.tobytes() == twin.step(np.array([[0.0], [1.0], [-1.0], [0.5]], np.float32)).obs.tobytes()


@pytest.mark.thorough
def test_training_takes_it_where_it_is_asked_for_and_only_there(tmp_path: Path) -> None:
    trained = []
    for name, more in (("torch", {}), ("workers", {"runtime.env_workers": 2}), ("sync", {"env.backend": "sync"})):
        write_params(tmp_path / name, {"env.backend": "torch", "runtime.learners": 1, **more})
        for stage in ("population", "train"):
            answer = call(tmp_path / name, stage)
            assert answer.code == 0, answer.err
        trained.append(digests(tmp_path / name))
    assert trained[0] == trained[1]
    assert trained[0] != trained[2]


# --- What cannot be served --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cfg", "text"),
    [
        (
            config("LunarLander-v3"),
            "env.backend: torch has no 'LunarLander-v3'; it has Acrobot-v1, CartPole-v0, CartPole-v1, MountainCar-v0, "
            "MountainCarContinuous-v0, Pendulum-v1, simple_adversary_v3, simple_speaker_listener_v4, simple_spread_v3, "
            "simple_tag_v3; `sync` serves all of Gymnasium's and PettingZoo's",
        ),
        (config("envs_for_tests:Chain-v0"), "env.backend: torch has no 'envs_for_tests:Chain-v0'; it has Acrobot-v1, "),
        (
            config("Pendulum-v1", g="strong"),
            "env.kwargs: torch's 'Pendulum-v1' does not take g: must be a number, got 'strong'; change it, "
            "or set env.backend to sync",
        ),
        (
            config("MountainCar-v0", goal_velocity=None),
            "env.kwargs: torch's 'MountainCar-v0' does not take goal_velocity",
        ),
        (config("CartPole-v1", gravity=3.0), "env.kwargs: 'CartPole-v1' does not take {'gravity': 3.0}: "),
    ],
)
def test_what_is_not_offered_is_refused(cfg: EnvConfig, text: str) -> None:
    for make in (lambda: TensorPool(cfg, 2, CPU), lambda: EnvPool(cfg, 2)):
        with pytest.raises(ParamsError) as failed:
            make()
        assert str(failed.value).startswith(text)
        assert failed.value.exit_code == 65


def test_an_argument_that_only_gymnasium_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later Gymnasium may add one."""

    class Windy(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,))
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, wind: float = 0.0) -> None: ...

    spec = gymnasium.envs.registration.EnvSpec("CartPole-v1", entry_point=Windy, max_episode_steps=9)
    monkeypatch.setitem(gymnasium.registry, "CartPole-v1", spec)
    with pytest.raises(ParamsError, match=r"env.kwargs: torch's 'CartPole-v1' does not take wind: unknown key"):
        TensorPool(config(wind=1.0), 1, CPU)


def test_rules_that_look_inside_an_environment_need_gymnasium() -> None:
    with pytest.raises(UsageError, match="do not live in this process"):
        started(config(), 1).env(0)
