"""IPPO learns: thresholds over several seeds, on held-out episodes. Thresholds are never lowered to get green.

Scores are the sum over agents. On simple_spread random play scores -79, and where all stay at rest -72. Where each goes
to the nearest landmark it is -50; to the landmark of its own number -34, and -29 by continuous actions; a script that
knows the shortest ways together reaches -24, and -18 by continuous actions.
"""

from __future__ import annotations

import sys

import pytest

from learned import SEEDS, run
from tiny import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]


def test_spread_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/ippo-spread/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= -40


def test_meet_in_pixels_by_its_pipeline(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random play scores 0.8; where one always waits, 16.8; where both go the shortest ways together, 30.7."""
    folder = ROOT / "pipelines/ippo-meet"
    monkeypatch.chdir(folder)  # its environment is a module there
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    result = run("pipelines/ippo-meet/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 24
