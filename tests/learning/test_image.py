"""DQN learns from images: the threshold over several seeds, on held-out episodes. It is never lowered to get green."""

from __future__ import annotations

import sys

import pytest

from learned import SEEDS, run
from tiny import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_catch_in_pixels_by_its_pipeline(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "pipelines/dqn-catch"
    monkeypatch.chdir(folder)  # its environment is a module there
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    result = run("pipelines/dqn-catch/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 9.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_minigrid_in_pixels_by_its_pipeline(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortest ways, by search 9.7 to 10.1 steps of 250, give a mean of 0.964 to 0.965; a failure costs 0.0096."""
    pytest.importorskip("minigrid", reason="an extra of its own: pip install 'evopipe[minigrid]'")
    folder = ROOT / "pipelines/dqn-minigrid"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    result = run("pipelines/dqn-minigrid/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 0.95
