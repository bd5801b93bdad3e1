"""Tournament selection."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evopipe.schema.evolution import TournamentConfig
from evopipe.searchers.tournament import Selection, tournament, windowed

INF = math.inf


def config(size: int = 2, elitism: bool = False) -> TournamentConfig:
    return TournamentConfig(size=size, elitism=elitism)


def parents(cfg: TournamentConfig, fitness: list[float], tournaments: int, seed: int = 0) -> np.ndarray:
    """Parents `[≥ tournaments]` of many generations."""
    rng, score = np.random.default_rng(seed), np.array(fitness)
    rounds = -(-tournaments // len(score))
    return np.array([tournament(cfg, score, rng).parents for _ in range(rounds)])


@pytest.mark.thorough
def test_a_nan_member_is_never_parent_nor_elite_in_100_000_tournaments() -> None:
    """Peer fault: comparisons with NaN let a diverged member win, and be cloned over the healthy ones."""
    rng = np.random.default_rng(0)
    sick = [math.nan, -INF, INF, math.nan]
    for size in (1, 2, 3, 4, 8):
        for _ in range(2500):
            fitness = np.array([*sick, *rng.normal(size=4)])
            rng.shuffle(fitness)
            selected = tournament(config(size, elitism=bool(rng.random() < 0.5)), fitness, rng)
            assert np.isfinite(fitness[list(selected.parents)]).all()
            assert selected.elite is not None
            assert np.isfinite(fitness[selected.elite])


@pytest.mark.thorough
@pytest.mark.parametrize(("members", "size"), [(2, 2), (3, 2), (4, 3), (5, 1), (6, 4)])
def test_winners_have_the_probabilities_of_draws_with_replacement(members: int, size: int) -> None:
    fitness = np.random.default_rng(members).permutation(members).astype(float).tolist()
    won = parents(config(size), fitness, 40_000).ravel()
    rank = np.array(fitness).astype(int)  # 0 is worst
    expected = len(won) * (((rank + 1) / members) ** size - (rank / members) ** size)
    counts = np.bincount(won, minlength=members)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < members + 5 * math.sqrt(2 * members)


def test_elitism_puts_the_fittest_into_slot_0() -> None:
    drawn = parents(config(1, elitism=True), [0.0, 5.0, 2.0], 3000)
    assert (drawn[:, 0] == 1).all()
    assert set(drawn[:, 1:].ravel()) == {0, 1, 2}
    without = parents(config(1), [0.0, 5.0, 2.0], 3000)
    assert set(without[:, 0]) == {0, 1, 2}


def test_ties_go_to_the_lower_row() -> None:
    rng = np.random.default_rng(0)
    selected = tournament(config(64, elitism=True), np.array([1.0, 3.0, 3.0, 3.0]), rng)
    assert selected == Selection((1, 1, 1, 1), 1)


def test_a_tournament_larger_than_the_population_is_allowed() -> None:
    selected = tournament(config(9), np.array([1.0, 2.0]), np.random.default_rng(0))
    assert set(selected.parents) <= {0, 1}


def test_tournaments_of_only_unhealthy_members_fall_to_the_fittest() -> None:
    drawn = parents(config(1), [-INF, 4.0, math.nan, -INF], 4000)
    assert (drawn == 1).all()


@pytest.mark.parametrize("sick", [math.nan, -INF, INF])
def test_where_nobody_is_healthy_there_is_no_elite_and_everyone_keeps_its_slot(sick: float) -> None:
    selected = tournament(config(3, elitism=True), np.full(4, sick), np.random.default_rng(0))
    assert selected == Selection((0, 1, 2, 3), None)


def test_selection_is_a_function_of_its_generator() -> None:
    fitness = np.arange(6.0)
    first, second = (tournament(config(2), fitness, np.random.default_rng(3)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("history", "window", "expected"),
    [
        ((1.0, 2.0, 6.0), 1, 6.0),
        ((1.0, 2.0, 6.0), 2, 4.0),
        ((1.0, 2.0, 6.0), 9, 3.0),
        ((), 1, -INF),
        ((1.0, math.nan), 2, -INF),
        ((-INF, 1.0), 1, 1.0),
        ((-INF, 1.0), 2, -INF),
        ((INF, 1.0), 2, -INF),
    ],
)
def test_fitness_is_the_mean_of_the_last_evaluations(history: tuple[float, ...], window: int, expected: float) -> None:
    assert windowed(history, window) == expected


def test_without_a_tournament_healthy_members_go_on_and_the_fittest_takes_the_places_of_others() -> None:
    fitness, rng = np.array([1.0, math.nan, 3.0, -INF]), np.random.default_rng(0)
    before = rng.bit_generator.state
    assert tournament(config(0), fitness, rng) == Selection((0, 2, 2, 2), 2)
    assert tournament(config(0, elitism=True), fitness, rng) == Selection((2, 2, 2, 2), 2)
    assert rng.bit_generator.state == before
