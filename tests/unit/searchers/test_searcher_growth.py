"""Growth on demand: who gets the next slice, by hand, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from evopipe.searchers.contract import Child, History, Keep, Living, Trial
from evopipe.searchers.growth import Config, Search, projection
from searching import HYPER, SPACE, Course, about, resumed, search, who_lived


@pytest.mark.parametrize(
    ("scores", "window", "expected"),
    [
        ([10.0, 20.0, 30.0, 40.0], 3, 6.0),  # 60 to go, by 10 a slice
        ([0.0, 10.0, 10.0, 10.0, 40.0], 3, 6.0),  # 10, 10, 40: the last three slices gained 30
        ([0.0, 10.0, 10.0, 10.0, 40.0], 1, 2.0),
        ([0.0, 40.0], 3, 1.5),  # no more than there is
        ([40.0], 3, 0.0),  # nobody knows yet
        ([40.0, 40.0], 3, math.inf),
        ([50.0, 40.0], 3, math.inf),
        ([50.0, 100.0], 3, 0.0),
        ([60.0, 10.0, 70.0], 2, 6.0),  # the best so far gained 10 in two slices, and a low score in between nothing
        ([10.0, 40.0, 20.0, 30.0], 1, math.inf),  # it falls behind what it was
        ([150.0, 120.0], 3, 0.0),  # there, though it falls
    ],
)
def test_a_projection_is_the_gap_over_the_gain_of_the_last_slices(
    scores: list[float], window: int, expected: float
) -> None:
    assert projection(scores, 100.0, window) == pytest.approx(expected)


def rising(gain: float, start: float = 0.0) -> list[float]:
    return [start + gain * n for n in range(1, 10)]


def test_one_that_is_soon_there_lives_alone() -> None:
    """Serial search until there is a reason: after n slices it is 10 − n from the target."""
    run = search("growth", lambda number: rising(10.0), about(4, target=95.0))
    # After two slices it needs 7.5 more, which is more than was lived; that is the one time that another is begun.
    lived = who_lived(run, 9)
    assert [slot for slot, _ in lived].count(0) >= 6
    quick = search("growth", lambda number: rising(30.0), about(4, target=85.0))
    assert who_lived(quick, 3) == [(0, 100), (0, 200), (0, 300)]
    # After two slices it needs two more, which is no more than was lived.
    even = search("growth", lambda number: rising(10.0), about(4, target=40.0))
    assert who_lived(even, 4) == [(0, 100), (0, 200), (0, 300), (0, 400)]


def test_slices_go_to_the_oldest_and_to_the_leader_by_turns() -> None:
    """A flat first trial: after every other slice one more is begun, until one of them is soon there."""
    curves = {0: [0.0] * 9, 1: [0.0] * 9, 2: rising(25.0)}
    run = search("growth", lambda number: curves.get(number, [0.0] * 9), about(6, target=90.0))
    lived = who_lived(run, 8)
    # 0 twice: the oldest, and the leader that was scored once. Then 1 is begun (a new draw), and 0 goes on as the
    # oldest; 1 leads while it has one score, then a child of the leader is begun in the last slot.
    assert lived[:5] == [(0, 100), (0, 200), (1, 100), (0, 300), (1, 200)]
    assert [slot for slot, _ in lived[1::2]] == [0] * 4, "every other slice is the oldest's"
    assert lived[6] == (5, lived[5][1] + 100), "a child lives on from its parent's steps"


def test_new_draws_and_children_take_turns() -> None:
    run = search("growth", lambda number: [0.0] * 9, about(6, target=90.0))
    made: list[tuple[int, type]] = []
    for _ in range(12):
        run.generation()
        slot = run.plan.active[0]
        if run.members[slot].id not in run.history.curves():
            made.append((slot, type(run.fates[slot])))
    # Untouched slots from the first on for draws, which are there already, from the last on for children.
    assert made == [(1, Keep), (5, Child), (2, Keep), (4, Child)]


def test_a_child_has_its_parents_values_by_the_factor_within_the_space() -> None:
    """Each times or over the factor; where a bound is reached, the other way; whole numbers stay whole."""
    run = search("growth", lambda number: [0.0] * 9, about(6, target=90.0), {"factor": 2.0})
    child = None
    while child is None:
        run.generation()
        child = next((fate for fate in run.fates if isinstance(fate, Child)), None)
    assert isinstance(child.change, dict)
    assert sorted(child.change) == sorted(SPACE)
    assert child.change["lr"] in (HYPER["lr"] / 2, HYPER["lr"] * 2)
    assert child.change["batch_size"] in (32, 128)
    assert isinstance(child.change["batch_size"], int)
    assert child.change["gamma"] in (0.9, 0.999), "half of it, or twice, is out of the space"
    parent = run.history.members[child.of]
    top = {name: bound.high for name, bound in SPACE.items()}
    searcher = Search(Config(factor=2.0), about(6))
    draws = {
        searcher._other_values(replace(parent, hyper=top), partial(np.random.default_rng, seed))["lr"]
        for seed in range(20)
    }
    assert draws == {0.005}, "at the upper end of the space it can only fall"


def test_the_leader_is_whoever_is_projected_to_be_there_first() -> None:
    """Not who scores best: 1 is behind, and gains three times as much."""
    curves = {0: rising(1.0, 40.0), 1: rising(12.0, 0.0)}
    run = search("growth", lambda number: curves.get(number, [0.0] * 9), about(2, target=95.0))
    lived = who_lived(run, 9)
    leaders = [slot for slot, _ in lived[2::2]]
    assert leaders == [1, 1, 1, 1], lived
    assert run.members[0].score > 40
    assert [slot for slot, _ in lived[1::2]] == [0] * 4


def test_losers_wait_and_are_never_forgotten() -> None:
    """Their slots are not given away before they have lived their lives, and the oldest gets its slices."""
    run = search("growth", lambda number: [float(number)] * 9, about(3, target=90.0))
    seen: set[int] = set()
    while not any(isinstance(fate, Trial) for fate in run.fates):
        run.generation()
        seen |= {member.id for member in run.members}
    lost = seen - {member.id for member in run.members}
    assert lost
    curves = run.history.curves()
    assert all(id not in curves or curves[id][-1][0] >= 900 for id in lost)


def test_a_trial_that_is_steep_at_its_end_only_is_reached_within_twice_serial_searchs_steps() -> None:
    """A curve that is flat for eight slices of nine is what projections are blind to."""
    late = [0.0] * 8 + [100.0]

    def solved_after(strategy: str, size: int, scores: Callable[[int], Sequence[float]]) -> int:
        run = search(strategy, scores, about(size, target=90.0))
        while not run.records[-1].members or run.records[-1].members[0].fitness < 90.0:
            run.generation()
        return run.spent

    for solver in range(3):
        scores = lambda number, solver=solver: late if number == solver else [0.0] * 9  # noqa: E731
        serial = solved_after("random", 1, scores)
        assert serial == 900 * (solver + 1)
        # Its slots are as many as the trials here, so that the solver is among the first draws.
        assert solved_after("growth", 6, scores) <= 2 * serial + 100


def test_a_trial_that_diverged_makes_room() -> None:
    """It gets no slice more, though it is the oldest, and its slot is the first that is free."""
    curves = {0: [-math.inf]}
    run = search("growth", lambda number: curves.get(number, [0.0] * 9), about(1, target=90.0))
    run.generation()
    assert isinstance(run.fates[0], Trial)
    assert run.members[0].id != 0
    assert who_lived(run, 3) == [(0, 100), (0, 200), (0, 300)]


def test_one_more_gets_the_slot_of_one_that_cannot_go_on() -> None:
    """An untouched slot first, then that of a diverged member, then that of the worst who has lived its life."""
    known = about(4, target=90.0)

    def free(lived: dict[int, int], diverged: int = -1) -> list[int]:
        """Of four that score 8, 5, 7, 6, of whom these have lived so many steps, and one may have diverged."""
        members = [
            Living(slot, slot, None, HYPER, lived.get(slot, 0), (score,), slot != diverged)
            for slot, score in enumerate((8.0, 5.0, 7.0, 6.0))
        ]
        return Search(Config(), known)._free(History(members, [], 1, 0, 4), lived)

    assert free({0: 900, 2: 900}) == [1, 3]
    assert free({0: 900, 1: 900, 2: 900, 3: 800}) == [1]
    assert free({0: 900, 1: 900, 2: 300, 3: 800}, diverged=2) == [2]
    assert free(dict.fromkeys(range(4), 800)) == []


def test_without_a_target_the_goal_is_a_tenth_of_the_range_above_the_best() -> None:
    """A leader that goes on to improve lives; one that has stopped is a reason for one more."""
    run = search("growth", lambda number: rising(10.0), about(3))
    assert who_lived(run, 7) == [(0, 100 * n) for n in range(1, 8)], "each time it is projected to be there within one"
    stopped = search("growth", lambda number: [0.0, 50.0, 50.0, 50.0, 50.0, 50.0], about(3))
    lived = who_lived(stopped, 7)
    assert {slot for slot, _ in lived} == {0, 1}
    assert lived[:5] == [(0, 100), (0, 200), (0, 300), (0, 400), (0, 500)]


def test_a_slice_may_have_another_length_than_a_generation() -> None:
    run = search("growth", lambda number: rising(30.0), about(4, target=85.0), {"slice": 200})
    assert who_lived(run, 2) == [(0, 200), (0, 400)]


def test_a_restart_at_any_point_changes_nothing() -> None:
    """What the searcher writes is all that it knows beside the history."""

    def make() -> Any:
        return search(
            "growth", lambda number: rising(1.0 + number % 5, -float(number)), about(4, target=90.0),
            child=lambda course, slices, values: Course([score + values["lr"] for score in course.scores]),
        )  # fmt: skip

    whole, parts = make(), make()
    for _ in range(40):
        whole.generation()
        parts.generation()
        assert (parts.members, parts.fates, parts.plan) == (whole.members, whole.fates, whole.plan)
        parts = resumed(parts, make())
    assert whole.trials > 4
