"""Pipelines that search one trial at a time: what was measured, and that benchmarks go on with tournaments of four."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evopipe.params.load import load_params, parse_params
from evopipe.schema.read import read_yaml

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "benchmarks")]

import defaults  # noqa: E402
from harness import tournament  # noqa: E402


def path_of(name: str) -> Path:
    return ROOT / "pipelines" / name / "params.yaml"


@pytest.mark.parametrize("name", tournament.LIVES)
def test_benchmarks_go_on_with_a_tournament_of_four(name: str) -> None:
    """The learner and the target are those of the file, which itself goes on with trials until its budget is spent."""
    own, made = load_params(path_of(name)), parse_params(tournament.of(path_of(name)))
    assert (own.population.size, own.search.strategy, own.search.first) == (1, "random", "configured")
    assert own.search.budget is not None
    assert own.search.budget > 3 * own.train.max_steps
    assert (made.population.size, made.search.strategy, made.search.budget) == (4, "tournament", None)
    assert (made.train.evaluation, made.train.confirmation, made.train.lowest_score) == ("full", "full", None)
    assert made.train.max_steps >= own.train.max_steps
    for part in ("algo_config", "env", "evolution", "evaluate"):
        assert getattr(made, part) == getattr(own, part)
    for key in ("target", "target_sigmas", "eval_episodes", "confirm_episodes", "evo_steps", "normalise"):
        assert getattr(made.train, key) == getattr(own.train, key)


def test_other_pipelines_are_as_their_files_say() -> None:
    assert tournament.of(path_of("dqn-lunarlander")) == read_yaml(path_of("dqn-lunarlander")).data


def test_the_page_has_the_table_of_the_runs_that_are_kept() -> None:
    rows = defaults.read()
    table = "\n".join(defaults.lines(rows))
    assert table in (ROOT / "docs/evolution.md").read_text(encoding="utf-8")
    assert len({row[:3] for row in rows}) == len(rows)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, rows = tmp_path / "defaults.csv", defaults.read()[:3]
    defaults.write(rows[::-1], path)
    assert defaults.read(path) == rows
