"""Value learning finds action values that are known in advance, through the whole loop."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe import algos
from evopipe.algos._actor_critic import action_value
from populations import advance, finish, started

valued = pytest.mark.parametrize(
    "algo",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in populations.THOROUGH else ())
        for name in algos.names()
        if algos.get(name).values is not None and "gamma" in algos.get(name).Config.model_fields  # no bandits
    ],
)
each_algorithm = pytest.mark.parametrize("algo", populations.cases())
on_policy = pytest.mark.parametrize("algo", populations.cases(on_policy=True))

GAMMA = 0.8
LEARNER: dict[str, Any] = {
    "network": {"encoder": [32], "latent": 32}, "lr": 3e-3, "batch_size": 64, "learn_step": 1, "gamma": GAMMA,
    "tau": 0.05, "target_interval": 25, "eps_start": 0.6, "eps_end": 0.6, "noisy": False, "v_min": -1.0, "v_max": 6.0,
    "alpha": 0.0,
}  # fmt: skip

# Cells of a chain of 4, one-hot; the last is terminal. Rows: cells 0, 1, 2. Columns: left, right.
CHAIN = [[GAMMA**3, GAMMA**2], [GAMMA**3, GAMMA], [GAMMA**2, 1.0]]
ENDLESS = [[1 / (1 - GAMMA)] * 2] * 4
ONE_STEP = [[0.0, 0.5], [0.0, 1.0]]


def learned(algo: str, env: str, ticks: int = 200, **config: Any) -> np.ndarray:
    """Action values `[P, 4, 2]` of two members after learning."""
    train = {"max_steps": 10**6, "evo_steps": 10**6, "learning_delay": 100}
    its = algos.get(algo).Config.model_fields
    config = {name: value for name, value in {**LEARNER, **config}.items() if name in its}
    p = populations.problem(f"envs_for_tests:{env}-v0", algo, train=train, config=config)
    loop = started(p, 2)
    advance(loop, ticks)
    found = np.zeros((2, 4, 2))
    for cohort in loop.cohorts:
        obs = torch.eye(4).expand(len(cohort.slots), -1, -1)
        found[cohort.slots] = p.algo.values(p.algo_config, cohort.state, obs).numpy()
    loop.close()
    return found


@pytest.mark.product
@valued
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("target", ["soft", "hard"])
@pytest.mark.thorough
def test_a_chain_that_terminates(algo: str, double: bool, target: str) -> None:
    q = learned(algo, "Chain", double=double, target=target)
    np.testing.assert_allclose(q[:, :3], [CHAIN] * 2, atol=0.1)


@pytest.mark.thorough
@valued
def test_a_chain_by_mean_squared_error_with_layer_normalisation(algo: str) -> None:
    q = learned(algo, "Chain", loss="mse", network={**LEARNER["network"], "layer_norm": True})
    np.testing.assert_allclose(q[:, :3], [CHAIN] * 2, atol=0.1)


@valued
def test_a_truncated_episode_bootstraps(algo: str) -> None:
    """RecordedStep for an end, the time limit after ten steps would pull these values down to at most 4.5."""
    ticks = 800 if algo == "cqn" else 250  # its penalty keeps the values low for longer
    q = learned(algo, "Endless", ticks, tau=0.1)
    np.testing.assert_allclose(q, [ENDLESS] * 2, atol=0.1)


@valued
@pytest.mark.thorough
def test_an_episode_that_ends_with_its_first_step_does_not_bootstrap(algo: str) -> None:
    q = learned(algo, "OneStep")
    np.testing.assert_allclose(q[:, :2], [ONE_STEP] * 2, atol=0.1)


WANDERS = {"ent_coef": 0.1}  # so that every state is seen to the end


def state_values(algo: str, env: str, ticks: int = 480, **config: Any) -> np.ndarray:
    """V of the four cells `[P, 4]` of two members after learning on-policy."""
    own = {
        "network": LEARNER["network"], "lr": 3e-3, "decay_steps": 4 * ticks, "lr_end": 0.03, "gamma": GAMMA,
        "ent_coef": 0.0, "epochs": 4, **config,
    }  # fmt: skip
    p = populations.problem(f"envs_for_tests:{env}-v0", algo, train=populations.LONG, config=own)
    loop = started(p, 2)
    advance(loop, ticks)
    found = np.zeros((2, 4))
    for cohort in loop.cohorts:
        obs = torch.eye(4).expand(len(cohort.slots), -1, -1)
        empty = torch.zeros(len(cohort.slots), 4, cohort.memory)
        found[cohort.slots] = p.algo.value(p.algo_config, cohort.state, obs, empty).numpy()  # type: ignore[attr-defined]
    loop.close()
    return found


@on_policy
@pytest.mark.parametrize("clip_value", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_values_of_states_after_which_an_episode_terminates(algo: str, clip_value: bool) -> None:
    """Whatever is done: 1 a step for as many steps as are left."""
    left = np.cumsum(GAMMA ** np.arange(4))[::-1]
    np.testing.assert_allclose(state_values(algo, "Countdown", clip_value=clip_value, **WANDERS), [left] * 2, atol=0.1)


@on_policy
@pytest.mark.thorough
def test_values_of_states_of_episodes_that_are_truncated(algo: str) -> None:
    """RecordedStep for an end, the time limit after ten steps would pull them down to at most 4.5."""
    found = state_values(algo, "Endless", ticks=640, **WANDERS)
    np.testing.assert_allclose(found, np.full((2, 4), 1 / (1 - GAMMA)), atol=0.1)


@on_policy
@pytest.mark.slow
def test_values_of_a_chain_under_the_policy_that_was_learned(algo: str) -> None:
    """Straight to the end; nobody who learns from what is done there stays on the way."""
    found = state_values(algo, "Chain", ticks=1600)
    np.testing.assert_allclose(found[:, :3], [[GAMMA**2, GAMMA, 1.0]] * 2, atol=0.1)


@on_policy
@pytest.mark.slow
def test_values_of_episodes_of_one_step(algo: str) -> None:
    found = state_values(algo, "OneStep", ticks=960)
    np.testing.assert_allclose(found[:, :2], [[0.5, 1.0]] * 2, atol=0.1)


QUICK = 125  # ticks, the first 25 without an update: an output's bias alone does not come to the value in the others


def in_the_dark(algo: str, ticks: int, length: int = 1, **config: Any) -> Any:
    """A run whose observations are zeros, after so many ticks."""
    its = algos.get(algo.partition(":")[0]).Config.model_fields
    config = {name: value for name, value in {**LEARNER, **config}.items() if name in its}
    p = populations.problem(
        "envs_for_tests:Dark-v0", algo, train={**populations.LONG, "learning_delay": 100}, config=config,
        kwargs={"length": length},
    )  # fmt: skip
    loop = started(p, 2)
    advance(loop, ticks)
    loop.close()
    return loop


@valued
@pytest.mark.thorough
def test_action_values_where_only_zeros_are_seen(algo: str) -> None:
    loop = in_the_dark(algo, QUICK)
    for cohort in loop.cohorts:
        found = loop.spec.algo.values(loop.spec.algo_config, cohort.state, torch.zeros(len(cohort.slots), 1, 4))
        np.testing.assert_allclose(found, np.ones_like(found), atol=0.1)


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac:continuous"])
@pytest.mark.thorough
def test_values_of_continuous_actions_where_only_zeros_are_seen(algo: str) -> None:
    """Of all actions, those too that are far from the ones that were taken: with biases that begin at 0 a critic of
    zeros is two straight lines that meet at action 0, and these were 1.6."""
    rates = {"lr_actor": 3e-3, "lr_critic": 3e-3}
    loop = in_the_dark(algo, QUICK, random_steps=0, alpha=0.2, **rates)
    action = torch.linspace(-1.0, 1.0, 9)[None, :, None].expand(2, -1, -1)
    for cohort in loop.cohorts:
        critics = [cohort.state.critic] if algo == "ddpg" else cohort.state.critics.pair
        for critic in critics:
            found = action_value(critic, torch.zeros(len(cohort.slots), 9, 4), action[: len(cohort.slots)]).detach()
            np.testing.assert_allclose(found, np.ones_like(found), atol=0.25)


@pytest.mark.product
@pytest.mark.parametrize("algo", ["ppo", "ppo:continuous"])
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.thorough
def test_values_of_states_where_only_zeros_are_seen(algo: str, kind: str) -> None:
    """Of an episode's steps only a memory can tell which one it is."""
    length = 3 if kind == "lstm" else 1
    network = {**LEARNER["network"], "encoder_kind": kind}
    config = {"network": network, "batch_size": 32, "learn_step": 64, "epochs": 4}
    loop = in_the_dark(algo, 480, length, **config)
    p = loop.spec
    expected = np.cumsum(GAMMA ** np.arange(length))[::-1]
    for cohort in loop.cohorts:
        members = len(cohort.slots)
        memory = torch.zeros(members, 1, cohort.memory)
        for v in expected:
            chosen = p.algo.step(p.algo_config, cohort.state, torch.zeros(members, 1, 4), None, memory, None)
            np.testing.assert_allclose(chosen.value, np.full((members, 1), v), atol=0.1)
            memory = chosen.memory


@each_algorithm
def test_the_target_can_be_reached_in_the_first_generation(algo: str) -> None:
    """Peer fault: the score was compared only after so many generations that short runs never ended early."""
    train = {"target": 5.0, "evo_steps": 40, "max_steps": 4000, "learning_delay": 0}
    loop = started(populations.problem("envs_for_tests:Endless-v0", algo, train=train), 2)
    finish(loop)
    assert (loop.reason, loop.clock.generation, loop.clock.step) == ("target", 1, 40)
    assert loop.champion is not None
    assert loop.champion.confirmed
    assert loop.champion.score == 10.0
    assert json.loads(json.dumps(loop.curve)) == loop.curve
    loop.close()


@each_algorithm
def test_a_target_out_of_reach_ends_nothing(algo: str) -> None:
    train = {"target": 10.5, "evo_steps": 40, "max_steps": 120, "learning_delay": 0}
    loop = started(populations.problem("envs_for_tests:Endless-v0", algo, train=train), 2)
    finish(loop)
    assert (loop.reason, loop.clock.generation, loop.clock.step) == ("max_steps", 3, 120)
    loop.close()


@valued
@pytest.mark.slow
def test_cartpole_is_solved(algo: str) -> None:
    if "eps_steps" not in algos.get(algo).Config.model_fields:
        pytest.skip(f"{algo} does not explore by itself; tests/learning has what it learns from")
    p = populations.problem(
        algo=algo, cohorts="merged", num_envs=8,
        train={"max_steps": 80_000, "evo_steps": 4000, "learning_delay": 500, "eval_episodes": 10, "eval_steps": None,
               "target": 475.0, "target_sigmas": 0.0, "confirm_episodes": 20, "replay": {"capacity": 100_000}},
        config={"network": {"encoder": [64], "latent": 64}, "lr": 1e-3, "batch_size": 64, "learn_step": 2, "tau": 0.01,
                "eps_steps": 3000},
    )  # fmt: skip
    loop = started(p, 4)
    finish(loop)
    assert loop.reason == "target"
    loop.close()
