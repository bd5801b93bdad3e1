"""Confirmations that end early, on the returns of candidates that were to be confirmed: what they save, how often they
err, and why no test without a lowest return was taken."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "benchmarks")]

import confirm  # noqa: E402
from harness import curves  # noqa: E402

TASKS = ["cartpole", "acrobot", "pendulum"]


def found(name: str, near: bool, errors: float, rule: confirm.Rule | None = None) -> confirm.Rates:
    """Rates of a task's candidates, at its own target or, of those that are unlike, just above their means."""
    task, candidates = curves.TASKS[name], confirm.read(name)
    assert task.lowest is not None
    assert candidates.min() > task.lowest or name == "acrobot", "there an episode is cut at −500"
    some = candidates[candidates.std(axis=1) > 1.0] if near else candidates
    bars = confirm.bars_of(some, task.target, errors, near)
    return confirm.rates(some, bars, rule or confirm.by_betting(task.lowest), errors, 20)


@pytest.mark.thorough
@pytest.mark.parametrize("errors", confirm.ERRORS)
@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_few_failures_are_taken_for_successes_and_few_successes_given_up(name: str, near: bool, errors: float) -> None:
    rates = found(name, near, errors)
    assert not rates.wrong > 0.05
    assert rates.lost <= 0.05
    assert near or errors or rates.failures < 90  # a bar two errors higher is harder to be sure of


@pytest.mark.thorough
def test_a_third_of_the_episodes_of_a_success_is_saved_on_cartpole() -> None:
    assert found("cartpole", False, 0.0).successes < 66


@pytest.mark.thorough
def test_a_test_that_knows_no_lowest_return_takes_too_many_failures_for_successes() -> None:
    """Where most episodes are equal and a few fail, those played say nothing of those that fail."""
    assert found("cartpole", True, 0.0, confirm.by_t).wrong > 0.1


def test_rates_by_hand() -> None:
    """A candidate that always succeeds ends at 48 of 100 episodes, one that always fails at 8."""
    candidates = np.array([np.full(400, 500.0), np.full(400, 100.0)])
    rates = confirm.rates(candidates, confirm.bars_of(candidates, 475.0, 0.0, False), confirm.by_betting(0.0), orders=2)
    assert (rates.wrong, rates.lost, rates.successes, rates.failures) == (0.0, 0.0, 48.0, 8.0)
    near = confirm.bars_of(np.array([[0.0, 2.0]]), 475.0, 2.0, True)
    assert near.tolist() == [1.0 - 0.2 + 0.05]
