"""Self-play teaches a game: thresholds over several seeds, on held-out games. Thresholds are never lowered to get
green."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from learned import SEEDS, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", SEEDS)
def test_tic_tac_toe_by_its_pipeline(seed: int, tmp_path: Path) -> None:
    result = run("pipelines/ppo-tictactoe/params.yaml", seed, folder=tmp_path)
    with (tmp_path / "reports/episodes.csv").open() as file:
        returns = [float(row["return"]) for row in csv.DictReader(file) if row["member"] == "elite"]
    assert len(returns) == result.evaluation["episodes"] == 1000
    assert min(returns) >= 0.0  # no game is lost, as either player
