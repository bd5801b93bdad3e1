"""SAC learns: thresholds over several seeds, on held-out episodes. Thresholds are never lowered to get green."""

from __future__ import annotations

import pytest

from learned import SEEDS, run

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]


def test_pendulum_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/sac-pendulum/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= -200


def test_continuous_lunarlander(seed: int) -> None:
    result = run("pipelines/td3-lunarlander-continuous/params.yaml", seed, [("train.algo", "sac")])
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 200


def test_halfcheetah_by_its_pipeline(seed: int) -> None:
    """A short run: who does nothing gets about 0, who acts at random about −280."""
    pytest.importorskip("mujoco", reason="an extra of its own: pip install 'evopipe[mujoco]'")
    result = run("pipelines/sac-halfcheetah/params.yaml", seed)
    assert result.evaluation["episodes"] == 20
    assert result.evaluation["elite"]["mean"] >= 3000
