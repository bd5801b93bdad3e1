"""DQN flips bits by hindsight, and not without. Thresholds are never lowered to get green."""

from __future__ import annotations

import pytest

from learned import SEEDS, run

PARAMS = "pipelines/dqn-bitflip/params.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_twelve_bits_by_the_pipeline(seed: int) -> None:
    """The shortest ways give -5 in the mean, and whoever misses the goal has -12."""
    result = run(PARAMS, seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= -5.8


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_without_hindsight_the_goal_is_not_found(seed: int) -> None:
    assert run(PARAMS, seed, [("train.replay.hindsight", "null")]).evaluation["elite"]["mean"] <= -11
