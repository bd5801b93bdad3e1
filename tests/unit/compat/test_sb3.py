"""`predict` as Stable-Baselines3's models have it."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import evopipe
import populations
from drawn_policies import drawn
from evopipe.compat.sb3 import Predictor
from evopipe.envs.pool import EnvPool
from evopipe.policies import policy
from evopipe.run.spec import first_members

RECURRENT = {"network": {"encoder_kind": "lstm"}}


@pytest.mark.parametrize("seed", range(7))
def test_deterministic_predictions_are_the_greedy_actions(seed: int, tmp_path: Path) -> None:
    loaded, obs, legal = drawn(tmp_path, seed)
    model = Predictor(loaded)
    actions, state = model.predict(obs, deterministic=True)
    assert (actions == loaded.act(obs)).all()
    assert state is None
    assert (model.predict(obs[0], deterministic=True)[0] == loaded.act(obs[0])).all()
    if not loaded.action_space.continuous:
        assert (model.predict(obs, deterministic=True, action_masks=legal)[0] == loaded.act(obs, legal)).all()


def test_other_predictions_are_drawn_and_a_seed_repeats_them(tmp_path: Path) -> None:
    loaded, obs, _ = drawn(tmp_path, 29)  # PPO over continuous actions
    assert "ppo" in repr(loaded)
    first, second = (model.predict(obs)[0] for model in [Predictor(loaded, 3)] * 2)
    assert (first != second).any()
    again = Predictor(loaded, 3)
    assert (again.predict(obs)[0] == first).all()
    assert (again.predict(obs)[0] == second).all()
    assert (Predictor(loaded, 9).predict(obs)[0] != first).any()


def test_values_are_followed_greedily_in_any_case(tmp_path: Path) -> None:
    loaded, obs, _ = drawn(tmp_path, 0)
    assert "dqn" in repr(loaded)
    assert (Predictor(loaded).predict(obs)[0] == loaded.act(obs)).all()


def test_a_recurrent_policy_forgets_where_an_episode_begins(tmp_path: Path) -> None:
    p = populations.problem("CartPole-v1", algo="ppo", config=RECURRENT)
    pool = EnvPool(p.env, 1)
    about = {**pool.actions.to_json(), **pool.observations.to_json(), "config": p.algo_config.model_dump(mode="json")}
    policy.save(tmp_path / "elite", "ppo", first_members(p, 1)[0][0], about, False, "")
    loaded = policy.load(tmp_path / "elite")
    assert isinstance(loaded, policy.Policy)
    obs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    model = Predictor(loaded)
    _, state = model.predict(obs, deterministic=True)
    _, went_on = model.predict(obs, state, np.array([False, True, False]), deterministic=True)
    assert state is not None
    assert went_on is not None
    kept = loaded.step(obs, loaded.step(obs)[1])[1]
    np.testing.assert_array_equal(went_on[0][[0, 2]], kept[[0, 2]])
    np.testing.assert_array_equal(went_on[0][1], state[0][1])
    assert "stable_baselines3" not in sys.modules


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_their_evaluation_takes_an_elite(algo: str, tmp_path: Path) -> None:
    """Stable-Baselines3's own `evaluate_policy`, where that package is installed."""
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation", reason="pip install stable-baselines3")
    small = {"env": {"id": "CartPole-v1"}, "population": {"size": 1}, "export": {"film": False, "program": False}}
    short = {"algo": algo, "max_steps": 64, "evo_steps": 64, "eval_episodes": 2, "confirm_episodes": 2}
    short |= {"warm_start": 0} if algo == "dqn" else {}
    block = {"learn_step": 64, "batch_size": 64} if algo == "ppo" else {}
    params = small | {"train": short, "algos": {algo: block}, "evaluate": {"episodes": 2}}
    loaded = evopipe.train(params, tmp_path).policy
    assert isinstance(loaded, policy.Policy)
    env = gymnasium.make("CartPole-v1")
    returns, lengths = evaluation.evaluate_policy(Predictor(loaded), env, 3, return_episode_rewards=True, warn=False)
    assert returns == [float(length) for length in lengths]
    assert len(returns) == 3
