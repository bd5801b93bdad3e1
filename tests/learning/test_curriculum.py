"""A curriculum teaches what chance never finds: thresholds over several seeds, on held-out episodes. Thresholds are
never lowered to get green."""

from __future__ import annotations

import sys

import pytest

from learned import SEEDS, run
from tiny import ROOT

PARAMS = "pipelines/ppo-lock/params.yaml"

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "pipelines/ppo-lock"
    monkeypatch.chdir(folder)  # its environment and its curriculum are a module there
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lock_by_its_pipeline(seed: int) -> None:
    result = run(PARAMS, seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 0.99


def test_without_it_nobody_opens_the_lock() -> None:
    result = run(PARAMS, 1, [("train.curriculum", "null")])
    assert result.evaluation["elite"]["mean"] == 0
