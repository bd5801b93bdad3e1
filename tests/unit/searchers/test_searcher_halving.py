"""Asynchronous successive halving against Algorithm 2 of its paper, by hand, and in real runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evopipe.searchers.contract import History, Keep, Living, Trial
from evopipe.searchers.halving import Config, Ladder, rungs
from evopipe.searchers.history import Record, Scored
from searching import about, resumed, search, who_lived


@pytest.mark.parametrize(
    ("eta", "first", "life", "expected"),
    [
        (3, 100, 900, [100, 300, 900]),  # the paper's example: r = 1, R = 9, η = 3
        (4, 100, 25_600, [100, 400, 1600, 6400, 25_600]),  # that of its experiments: η = 4, r = R / 256
        (3, None, 900, [100, 300, 900]),
        (3, None, 1600, [200, 600, 1600]),  # 16 / 9 = 1.8 generations, and 5.3
        (2, None, 700, [200, 400, 700]),
        (3, None, 200, [200]),
        (3, 100, 800, [100, 300, 800]),
        (3, 250, 1000, [300, 800, 1000]),
        (3, 900, 900, [900]),
        (2, None, 250, [200, 250]),
    ],
)
def test_rungs_grow_by_the_factor_up_to_a_full_life(
    eta: int, first: int | None, life: int, expected: list[int]
) -> None:
    """They are whole generations of 100 steps; the first one leaves at least one."""
    assert rungs(Config(eta=eta, rung=first), life, 100) == expected


SCORES = [3.0, 1.0, 5.0, 4.0, 7.0, 2.0, 4.5, 9.0, 8.0]
"""Of nine trials at every rung."""
JOBS = [
    # n = 3 at the first rung: the best of it, 2, goes on
    (0, 0), (1, 0), (2, 0), (2, 1),
    # n = 6: the best two are 4 and 2; 2 has gone on already
    (3, 0), (4, 0), (4, 1), (5, 0),
    # 6: n = 7, the best two as before; 7: n = 8, the best two are 7 and 4
    (6, 0), (7, 0), (7, 1),
    # three at the second rung: the best of them goes on to the last
    (7, 2),
    # n = 9 at the first: the best three are 7, 8, 4
    (8, 0), (8, 1),
]  # fmt: skip
"""Trial and rung, in order, by Algorithm 2 with one worker."""


def test_jobs_are_those_of_the_papers_algorithm() -> None:
    """get_job: from the highest rung down, the best of top_k(rung, |rung| / η) not promoted yet; else a new one."""
    run = search("halving", lambda number: [*SCORES, 0.0][number : number + 1], about(9), {"rung": 100})
    lived = who_lived(run, 23)
    ends = [(slot, [100, 300, 900].index(steps)) for slot, steps in lived if steps in (100, 300, 900)]
    assert ends == JOBS
    # A job to the second rung is two generations long, to the third six; nobody is interrupted.
    assert [steps for slot, steps in lived if slot == 7] == [100, 200, 300, 400, 500, 600, 700, 800, 900]
    assert [steps for slot, steps in lived if slot == 2] == [100, 200, 300]


def test_a_higher_rung_goes_first() -> None:
    """Of twelve at 100 steps the best four may go on, which 3 has not; of three at 300 the best one may, which is 1."""
    at_first, at_second = [9.0, 8.0, 7.0, 6.0, *[1.0] * 8], [2.0, 3.0, 1.0]
    lived = [(id, 100, score) for id, score in enumerate(at_first)]
    lived += [(id, 300, score) for id, score in enumerate(at_second)]
    scored = [Scored(id, id, None, 0, None, {}, True, score, steps) for id, steps, score in lived]
    members = [Living(id, id, None, {}, 300 if id < 3 else 100, (1.0,), True) for id in range(12)]
    ladder = Ladder(History(members, [Record(1, 0, tuple(scored))], 1, 0, 12), [100, 300, 900])
    assert ladder.promotable(members, 3) is members[1]
    assert ladder.promotable([members[0], *members[2:]], 3) is members[3], "where 1 lives already"
    assert ladder.promotable(members[4:], 3) is None


def test_a_trial_whose_rung_has_grown_comes_back_and_goes_on_from_where_it_was() -> None:
    """At first the best third of three is 0 alone; of six it is 0 and 1, who has waited meanwhile."""
    run = search("halving", lambda number: [9.0 - number], about(6), {"rung": 100})
    assert who_lived(run, 6) == [(0, 100), (1, 100), (2, 100), (0, 200), (0, 300), (3, 100)]
    waited = run.members[1]
    assert who_lived(run, 3) == [(4, 100), (5, 100), (1, 200)]
    assert (run.members[1].id, run.trials) == (waited.id, 6), "the same one, and no new trial was begun"
    assert run.records[-1].members[0].id == waited.id


def test_a_promotion_says_why() -> None:
    run = search("halving", lambda number: [9.0 - number], about(6), {"rung": 100})
    who_lived(run, 3)
    assert run.fates[0] == Keep("promoted: among the best 1 of 3 at 100 steps")
    assert [fate.why for fate in run.fates[1:]] == ["waits"] * 2 + ["has not begun"] * 3
    while not any("at 300 steps" in str(fate.why) for fate in run.fates):
        who_lived(run, 1)
    (why,) = [fate.why for fate in run.fates if "promoted" in str(fate.why)]
    assert why == "promoted: among the best 1 of 3 at 300 steps", "of those that reached that rung, not the first"


def test_a_new_trial_takes_the_slot_of_the_worst_at_the_lowest_rung() -> None:
    """Where no slot is untouched. 2, which reached the second rung, stays, though its score is the worst of all by
    then; whose state is lost still counts at its rung."""
    curves = {0: [3.0], 1: [1.0], 2: [5.0, 0.0, 0.0], 3: [4.0]}
    run = search("halving", lambda number: curves.get(number, [2.0]), about(3), {"rung": 100})
    assert who_lived(run, 5) == [(0, 100), (1, 100), (2, 100), (2, 200), (2, 300)]
    assert [type(fate) for fate in run.fates] == [Keep, Trial, Keep]
    assert run.fates[1].why == "nobody could be promoted; the last one was the worst at 100 steps"
    assert run.members[1].id not in range(3)
    assert who_lived(run, 1) == [(1, 100)]  # number 3 scores 4: |rung| = 4, the best of it has gone on
    assert [type(fate) for fate in run.fates] == [Trial, Keep, Keep], "3.0 is the worst there is at 100 steps"
    ladder = Ladder(run.history, rungs(Config(rung=100), 900, 100))
    assert sorted(ladder.reached[0].values()) == [1.0, 3.0, 4.0, 5.0]
    assert list(ladder.reached[1].values()) == [0.0]


def test_scores_at_a_rung_are_those_of_when_it_was_reached() -> None:
    """A score that falls later does not take a promotion back, and one that rises later makes none."""
    curves = {0: [1.0], 1: [5.0, 0.0, 0.0], 2: [2.0]}
    run = search("halving", lambda number: curves.get(number, [0.5]), about(9), {"rung": 100})
    assert who_lived(run, 6) == [(0, 100), (1, 100), (2, 100), (1, 200), (1, 300), (3, 100)]
    assert Ladder(run.history, [100, 300, 900]).reached[0] == {0: 1.0, 1: 5.0, 2: 2.0, 3: 0.5}
    assert who_lived(run, 4)[2:] == [(2, 200), (2, 300)], "of six trials 1 and 2 were the best at 100 steps"


def test_a_trial_that_diverged_is_dropped() -> None:
    """It counts as the worst of the rung that it was on the way to, is never promoted, and its slot is the next one."""
    curves = {0: [3.0, -math.inf], 1: [-math.inf], 2: [-math.inf]}
    run = search("halving", lambda number: curves.get(number, [1.0]), about(3), {"rung": 100})
    # Best of three is 0, which diverges at its second generation.
    assert who_lived(run, 4) == [(0, 100), (1, 100), (2, 100), (0, 200)]
    assert isinstance(run.fates[0], Trial)
    assert run.fates[0].why == "nobody could be promoted; the last one diverged"
    assert who_lived(run, 1) == [(0, 100)]
    assert isinstance(run.fates[1], Trial)
    # 3, 1, −∞, −∞ and then another 1 and another: of six the best two are 3 (gone) and the first 1.
    assert who_lived(run, 3) == [(1, 100), (2, 100), (0, 200)]


def test_several_live_at_once_and_nobody_waits_for_a_rung_to_be_full() -> None:
    """Two workers: a free one takes the next job while the other's goes on."""
    run = search("halving", lambda number: [9.0 - number], about(9), {"rung": 100, "width": 2})
    lived = who_lived(run, 5)
    assert lived == [(0, 100), (1, 100), (2, 100), (3, 100), (0, 200), (4, 100), (0, 300), (5, 100), (1, 200), (6, 100)]


def test_a_restart_at_any_point_changes_nothing() -> None:
    """What the searcher writes is all that it knows beside the history."""

    def make() -> Any:
        return search("halving", lambda number: [SCORES[number % 9] + number], about(4), {"width": 2})

    whole, parts = make(), make()
    for _ in range(30):
        whole.generation()
        parts.generation()
        assert (parts.members, parts.fates, parts.plan) == (whole.members, whole.fates, whole.plan)
        parts = resumed(parts, make())
    assert whole.trials > 10
