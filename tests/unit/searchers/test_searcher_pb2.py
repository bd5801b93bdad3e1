"""PB2 against its paper's own words, and a step of its Gaussian process by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from evopipe.errors import MissingInputError
from evopipe.searchers import pb2
from evopipe.searchers.contract import Child, Keep, Living
from evopipe.searchers.history import Record
from evopipe.searchers.pb2 import Bandit, Config, Search, changes, covariance
from searches import SPACE, Game, about, gains, generator, history, off, outside

VARIANCE, LENGTH, EPSILON, NOISE = 1.7, 0.4, 0.2, 0.05


def k(x: float, y: float, s: int, t: int) -> float:
    """The paper's covariance: the squared exponential times (1 − ε)^(|t − t′| / 2)."""
    return VARIANCE * math.exp(-((x - y) ** 2) / (2 * LENGTH**2)) * (1 - EPSILON) ** (abs(s - t) / 2)


def bandit(here: list[list[float]], time: int = 4) -> Bandit:
    """Of two points, x = .2 at t = 1 with the gain 3 and x = .7 at t = 3 with the gain 1: standardised 1 and −1."""
    kernel = covariance(VARIANCE, LENGTH, EPSILON, NOISE)
    return Bandit(np.array([[0.2, 1.0], [0.7, 3.0]]), np.array([3.0, 1.0]), time, here, kernel)


def test_a_step_of_the_process_by_hand() -> None:
    """The posterior of two points in closed form: with a = k(x, x) + noise and c = k(x₁, x₂), K⁻¹ is
    [[a, −c], [−c, a]] / (a² − c²)."""
    a, c = VARIANCE + NOISE, k(0.2, 0.7, 1, 3)
    for x in (0.0, 0.35, 0.7, 1.0):
        k1, k2 = k(x, 0.2, 4, 1), k(x, 0.7, 4, 3)
        mean = ((a * k1 - c * k2) * 1 + (a * k2 - c * k1) * -1) / (a * a - c * c)
        variance = VARIANCE - (a * k1 * k1 - 2 * c * k1 * k2 + a * k2 * k2) / (a * a - c * c)
        beta = 0.2 + math.log(0.4 * 4)
        expected = mean + math.sqrt(beta) * math.sqrt(variance)
        made = bandit([])
        assert made.bound(np.array([[x]]), made._certain())[0] == pytest.approx(expected, rel=1e-6)


def test_beta_is_never_below_its_first_constant() -> None:
    assert bandit([], time=2).beta == pytest.approx(0.2), "log(.4 · 2) is below 0"
    assert bandit([], time=10).beta == pytest.approx(0.2 + math.log(4))


def test_whoever_lives_already_takes_from_the_deviation_and_not_from_the_mean() -> None:
    """A third point at the time in question, by hand at the point itself: its variance is then
    σ² − σ⁴ / (σ² + noise)."""
    alone, beside = bandit([]), bandit([[0.5]])
    at = np.array([[0.5]])
    free, taken = alone.bound(at, alone._certain())[0], beside.bound(at, beside._certain())[0]
    a, c = VARIANCE + NOISE, k(0.2, 0.7, 1, 3)
    k1, k2 = k(0.5, 0.2, 4, 1), k(0.5, 0.7, 4, 3)
    before = VARIANCE - (a * k1 * k1 - 2 * c * k1 * k2 + a * k2 * k2) / (a * a - c * c)
    after = before - before**2 / (before + NOISE)
    root = math.sqrt(0.2 + math.log(1.6))
    assert free - taken == pytest.approx(root * (math.sqrt(before) - math.sqrt(after)), rel=1e-5)


def test_the_next_point_is_where_the_bound_is_highest_and_points_of_one_generation_differ() -> None:
    made = bandit([])
    grid = np.linspace(0, 1, 401)[:, None]
    best = float(made.bound(grid, made._certain()).max())
    first = made.next(generator())
    assert made.bound(np.array([first]), bandit([])._certain())[0] == pytest.approx(best, abs=1e-4)
    second = made.next(generator())
    assert abs(first[0] - second[0]) > 0.1
    assert bandit([]).next(generator()) == first, "the same draw gives the same point"


def test_changes_are_those_of_each_slot_s_own_score() -> None:
    """A copy's begins with the score of the member that it copied."""
    game = Game("pb2", lambda member, steps: 10.0 * member.slot + steps, about(4)).play(2)
    (copied,) = [fate for fate in game.fates[0] if isinstance(fate, Child)]
    assert copied.of == 3
    found = [*changes(game.history)]
    assert [t for _, t, _ in found] == [2] * 4, "nobody knows what the first generation brought"
    assert [gain for *_, gain in found] == [100 - 30, 100, 100, 100], "slot 0 held a copy of the member of slot 3"
    assert [hyper for hyper, *_ in found] == [member.hyper for member in game.records[2].members]


def test_a_generation_that_was_taken_back_leaves_no_change() -> None:
    game = Game("pb2", lambda member, steps: float(steps), about(4)).play(3)
    records = list(game.records)
    records[2] = Record(2, 200, records[2].members, restored=True)
    assert {t for _, t, _ in changes(history([1.0] * 4, 3, records))} == {2}


def test_values_are_those_of_the_space_until_two_changes_are_known() -> None:
    first = Search(Config(), about(4)).step(history([4.0, 3.0, 2.0, 1.0]), generator)
    assert first is not None
    assert [type(fate) for fate in first] == [Keep, Keep, Keep, Child]
    assert isinstance(first[3], Child)
    assert isinstance(first[3].change, Mapping)
    assert set(first[3].change) == set(SPACE)
    assert outside(first) == []


@pytest.mark.thorough
def test_a_search_finds_the_values_that_gain() -> None:
    game = Game("pb2", gains(lambda values: 3 - off(values)), about(8, life=10**6)).play(12)
    for fates in game.fates:
        assert outside(fates) == []
    away = [off(fate.change) for fates in game.fates[6:] for fate in fates if isinstance(fate, Child) and fate.change]  # type: ignore[arg-type]
    assert len(away) == 6
    assert np.median(away) < 0.5, f"of draws from the space the median is 1.25: {away}"


@pytest.mark.thorough
def test_whoever_diverged_is_replaced_and_counts_as_the_largest_fall() -> None:
    def score(member: Living, steps: int) -> float:
        rate = member.hyper["lr"]
        return -math.inf if rate > 1e-3 and steps > 100 else gains(lambda values: 5 + math.log10(rate))(member, steps)

    game = Game("pb2", score, about(8, life=10**6)).play(10)
    late = [fate.change["lr"] for f in game.fates[5:] for fate in f if isinstance(fate, Child) and fate.change]  # type: ignore[index]
    assert any(math.isinf(gain) for *_, gain in changes(game.history))
    assert sum(rate > 1e-3 for rate in late) < len(late) / 2, f"half of all draws would diverge: {late}"
    assert Search(Config(), about(4)).step(history([-math.inf] * 4), generator) is None


@pytest.mark.thorough
def test_only_the_latest_changes_count_and_values_are_for_the_generation_to_come() -> None:
    game = Game("pb2", lambda member, steps: float(steps + member.slot), about(4)).play(6)
    seen: list[tuple[int, int]] = []

    class Looking(Bandit):
        def __init__(self, points: np.ndarray, gains: np.ndarray, time: int, *rest: Any) -> None:
            seen.append((len(points), time))
            super().__init__(points, gains, time, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pb2, "Bandit", Looking)
        Search(Config(window=5), about(4)).step(game.history, generator)
    assert seen == [(5, 7)]


def test_without_scikit_learn_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingInputError) as caught:
        Search(Config(), about())
    assert str(caught.value) == (
        "search.strategy: pb2 needs sklearn, which is not installed: pip install 'evopipe[search]'"
    )
