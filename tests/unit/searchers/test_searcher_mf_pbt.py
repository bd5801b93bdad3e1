"""Multiple-frequencies population based training: who evolves when, and migration by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from evopipe.errors import ParamsError
from evopipe.params.load import parse_params
from evopipe.searchers.contract import Bound, Child, Fate, History, Keep
from evopipe.searchers.mf_pbt import Config, Search, problems, sub_populations
from searches import Game, about, gains, generator, living, off, outside

SPACE = {"lr": Bound(1e-6, 1e-1, log=True)}
RATES = [1e-3 * 1.1**slot for slot in range(16)]  # a value of its own for everyone


def step(scores: list[float], generation: int = 2, frequencies: tuple[int, ...] = (1, 2)) -> list[Fate]:
    """What becomes of eight members with these scores: 0 to 3 evolve often, 4 to 7 seldom."""
    members = [living(slot, score, {"lr": RATES[slot]}) for slot, score in enumerate(scores)]
    search = Search(Config(frequencies=frequencies), about(len(scores), space=SPACE))
    found = search.step(History(members, (), generation, 0, len(scores)), generator)
    assert found is not None
    return found


def rate(fate: Fate) -> float:
    assert isinstance(fate, Child)
    assert isinstance(fate.change, Mapping)
    return fate.change["lr"]


def parents(fates: list[Fate]) -> dict[int, int]:
    return {slot: fate.of for slot, fate in enumerate(fates) if isinstance(fate, Child)}


def test_migration_by_hand() -> None:
    """At home 0 > 1 > 2 > 3, elsewhere 4 > 5 > 6 > 7, and 4 is better than 2, 0 better than 6.

    The last at home copies the first there, with another value. The third takes in the best from elsewhere: 2 becomes 4
    with its values, which evolve less often; 6 becomes 0 with the values of 4, the best at home, for those of 0 evolve
    more often."""
    fates = step([9.0, 6.0, 5.0, 1.0, 8.0, 7.0, 3.0, 2.0])
    assert parents(fates) == {2: 4, 3: 0, 6: 0, 7: 4}
    assert rate(fates[2]) == RATES[4], "from the steadier one, with its values"
    assert rate(fates[6]) == RATES[4], "from the quicker one, with the values of the best at home"
    assert rate(fates[3]) in (pytest.approx(RATES[0] * 1.25), pytest.approx(RATES[0] * 0.8))
    assert rate(fates[7]) in (pytest.approx(RATES[4] * 1.25), pytest.approx(RATES[4] * 0.8))
    assert all(isinstance(fates[slot], Keep) for slot in (0, 1, 4, 5)), "the better half goes on"


def test_a_migrant_comes_only_if_it_is_better() -> None:
    fates = step([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0])
    assert parents(fates) == {3: 0, 6: 0, 7: 4}, "none of the second is better than 2"
    equal = step([5.0] * 8)
    assert parents(equal) == {3: 0, 7: 4}


def test_migrants_come_in_the_order_of_their_scores_and_each_once() -> None:
    """Two places: of 16 members, ranks 4 and 5 of the 8 at home."""
    first = [float(x) for x in (80, 70, 60, 50, 40, 30, 20, 10)]
    second = [float(x) for x in (45, 35, 25, 15, 5, 4, 3, 2)]
    fates = step([*first, *second])
    assert {slot: of for slot, of in parents(fates).items() if slot < 8} == {4: 8, 5: 9, 6: 0, 7: 1}
    assert {slot: of for slot, of in parents(fates).items() if slot >= 8} == {12: 0, 13: 1, 14: 8, 15: 9}
    one = step([80.0, 70, 60, 50, 40, 30, 20, 10, 35, 9, 8, 7, 6, 5, 4, 3])
    assert parents(one)[5] == 8, "40 stays before it, the next takes it in"
    assert 4 not in parents(one)


@pytest.mark.parametrize(("generation", "evolve"), [(1, []), (2, [0]), (3, [1]), (4, [0]), (6, [0, 1])])
def test_each_evolves_by_its_own_frequency(generation: int, evolve: list[int]) -> None:
    fates = step([4.0, 3.0, 2.0, 1.0, 4.0, 3.0, 2.0, 1.0], generation, (2, 3))
    assert {slot // 4 for slot in parents(fates)} == set(evolve)
    kept = [fate for fate in fates if isinstance(fate, Keep)]
    assert all(("every 2" in fate.why) or ("every 3" in fate.why) for fate in kept)


def test_with_one_frequency_there_is_nobody_to_migrate() -> None:
    assert parents(step([8.0, 7, 6, 5, 4, 3, 2, 1], 1, (1,))) == {6: 0, 7: 1}


def test_whoever_diverged_is_replaced_in_any_generation() -> None:
    dead = -math.inf
    fates = step([9.0, 8.0, 7.0, 6.0, 5.0, dead, 4.0, 3.0], 1)
    assert parents(fates)[5] == 4, "its sub-population does not evolve: the best at home"
    assert "diverged" in fates[5].why
    fates = step([dead, dead, dead, dead, 5.0, 6.0, 4.0, 3.0])
    home = {slot: of for slot, of in parents(fates).items() if slot < 4}
    assert home == dict.fromkeys(range(4), 5), "nobody at home is healthy: the best elsewhere"
    assert len({rate(fates[slot]) for slot in home}) > 1, "and they explore"
    search = Search(Config(), about(8, space=SPACE))
    nobody = [living(slot, dead, {"lr": 1e-3}) for slot in range(8)]
    assert search.step(History(nobody, (), 1, 0, 8), generator) is None


def test_slots_are_divided_evenly() -> None:
    assert sub_populations(8, 2) == [range(4), range(4, 8)]
    assert sub_populations(14, 3) == [range(4), range(4, 9), range(9, 14)]


def test_too_few_members_and_frequencies_out_of_order_are_refused() -> None:
    config: Any = Config(frequencies=(1, 10, 25))
    assert [*problems(config, about(12))] == []
    ((keys, sentence),) = problems(config, about(11))
    assert keys == ("frequencies",)
    assert sentence == (
        "3 sub-populations of at least 4 members are 12, there are 11 (population.size): raise it, or name fewer"
    )
    with pytest.raises(
        ParamsError, match=r"^search\.mf_pbt\.frequencies: 2 sub-populations of at least 4 members are 8"
    ):
        parse_params({"population": {"size": 7}, "search": {"strategy": "mf_pbt"}})
    for wrong in ([2, 1], [1, 1], [], [0]):
        with pytest.raises(ValidationError):
            Config.model_validate({"frequencies": wrong})
    assert Config.model_validate({"frequencies": [1, 10]}).frequencies == (1, 10)


def test_the_quick_sub_population_moves_to_where_scores_are_high() -> None:
    game = Game("mf_pbt", gains(lambda values: -off(values)), about(8, life=10**6)).play(200)
    for fates in game.fates:
        assert outside(fates) == []
    assert max(off(game.members[slot].hyper) for slot in range(4)) < 0.15
    assert min(off(game.records[0].children[slot].hyper) for slot in range(4)) > 0.3
