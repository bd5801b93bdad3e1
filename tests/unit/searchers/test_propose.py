"""Proposers: the same history gives the same values, within their bounds."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import populations
from evopipe.errors import MissingInputError
from evopipe.run.spec import first_members
from evopipe.searchers.contract import Bound, History, Trial
from evopipe.searchers.propose import (
    SPREAD,
    Proposer,
    at,
    first_values,
    inside,
    prior_values,
    random_values,
    scored,
    share_of,
    sobol_values,
    value_at,
)  # fmt: skip
from searches import SPACE, Game, about, gains, generator, off, outside

PROPOSERS = ["random", "sobol", "prior", "tpe", "gp"]
CONFIGURED = {"lr": 3e-3, "batch_size": 64, "entropy": 0.5, "learn_step": 1}  # two within their ranges, two at an end
SLOW = [*PROPOSERS[:4], pytest.param("gp", marks=pytest.mark.thorough)]


def after(generations: int, proposer: str = "random", size: int = 4) -> History:
    """A random search in which lr is best at 1e-2."""
    known = about(size, life=200, proposer=proposer, configured=CONFIGURED)
    return Game("random", gains(lambda values: 3 - off(values)), known).play(generations).history


def proposed(proposer: str, history: History, slots: tuple[int, ...] = (0,), seed: int = 0) -> list[Any]:
    made = Proposer(about(4, proposer=proposer, configured=CONFIGURED))
    return [made.trial(history, lambda: generator(seed), slot, "why") for slot in slots]


@pytest.mark.parametrize("proposer", SLOW)
@pytest.mark.parametrize("generations", [0, 8])
def test_the_same_history_gives_the_same_values_and_all_lie_in_the_space(proposer: str, generations: int) -> None:
    """Of a run that has just begun, and of one that has tried 16."""
    slots = (0, 3)
    found = proposed(proposer, after(generations), slots)
    assert proposed(proposer, after(generations), slots) == found, "as after a kill"
    assert outside(found) == []
    assert [set(trial.values) for trial in found] == [set(SPACE)] * 2
    assert found[0].values != found[1].values
    assert {trial.why for trial in found} == {"why"}
    if proposer != "sobol":  # whose points are the run's
        assert proposed(proposer, after(generations), slots, seed=1) != found


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_a_slot_that_asks_twice_gets_the_same(proposer: str) -> None:
    history, made = after(1), Proposer(about(4, proposer=proposer, configured=CONFIGURED))
    one, other = (made.trial(history, generator, slot, "") for slot in (1, 2))
    assert made.trial(history, generator, 1, "") == one != other


def test_the_run_s_trials_are_the_first_points_of_its_sequence() -> None:
    game = Game("random", lambda member, steps: 1.0, about(4, life=200, proposer="sobol"))
    game.play(4)  # two lives of each slot
    begun = [child.hyper for record in game.records[1:] for child in record.children if child.parent_slot == -1]
    assert begun == [sobol_values(SPACE, 5, index) for index in range(4, 12)]
    draws = [generator() for _ in range(4)]
    assert first_values("sobol", SPACE, 5, draws, {}) == [sobol_values(SPACE, 5, index) for index in range(4)]
    assert sobol_values(SPACE, 6, 0) != sobol_values(SPACE, 5, 0)


def test_the_sequence_fills_the_space_more_evenly_than_draws() -> None:
    """32 points put one into each 32nd of every range."""
    for name, bound in SPACE.items():
        if not bound.whole:
            shares = [share_of(bound, sobol_values(SPACE, 5, index)[name]) for index in range(32)]
            assert sorted(int(32 * share) for share in shares) == list(range(32))
    assert sobol_values({}, 1, 3) == {}


@pytest.mark.parametrize("proposer", SLOW[3:])
def test_values_are_proposed_near_those_that_scored_well(proposer: str) -> None:
    """Of 28 trials those with lr near 1e-2 gained most: three in a row are nearer than two thirds of all draws."""
    history = after(13)
    assert sum(score is not None for _, score in scored(SPACE, history)) >= 24
    away = [off(trial.values) for seed in range(2) for trial in proposed(proposer, history, (0, 1, 2), seed)]
    assert np.median(away) < 0.8, f"of draws the median is 1.25: {away}"


def test_a_member_that_diverged_counts_as_the_worst_and_one_not_scored_yet_as_under_way() -> None:
    def score(member: Any, steps: int) -> float:
        return -math.inf if member.slot == 1 else float(member.slot)

    known = scored(SPACE, Game("random", score, about(4)).play(1).history)
    assert [score for _, score in known] == [0.0, 0.0, 2.0, 3.0, None]
    none = scored(SPACE, Game("random", lambda member, steps: -math.inf, about(2)).play(1).history)
    assert [score for _, score in none] == [None] * 4
    assert outside(proposed("tpe", Game("random", score, about(4)).play(1).history)) == []


def test_the_process_says_nothing_of_its_studies(capfd: pytest.CaptureFixture[str]) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    proposed("tpe", after(8))
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_without_optuna_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    Proposer(about(proposer="sobol"))
    with pytest.raises(MissingInputError) as caught:
        Proposer(about(proposer="gp"))
    assert str(caught.value) == (
        "search.proposer: gp needs optuna, which is not installed: pip install 'evopipe[search]'"
    )


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_first_members_of_a_run_are_drawn_from_its_space(proposer: str) -> None:
    """Of nobody is anything known: at random, or the first points of the sequence."""
    p = populations.problem(search={"strategy": "pbt", "proposer": proposer, "first": "drawn"})
    found = [member.hyper for member in first_members(p, 8)[0]]
    for name, bound in p.space.items():
        assert all(inside(bound, hyper[name]) == hyper[name] for hyper in found)
        assert len({hyper[name] for hyper in found}) > 1
    if proposer == "sobol":
        assert [{name: hyper[name] for name in p.space} for hyper in found] == [
            sobol_values(p.space, p.seed, index) for index in range(8)
        ]
    plain = populations.problem(search={"strategy": "tournament", "proposer": proposer})
    assert len({tuple(member.hyper.values()) for member in first_members(plain, 8)[0]}) == 1


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_first_trial_has_the_configured_values(proposer: str) -> None:
    """As far as they lie within their ranges; all others are those of a run whose first trial is drawn, too."""
    ranges = {"lr": {"min": 1e-4, "max": 1e-2}, "batch_size": {"min": 8, "max": 64}, "gamma": {"min": 0.9, "max": 0.99}}
    own = {"lr": 3e-3, "batch_size": 96, "gamma": 0.999, "evolve": ranges}
    search = {"strategy": "random", "proposer": proposer, "budget": 10_000}
    begun, drawn = (
        [member.hyper for member in first_members(populations.problem(config=own, search=search | more), 4)[0]]
        for more in ({}, {"first": "drawn"})
    )
    assert {name: begun[0][name] for name in ranges} == {"lr": 3e-3, "batch_size": 64, "gamma": 0.99}
    assert isinstance(begun[0]["batch_size"], int)
    assert begun[1:] == drawn[1:]
    assert begun[0] != drawn[0]


def test_around_the_configured_values_coordinates_have_the_truncated_normal_distribution() -> None:
    """Against SciPy's, by the test of Kolmogorov and Smirnov at 1 in 1,000."""
    from scipy import stats

    drawn = [prior_values(SPACE, CONFIGURED, generator(seed)) for seed in range(500)]
    assert outside([Trial(values, "") for values in drawn]) == []
    for name in ("lr", "entropy"):
        centre = share_of(SPACE[name], CONFIGURED[name])
        law = stats.truncnorm(-centre / SPREAD, (1 - centre) / SPREAD, centre, SPREAD)
        shares = [share_of(SPACE[name], values[name]) for values in drawn]
        assert stats.kstest(shares, law.cdf).pvalue > 1e-3
    counts = Counter(values["learn_step"] for values in drawn)
    assert max(counts, key=lambda value: counts[value]) == 1, "the nearest value is the likeliest"


def test_every_other_trial_of_a_run_is_drawn_around_the_configured_values() -> None:
    """Of those that begin later, too: by the number of the trial."""
    game = Game("random", lambda member, steps: 1.0, about(2, life=100, proposer="prior", configured=CONFIGURED))
    game.play(40)
    begun = [child.hyper for record in game.records[1:] for child in record.children if child.parent_slot == -1]
    lr = SPACE["lr"]
    near = [abs(share_of(lr, values["lr"]) - share_of(lr, CONFIGURED["lr"])) < 2 * SPREAD for values in begun]
    assert len(near) >= 60
    assert np.mean(near[1::2]) > 0.9
    assert np.mean(near[::2]) < 0.7


def test_of_the_first_members_every_other_is_near_the_configured_one() -> None:
    draws = [generator(slot) for slot in range(4)]
    found = first_values("prior", SPACE, 5, draws, CONFIGURED, "configured")
    assert found[0] == CONFIGURED
    assert found[1] == prior_values(SPACE, CONFIGURED, generator(1))
    assert found[2] == random_values(SPACE, generator(2))
    assert found[3] == prior_values(SPACE, CONFIGURED, generator(3))


@pytest.mark.parametrize("bound", [*SPACE.values(), Bound(2, 2, whole=True), Bound(0.3, 0.3)])
def test_shares_and_values_are_each_other_s_inverse(bound: Bound) -> None:
    for share in np.linspace(0, 0.999, 50):
        value = value_at(bound, float(share))
        assert inside(bound, value) == value
        assert value_at(bound, share_of(bound, value)) == pytest.approx(value)
    assert value_at(bound, 0.0) == pytest.approx(bound.low)
    assert value_at(bound, 1.0) == pytest.approx(bound.high)
    assert share_of(bound, bound.high * 2) == share_of(bound, bound.high)


def test_values_are_uniform_by_their_logarithm_where_the_range_spans_decades() -> None:
    drawn = [random_values(SPACE, generator(seed)) for seed in range(400)]
    assert 0.4 < np.mean([values["lr"] < 1e-3 for values in drawn]) < 0.6
    assert 0.4 < np.mean([values["entropy"] < 0.25 for values in drawn]) < 0.6
    assert 0.08 < np.mean([values["learn_step"] == 8 for values in drawn]) < 0.18, "an end is as likely as others"
    assert at({"lr": SPACE["lr"]}, [0.5])["lr"] == pytest.approx(1e-3)
