"""TD3 learns: thresholds over several seeds, on held-out episodes. Thresholds are never lowered to get green."""

from __future__ import annotations

import pytest

from learned import SEEDS, run

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]


def test_pendulum(seed: int) -> None:
    result = run("pipelines/ddpg-pendulum/params.yaml", seed, [("train.algo", "td3")])
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= -200


def test_continuous_lunarlander_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/td3-lunarlander-continuous/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 200


def test_continuous_mountaincar_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/td3-mountaincar-continuous/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 90
