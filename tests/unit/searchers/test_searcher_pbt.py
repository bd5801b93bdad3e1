"""Population based training against its paper's own words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

import populations
from evopipe.searchers import pbt
from evopipe.searchers.contract import DRAWN, Bound, Child, Keep
from evopipe.searchers.pbt import Config, Search, exploit, explore, perturbed
from searches import SPACE, Game, about, gains, generator, history, off, outside

TEN = [float(10 - slot) for slot in range(10)]  # the first is the best


def test_a_member_of_the_worst_fifth_copies_one_of_the_best_fifth() -> None:
    """ "If the current agent is in the bottom 20 % of the population, we sample another agent uniformly from the top
    20 % of the population": others stay as they are."""
    seen = Counter()
    for seed in range(200):
        copied = exploit(TEN, 0.2, generator(seed))
        assert copied is not None
        assert set(copied) == {8, 9}
        seen.update(copied.values())
    assert set(seen) == {0, 1}
    assert abs(seen[0] - 200) < 45, "drawn uniformly: within 4.5 standard deviations"


@pytest.mark.parametrize(
    ("members", "fraction", "copied"),
    [(1, 0.2, 0), (2, 0.2, 1), (4, 0.2, 1), (5, 0.2, 1), (9, 0.2, 1), (10, 0.2, 2), (10, 0.3, 3), (5, 0.5, 2),
     (100, 0.29, 29)],  # as floats .29 · 100 is a little less
)  # fmt: skip
def test_the_worst_are_a_share_and_at_least_one(members: int, fraction: float, copied: int) -> None:
    found = exploit([float(-slot) for slot in range(members)], fraction, generator())
    assert found is not None
    assert sorted(found) == list(range(members - copied, members))
    assert set(found.values()) <= set(range(copied))


def test_whoever_diverged_is_replaced_and_copied_by_nobody() -> None:
    scores = [3.0, -math.inf, 2.0, -math.inf, -math.inf, 1.0]
    for seed in range(20):
        found = exploit(scores, 0.2, generator(seed))
        assert found == {1: 0, 3: 0, 4: 0}
    few = [exploit([-math.inf, 4.0, -math.inf, 5.0, -math.inf, -math.inf], 0.5, generator(seed)) for seed in range(20)]
    assert {slot for each in few for slot in each or {}} == {0, 2, 4, 5}
    assert {of for each in few for of in (each or {}).values()} == {1, 3}, "fewer are left than the best half would be"
    assert exploit([-math.inf] * 4, 0.2, generator()) is None
    assert Search(Config(), about(4)).step(history([-math.inf] * 4), generator) is None


def test_explore_resamples_or_multiplies() -> None:
    """Each hyper-parameter by itself: resampled with a chance of .25, else times 1.2 or 0.8, as likely."""
    seen = Counter[str]()
    hyper = {"lr": 1e-3, "batch_size": 100, "learn_step": 4, "entropy": 0.25}
    for seed in range(2000):
        found = explore(Config(), SPACE, hyper, generator(seed))
        assert outside([Child(0, found)]) == []
        factors = {1.2 * 1e-3: "grown", 0.8 * 1e-3: "shrunk"}
        seen[factors.get(found["lr"], "drawn")] += 1
        seen[f"steps {found['learn_step']}"] += 1
    expected = {"drawn": 500, "grown": 750, "shrunk": 750}
    assert all(abs(seen[name] - count) < 100 for name, count in expected.items()), seen
    assert {int(name[6:]) for name in seen if name.startswith("steps")} == set(range(1, 9))


def test_a_whole_number_moves_by_at_least_one() -> None:
    bound = Bound(1, 8, whole=True)
    assert [perturbed(bound, 2, 1.2, 0.8, up) for up in (True, False)] == [3, 1]
    assert all(type(perturbed(bound, value, 1.2, 0.8, up)) is int for value in (1, 5, 8) for up in (True, False))


@pytest.mark.parametrize("bound", [Bound(1, 8, whole=True), Bound(0.1, 0.9), Bound(1e-4, 1e-1, log=True)])
@pytest.mark.parametrize("up", [True, False])
def test_a_value_at_the_end_of_its_range_leaves_it(bound: Bound, up: bool) -> None:
    for end in (bound.low, bound.high):
        moved = perturbed(bound, end, 1.2, 0.8, up)
        assert moved != end
        assert bound.low <= moved <= bound.high


def test_zero_which_no_factor_moves_is_drawn_anew() -> None:
    space = {"entropy": Bound(0.0, 0.5)}
    found = [explore(Config(resample=0.0), space, {"entropy": 0.0}, generator(seed))["entropy"] for seed in range(20)]
    assert all(0 < value <= 0.5 for value in found)


def test_a_value_beyond_its_range_comes_back_into_it() -> None:
    """As it may be set by hand in a population that goes on."""
    assert perturbed(Bound(0.1, 0.9), 5.0, 1.2, 0.8, False) == pytest.approx(0.9 * 0.8)


def step(config: Config, scores: list[float]) -> Any:
    return Search(config, about(len(scores))).step(history(scores), generator)


def test_a_step_keeps_all_but_the_worst() -> None:
    fates = step(Config(), TEN)
    assert [type(fate) for fate in fates] == [Keep] * 8 + [Child] * 2
    for fate in fates[8:]:
        assert fate.of in (0, 1)
        assert isinstance(fate.change, Mapping)
        assert set(fate.change) == set(SPACE)
        assert not fate.survives
        assert "among the worst" in fate.why
    assert step(Config(), TEN) == fates, "the same history and draw give the same fates"
    assert "diverged" in step(Config(), [2.0, -math.inf])[1].why


def test_copies_may_mutate_as_evolution_says_in_the_place_of_values() -> None:
    fates = step(Config(explore="mutation"), TEN)
    assert [fate.change for fate in fates[8:]] == [DRAWN, DRAWN]


@pytest.mark.thorough
def test_in_a_run_copies_are_mutated_and_nobody_else() -> None:
    chances = {**dict.fromkeys(("none", "parameters", "activation", "rl_hp"), 0.0), "architecture": 1.0}
    p = populations.problem(
        search={"strategy": "pbt", "pbt": {"explore": "mutation"}},
        train={"evo_steps": 40, "max_steps": 240},
        mutation={"probabilities": chances},
    )
    run = populations.started(p, 5)
    populations.finish(run)
    run.close()
    for record in run.lineage[1:-1]:
        worst = min(record.members, key=lambda member: (member.fitness, -member.slot))
        kinds = {child.slot: child.mutation.kind for child in record.children}
        assert kinds == {slot: "architecture" if slot == worst.slot else "none" for slot in range(5)}
        assert {child.id for child in record.children} - {member.id for member in record.members} == {
            record.children[worst.slot].id
        }


def test_all_live_and_a_run_ends_when_they_have_lived() -> None:
    plan = Search(Config(), about(6)).plan(history([1.0] * 6), generator)
    assert list(plan.active) == list(range(6))
    assert plan.steps == 100
    assert (pbt.RENEWS, pbt.PAUSES, pbt.DRAWS) == (False, False, True)


def test_the_population_moves_to_where_scores_are_high() -> None:
    game = Game("pbt", gains(lambda values: -off(values)), about(16, life=10**6)).play(40)
    first = sorted(off(child.hyper) for child in game.records[0].children)
    assert sorted(off(member.hyper) for member in game.members)[8] < 0.15 < first[8]
