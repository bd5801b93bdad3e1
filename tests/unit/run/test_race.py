"""Races: who plays on, what is taken for the rest, and that the same members are selected as by all episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import populations
from evopipe import rng
from evopipe.core.cohort import Cohort
from evopipe.rng import Purpose
from evopipe.run.evaluate import Episodes
from evopipe.run.race import hopeless, looks, race
from evopipe.run.run import Champion, Run
from evopipe.schema.evolution import TournamentConfig
from evopipe.searchers.tournament import draws, tournament


class Track:
    """Returns `[P, n]` that are known to nobody before they are played."""

    def __init__(self, returns: np.ndarray) -> None:
        self.returns, self.played = returns, np.zeros(len(returns), np.int64)

    def __call__(self, members: Sequence[int], part: slice) -> np.ndarray:
        assert (self.played[list(members)] == part.start).all(), "nobody plays an episode twice, or leaves one out"
        self.played[list(members)] = part.stop
        return self.returns[list(members), part]

    def race(self, *met: tuple[int, ...], bar: float = -math.inf) -> np.ndarray:
        return race(self, range(len(self.returns)), np.array(met), *self.returns.shape, bar)


def returns(*offsets: float, n: int = 40, noise: float = 1.0) -> np.ndarray:
    """Members that differ by these numbers, on seeds that are unlike by much more."""
    g = np.random.default_rng(1)
    found: np.ndarray = np.array(offsets)[:, None] + 20.0 * g.normal(size=n) + noise * g.normal(size=(len(offsets), n))
    return found


def test_looks_are_at_4_8_16() -> None:
    assert [(x.start, x.stop) for x in looks(50)] == [(0, 4), (4, 8), (8, 16), (16, 32), (32, 50)]
    assert [(x.start, x.stop) for x in looks(3)] == [(0, 3)]


def test_who_meets_nobody_that_is_near_stops_and_the_leader_plays_all() -> None:
    track = Track(returns(0.0, 50.0, 100.0))
    found = track.race((0, 1), (1, 2))
    assert track.played.tolist() == [4, 4, 40]
    assert np.array_equal(found[:, :4], track.returns[:, :4])
    assert np.array_equal(found[2], track.returns[2])
    behind = (track.returns[0, :4] - track.returns[2, :4]).mean()
    np.testing.assert_allclose(found[0, 4:], track.returns[2, 4:] + behind)
    assert found[0].mean() == pytest.approx(track.returns[2].mean() + behind)


def test_who_is_near_one_that_it_meets_plays_on() -> None:
    apart, together = (Track(returns(0.0, 0.0, 100.0, noise=1.0)) for _ in range(2))
    apart.race((0, 2), (1, 2))
    together.race((0, 1), (1, 2))
    assert apart.played.tolist() == [4, 4, 40]
    assert together.played.tolist() == [40, 40, 40]


def test_all_pairs_of_a_larger_tournament_count() -> None:
    for met in ((0, 1, 3), (0, 3, 1), (3, 0, 1)):
        track = Track(returns(0.0, 0.0, 0.0, 100.0))
        track.race(met)
        assert track.played.tolist() == [40, 40, 4, 40], met


def test_who_is_near_the_leader_plays_on_whomever_it_meets() -> None:
    track = Track(returns(0.0, 0.0, -100.0))
    track.race((2, 2))
    assert track.played.tolist() == [40, 40, 4]


def test_a_leader_that_is_alone_and_clearly_below_the_bar_stops() -> None:
    low, near, high = (Track(returns(0.0, 50.0, 100.0)) for _ in range(3))
    mean, error = low.returns[2, :4].mean(), low.returns[2, :4].std(ddof=1) / 2.0 * 0.9**0.5
    found = low.race((0, 1), (1, 2), bar=mean + 3.01 * error)
    assert low.played.tolist() == [4, 4, 4]
    assert np.array_equal(found, low.returns[:, :4])
    assert near.race((0, 1), (1, 2), bar=mean + 2.99 * error).shape[1] > 4
    assert high.race((0, 1), (1, 2), bar=mean).shape == (3, 40)


def test_who_is_not_clear_of_another_plays_on_however_far_the_bar() -> None:
    track = Track(returns(0.0, 0.0, -100.0))
    assert track.race((2, 2), bar=1000.0).shape == (3, 40)
    assert track.played.tolist() == [40, 40, 4]


def test_who_does_not_race_is_left_out_and_broken_episodes_say_nothing() -> None:
    track = Track(returns(0.0, 50.0, 100.0))
    track.returns[0, 3] = np.nan
    found = race(track, [0, 2], np.array([(0, 1), (0, 2)]), 3, 40)
    assert track.played.tolist() == [40, 0, 40]
    assert np.isnan(found[1]).all()
    assert np.isnan(found[0]).sum() == 1


@pytest.mark.parametrize(("behind", "played"), [(1.7, 8), (1.8, 4)])
def test_a_difference_is_clear_above_three_standard_errors(behind: float, played: int) -> None:
    """Of ±1 around it over 4 episodes: an error is (4 / 3) ** 0.5 / 4 ** 0.5, and three are 1.732."""
    track = Track(np.array([[1.0, -1.0, 1.0, -1.0] * 4, [behind] * 16]))
    track.race()
    assert track.played.tolist() == [played, 16]


def test_of_one_episode_nothing_is_clear() -> None:
    track = Track(np.array([[1.0], [9.0], [5.0]]))
    assert track.race((0, 1)).tolist() == [[1.0], [9.0], [5.0]]
    assert track.played.tolist() == [1, 1, 1]


def test_who_is_best_by_an_estimate_plays_the_rest() -> None:
    """Member 1 stops behind 0, which 2 passes later; and 2 was behind 1 where both played."""
    track = Track(
        np.array([[10.0] * 4 + [0.0] * 4, [8.0] * 4 + [1.0, 2.0, 3.0, 4.0], [-20.0, 18.0, 12.0, 14.0, *[20.0] * 4]])
    )
    assert np.array_equal(track.race(), track.returns)


def test_what_is_not_played_is_estimated_by_the_best_of_those_who_played_all() -> None:
    track = Track(np.array([[10.0] * 4 + [0.0] * 4, [4.0] * 8, [-20.0, 18.0, 12.0, 14.0, *[20.0] * 4]]))
    assert track.race()[1].tolist() == [4.0] * 4 + [18.0] * 4, "2 below member 2, whose mean was 6"
    assert track.played.tolist() == [8, 4, 8]


def test_who_has_stopped_leads_nobody() -> None:
    """On the seeds that come after, which are hard, the others fall below what it got on the first."""
    track = Track(np.array([[10.0] * 4 + [-30.0] * 12, [8.0] * 16, [-20.0, 18.0, 12.0, 14.0, *[-30.0, -31.0] * 6]]))
    track.race()
    assert track.played.tolist() == [16, 4, 16]


def test_who_broke_in_all_episodes_leads_nobody_and_plays_on() -> None:
    track = Track(returns(0.0, 0.0, 100.0))
    track.returns[1, :4] = np.nan
    found = track.race()
    assert track.played.tolist() == [4, 40, 40]
    assert np.isnan(found[1, :4]).all()


def test_a_race_selects_whom_all_episodes_select() -> None:
    """Of 8 members with means of deviation 1 and episodes of 2 ** .5, over 150 races: parents and elites differ in less
    than one of fifty, and a fifth of the episodes is saved."""
    g, cfg, n = np.random.default_rng(2), TournamentConfig(), 64
    parents, elites, played = [], [], []
    for seed in range(150):
        track = Track(g.normal(size=(8, 1)) + g.normal(size=n) + 2**0.5 * g.normal(size=(8, n)))
        met = draws(cfg, 8, np.random.default_rng(seed))
        found = track.race(*map(tuple, met[1:]))
        raced, whole = (tournament(cfg, x.mean(axis=1), np.random.default_rng(seed)) for x in (found, track.returns))
        parents.append(np.mean(np.array(raced.parents) == whole.parents))
        elites.append(raced.elite == whole.elite)
        played.append(track.played.mean() / n)
    assert np.mean(parents) > 0.98
    assert np.mean(elites) > 0.98
    assert np.mean(played) < 0.8


def test_a_mean_is_hopeless_that_is_two_errors_below_the_bar() -> None:
    few = np.array([1.0, -1.0] * 4)  # its error is (8 / 7) ** 0.5 / 8 ** 0.5 = 0.378
    assert hopeless(few, 0.76, 10**9)
    assert not hopeless(few, 0.75, 10**9)
    assert not hopeless(few[:6], 100.0, 10**9), "too few to tell"
    assert hopeless(np.array([*few, np.nan]), 0.76, 10**9)
    assert hopeless(few, 0.66, 32), "of 32 episodes a quarter is certain: 0.75 ** 0.5 of that"
    assert not hopeless(few, 0.65, 32)
    assert hopeless(np.array([*few, *[np.nan] * 8]), 0.54, 32), "half of them are over, whatever they gave"


# ------------------------------------------------------------------------------------------------------ in a run


def run(evaluation: str, **changes: object) -> Run:
    """Six members that do not learn, in CartPole, over a generation; every champion is confirmed."""
    train = {"evaluation": evaluation, "eval_episodes": 24, "eval_steps": 60, "learning_delay": 10**6, **changes}
    found: Run = populations.started(populations.problem(train=train), 6)
    while not found.clock.generation_over:
        found.advance()
    populations.close_generation(found)
    return found


def test_a_run_that_races_plays_less_and_selects_the_same() -> None:
    full, raced = (run(evaluation) for evaluation in ("full", "race"))
    parents = [[child.parent_slot for child in each.lineage[-1].children] for each in (full, raced)]
    assert parents[0] == parents[1]
    assert full.champion is not None
    assert raced.champion is not None
    assert (full.champion.score, full.champion.error) == (raced.champion.score, raced.champion.error)
    assert raced.clock.eval_steps < full.clock.eval_steps


def test_a_run_races_those_who_meet_in_its_own_tournaments() -> None:
    """Of three pairs that are near each other, those whose order its next parents depend on play on."""
    p = populations.problem(seed=160, train={"evaluation": "race", "eval_episodes": 32})

    def expected(generation: int, first: int) -> list[int]:
        track = Track(returns(0.0, 0.0, 60.0, 60.0, 120.0, 120.0, n=32))
        met = draws(p.tournament, 6, rng.host(rng.run_key(p.seed), Purpose.SELECT, generation))
        track.race(*map(tuple, met[first:]))
        return [int(n) for n in track.played]

    assert expected(1, 1) == [32, 32, 4, 4, 32, 32]
    assert expected(1, 0) == [32] * 6, "the elite's place is no tournament's"
    assert expected(0, 1) == [4, 4, 32, 32, 32, 32]
    found, track = populations.started(p, 6), Track(returns(0.0, 0.0, 60.0, 60.0, 120.0, 120.0, n=32))
    seeds = p.seeds(Purpose.EVALUATE, 32).tolist()

    def play(cohorts: Sequence[Cohort], asked: np.ndarray, stopped: object) -> Episodes:
        first = seeds.index(asked[0])
        gave = track(sorted(slot for cohort in cohorts for slot in cohort.slots), slice(first, first + len(asked)))
        return Episodes(gave, np.ones(gave.shape), gave.size)

    found.regime.evaluate = play
    played, _ = found._evaluate(lambda: False)
    assert track.played.tolist() == expected(1, 1)
    assert played.steps == track.played.sum()


@pytest.mark.thorough
def test_luck_of_a_few_episodes_crowns_nobody() -> None:
    """One member, which mutates and is alone in its races, plays 4 episodes of 32 there, for its target is out of
    reach. Returns are luck alone, of mean 0 and deviation 1, and a champion's score is how lucky it was."""

    def lucky(evaluation: str, seed: int) -> Run:
        train = {
            "evaluation": evaluation, "eval_episodes": 32, "target": 50.0, "max_steps": 32, "evo_steps": 4,
            "learning_delay": 10**6,
        }  # fmt: skip
        kinds = dict.fromkeys(("none", "architecture", "activation", "rl_hp"), 0.0) | {"parameters": 1.0}
        found: Run = populations.started(
            populations.problem(
                "envs_for_tests:Luck-v0", seed=seed, train=train, mutation={"probabilities": kinds, "sd": 10.0},
                tournament={"elitism": False},
            ),
            1,
        )  # fmt: skip
        populations.finish(found)
        return found

    raced, full = ([lucky(evaluation, seed) for seed in range(3)] for evaluation in ("race", "full"))
    crowned = [[each.champion for each in runs if each.champion is not None] for runs in (raced, full)]
    inflated = [np.mean([champion.score for champion in champions]) for champions in crowned]
    assert inflated[0] < 1.1 * inflated[1], "by unlike numbers of episodes it is 1.5 times as much"
    for champion in crowned[0] + crowned[1]:
        assert not champion.confirmed
        assert len(champion.returns) == 32
        assert champion.score == pytest.approx(champion.returns.mean())
    steps = [sum(run.clock.eval_steps for run in runs) for runs in (raced, full)]
    assert steps[0] < 0.6 * steps[1]


def test_unconfirmed_scores_are_compared_on_the_same_episodes() -> None:
    """The first episodes of all are hard: who does better there than the champion did plays the others too."""
    found = run("race", target=1000.0)
    hard = np.repeat([-100.0, 10.0], [4, 20])
    member = found.members[0]
    found.champion = Champion(member, hard.mean(), 1.0, False, 1, hard)

    def crown(returns: np.ndarray) -> tuple[Champion | None, int]:
        members = [replace(m, fitness=(returns.mean() if m.slot == 2 else -1e9,)) for m in found.members]
        return found._crown(Episodes(np.tile(returns, (6, 1)), np.ones((6, len(returns))), 0), members, lambda: False)

    held, steps = crown(np.full(4, -101.0))
    assert (held, steps) == (found.champion, 0)
    crowned, steps = crown(np.full(4, -99.0))
    rest = found.regime.evaluate(
        found.spec.form_alone(found.members[2]), found.spec.seeds(Purpose.EVALUATE, 24)[4:], lambda: False
    )
    assert crowned is not None
    assert (crowned.member.slot, steps) == (2, rest.steps)
    assert np.array_equal(crowned.returns, [*[-99.0] * 4, *rest.returns[0]])
    found.champion = Champion(member, 1e6, 1.0, False, 1, np.repeat([-100.0, 1e6], [4, 20]))
    assert crown(np.full(4, -99.0)) == (found.champion, steps), "on all of them it is worse"
    found.champion = replace(found.champion, confirmed=True)
    assert crown(np.full(4, 99.0)) == (found.champion, 0), "a lucky score does not beat a confirmed one"


@pytest.mark.thorough
def test_a_run_that_races_continues_bit_for_bit() -> None:
    whole, resumed = run("race"), run("race")
    populations.advance(whole, 60)
    tensors, meta = whole.state()
    assert resumed.restore({name: x.clone() for name, x in tensors.items()}, json.loads(json.dumps(meta))) == 0
    for each in (whole, resumed):
        populations.finish(each)
    assert populations.equal_states(whole.state(), resumed.state()) == []


def test_a_hopeless_confirmation_ends_early() -> None:
    raced = run("race")
    assert raced.champion is not None
    best, bar = raced.champion.member, 1000.0
    played, _ = raced._confirm(best, bar, lambda: False)
    assert played.returns.shape == (1, 4), "fewer than 8 episodes tell nothing"
    spec = replace(raced.spec, train=raced.spec.train.model_copy(update={"confirm_episodes": 40}))
    raced.spec = spec
    few = raced._confirm(best, bar, lambda: False)[0]
    assert few.returns.shape == (1, 8)
    assert few.steps == few.lengths.sum(), "of both looks"
    assert raced._confirm(best, -1000.0, lambda: False)[0].returns.shape == (1, 40)
    assert raced._confirm(best, -np.inf, lambda: False)[0].returns.shape == (1, 40)


def test_a_confirmation_that_is_given_up_confirms_nobody() -> None:
    """One that was lucky to reach a target far above what it can do is told so after 8 episodes of 40."""
    crowned = {}
    for evaluation in ("race", "full"):
        found = run(evaluation, target=100.0, confirm_episodes=40)
        lucky = [replace(member, fitness=(100.0,)) for member in found.members]
        played = Episodes(np.full((6, 24), 100.0), np.ones((6, 24)), 6)
        crowned[evaluation] = found._crown(played, lucky, lambda: False)
    (raced, few), (full, many) = crowned["race"], crowned["full"]
    assert raced is not None
    assert full is not None
    assert (raced.confirmed, full.confirmed) == (False, True)
    assert full.score < 60.0, "its episodes end there"
    assert 4 * few < many
    assert raced.score < 60.0, "by what was played of the confirmation"
    assert (raced.returns == 100.0).all()
