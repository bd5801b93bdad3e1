"""The readme's two programs for Wordle; `tests/learning/test_games.py` has their learning over several seeds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import games


@pytest.mark.thorough
def test_a_clone_of_games_is_what_ilql_begins_with(tmp_path: Path) -> None:
    short = {"rows": 200, "episodes": 16}
    cloned = games.run_bc_lm(tmp_path / "bc", max_steps=10, **short)
    better = games.run_ilql(tmp_path / "ilql", tmp_path / "bc", max_steps=6, **short)
    assert [len(run.lineage) for run in (cloned, better)] == [1 + 5, 1 + 3]
    assert all(-5.0 <= run.evaluation["elite"]["mean"] <= 0.0 for run in (cloned, better))


@pytest.mark.slow
def test_ilql_plays_better_than_the_clone(tmp_path: Path) -> None:
    """A clone plays as those did whom it clones, −2.5; ILQL nearly as well as can be, −1.63."""
    cloned = games.run_bc_lm(tmp_path / "bc").evaluation["elite"]["mean"]
    better = games.run_ilql(tmp_path / "ilql", tmp_path / "bc").evaluation["elite"]["mean"]
    assert better >= cloned + 0.25
    assert better >= -1.85
