"""What every strategy of search owes its run, in all that there are: a new file is tested before anyone writes a test
for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe import searchers
from evopipe.core.cohort import dissolve
from evopipe.schema.declare import Schema
from evopipe.searchers.contract import Child, Living
from evopipe.searchers.propose import inside
from populations import close_generation, equal_states, finish, go_on, plant_weight
from searches import Game, about, outside

SIZE = 8
KILLED = (5, 10, 11, 28)  # after so many steps: within a generation, when it is over, when all is decided
EACH = pytest.mark.parametrize("strategy", searchers.OWN)


def problem(strategy: str, **more: Any) -> Any:
    """A small run with several decisions; every trial lives four generations of ten ticks."""
    train = {"evo_steps": 40, "max_steps": 160, "learning_delay": 16}
    search: dict[str, Any] = {"strategy": strategy}
    if searchers.get(strategy).RENEWS:
        search["budget"] = 4000
    config = {"evolve": {"lr": {"min": 1e-4, "max": 1e-2}, "batch_size": {"min": 16, "max": 64}}}
    return populations.problem(train=train, search=search, config=config, **more)


def stored(loop: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A run's state as a file would hold it."""
    tensors, meta = loop.state()
    return {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(meta))


@EACH
def test_a_file_says_what_it_is(strategy: str) -> None:
    module = searchers.get(strategy)
    assert "https://" in module.__doc__, "its paper"
    assert all(isinstance(getattr(module, flag), bool) for flag in ("RENEWS", "PAUSES", "DRAWS"))
    assert issubclass(module.Config, Schema)
    assert all(field.description for field in module.Config.model_fields.values())
    assert module.Config.model_validate(module.Config().model_dump(mode="json")) == module.Config()
    assert refused(strategy, SIZE) == []


@EACH
def test_a_run_that_was_killed_at_any_point_goes_on_to_the_same_bits(strategy: str, run: Callable[..., Any]) -> None:
    p = problem(strategy)
    straight, kept, steps = run(p, SIZE), {}, 0
    while not straight.reason:
        if steps in KILLED:
            kept[steps] = stored(straight)
        go_on(straight)
        steps += 1
    assert len(straight.lineage) > 3
    assert len(kept) == len(KILLED)
    for at, state in kept.items():
        resumed = run(p, SIZE)
        assert resumed.restore(*state) == 0
        finish(resumed)
        assert equal_states(straight.state(), resumed.state()) == [], f"killed after {at} steps"


@EACH
def test_a_member_that_diverged_harms_nobody_and_lives_no_longer(strategy: str, run: Callable[..., Any]) -> None:
    p = problem(strategy)
    loop, other = run(p, SIZE), run(p, SIZE)
    slot = loop.active[0]
    for each in (loop, other):
        populations.advance(each, 5)
    plant_weight(loop, slot)
    for each in (loop, other):
        while not each.clock.generation_over:
            each.advance()
        close_generation(each)
    ill, well = (each.lineage[-1].members for each in (loop, other))
    assert [member.slot for member in ill if not member.healthy] == [slot]
    assert [m for m in ill if m.slot != slot] == [m for m in well if m.slot != slot]
    assert [child.parent_slot for child in loop.lineage[-1].children if child.slot != slot].count(slot) == 0
    for cohort in loop.cohorts:
        assert cohort.healthy.all()
        for member in dissolve([cohort]):
            assert all(tensor.isfinite().all() for tensor in member.tensors.values() if tensor.is_floating_point())
    finish(loop)
    assert loop.champion is not None
    assert math.isfinite(loop.champion.score)


@EACH
def test_who_lives_in_a_run_has_values_of_the_space(strategy: str, run: Callable[..., Any]) -> None:
    p = problem(strategy)
    loop = run(p, SIZE)
    finish(loop)
    for record in loop.lineage:
        for child in record.children:
            for name, bound in p.space.items():
                assert inside(bound, child.hyper[name]) == child.hyper[name], (record.generation, child.slot, name)
                assert isinstance(child.hyper[name], int) is bound.whole
    if searchers.get(strategy).DRAWS:
        assert len({child.hyper["lr"] for child in loop.lineage[0].children}) == SIZE


def luck(seed: int, shares: float = 0.1) -> Callable[[Living, int], float]:
    """Scores at random, a share of which are of members that diverge."""

    def score(member: Living, steps: int) -> float:
        draw = np.random.default_rng([seed, member.id, member.slot, steps])
        return -math.inf if draw.random() < shares else float(draw.normal())

    return score


def refused(strategy: str, size: int) -> list[Any]:
    module = searchers.get(strategy)
    return [*getattr(module, "problems", lambda *_: [])(module.Config(), about(size))]


def games(strategy: str) -> range:
    return range(1 if strategy == "pb2" else 20)  # which fits a process in each generation


@pytest.mark.parametrize(
    ("strategy", "size"), [(name, size) for name in searchers.OWN for size in (1, 2, SIZE) if not refused(name, size)]
)
def test_what_becomes_of_every_slot_is_possible(strategy: str, size: int) -> None:
    """A fate for each slot; nobody copies one that diverged; values of the space alone; somebody lives."""
    known, module = about(size, budget=10**5), searchers.get(strategy)
    for seed in games(strategy):
        game = Game(strategy, luck(seed), known, seed=seed)
        for _ in range(10):
            plan = game.search.plan(game.history, game.draw(game.generation + 1))
            assert plan is not None
            assert plan.active, "somebody lives"
            assert set(plan.active) <= set(range(size))
            assert plan.steps >= 1
            assert all(set(group) <= set(range(size)) for group in plan.met)
            if not module.PAUSES:
                assert len(plan.active) == size
            game.play(1)
            fates, before = game.fates[-1], game.before
            assert len(fates) == size
            assert outside(fates) == []
            for fate in fates:
                assert fate.why, "every fate says why, for the lineage"
                if isinstance(fate, Child):
                    assert before[fate.of].healthy, "a parent is healthy"
            assert all(game.members[slot].healthy for slot in game.lives()), "nobody who diverged lives on"


@EACH
def test_its_state_is_json_and_all_that_it_knows(strategy: str) -> None:
    known = about(SIZE, budget=10**5)
    for seed in games(strategy):
        game = Game(strategy, luck(seed), known, seed=seed).play(5)
        state = game.search.state()
        assert json.loads(json.dumps(state)) == state
        other = Game(strategy, luck(seed), known, seed=seed)
        other.take_over(game, json.loads(json.dumps(state)))
        for each in (game, other):
            each.play(3)
        assert game.fates[-3:] == other.fates[-3:]
        assert game.members == other.members


@EACH
def test_a_space_of_nothing_is_no_trouble(strategy: str) -> None:
    """Of an algorithm whose `evolve` is empty: selection alone."""
    game = Game(strategy, luck(1), about(SIZE, space={}, budget=10**5)).play(5)
    assert all(outside(fates, {}) == [] for fates in game.fates)
