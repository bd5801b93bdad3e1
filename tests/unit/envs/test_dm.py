"""Environments of DeepMind's interface: spaces, ends and seeds, and that members learn in them."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("dm_env", reason="an extra of its own: pip install 'evopipe[dm-env]'")

import dm_env
from dm_env import specs

import dm_envs
import evopipe
from evopipe.envs import from_dm_env
from evopipe.envs.check import check
from evopipe.envs.dm import space_of
from evopipe.errors import MissingInputError, ParamsError

SPACES: list[tuple[Any, Any]] = [
    (specs.DiscreteArray(4), spaces.Discrete(4)),
    (specs.BoundedArray((), np.int32, -1, 1), spaces.Discrete(3, start=-1)),
    (specs.BoundedArray((2,), np.int64, [0, 1], [4, 3]), spaces.MultiDiscrete([5, 3], start=[0, 1])),
    (specs.BoundedArray((2, 2), np.uint8, 0, 255), spaces.Box(0, 255, (2, 2), np.uint8)),
    (
        specs.BoundedArray((2,), np.float64, -1.0, [1.0, 2.0]),
        spaces.Box(np.full(2, -1.0), np.array([1.0, 2.0]), (2,), np.float64),
    ),
    (specs.Array((3,), np.float32), spaces.Box(-np.inf, np.inf, (3,), np.float32)),
    (specs.Array((), np.float32), spaces.Box(-np.inf, np.inf, (1,), np.float32)),
    (specs.Array((2,), bool), spaces.MultiBinary((2,))),
    (
        {"a": specs.DiscreteArray(2), "b": (specs.DiscreteArray(3),)},
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(3)])}),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "space"), SPACES)
def test_a_spec_becomes_its_space(spec: Any, space: Any) -> None:
    assert space_of(spec, "observation") == space


def test_what_has_no_space_is_told_by_its_name() -> None:
    with pytest.raises(ParamsError, match=r"env.id: the observation 'text' is specified as StringArray"):
        space_of({"text": specs.StringArray(())}, "observation")


@pytest.mark.parametrize("name", ["DmCatch", "DmArm"])
def test_it_keeps_the_contract_of_environments(name: str) -> None:
    found = check(f"dm_envs:{name}-v0", {})
    assert [line for line in found if not line.startswith("warning: ")] == []


def test_ends_and_seeds() -> None:
    for cut in (False, True):
        env = from_dm_env(dm_envs.Catch, columns=4, cut=cut)
        env.reset(seed=3)
        steps = [env.step(0) for _ in range(4)]
        assert [step[2:4] for step in steps] == [*[(False, False)] * 3, (not cut, cut)]
    first, second = ([env.reset(seed=seed)[0]["board"].tolist() for seed in range(20)] for _ in range(2))
    assert first == second
    assert len({str(board) for board in first}) == 4
    before: Any = env.dm
    env.reset(seed=5)
    assert (before.closed, env.dm.made, env.dm.columns) == (True, 5, 4)


def test_only_a_discount_of_nothing_is_a_termination() -> None:
    class Half(dm_envs.Catch):
        def step(self, action: Any) -> dm_env.TimeStep:
            return dm_env.truncation(0.0, super().step(action).observation, discount=0.5)

    env = from_dm_env(Half)
    env.reset(seed=3)
    assert env.step(0)[2:4] == (False, True)


def test_one_that_is_seeded_is_made_once() -> None:
    env = from_dm_env(dm_envs.Arm, dm_envs.reseed)
    made: Any = env.dm
    seen = [env.reset(seed=seed)[0] for seed in (1, 2, 1)]
    assert env.dm is made
    assert not made.closed
    assert seen[0][0].tolist() == seen[2][0].tolist()


@pytest.mark.thorough
def test_members_learn_in_it() -> None:
    small = {
        "env": {"id": "dm_envs:DmCatch-v0", "num_envs": 4, "kwargs": {"columns": 3}}, "population": {"size": 2},
        "train": {"algo": "ppo", "max_steps": 128, "evo_steps": 64, "eval_episodes": 2},
        "algos": {"ppo": {"learn_step": 32, "batch_size": 16, "epochs": 1, "network": {"encoder": [8], "latent": 8}}},
        "runtime": {"learners": 1, "env_workers": 0},
    }  # fmt: skip
    with evopipe.Population(small) as population:
        records = population.train()
    assert len(records) == 2
    assert all(0 <= member.fitness <= 1 for record in records for member in record.members)


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingInputError, match=r"from_dm_env needs dm_env, which is not installed: pip install 'evopipe\[dm-"
    ):
        from_dm_env(dm_envs.Catch)
