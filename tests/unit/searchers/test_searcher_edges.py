"""Ties, ends and empty places of the strategies, by hand: whom they take where two are alike, and whose numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.core.member import Member
from evopipe.errors import ParamsError
from evopipe.mutations.parameters import _disturb
from evopipe.mutations.values import Traits
from evopipe.schema.evolution import MutationConfig, TournamentConfig
from evopipe.searchers import growth, pb2, schedule, tournament
from evopipe.searchers.apply import evolve
from evopipe.searchers.contract import Child, History, Keep, Living, Plan
from evopipe.searchers.halving import Ladder
from evopipe.searchers.history import Record, Scored
from evopipe.searchers.outside import PluginSearch
from evopipe.searchers.propose import bound, share_of
from searches import SPACE, about, generator, living
from searching import search


def member(slot: int) -> Member:
    """One of a first generation that has been scored twice."""
    p = populations.problem()
    return replace(populations.alone(p, slot), fitness=(1.0, 2.0))


def told(*curves: Sequence[float], ids: Sequence[int] = (), life: int = 100) -> History:
    """Of members that scored these after 100, 200 … steps each, with these ids."""
    names = ids or range(len(curves))
    members = [
        living(slot, curve[-1], id=id, steps=life * len(curve), fitness=tuple(curve))
        for slot, (id, curve) in enumerate(zip(names, curves, strict=True))
    ]
    records = [Record(0, 0)]
    for n in range(max(map(len, curves))):
        scored = [
            Scored(m.slot, m.id, None, 0, None, {}, True, m.fitness[n], life * (n + 1))
            for m in members if n < len(m.fitness)
        ]  # fmt: skip
        records.append(Record(n + 1, life * (n + 1), tuple(scored)))
    return History(members, records, len(records) - 1, 0, len(members))


# --- growth -----------------------------------------------------------------------------------------------------------


def test_the_oldest_is_by_its_number_and_not_by_its_place() -> None:
    made = growth.Search(growth.Config(), about(3, target=90.0))
    made.slices = 1
    slot, fate = made._next(told([1.0], [2.0], [3.0], ids=(7, 2, 5)), generator)
    assert (slot, type(fate)) == (1, Keep)


def test_of_two_that_are_projected_alike_the_better_one_leads() -> None:
    """Nobody has gained anything, so that nobody will be there; every slot is taken."""
    made = growth.Search(growth.Config(), about(3, target=90.0))
    made.slices = 2
    slot, _ = made._next(told([3.0, 3.0], [8.0, 8.0], [5.0, 5.0]), generator)
    assert slot == 1


def test_the_goal_without_a_target_is_above_the_best_by_a_tenth_of_the_range() -> None:
    made = growth.Search(growth.Config(), about(3))
    assert made._goal({0: [(1, 10.0), (2, -math.inf)], 1: [(1, 30.0)]}) == pytest.approx(32.0)
    assert made._goal({0: [(1, -math.inf)]}) == made._goal({}) == 0.0


def test_whoever_stands_at_the_goal_is_there() -> None:
    assert growth.projection([100.0, 100.0], 100.0, 3) == 0.0
    assert growth.projection([100.0, 90.0], 100.0, 3) == 0.0


# --- halving ----------------------------------------------------------------------------------------------------------


def test_a_score_that_is_none_promotes_nobody() -> None:
    history = told([-math.inf], [-math.inf], [-math.inf])
    healthy = [Living(m.slot, m.id, None, m.hyper, 100, (0.0,), True) for m in history.members]
    assert Ladder(history, [100, 300]).promotable(healthy, 3) is None


def test_whoever_has_no_score_at_its_rung_stands_behind_all_who_have() -> None:
    history = told([4.0], [6.0])
    ladder = Ladder(history, [100, 300])
    lost = Living(2, 9, None, {}, 100, (8.0,), True)
    assert [ladder.standing(each) for each in (*history.members, lost)] == [(1, 4.0), (1, 6.0), (1, -math.inf)]
    assert min((*history.members, lost), key=ladder.standing) is lost


def test_who_lives_is_told_in_the_order_of_slots() -> None:
    run = search("halving", lambda number: [9.0 - number], about(6, life=900, space={}), {"rung": 100, "width": 3})
    lived = []
    for _ in range(12):
        lived.append([*run.plan.active])
        run.generation()
    assert lived == [sorted(each) for each in lived]
    assert len({tuple(each) for each in lived}) > 3


# --- PB2 --------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_process_is_fitted_to_the_latest_changes_and_a_fall_into_nothing_is_the_worst_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside whom a copy is placed are those who go on; whom it replaces is not among them."""
    seen: list[Any] = []

    class Looking(pb2.Bandit):
        def __init__(self, points: Any, gains: Any, time: int, here: Any, kernel: Any = None) -> None:
            seen.extend((points[:, -1].tolist(), gains.tolist(), time, [list(each) for each in here]))
            super().__init__(points, gains, time, here, pb2.covariance())

    monkeypatch.setattr(pb2, "Bandit", Looking)
    rates = [1e-4, 1e-3, 1e-2, 5e-2]
    values = [{"lr": rate, "batch_size": 64, "learn_step": 2, "entropy": 0.1} for rate in rates]
    gains = [[1.0, 2.0, 4.0, 8.0], [3.0, 3.0, 3.0, 3.0], [5.0, 6.0, 7.0, -math.inf]]
    score, records = np.zeros(4), [Record(0, 0)]
    for n, gained in enumerate(gains, start=1):
        score = score + np.array(gained)
        scored = [Scored(s, s, None, 0, None, values[s], True, float(score[s])) for s in range(4)]
        born: Any = tuple(type("Born", (), {"slot": s, "parent_slot": s})() for s in range(4))  # nobody was replaced
        records.append(Record(n, 100 * n, tuple(scored), children=born))
    members = [living(s, float(score[s]), values[s]) for s in range(4)]
    known = History(members, records, 3, 0, 4)
    fates = pb2.Search(pb2.Config(window=5), about(4)).step(known, generator)
    assert fates is not None
    (copied,) = [slot for slot, fate in enumerate(fates) if isinstance(fate, Child)]
    assert copied == 3
    times, told_gains, time, here = seen
    assert times == [2.0, 3.0, 3.0, 3.0, 3.0]
    assert told_gains == [3.0, 5.0, 6.0, 7.0, 3.0], "the last one fell by more than can be said: as the least gain"
    assert time == 4, "the generation to come"
    share = [share_of(SPACE["lr"], rate) for rate in rates[:3]]
    assert [each[3] for each in here[:3]] == pytest.approx(share)


# --- schedules --------------------------------------------------------------------------------------------------------


def test_a_schedules_changes_hold_from_their_step_on_and_a_life_ends_at_its_own() -> None:
    changes = ({"steps": 100, "values": {"lr": 0.2}}, {"steps": 250, "values": {"lr": 0.3}})
    made = schedule.Search(schedule.Config.model_validate({"changes": changes, "steps": 300}), about(2))

    def at(steps: int, rate: float = 0.1) -> History:
        return History([living(s, 1.0, {"lr": rate}, steps=steps) for s in range(2)], [], 1, 0, 2)

    for steps, length in ((0, 100), (100, 100), (200, 50), (250, 50), (299, 1)):
        assert made.plan(at(steps), generator) == Plan((0, 1), length)
    assert made.plan(at(300), generator) is None
    for steps, rate, change in ((99, 0.1, None), (100, 0.1, 0.2), (100, 0.2, None), (250, 0.2, 0.3), (299, 0.3, None)):
        fates = made.step(at(steps, rate), generator)
        assert fates is not None
        assert [fate.change["lr"] if isinstance(fate, Child) else None for fate in fates] == [change] * 2  # type: ignore[index, call-overload]


def test_of_members_as_fit_the_first_is_copied_where_one_diverged() -> None:
    made = schedule.Search(schedule.Config(), about(4))
    members = [living(s, score, {"lr": 0.1}) for s, score in enumerate((-math.inf, 5.0, 9.0, 9.0))]
    fates = made.step(History(members, [], 1, 0, 4), generator)
    assert fates is not None
    assert isinstance(fates[0], Child)
    assert fates[0].of == 2


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [((100, 250), []), ((100, 300), [(1, "steps")]), ((299, 299), [(1, "steps")]), ((301, 302), [(0, "steps")] * 1)],
)
def test_changes_ascend_and_come_before_the_end(changes: tuple[int, int], wrong: list[Any]) -> None:
    block = {"changes": [{"steps": each, "values": {"lr": 0.1}} for each in changes], "steps": 300}
    found = [keys[1:] for keys, _ in schedule.problems(schedule.Config.model_validate(block), about(2))]
    assert found[: len(wrong)] == wrong
    assert bool(found) == bool(wrong)


# --- tournaments ------------------------------------------------------------------------------------------------------


def test_who_is_ill_is_no_parent_whatever_it_scored_before() -> None:
    members = [living(s, score, healthy=s != 1, fitness=(score,)) for s, score in enumerate((1.0, 50.0, 3.0))]
    made = tournament.Search(TournamentConfig(size=99), about(3))
    fates = made.step(History(members, [], 1, 0, 3), generator)
    assert fates is not None
    assert [fate.of for fate in fates if isinstance(fate, Child)] == [2, 2, 2]


@pytest.mark.parametrize("elitism", [False, True])
def test_a_race_knows_who_will_meet_for_every_place_that_is_drawn_for(elitism: bool) -> None:
    """And they are those of the step that follows, from the same draw."""
    made = tournament.Search(TournamentConfig(size=2, elitism=elitism), about(6))
    scores = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0]
    known = History([living(s, score) for s, score in enumerate(scores)], [], 1, 0, 6)
    plan, fates = made.plan(known, generator), made.step(known, generator)
    assert len(plan.met) == 6 - elitism
    assert fates is not None
    won = [fate.of for fate in fates if isinstance(fate, Child)][elitism:]
    assert won == [max(group, key=lambda slot: scores[slot]) for group in plan.met]


@pytest.mark.parametrize(("elitism", "mutate_elite", "spared"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_where_nobody_is_healthy_the_first_is_spared_as_an_elite_would_be(
    elitism: bool, mutate_elite: bool, spared: int
) -> None:
    cfg = MutationConfig.model_validate({
        "mutate_elite": mutate_elite,
        "probabilities": {"none": 0.0, "architecture": 0.0, "parameters": 0.0, "activation": 1.0, "rl_hp": 0.0},
    })  # fmt: skip
    members = [member(slot) for slot in range(3)]
    traits = Traits({}, (), {}, {}, frozenset())
    born = evolve(TournamentConfig(elitism=elitism), cfg, traits, members, np.full(3, -np.inf), 1, 1, 10)
    assert [change.kind for change in born.mutations] == ["none"] * spared + ["activation"] * (3 - spared)
    assert born.parents == (0, 1, 2)


def test_a_searcher_of_another_package_may_ask_for_one_step() -> None:
    class Steps:
        def __init__(self, steps: int) -> None:
            self.steps = steps

        def plan(self, history: Any, draw: Any) -> Plan:
            return Plan((0,), self.steps)

    known: Any = None
    assert PluginSearch(Steps(1), known, 2).plan(known, generator) == Plan((0,), 1)  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="lets members train 0 steps, not at least 1"):
        PluginSearch(Steps(0), known, 2).plan(known, generator)  # type: ignore[arg-type]


# --- values -----------------------------------------------------------------------------------------------------------


def test_a_range_of_one_decade_is_drawn_from_by_its_logarithm() -> None:
    assert bound(1.0, 10.0, whole=True).log
    assert not bound(1.0, 9.9, whole=True).log
    assert not bound(0.0, 10.0, whole=False).log


def test_a_score_is_the_last_one() -> None:
    one = member(4)
    assert Scored.of(one, 7).fitness == one.fitness[-1]
    assert len({*one.fitness}) == len(one.fitness) > 1


@pytest.mark.parametrize("shape", [(3, 5), (1, 3), (2, 10)])
def test_noise_is_on_a_tenth_of_a_matrix_at_least_one_weight_by_its_size(shape: tuple[int, int]) -> None:
    """A twentieth of those are drawn anew, the others move by so many of their own sizes, by plain code."""
    before = torch.linspace(-2.0, 3.0, math.prod(shape)).view(shape)
    after, rng, again = before.clone(), generator(3), generator(3)
    count = -(-before.numel() // 10)
    assert _disturb(after, 0.5, rng) == count
    where, noise, anew = again.choice(before.numel(), count, replace=False), again.standard_normal(count), None
    anew = again.random(count) < 0.05
    expected = before.flatten().double().numpy().copy()
    expected[where] = np.where(anew, noise, expected[where] + 0.5 * abs(expected[where]) * noise)
    assert after.flatten().tolist() == pytest.approx(expected.tolist(), rel=1e-5)
