"""Counters and sums of a run, against numbers by hand: ticks, steps, measures, returns and lengths of episodes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import populations
from evopipe import rng
from evopipe.regimes.measures import Measures
from evopipe.regimes.order import held_out, rows_at
from evopipe.rng import Purpose
from evopipe.run.clock import Clock
from evopipe.run.diagnostics import Diagnostics
from evopipe.run.pace import next_count
from evopipe.run.tally import Tally

CPU = torch.device("cpu")


def test_ticks_count_the_steps_of_those_who_live() -> None:
    clock = Clock(members=3, envs=4, each=5, total=12, living=2)
    clock.count(broken=2, rewarded=False, ticks=3)
    assert (clock.tick, clock.here, clock.ticks, clock.step) == (3, 3, 3, 12)
    assert (clock.env_steps, clock.broken, clock.broken_here, clock.rewarded) == (24, 2, 2, False)
    assert (clock.generation_ticks, clock.generation_over) == (5, False)
    clock.count()  # a tick whose rewards may be other than 0, and of which nothing broke
    assert (clock.tick, clock.env_steps, clock.broken, clock.rewarded) == (4, 32, 2, True)
    clock.count(rewarded=False)
    assert (clock.generation_over, clock.rewarded) == (True, True)
    clock.eval_steps = 7
    assert clock.spent == 47
    clock.begin_generation()
    assert (clock.generation, clock.here, clock.broken_here, clock.broken) == (1, 0, 0, 2)
    assert clock.step == 20  # of the whole run


def test_a_run_has_whole_ticks_for_all_its_steps() -> None:
    p = populations.problem(num_envs=4, train={"evo_steps": 9, "max_steps": 22})
    clock = Clock.of(p, 3)
    assert (clock.members, clock.envs, clock.each, clock.total, clock.living) == (3, 4, 3, 6, 3)
    assert (clock.tick, clock.spent, clock.rewarded, clock.generation) == (0, 0, False, 0)


def test_the_last_generation_has_the_ticks_that_are_left_and_the_next_one_at_least_one() -> None:
    clock = Clock(members=1, envs=1, each=5, total=12, living=1)
    left = []
    for ticks in (5, 5, 1, 1):
        left.append(clock.generation_ticks)
        clock.count(ticks=ticks)
        if clock.generation_over:
            clock.begin_generation()
    assert left == [5, 5, 2, 2]  # also within it
    assert (clock.generation, clock.tick, clock.generation_ticks) == (3, 12, 1)


def test_a_group_that_takes_its_turn_has_ticks_of_its_own_and_the_runs_go_on() -> None:
    clock = Clock(members=3, envs=4, each=5, total=99, living=2)
    clock.count(ticks=5)
    clock.turn(tick=6, living=1, steps=9)
    assert (clock.tick, clock.here, clock.living, clock.each, clock.ticks) == (6, 0, 1, 3, 5)  # ⌈9 / 4⌉ ticks
    clock.count(ticks=3)
    assert (clock.tick, clock.ticks, clock.env_steps, clock.generation_over) == (9, 8, 40 + 12, True)


@pytest.mark.parametrize(
    ("ticks", "seconds", "aim", "following"),
    [(10, 2.0, 1.0, 5), (10, 0.1, 1.0, 80), (10, 0.0, 1.0, 80), (1, 9.0, 1.0, 1), (1, 0.0, 4.5e-6, 4)],
)
def test_the_next_call_lasts_as_long_as_it_should(ticks: int, seconds: float, aim: float, following: int) -> None:
    assert next_count(ticks, seconds, aim) == following


def test_measures_are_means_of_a_generations_ticks_by_member() -> None:
    found = Measures(3, ("a", "b"))
    found.note(1, [2, 0], {"a": torch.tensor([1.0, 10.0]), "b": torch.tensor([math.nan, 4.0]), "c": torch.ones(2)})
    found.note(1, [2], {"a": torch.tensor([4.0]), "b": torch.tensor([5.0])})
    found.note(0, [1], {"a": torch.tensor([-1.0]), "b": torch.tensor([0.0])})
    kept = found.state()
    expected = [[1, 1, -1.0, 0.0], [2, 0, 10.0, 4.0], [2, 2, 2.5, ""]]
    assert list(found.rows()) == expected
    again = Measures(3, ("a", "b"))
    again.restore(kept)
    for each in (found, again):  # neither writes into what was saved
        each.note(0, [1], {"a": torch.tensor([3.0]), "b": torch.tensor([2.0])})
        assert list(each.rows()) == [[1, 1, 1.0, 1.0], *expected[1:]]
    assert kept["measures"][0, 1].tolist() == [1.0, -1.0, 0.0]


def test_every_pass_over_a_dataset_is_shuffled_by_its_seed_and_number() -> None:
    passes = [rng.host(rng.run_key(3), Purpose.PROMPT, n).permutation(5).tolist() for n in (1, 2, 3)]
    assert passes[0] != passes[1] != passes[2]
    assert rows_at(3, 5, 0, 15).tolist() == [*passes[0], *passes[1], *passes[2]]
    assert rows_at(3, 5, 4, 3).tolist() == [passes[0][4], *passes[1][:2]]


def test_held_out_rows_are_drawn_by_the_first_four_seeds() -> None:
    found = held_out(np.array([1, 2, 3, 4, 5]), 40)
    draws = np.random.Generator(np.random.Philox(np.random.SeedSequence([1, 2, 3, 4])))
    assert found.tolist() == sorted(draws.permutation(40)[:5].tolist())
    assert held_out(np.array([1, 2, 3, 4, 6]), 40).tolist() == found.tolist()
    assert held_out(np.array([1, 2, 3, 5, 5]), 40).tolist() != found.tolist()


def told(tally: Tally, slots: list[int], members: int = 3) -> list[dict[str, float]]:
    found = Diagnostics(members, CPU)
    tally.into(found, slots)
    return [
        {name.rpartition("/")[2]: mean for name, (mean, _) in each.items()} for each in found.told([*range(members)])
    ]


def test_whole_episodes_are_added_up_by_member_also_two_of_one() -> None:
    tally = Tally(3, 0, CPU)
    tally.ended(np.array([2, 2, 0]), np.array([1.0, 3.0, 5.0]), np.array([10, 20, 7]))
    tally.ended(np.array([0]), np.array([-1.0]), np.array([8]))
    of_0 = {"episodes": 2.0, "episodic_return": 2.0, "episodic_length": 7.5}
    of_2 = {"episodes": 2.0, "episodic_return": 2.0, "episodic_length": 15.0}
    assert told(tally, [0, 1, 2]) == [of_0, {"episodes": 0.0}, of_2]
    assert told(tally, [2]) == [{}, {}, of_2]
    tally.adopt([0])  # the generation of this member alone begins
    assert told(tally, [0, 1, 2]) == [{"episodes": 0.0}, {"episodes": 0.0}, of_2]


def test_a_new_members_episode_begins_at_nothing_and_the_others_go_on() -> None:
    tally, never = Tally(2, 4, CPU), torch.zeros(4, dtype=torch.bool)
    tally.add(torch.tensor([1.0, 2.0, 3.0, 4.0]), never)
    tally.renew(np.array([1, 2]))
    tally.add(torch.tensor([10.0, 10.0, 10.0, 10.0]), ~never)
    tally.settle()
    assert tally.running.tolist() == [[0.0] * 4] * 2
    assert tally.sums.tolist() == [[21.0, 24.0], [3.0, 3.0], [2.0, 2.0]]


def test_lengths_of_what_the_kernels_ended_are_the_steps_that_nobody_else_has() -> None:
    tally = Tally(2, 6, CPU)
    tally.running[1] = torch.tensor([1.0, 1.0, 1.0, 5.0, 5.0, 5.0])
    running, returns, count, lost = tally.in_c()
    running += 3.0
    returns[0] += 8.0
    count[0] += 2.0
    lost[0] += 1.0
    tally.took(10, [0], torch.tensor([3, 0, 0, 5, 5, 5]))
    # 3 steps were running before, 10 were taken, 1 broke, and 3 are running now
    assert tally.sums.tolist() == [[8.0, 0.0], [9.0, 0.0], [2.0, 0.0]]
    assert tally.running.tolist() == [[3.0] * 6, [3.0, 0.0, 0.0, 5.0, 5.0, 5.0]]
    tally.took(4, [0, 1], torch.tensor([5, 1, 1, 5, 5, 9]))
    assert tally.sums[1].tolist() == [9.0, 0.0]  # what broke before is no loss again


def test_an_episode_that_broke_is_no_episode_and_ticks_before_it_count() -> None:
    tally, never = Tally(1, 2, CPU), torch.tensor([False, False])
    tally.add(torch.tensor([1.0, 2.0]), torch.tensor([False, True]))
    tally.add(torch.tensor([4.0, 8.0]), torch.tensor([True, True]), torch.tensor([True, False]))
    tally.add(torch.tensor([16.0, 32.0]), torch.tensor([True, False]), never)
    assert tally.sums.tolist() == [[2.0 + 8.0 + 16.0], [3.0], [3.0]]
    assert tally.running.tolist() == [[0.0, 32.0], [0.0, 1.0]]


def test_what_was_saved_stays_as_it_was() -> None:
    tally, found = Tally(2, 2, CPU), Diagnostics(2, CPU)
    tally.ended(np.array([1]), np.array([3.0]), np.array([4]))
    tally.add(torch.tensor([1.0, 2.0]), torch.tensor([False, False]))
    found.forget([1, 0], torch.tensor([7, 8]))
    found.note([0], {"a": torch.tensor([1.0])})
    kept = tally.state(), found.state()
    again, anew = Tally(2, 2, CPU), Diagnostics(2, CPU)
    again.add(torch.tensor([9.0, 9.0]), torch.tensor([True, True]))
    again.ended(np.array([1]), np.array([9.0]), np.array([9]))
    again.restore(kept[0])  # what came before is gone
    anew.restore(kept[1])
    assert anew.begun.tolist() == [8.0, 7.0]
    for each, signals in ((tally, found), (again, anew)):
        assert each.state()["tally.sums"].tolist() == [[0.0, 3.0], [0.0, 4.0], [0.0, 1.0]]
        each.add(torch.tensor([1.0, 1.0]), torch.tensor([True, True]))
        each.settle()
        assert each.sums.tolist() == [[2.0, 6.0], [2.0, 6.0], [1.0, 2.0]]
        signals.note([0], {"a": torch.tensor([3.0])})
        signals.forget([1], torch.tensor([1]))
        assert signals.told([0]) == [{"a": (2.0, 3.0)}]
        assert signals.begun.tolist() == [8.0, 1.0]
        signals.forget([0])
        assert signals.begun.tolist() == [8.0, 1.0]
    assert kept[0]["tally.running"].tolist() == [[1.0, 2.0], [1.0, 1.0]]
    assert kept[1]["signals.begun"].tolist() == [8.0, 7.0]
    assert Diagnostics(2, CPU).begun.tolist() == [0.0, 0.0]
