"""The lineage of searches in which members wait and trials begin: where each comes from, and what it lived through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from evopipe.searchers.history import Record, in_lockstep, origins, schedule
from lineages import LR, WAITED, born, record


def found(records: Sequence[Record]) -> dict[tuple[int, int], Any]:
    return {(each.generation, slot): origin for each, of in origins(records) for slot, origin in of.items()}


def test_a_member_that_waited_comes_from_where_it_was_last_scored() -> None:
    of = found(WAITED)
    assert {key: origin.parent for key, origin in of.items()} == {
        (1, 0): None, (2, 0): (1, 0), (3, 1): (1, 0), (4, 0): None, (4, 1): (3, 1),
    }  # fmt: skip


def test_a_child_keeps_the_mutation_and_the_reason_of_its_birth_until_it_has_lived() -> None:
    of = found(WAITED)
    assert (of[3, 1].mutation.kind, of[3, 1].why) == ("rl_hp", "a child")
    assert (of[4, 1].mutation.kind, of[4, 1].why) == ("none", "leads")
    assert (of[4, 0].mutation.kind, of[4, 0].why) == ("none", "a trial")


def test_who_returns_after_all_diverged_is_its_own_parent() -> None:
    first = [born(0, 0, lr=1e-3), born(1, 1, lr=2e-3)]
    back = [record(0, 0, children=first), record(1, 100, [(0, 0, None)]), record(2, 200, [(0, 0, 3.0)])]
    assert found(back)[2, 0].parent == (1, 0)


def test_who_waited_while_others_returned_comes_from_where_it_was_scored() -> None:
    stay = [born(slot, slot, of=slot) for slot in (0, 1)]
    back = [
        record(0, 0, children=[born(0, 0), born(1, 1)]),
        record(1, 100, [(0, 0, None), (1, 1, None)]),
        record(2, 200, [(0, 0, 3.0)], stay),
        record(3, 300, [(1, 1, 4.0)]),
    ]
    assert found(back)[3, 1].parent == (1, 1)


def test_a_search_is_in_lockstep_where_all_lived_all_the_time_and_no_trial_began() -> None:
    first = record(0, 0, children=[born(0, 0), born(1, 1)])
    both = record(1, 100, [(0, 0, 1.0), (1, 1, None)], [born(0, 0, of=0), born(1, 2, of=0, parent=0)])
    assert in_lockstep([first, both, record(2, 200, [(0, 0, 1.0), (1, 2, 2.0)])])
    assert not in_lockstep([first, both, record(2, 200, [(0, 0, 1.0)])])
    assert not in_lockstep([first, record(1, 100, [(0, 0, 1.0), (1, 1, 2.0)], [born(0, 0, of=0), born(1, 2)])])


def test_the_schedule_of_a_member_has_the_steps_of_its_own_life() -> None:
    line = schedule(WAITED, 2, 4)
    assert [(at, values[LR]) for at, values in line.values] == [(0, 1e-3), (100, 4e-3)]
    assert (line.steps, line.kinds) == (300, ("none", "rl_hp"))
    assert schedule(WAITED, 2, 3).steps == 200
    assert schedule(WAITED, 3, 4).values == ((0, {LR: 1e-3}),)


def test_the_youngest_birth_at_a_step_counts() -> None:
    """A child that never lived had a child."""
    twice = [
        record(0, 0, children=[born(0, 0, lr=1e-3)]),
        record(1, 100, [(0, 0, 5.0)], [born(0, 1, of=0, parent=0, lr=2e-3), born(1, 2, of=0, parent=0, lr=3e-3)]),
        record(2, 200, [(0, 1, 5.0)], [born(0, 1, of=0, parent=0), born(1, 4, of=1, parent=2, lr=5e-3)]),
        record(3, 200, [(1, 4, 5.0, 200)]),
    ]
    line = schedule(twice, 4, 3)
    assert [(at, values[LR]) for at, values in line.values] == [(0, 1e-3), (100, 5e-3)]
    assert line.kinds == ("none", "rl_hp", "rl_hp")


@pytest.mark.parametrize(
    ("change", "member", "generation", "said"),
    [
        ({}, 2, 2, "no member 2 was scored in generation 2"),
        ({}, 9, 4, "no member 9 was scored in generation 4"),
        ({"parent": 7}, 2, 4, "member 2 descends from member 7, whose birth is not told"),
        ({"parent": 2}, 2, 4, "member 2 descends from member 2, whose birth is not told"),
    ],
)
def test_a_lineage_that_does_not_tell_is_refused(
    change: Mapping[str, Any], member: int, generation: int, said: str
) -> None:
    records = list(WAITED)
    data = records[1].to_json()
    data["children"][1] |= change
    records[1] = Record.from_json(data)
    with pytest.raises(LookupError, match=said):
        schedule(records, member, generation)


def test_a_lineage_without_its_beginning_is_refused() -> None:
    with pytest.raises(LookupError, match="the line of member 0 does not begin at step 0"):
        schedule(WAITED[1:], 0, 2)
