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
