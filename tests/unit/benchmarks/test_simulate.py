"""The table of learning curves, and searches replayed over it: by hand, and one that is made in earnest."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evopipe.searchers.contract import Bound
from evopipe.searchers.propose import share_of, value_at
from searching import Course

# isort: split
# They are in the folder that `searching` put on the path.
import make_curves
import simulate
from harness import curves
from harness.curves import Row, Task

SPACE = {"lr": Bound(1e-4, 1e-2, log=True)}
TASK = Task("ppo-cartpole", 100.0, slice=10, life=40)


def row(draw: int, scores: list[float], confirmed: bool = False, lr: float = 1e-3, seed: int = 1) -> Row:
    return Row(draw, seed, {"lr": lr}, confirmed, tuple(scores), tuple(range(1, len(scores) + 1)))


def test_longer_slices_are_every_so_many_of_the_table() -> None:
    """With what evaluating costs there alone; what ended within a slice ends with it."""
    whole = row(0, [1.0, 2.0, 3.0, 4.0, 5.0], confirmed=True).coarse(2)
    assert (whole.scores, whole.evaluated, whole.confirmed) == ((2.0, 4.0, 5.0), (2, 4, 5), True)
    assert row(0, [1.0, 2.0, 3.0, 4.0]).coarse(2).scores == (2.0, 4.0)
    assert row(0, [1.0]).coarse(4).scores == (1.0,)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [row(1, [1.5, -math.inf], lr=0.00123457), row(0, [7.0, 500.0], confirmed=True)]
    path = tmp_path / "task-narrow.csv.gz"
    assert curves.read(path) == []
    curves.write(path, rows)
    assert curves.read(path) == rows[::-1]
    written = path.read_bytes()
    curves.write(path, rows[::-1])
    assert path.read_bytes() == written


def test_the_share_of_draws_is_over_draws_not_rows() -> None:
    rows = [row(0, [1.0], True), row(0, [1.0], False, seed=2), row(1, [1.0], True)]
    assert simulate.share_that_solves(rows) == 0.75


def test_a_share_is_where_a_value_lies() -> None:
    for bound in (Bound(1e-6, 1e-1, log=True), Bound(0.0, 0.5), Bound(-3.0, 3.0)):
        for share in (0.0, 0.25, 0.9):
            assert share_of(bound, value_at(bound, share)) == pytest.approx(share)
    assert share_of(Bound(1e-4, 1e-2, log=True), 1e-3) == pytest.approx(0.5)
    assert share_of(Bound(0.0, 1.0), 7.0) == 1.0
    assert share_of(Bound(2.0, 2.0), 2.0) == 0.5


def test_serial_search_pays_for_every_trial_until_one_is_confirmed() -> None:
    """Each that fails costs a life and its evaluations, 40 + 1 + 2 + 3 + 4; the one that solves 20 + 1 + 2."""
    fails, solves = row(0, [1.0, 2.0, 3.0, 4.0]), row(1, [50.0, 100.0], confirmed=True)
    found = simulate.simulate("random", {}, TASK, [fails, solves], SPACE, 1, 1, 60)
    assert all(reached for _, reached in found)
    failed = [(steps - 23) / 50 for steps, _ in found]
    assert all(number.is_integer() for number in failed)
    assert np.mean(failed) == pytest.approx(1.0, abs=0.5), "every other trial solves"
    assert simulate.simulate("random", {}, TASK, [solves], SPACE, 1, 2, 3) == [(22, True)] * 3


def test_what_is_not_solved_costs_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "BUDGET", 120)
    assert simulate.simulate("halving", {}, TASK, [row(0, [1.0] * 4)], SPACE, 4, 1, 2) == [(120, False)] * 2


def test_a_child_goes_on_with_the_nearest_row_from_where_that_has_its_parents_score() -> None:
    near, far = row(0, [10.0, 20.0, 30.0, 100.0], confirmed=True, lr=5e-3), row(1, [5.0, 6.0, 7.0, 8.0], lr=1e-4)
    table = simulate.Table([near, far], SPACE, np.random.default_rng(1))
    parent = Course([1.0, 15.0, 15.0])
    child = table.child(parent, 2, {"lr": 4e-3})
    assert [child.at(slices)[0] for slices in (3, 4, 5)] == [20.0, 30.0, 100.0]
    assert [child.cost(slices) for slices in (3, 4, 5)] == [2, 3, 4]
    assert [child.at(slices)[1] for slices in (4, 5)] == [False, True]
    never = table.child(parent, 2, {"lr": 2e-4})
    assert [never.at(slices)[0] for slices in (3, 4)] == [8.0, 8.0]


@pytest.mark.parametrize("name", curves.TASKS)
@pytest.mark.thorough
def test_every_task_has_two_spaces_of_hyper_parameters_that_it_may_evolve(name: str) -> None:
    """And any point of them is a trial that can be trained."""
    task = curves.TASKS[name]
    for kind in curves.SPACES:
        values = make_curves.draw(task, kind, 3)
        assert len({tuple(each.values()) for each in values}) == 3
        params = curves.params_of(task, values[2], seed=4)
        assert {key: getattr(params.algo_config, key) for key in values[2]} == values[2]
        assert (params.population.size, params.train.max_steps, params.train.target) == (1, task.life, task.target)
    assert make_curves.draw(task, "narrow", 2) == make_curves.draw(task, "narrow", 5)[:2], "more draws are others"


@pytest.mark.thorough
def test_a_table_is_made_row_by_row_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(curves, "CURVES", tmp_path)
    monkeypatch.setitem(curves.TASKS, "cartpole", Task("ppo-cartpole", 475.0, slice=4096, life=8192))
    assert make_curves.main(["cartpole", "--draws", "2", "--seeds", "1"]) == 0
    first = curves.read(curves.path_of("cartpole", "narrow"))
    assert [(each.draw, each.seed, len(each.scores), each.confirmed) for each in first] == [
        (0, 1, 2, False),
        (1, 1, 2, False),
    ]
    # CartPole gives a point a step, and a race has four to eight episodes, those of a confirmation aside.
    ratios = [cost / score for each in first for score, cost in zip(each.scores, each.evaluated, strict=True)]
    assert all(3.9 <= ratio <= 16 for ratio in ratios)
    assert len(ratios) == 4
    capsys.readouterr()
    assert make_curves.main(["cartpole", "--draws", "3", "--seeds", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1, "what is there is not made again"
    assert curves.read(curves.path_of("cartpole", "narrow"))[:2] == first


def test_it_prints_a_line_a_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    """Over the table that is kept."""
    assert simulate.main(["random", "growth", "--task", "cartpole", "--runs", "3", "--set", "window=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if not line.startswith(" ")] == ["cartpole", "cartpole"]
    assert [line.split()[0] for line in lines if line.startswith(" ")] == ["random", "growth"] * 2
    assert all("draws solve it" in line for line in lines if not line.startswith(" "))
