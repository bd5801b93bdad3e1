"""What every strategy of search owes its run, in all that there are: a new file is tested before anyone writes a test
for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import populations
from evopipe import searchers
from evopipe.core.cohort import dissolve
from evopipe.schema.declare import Schema
from evopipe.searchers.contract import Child, Living
from evopipe.searchers.propose import inside
from populations import close_generation, equal_states, finish, go_on, plant_weight, same
from searches import Game, about, outside

SIZE = 8
RANGES = {"lr": {"min": 1e-5, "max": 1e-2}, "batch_size": {"min": 8.0, "max": 32.0}}
ALGOS = ["ppo", "dqn"]
EACH = pytest.mark.parametrize("strategy", searchers.OWN)


def problem(strategy: str, algo: str = "ppo", budget: int = 3000, life: int = 300, **more: Any) -> Any:
    """Lives of three generations of 25 ticks, of four environments; new trials are begun until the budget is spent."""
    renews = searchers.get(strategy).RENEWS
    train = {"evo_steps": 100, "max_steps": life, "eval_steps": 10, **more.pop("train", {})}
    search = {"strategy": strategy, "budget": budget if renews else None, **more.pop("search", {})}
    config = {"evolve": RANGES, **({"batch_size": 32, "learn_step": 32, "epochs": 2} if algo == "ppo" else {})}
    return populations.problem("CartPole-v1", algo, train=train, search=search, config=config, **more)


def restored(killed: Any, again: Any) -> Any:
    """A run that goes on from the state of another one, as files hold it."""
    tensors, meta = killed.state()
    assert again.restore({name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(meta))) == 0
    return again


@EACH
def test_a_file_says_what_it_is(strategy: str) -> None:
    module = searchers.get(strategy)
    assert "https://" in module.__doc__, "its paper"
    assert all(isinstance(getattr(module, flag), bool) for flag in ("RENEWS", "PAUSES", "DRAWS"))
    assert issubclass(module.Config, Schema)
    assert all(field.description for field in module.Config.model_fields.values())
    assert module.Config.model_validate(module.Config().model_dump(mode="json")) == module.Config()
    assert refused(strategy, SIZE) == []


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ALGOS)
@EACH
def test_a_search_that_was_killed_goes_on_to_the_same_bits(strategy: str, algo: str, run: Callable[..., Any]) -> None:
    """At every boundary of its generations: before they are evaluated, and before the first tick; and within some."""
    p = problem(strategy, algo)
    straight, parts = run(p, SIZE), run(p, SIZE)
    finish(straight)
    assert straight.clock.generation >= 3
    points = 0
    while not parts.reason:
        generation, over = parts.clock.generation, parts.clock.generation_over
        go_on(parts)
        boundary = parts.clock.generation != generation or parts.clock.generation_over != over
        if boundary or parts.clock.ticks % 37 == 10:
            parts = restored(parts, run(p, SIZE))
            points += 1
    assert points > 6
    assert equal_states(straight.state(), parts.state()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("proposer", ["sobol", "tpe", "gp"])
def test_so_does_one_whose_trials_are_proposed(proposer: str, run: Callable[..., Any]) -> None:
    """In which trials are proposed by the scores of those before: more than the ten that are drawn at random."""
    p = problem("random", "dqn", budget=9000, life=200, search={"proposer": proposer})
    straight, killed = run(p, SIZE), run(p, SIZE)
    finish(straight)
    while killed.clock.generation < 5:
        go_on(killed)
    resumed = restored(killed, run(p, SIZE))
    finish(resumed)
    assert straight.trials >= 3 * SIZE
    assert equal_states(straight.state(), resumed.state()) == []


@pytest.mark.thorough
@EACH
def test_a_member_that_diverged_harms_nobody_has_no_children_and_makes_room(
    strategy: str, run: Callable[..., Any]
) -> None:
    """It is scored −∞, no strategy lets it live on or has a child of it, and others are what they would have been."""
    p = problem(strategy)
    loop, other = run(p, SIZE), run(p, SIZE)
    slot = loop.active[0]
    broken = loop.members[slot].id
    for each in (loop, other):
        while not each.clock.generation_over or each.waiting:
            go_on(each)
        if each is loop:
            plant_weight(each, slot)
        close_generation(each)
    ill, well = (each.lineage[-1].members for each in (loop, other))
    assert [(m.slot, m.fitness) for m in ill if not m.healthy] == [(slot, -math.inf)]
    assert [m for m in ill if m.slot != slot] == [m for m in well if m.slot != slot]
    for cohort in loop.cohorts:
        assert cohort.healthy.all()
        for member in dissolve([cohort]):
            assert all(tensor.isfinite().all() for tensor in member.tensors.values() if tensor.is_floating_point())
    finish(loop)
    later = [record for record in loop.lineage if record.generation > 1]
    assert len(later) >= 2
    assert all(member.parent != broken and member.id != broken for record in later for member in record.members)
    assert all(child.parent != broken for record in loop.lineage for child in record.children)


@pytest.mark.thorough
@EACH
def test_equal_searches_have_equal_bits_and_another_seed_has_others(strategy: str, run: Callable[..., Any]) -> None:
    first, again, other = (run(problem(strategy, seed=seed), SIZE) for seed in (3, 3, 4))
    for loop in (first, again, other):
        finish(loop)
    assert equal_states(first.state(), again.state()) == []
    assert not any(same(one, its) for one, its in zip(first.members, other.members, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", [name for name in searchers.OWN if searchers.get(name).PAUSES])
def test_whoever_waits_costs_no_step(strategy: str, run: Callable[..., Any]) -> None:
    """The steps of a run are those of who lived, and of their evaluations."""
    loop = run(problem(strategy), SIZE)
    finish(loop)
    lived = [record.members for record in loop.lineage[1:]]
    assert min(map(len, lived)) < SIZE
    assert loop.clock.env_steps == 100 * sum(map(len, lived))
    assert loop.clock.spent >= 3000


@pytest.mark.thorough
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


@pytest.mark.product
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
@pytest.mark.thorough
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
