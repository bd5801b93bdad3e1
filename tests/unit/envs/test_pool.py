"""The environment pool: episodes by seed, true last observations, resume, and environments that misbehave."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from envs_for_tests import RandomEnd
from evopipe.data.collect import GOOD
from evopipe.envs.make import make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.errors import DataError, EnvironmentFailed, EvopipeError, ParamsError
from evopipe.schema.env import EnvConfig

RIGHT, LEFT = 1, 0


def config(env_id: str, **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "kwargs": kwargs})


def chain(name: str = "Chain", **kwargs: Any) -> EnvConfig:
    return config(f"envs_for_tests:{name}-v0", **kwargs)


def started(cfg: EnvConfig, rows: int = 2) -> EnvPool:
    pool = EnvPool(cfg, rows)
    pool.reset(np.arange(rows), np.arange(rows))
    return pool


def play(pool: EnvPool, steps: int, rng: np.random.Generator, next_seed: int = 1000) -> list[np.ndarray]:
    """Random actions; ended rows are reset with fresh seeds."""
    seen = []
    for _ in range(steps):
        step = pool.step(rng.integers(pool.num_actions, size=pool.rows))
        seen.append(np.concatenate([step.obs.ravel(), step.reward, step.terminated, step.truncated]))
        over = np.flatnonzero(step.over)
        pool.reset(over, next_seed + np.arange(len(over)))
        next_seed += len(over)
    return seen


# --- Stepping ---------------------------------------------------------------------------------------------------------


def test_a_chain_walks_to_its_end_and_reports_the_true_last_observation() -> None:
    pool = started(chain(), rows=1)
    steps = [pool.step([RIGHT]) for _ in range(3 - int(pool.obs[0].argmax()))]
    last = steps[-1]
    assert last.obs.tolist() == [[0, 0, 0, 1]]
    assert (last.terminated[0], last.truncated[0], last.broken[0]) == (True, False, False)
    assert last.reward.tolist() == [1.0]
    assert last.obs.dtype == last.reward.dtype == np.float32
    assert pool.episode_return.tolist() == [1.0]
    assert pool.episode_length.tolist() == [len(steps)]
    assert not pool.masked
    assert last.mask.tolist() == [[True, True]]


def test_the_time_limit_truncates_and_no_row_resets_by_itself() -> None:
    pool = started(chain(), rows=1)
    flags = [pool.step([LEFT]) for _ in range(10)]
    assert [bool(step.truncated[0]) for step in flags] == [False] * 9 + [True]
    assert not any(step.terminated[0] for step in flags)
    assert pool.episode_length.tolist() == [10]
    pool.reset([0], [5])
    assert pool.episode_length.tolist() == [0]
    assert pool.episode_return.tolist() == [0.0]


def test_a_step_is_broken_where_no_action_is_legal_and_its_episode_goes_on() -> None:
    """Not where it was cut, or ended: what is legal after the last action means nothing."""
    space, draws = ActionSpace.of(gymnasium.spaces.Discrete(3)), np.random.default_rng(0)
    for _ in range(50):
        n = int(draws.integers(1, 6))
        mask, terminated, truncated = (draws.random(shape) < 0.4 for shape in ((n, 3), n, n))
        obs, reward = draws.normal(size=(n, 2)).astype(np.float32), draws.normal(size=n).astype(np.float32)
        obs[draws.random((n, 2)) < 0.1] = np.nan
        step = RowStep.of(space, obs, reward, terminated, truncated, mask)
        assert step.broken.tolist() == [
            bool(np.isnan(obs[i]).any()) or not (mask[i].any() or terminated[i] or truncated[i]) for i in range(n)
        ]


def test_a_subset_of_rows_steps_alone() -> None:
    pool = started(chain(), rows=3)
    before = pool.obs.copy()
    step = pool.step([LEFT, RIGHT], rows=[2, 0])
    assert step.obs.shape == (2, 4)
    assert pool.episode_length.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(pool.obs[1], before[1])
    np.testing.assert_array_equal(pool.obs[[2, 0]], step.obs)


def test_a_step_is_not_overwritten_by_the_next() -> None:
    pool = started(config("CartPole-v1"), rows=4)
    first = pool.step([0, 1, 0, 1])
    copy = first.obs.copy()
    pool.step([1, 1, 1, 1])
    np.testing.assert_array_equal(first.obs, copy)
    assert not np.shares_memory(first.obs, pool.obs)


def test_an_episode_depends_on_its_seed_and_its_actions_alone() -> None:
    cfg = config("LunarLander-v3")
    used, fresh = EnvPool(cfg, 3), EnvPool(cfg, 1)
    used.reset(np.arange(3), np.arange(3))
    play(used, 150, np.random.default_rng(0))
    used.reset([2], [77])
    fresh.reset([0], [77])
    for action in np.random.default_rng(1).integers(4, size=60):
        a, b = used.step([action], rows=[2]), fresh.step([action])
        assert a.obs.tobytes() == b.obs.tobytes()
        assert a.reward.tobytes() == b.reward.tobytes()
        if a.terminated[0]:
            break


def test_actions_are_counted_from_zero_whatever_the_space_starts_at() -> None:
    a, b = started(chain(), rows=1), started(chain(offset=7), rows=1)
    for action in (RIGHT, LEFT, RIGHT):
        np.testing.assert_array_equal(a.step([action]).obs, b.step([action]).obs)


def test_masks_are_read_from_info() -> None:
    pool = started(chain("Masked"), rows=2)
    assert pool.masked
    pool.step([LEFT, LEFT])
    step = pool.step([LEFT, LEFT])
    assert step.mask.tolist() == [[False, True], [False, True]]
    np.testing.assert_array_equal(pool.mask, step.mask)


def test_harmless_deviations_are_converted() -> None:
    for name in ("DoubleObs", "NumpyReward"):
        step = started(chain(name)).step([RIGHT, RIGHT])
        assert step.obs.dtype == step.reward.dtype == np.float32
        assert not step.broken.any()


def test_reward_threshold_comes_from_the_spec() -> None:
    assert EnvPool(config("LunarLander-v3"), 1).reward_threshold == 200
    assert EnvPool(chain(), 1).reward_threshold is None


# --- Environments that break their contract ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NanReward", "NanObs", "HugeObs", "MaskedOut"])
def test_a_broken_row_is_told_apart_and_its_neighbour_goes_on(name: str) -> None:
    pool = EnvPool(chain(name), 2)
    pool.reset([0, 1], [0, 1])
    pool.step([LEFT], rows=[0])
    pool.step([LEFT, LEFT])
    step = pool.step([LEFT, LEFT])  # row 0 is at its third step, row 1 at its second
    assert step.broken.tolist() == [True, False]
    pool.reset([0], [2])
    assert np.isfinite(pool.obs).all()
    assert pool.step([LEFT], rows=[0]).broken.tolist() == [False]


def test_one_number_that_is_none_breaks_a_step() -> None:
    obs, reward, no = np.zeros((4, 3), np.float32), np.zeros(4, np.float32), np.zeros(4, np.bool_)
    obs[0, 2], obs[1, 0], reward[3] = np.nan, np.inf, -np.inf
    assert RowStep.of(ActionSpace.of(gymnasium.spaces.Discrete(2)), obs, reward, no, no, None).broken.tolist() == [
        1,
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Raises", "step() raised RuntimeError: the motor broke"),
        ("WrongShape", "returned an observation of shape (5,), its space says (4,)"),
        ("WrongDtype", "returned an observation of dtype <U3, its space has numbers"),
        ("NoReward", "step() returned reward = None (NoneType), which is not a number"),
        ("TextReward", "step() returned reward = '1.0' (str), which is not a number"),
        ("VectorReward", "step() returned reward = array[2] of float64, which is not a number"),
        ("NumberEnded", "step() returned terminated = 0.5 (float), which is not a bool"),
        ("MaskLost", "returned no action_mask, earlier it did: give it at every reset and step"),
    ],
)
def test_a_fault_names_environment_row_seed_and_step(name: str, text: str) -> None:
    pool = EnvPool(chain(name), 2, what="evaluation")
    pool.reset([0, 1], [11, 12])
    pool.step([LEFT], rows=[1])
    pool.step([LEFT, LEFT])
    with pytest.raises(EnvironmentFailed) as failed:
        pool.step([LEFT, LEFT])
    where = f"evaluation environment 'envs_for_tests:{name}-v0' (row 1, episode seed 12, step 3)"
    assert str(failed.value) == f"{where}: {text}"
    assert failed.value.exit_code == 71


def test_a_mask_of_a_wrong_shape_is_refused_at_reset() -> None:
    with pytest.raises(EnvironmentFailed, match=r"returned an action_mask int8\[3\], expected bool\[2\]"):
        started(chain("MaskShape"))


# --- Construction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cfg", "kind", "text"),
    [
        (
            config("LunarLandr-v3"),
            ParamsError,
            "env.id: unknown environment 'LunarLandr-v3', did you mean 'LunarLander-v3'?",
        ),
        (
            config("Zebra-v9"),
            ParamsError,
            "env.id: unknown environment 'Zebra-v9'; `gymnasium.pprint_registry()` lists",
        ),
        (
            config("LunarLander-v2"),
            ParamsError,
            "env.id: 'LunarLander-v2' is no longer offered: Environment version v2",
        ),
        (chain("Chian"), ParamsError, "did you mean 'envs_for_tests:Chain-v0'?"),
        (config("no_such_module:A-v0"), ParamsError, "env.id: no module named 'no_such_module' in "),
        (config("a b:c"), ParamsError, "env.id: 'a b:c' is not of the form 'module:EnvId'"),
        (config("CartPole-v1", gravitas=3), ParamsError, "env.kwargs: 'CartPole-v1' does not take {'gravitas': 3}: "),
        (config("CartPole-v1", id="x"), ParamsError, "env.kwargs: 'id' is set by evopipe"),
        (config("LunarLander-v3", gravity=5.0), EnvironmentFailed, "could not be constructed: AssertionError: gravity"),
        (chain("RaisesInConstructor"), EnvironmentFailed, "could not be constructed: RuntimeError: no display"),
    ],
)
def test_an_environment_that_cannot_be_made_says_why(cfg: EnvConfig, kind: type[EvopipeError], text: str) -> None:
    with pytest.raises(kind) as failed:
        make_env(cfg)
    assert text in str(failed.value)


def test_a_missing_extra_names_what_to_install() -> None:
    class Unmet(gymnasium.Env[Any, Any]):
        def __init__(self) -> None:
            raise gymnasium.error.DependencyNotInstalled('X is missing, run `pip install "gymnasium[mujoco]"`')

    gymnasium.register("Unmet-v0", entry_point=Unmet)
    try:
        with pytest.raises(ParamsError) as failed:
            make_env(config("Unmet-v0"))
    finally:
        del gymnasium.registry["Unmet-v0"]
    assert str(failed.value) == (
        "env.id: 'Unmet-v0' needs a package that is not installed: `pip install \"gymnasium[mujoco]\"`"
    )


@pytest.mark.parametrize("source", ["raise KeyError('a')", "import no_such_package"])
def test_a_project_module_that_cannot_be_imported(source: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "evopipe_broken_" + str(len(source))
    (tmp_path / f"{name}.py").write_text(source + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EvopipeError) as failed:
        make_env(config(f"{name}:Own-v0"))
    expected = {
        "raise KeyError('a')": f"env.id: importing '{name}' raised KeyError: 'a'",
        "import no_such_package": f"env.id: module '{name}' needs the package 'no_such_package'; install it",
    }
    assert str(failed.value) == expected[source]


@pytest.mark.parametrize(
    ("cfg", "text"),
    [
        (
            chain("Text"),
            "observation space Text(1, 4, charset=abc) is not served: Box, Discrete, MultiDiscrete, MultiBinary, and "
            "Dict and Tuple of them are",
        ),
        (
            chain("Several"),
            "action space Sequence(Discrete(2), stack=False) is not served: only Discrete, MultiDiscrete, MultiBinary "
            "and bounded Box actions are, and Dicts and Tuples of them",
        ),
    ],
)
def test_spaces_that_are_not_served_are_refused(cfg: EnvConfig, text: str) -> None:
    with pytest.raises(ParamsError) as failed:
        EnvPool(cfg, 4)
    assert str(failed.value) == f"env.id: {text}"


def test_spaces_that_are_served() -> None:
    box, discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete
    assert ObservationSpace.of(box(-1, 1, (3,), np.float64)).size == 3
    assert ObservationSpace.of(box(0, 9, (2,), np.int64)).size == 2
    assert ActionSpace.of(discrete(5, start=-2)).size == 5
    assert ActionSpace.of(box(-1, 1, (2, 2))).size == 4


# --- Resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "CartPole-v1", "Acrobot-v1"])
def test_a_restored_pool_goes_on_bit_for_bit(env_id: str) -> None:
    pool = started(config(env_id), rows=5)
    play(pool, 300, np.random.default_rng(0))
    state = {name: array.copy() for name, array in pool.state().items()}
    returns, lengths = pool.episode_return.copy(), pool.episode_length.copy()
    on = play(pool, 100, np.random.default_rng(1), next_seed=9000)

    again = EnvPool(config(env_id), 5)
    assert not again.restore(state).any()
    assert again.episode_return.tobytes() == returns.tobytes()
    assert again.episode_length.tolist() == lengths.tolist()
    resumed = play(again, 100, np.random.default_rng(1), next_seed=9000)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(on, resumed, strict=True))
    assert {k: v.tobytes() for k, v in again.state().items()} == {k: v.tobytes() for k, v in pool.state().items()}


def test_an_episode_longer_than_the_log_is_restored() -> None:
    pool = started(config("Acrobot-v1"), rows=2)
    for _ in range(400):
        pool.step([0, 2])
    again = EnvPool(config("Acrobot-v1"), 2)
    assert again.restore(pool.state()).tolist() == [False, False]
    assert again.episode_length.tolist() == [400, 400]


def test_rows_without_an_episode_or_at_the_end_of_one_and_masks_survive() -> None:
    """Whatever the pool played that takes them over."""
    pool = EnvPool(chain("Masked"), 4)
    pool.reset([0, 2, 3], [4, 5, 6])
    pool.step([RIGHT], rows=[2])
    while not pool.step([RIGHT], rows=[3]).terminated[0]:
        pass
    again = started(chain("Masked"), rows=4)
    for _ in range(3):
        again.step([LEFT] * 4)
    assert not again.mask[:, LEFT].any()
    assert not again.restore(pool.state()).any()
    assert again.mask[1].all()
    np.testing.assert_array_equal(again.mask, pool.mask)
    np.testing.assert_array_equal(again.episode_return, [0, 0, 0, 1])
    assert again.state()["seed"].tolist() == [4, -1, 5, 6]


@pytest.mark.parametrize("name", ["Random", "RandomEnd"])
def test_rows_that_do_not_come_out_the_same_are_reported(name: str) -> None:
    RandomEnd.played = 0
    pool = started(chain(name), rows=1)
    for _ in range(4):
        pool.step([LEFT])
    again = EnvPool(chain(name), 1)
    assert again.restore(pool.state()).tolist() == [True]
    again.reset([0], [1])
    assert again.episode_length.tolist() == [0]


def test_a_state_of_another_pool_is_refused() -> None:
    state = started(chain(), rows=2).state()
    with pytest.raises(DataError, match="2 rows with observations"):
        EnvPool(chain(), 3).restore(state)
    with pytest.raises(DataError, match="does not fit its lengths"):
        EnvPool(chain(), 2).restore({**state, "actions": np.zeros(1, np.int32)})


# --- Heuristics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env_id", "least"), [("CartPole-v1", 490.0), ("LunarLander-v3", 200.0)])
def test_heuristics_solve_their_environments(env_id: str, least: float) -> None:
    rule, pool, returns = GOOD[env_id], EnvPool(config(env_id), 1), []
    for seed in range(5):
        pool.reset([0], [seed])
        while True:
            step = pool.step([rule(pool.env(0), pool.obs[0])])
            if step.terminated[0] or step.truncated[0]:
                break
        returns.append(pool.episode_return[0])
    assert np.mean(returns) >= least


@pytest.mark.parametrize("name", ["envs_for_tests:MaskedNumbers-v0", "teams_for_tests:MasksNumbers"])
def test_no_run_begins_with_masks_of_numbers(name: str) -> None:
    pool = EnvPool(EnvConfig(id=name, kwargs={"kind": "continuous"}), 2)
    with pytest.raises(EnvironmentFailed, match=r"returned.* an action_mask for actions that are numbers \(Box\)"):
        pool.reset(np.arange(2), np.arange(2))
    pool.close()
