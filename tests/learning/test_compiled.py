"""Algorithms learn in environments in C: held-out episodes are Gymnasium's. Thresholds are never lowered."""

from __future__ import annotations

import pytest

from learned import SEEDS, run

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]
IN_C = ("env.backend", "c")


def test_ppo_cartpole(seed: int) -> None:
    result = run("pipelines/ppo-cartpole/params.yaml", seed, [IN_C])
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 475


def test_sac_pendulum(seed: int) -> None:
    result = run("pipelines/sac-pendulum/params.yaml", seed, [IN_C])
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= -200


def test_dqn_frozenlake(seed: int) -> None:
    result = run("pipelines/dqn-frozenlake/params.yaml", seed, [IN_C])
    assert result.evaluation["episodes"] == 1000
    assert abs(result.evaluation["elite"]["mean"] - 0.74) <= 0.05
