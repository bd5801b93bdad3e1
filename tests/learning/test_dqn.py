"""DQN learns: thresholds over several seeds, on held-out episodes. Thresholds are never lowered to get green."""

from __future__ import annotations

import re

import pytest

from learned import SEEDS, run
from tiny import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_lunarlander_by_the_main_job(seed: int) -> None:
    result = run("params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole_by_the_command_in_the_readme(seed: int) -> None:
    command = next(line for line in (ROOT / "README.md").read_text().splitlines() if "-S env.id=CartPole-v1" in line)
    settings = re.findall(r"-S ([\w.]+)=(\S+)", command)
    assert len(settings) == 3
    assert run("params.yaml", seed, settings).evaluation["elite"]["mean"] >= 475


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/dqn-cartpole/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 475


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_frozenlake_by_its_pipeline(seed: int) -> None:
    """The best policy reaches the goal in about 74 of 100 episodes; the ice decides the others."""
    result = run("pipelines/dqn-frozenlake/params.yaml", seed)
    assert result.evaluation["episodes"] == 1000
    assert abs(result.evaluation["elite"]["mean"] - 0.74) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_taxi_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/dqn-taxi/params.yaml", seed)
    assert result.evaluation["episodes"] == 1000
    assert result.evaluation["elite"]["mean"] >= 7.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_mountaincar_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/dqn-mountaincar/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= -110


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_lunarlander_in_few_steps_by_its_pipeline(seed: int) -> None:
    """All steps count: training's, evaluation's, confirmation's. Held-out episodes may differ by chance alone."""
    result = run("pipelines/dqn-lunarlander/params.yaml", seed)
    assert result.summary["reason"] == "target"
    assert result.summary["steps"]["all"] <= 350_000
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["interval"][1] >= 200
