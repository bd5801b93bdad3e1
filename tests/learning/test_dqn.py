"""DQN learns: thresholds over several seeds, on held-out episodes. Thresholds are never lowered to get green."""

from __future__ import annotations

from typing import Any

import pytest

import evopipe
from evopipe.storage.yamlio import read_yaml
from tiny import ROOT

SEEDS = (1, 2, 3)


def run(path: str, seed: int) -> evopipe.Result:
    """Run a committed params file, unchanged but for the seed, as `dvc repro` would."""
    data: dict[str, Any] = read_yaml(ROOT / path).data
    return evopipe.train({**data, "seed": seed})


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_lunarlander_by_the_main_job(seed: int) -> None:
    result = run("params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/dqn-cartpole/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 475
