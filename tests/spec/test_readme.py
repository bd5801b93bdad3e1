"""The scripts of the specification's readme, in its older spellings, made short; see `test_pages`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

import older
from test_pages import SHORT, TARGET, checked

from evopipe import initialPopulation

pytestmark = pytest.mark.filterwarnings("ignore:.*(old spelling|counts episodes):DeprecationWarning")
SMALL = {"pop_size": 2, "max_steps": 20}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random steps of CartPole in AgileRL's layout, which has no timeouts."""
    import gymnasium

    rows: dict[str, list[object]] = {name: [] for name in ("observations", "actions", "rewards", "terminals")}
    env, random = gymnasium.make("CartPole-v1"), np.random.default_rng(1)
    obs, over = env.reset(seed=1)[0], False
    for _ in range(400):
        if over:
            obs = env.reset()[0]
        action = int(random.integers(2))
        after, reward, over, _, _ = env.step(action)
        for name, value in zip(rows, (obs, action, reward, over), strict=True):
            rows[name].append(value)
        obs = after
    path = tmp_path_factory.mktemp("cartpole") / "random.h5"
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = np.array(values)
    return path


def test_off_policy() -> None:
    pop, _ = result = older.off_policy(**SHORT, episodes=2, evo_epochs=1, max_steps=20, batch_size=16)
    checked(result, 2)
    assert [agent.steps for agent in pop] == [[80], [80]]  # 2 episodes of 20 steps of 2 environments
    assert pop[0].breed.params.train.eval_steps == 20


def test_off_policy_loop() -> None:
    checked(older.off_policy_loop(**SHORT, max_episodes=2, evo_epochs=2, max_steps=80), 1)


def test_distributed_loop(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    pop, history = older.off_policy_loop(
        **SHORT, max_episodes=2, evo_epochs=2, max_steps=80, accelerator=accelerate.Accelerator(cpu=True),
        folder=tmp_path / "models",
    )  # fmt: skip
    checked((pop, history), 1)
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["DQN_0.pt", "DQN_1.pt"]


def test_on_policy() -> None:
    checked(older.on_policy(**SHORT, episodes=2, evo_epochs=1, max_steps=520), 2)


def test_on_policy_loop() -> None:
    checked(older.on_policy_loop(**SHORT, max_episodes=2, evo_epochs=1, evo_loop=1, max_steps=40), 2)


def test_offline(dataset: Path) -> None:
    checked(older.offline(dataset, **SMALL, episodes=2, evo_epochs=1, batch_size=32), 2)


def test_offline_loop(dataset: Path) -> None:
    checked(older.offline_loop(dataset, **SMALL, max_episodes=2, evo_epochs=1), 2)


def test_multi_agent() -> None:
    checked(older.multi_agent(**SMALL, episodes=2, evo_epochs=1, batch_size=8), 2)


def test_an_older_spelling_says_what_it_is_called_now() -> None:
    with pytest.warns(DeprecationWarning, match="initialPopulation is an old spelling: call create_population"):
        initialPopulation("DQN", state_dim=(4,), action_dim=2, population_size=1)


@pytest.mark.slow
@pytest.mark.parametrize("function", [older.off_policy, older.on_policy])
def test_the_training_functions_reach_the_target(function: Callable[[], Any]) -> None:
    """LunarLander as in the readme, to its own target, by episodes of 500 steps of the vector."""
    _, fitnesses = function()
    assert max(map(max, fitnesses)) >= TARGET


@pytest.mark.slow
def test_loops_of_ones_own_learn() -> None:
    """A policy that does nothing useful keeps CartPole's pole up for 9 to 30 steps; an episode has 250 at most."""
    settings = {"num_envs": 8, "pop_size": 2, "max_steps": 250}
    _, history = older.on_policy_loop("CartPole-v1", **settings, max_episodes=20)
    assert max(map(max, history)) >= 195.0
    _, history = older.off_policy_loop("CartPole-v1", **settings, max_episodes=40, evo_epochs=10)
    assert max(map(max, history)) >= 60.0
