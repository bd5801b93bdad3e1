"""The strategy `schedule`: values that are known beforehand, at steps that are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import populations
from evopipe.errors import ParamsError
from evopipe.params.load import parse_params
from evopipe.searchers import schedule
from populations import finish, plant_weight

CHANGES = [{"steps": 40, "values": {"lr": 2e-3}}, {"steps": 150, "values": {"lr": 1e-4, "gamma": 0.9}}]


def problem(**more: Any) -> Any:
    """Lives of at most 300 steps, in generations of 100."""
    train = {"evo_steps": 100, "max_steps": 300, "eval_steps": 10}
    search = {"strategy": "schedule", "schedule": {"changes": CHANGES, **more}}
    config = {"batch_size": 32, "learn_step": 32, "epochs": 2, "lr": 1e-3, "gamma": 0.99}
    return populations.problem("CartPole-v1", "ppo", train=train, search=search, config=config)


def test_values_change_at_their_steps_and_a_generation_ends_there(run: Callable[..., Any]) -> None:
    loop = run(problem(steps=200), 2)
    finish(loop)
    assert [record.step for record in loop.lineage] == [0, 40, 140, 152, 200]  # of four environments a tick
    lived = [[(m.hyper["lr"], m.hyper["gamma"]) for m in record.members] for record in loop.lineage[1:]]
    assert lived == [[(1e-3, 0.99)] * 2, [(2e-3, 0.99)] * 2, [(2e-3, 0.99)] * 2, [(1e-4, 0.9)] * 2]
    assert (loop.reason, loop.clock.env_steps) == ("max_steps", 400)
    changed = [child for record in loop.lineage[1:] for child in record.children if child.mutation.kind != "none"]
    assert [(child.slot, child.parent_slot, child.mutation.what) for child in changed][:2] == [
        (0, 0, "lr"), (1, 1, "lr"),
    ]  # fmt: skip
    assert {child.why for child in changed} == {"the schedule from 40 steps on", "the schedule from 152 steps on"}


def test_without_steps_of_its_own_a_life_is_that_of_the_run(run: Callable[..., Any]) -> None:
    loop = run(problem(), 1)
    finish(loop)
    assert loop.lineage[-1].step == 300


def test_a_member_that_diverged_is_followed_by_a_copy_of_the_fittest_with_the_values_that_hold(
    run: Callable[..., Any],
) -> None:
    loop = run(problem(), 2)
    populations.advance(loop, 10)
    plant_weight(loop, 0)
    populations.close_generation(loop)
    born = loop.lineage[-1].children[0]
    assert (born.parent_slot, born.hyper["lr"]) == (1, 2e-3)


def said(**block: Any) -> str:
    data = {"train": {"max_steps": 300, "evo_steps": 100}, "search": {"strategy": "schedule", "schedule": block}}
    with pytest.raises(ParamsError) as caught:
        parse_params({**data, "algos": {"dqn": {"learn_step": 4}}})
    return str(caught.value)


def test_a_schedule_that_no_life_can_follow_is_refused() -> None:
    assert "search.schedule.steps: no member lives that long (train.max_steps: 300); lower it" in said(steps=301)
    change = {"steps": 100, "values": {"lr": 1e-3}}
    assert ("search.schedule.changes.1.steps: must be more than the change before has (100), got 100") in said(
        changes=[change, change]
    )
    assert "search.schedule.changes.0.steps: a life ends at 90 steps: leave it out, or lower it" in said(
        steps=90, changes=[change]
    )
    assert "search.schedule.changes.0.values.lr: must be" in said(changes=[{"steps": 1, "values": {"lr": "fast"}}])


def test_a_value_of_no_hyper_parameter_is_refused_before_anything_is_trained(run: Callable[..., Any]) -> None:
    p = problem(changes=[{"steps": 40, "values": {"lrr": 1e-3}}])
    with pytest.raises(ParamsError, match=r"search.schedule.changes.0.values.lrr: the algorithm has no such"):
        run(p, 1)
    assert schedule.PAUSES is False
