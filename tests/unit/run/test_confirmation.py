"""Confirmations that end early: the bet by hand, how often it is wrong at worst, and what a run plays and says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import populations
from evopipe.rng import Purpose
from evopipe.run.evaluate import Episodes
from evopipe.run.race import batches, reached
from evopipe.run.run import Run

# --- the bet ----------------------------------------------------------------------------------------------------------


def test_looks_are_at_8_16_24() -> None:
    assert [(x.start, x.stop) for x in batches(20)] == [(0, 8), (8, 16), (16, 20)]
    assert [(x.start, x.stop) for x in batches(3)] == [(0, 3)]


def test_a_bet_by_hand() -> None:
    """Of 8 returns 4 ones are needed. Ones multiply what one has by 1 / (4/8), 1 / (3/7), 1 / (2/6): 14 times as much,
    and by 1 / (1/5): 70 times."""
    ones = np.ones(8)
    assert not reached(ones[:3], 0.5, 0.0, 8)
    assert reached(ones[:4], 0.5, 0.0, 8)
    assert reached(ones[:4] - 7.0, -6.5, -7.0, 8), "wherever the lowest is"
    assert not reached(ones[:4], 0.5, -1.0, 8), "2 / 1.5 · 2 / (10/7) · 2 / (8/6) · 2 / (6/5) is 4.7"


def test_what_cannot_fail_any_more_is_reached() -> None:
    """Two ones of four: half is reached whatever comes, though a bet has only 2 · 3 times as much."""
    assert not reached(np.ones(2), 0.5, 0.0, 4)
    assert reached(np.ones(3), 0.5, 0.0, 4)


def test_the_lowest_return_decides_nothing_and_a_broken_episode_is_one() -> None:
    for bad in (0.0, -1.0, np.nan, np.inf):
        assert not reached(np.array([*np.ones(6), bad]), 0.5, 0.0, 8), bad


def test_standard_errors_count_as_if_one_more_had_been_the_lowest() -> None:
    """Of 16 ones and a zero the deviation is 17 ** −.5, an error of 64 of them a 33rd: two make the bar .561."""
    ones, n = np.ones(16), 64
    with_errors = [reached(ones[:k], 0.5, 0.0, n, 2.0) for k in range(1, 17)]
    for k, found in enumerate(with_errors, start=1):
        assert found == reached(ones[:k], 0.5 + 2.0 * (k + 1) ** -0.5 / n**0.5, 0.0, n)
    assert with_errors.index(True) > [reached(ones[:k], 0.5, 0.0, n) for k in range(1, 17)].index(True)


def test_errors_count_of_unlike_returns_too() -> None:
    """Of 6, 4 and a 0 the deviation is 3.055, of which an error of two is 2.16: at a bar of 1.1 the second has to be
    .52, and the bet has 6 / 3.26 · 4 / .52 = 14 times as much, at .9 above 20 times."""
    some = np.array([6.0, 4.0])
    assert not reached(some, 1.1, 0.0, 2, 1.0)
    assert reached(some, 0.9, 0.0, 2, 1.0)
    assert not reached(np.array([10.0, 0.5]), 1.0, 0.0, 2, 1.0), "whose mean is 5.25, and an error 4.75"


def test_a_success_has_the_mean_that_ends_a_run_already() -> None:
    """An eighth is at .3: bets win in the long run, but two standard errors of those played are below the bar."""
    some = np.array([1.0, 1.0, 1.0, 0.3, 1.0, 1.0, 1.0, 1.0] * 4)
    bar = some.mean() - 1.9 * some.std(ddof=1) / 32**0.5
    assert reached(some, bar, 0.0, 33)
    assert not reached(some, bar, 0.0, 33, 2.0)


POPULATIONS = {  # of a hundred with a mean just below 475, but for the last of which the mean is well below
    "6 of 100 fail at once": [0.0] * 6 + [500.0] * 94,
    "half is a little below": [449.0] * 50 + [500.0] * 50,
    "even": list(np.linspace(450.0, 499.9, 100)),
    "skew": list(474.0 - 60.0 * (np.geomspace(0.01, 1.0, 100) - np.geomspace(0.01, 1.0, 100).mean())),
    "a tenth at 100": [100.0] * 10 + [500.0] * 90,
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("returns", POPULATIONS.values(), ids=POPULATIONS)
def test_who_looks_after_every_episode_is_wrong_once_in_twenty_at_most(returns: list[float]) -> None:
    """In the worst case of all nearly as often as that: failures are as bad as can be, and just too many."""
    assert np.mean(returns) < 475.0
    draw, orders = np.random.default_rng(1), 400
    wrong = 0
    for _ in range(orders):
        some = draw.permutation(returns)
        wrong += any(reached(some[:k], 475.0, 0.0, 100) for k in range(30, 100))
    assert wrong / orders <= 0.05 + 2 * (0.05 * 0.95 / orders) ** 0.5
    assert (wrong / orders > 0.02) == (returns[5] == 0.0)


# --- in a run ---------------------------------------------------------------------------------------------------------


def run(**changes: Any) -> Run:
    """Six members that do not learn, in CartPole, whose episodes end after 9 to 60 steps; they reach the target."""
    train = {
        "eval_episodes": 8, "eval_steps": 60, "learning_delay": 10**6, "confirm_episodes": 64, "target": 8.5,
        "target_sigmas": 0.0, **changes,
    }  # fmt: skip
    found: Run = populations.started(populations.problem(train=train), 6)
    populations.finish(found)
    return found


def confirmed(found: Run) -> tuple[float, float, int]:
    assert found.champion is not None
    assert found.champion.confirmed
    return found.champion.score, found.champion.error, found.champion.generation


@pytest.mark.thorough
def test_a_success_ends_the_confirmation_and_the_run() -> None:
    whole, early = run(), run(confirmation="sequential", lowest_score=1.0)
    assert (whole.reason, early.reason) == ("target", "target")
    assert early.clock.env_steps == whole.clock.env_steps
    assert whole.champion is not None
    assert early.champion is not None
    assert early.champion.member.id == whole.champion.member.id
    alone = whole.spec.form_alone(whole.champion.member)
    seeds = whole.spec.seeds(Purpose.CONFIRM, 64)
    played = whole.regime.evaluate(alone, seeds, lambda: False)
    counts = [k for k in (8, 16, 24, 32, 40, 48, 56, 64) if reached(played.returns[0, :k], 8.5, 1.0, 64)]
    k = counts[0]
    assert k < 64
    assert confirmed(early)[0] == played.returns[0, :k].mean()
    assert whole.clock.eval_steps - early.clock.eval_steps == played.lengths[0, k:].sum()


@pytest.mark.thorough
def test_without_a_lowest_score_or_a_target_a_success_plays_all() -> None:
    assert confirmed(run(confirmation="sequential")) == confirmed(run())
    for changes in ({}, {"confirmation": "sequential", "lowest_score": 1.0}):
        found = run(target=None, max_steps=8, evo_steps=4, **changes)
        assert found.champion is not None
        best = found.champion.member
        assert found._confirm(best, -np.inf, lambda: False)[0].returns.shape == (1, 64)
        assert found._confirm(best, 1.5, lambda: False)[0].returns.shape == (1, 64)


@pytest.mark.parametrize("lowest", [None, 0.0])
@pytest.mark.thorough
def test_a_failure_ends_the_confirmation_and_confirms_nobody(lowest: float | None) -> None:
    crowned = {}
    for confirmation in ("sequential", "full"):
        found = run(confirmation=confirmation, lowest_score=lowest, target=100.0, max_steps=4, evo_steps=4)
        lucky = [replace(member, fitness=(100.0,)) for member in found.members]
        found.champion = None
        played = Episodes(np.full((6, 8), 100.0), np.ones((6, 8)), 6)
        crowned[confirmation] = found._crown(played, lucky, lambda: False)
    (early, few), (whole, many) = crowned["sequential"], crowned["full"]
    assert early is not None
    assert whole is not None
    assert (early.confirmed, whole.confirmed) == (False, True)
    assert 4 * few < many


def test_errors_that_the_target_asks_for_are_those_that_end_the_run() -> None:
    """A confirmation that ends early with success ends the run, by the champion's own mean and error."""
    found, whole = (run(lowest_score=1.0, target_sigmas=2.0, confirmation=each) for each in ("sequential", "full"))
    score, error, generation = confirmed(found)
    assert (found.reason, generation) == ("target", confirmed(whole)[2])
    assert score - 2.0 * error >= 8.5
    assert found.clock.eval_steps < whole.clock.eval_steps


@pytest.mark.thorough
def test_a_run_with_sequential_confirmations_continues_bit_for_bit() -> None:
    changes = {"confirmation": "sequential", "lowest_score": 1.0, "target": 11.0, "max_steps": 64, "evo_steps": 8}
    train = {"eval_episodes": 8, "eval_steps": 60, "confirm_episodes": 64, "target_sigmas": 1.0, **changes}
    whole, resumed = (populations.started(populations.problem(train=train), 6) for _ in range(2))
    populations.advance(whole, 20)
    tensors, meta = whole.state()
    assert resumed.restore({name: x.clone() for name, x in tensors.items()}, json.loads(json.dumps(meta))) == 0
    for each in (whole, resumed):
        populations.finish(each)
    assert populations.equal_states(whole.state(), resumed.state()) == []
