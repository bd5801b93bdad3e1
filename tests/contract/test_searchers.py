"""What every search strategy must do in a real run: go on after a kill to the same bits, and contain a member that
diverged. A strategy that is added is tested here by its name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

import populations
from evopipe import searchers
from populations import close_generation, equal_states, finish, go_on, plant_weight, same

RANGES = {"lr": {"min": 1e-5, "max": 1e-2}, "batch_size": {"min": 8.0, "max": 32.0}}
ALGOS = ["ppo", "dqn"]
STRATEGIES = [name for name in searchers.names() if name in searchers.OWN]


def problem(strategy: str, algo: str = "ppo", budget: int = 1500, life: int = 300, **more: Any) -> Any:
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


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_search_that_was_killed_goes_on_to_the_same_bits(strategy: str, algo: str, run: Callable[..., Any]) -> None:
    """At every boundary of its generations: before they are evaluated, and before the first tick; and within some."""
    p = problem(strategy, algo)
    straight, parts = run(p, 3), run(p, 3)
    finish(straight)
    assert straight.clock.generation >= 3
    points = 0
    while not parts.reason:
        generation, over = parts.clock.generation, parts.clock.generation_over
        go_on(parts)
        boundary = parts.clock.generation != generation or parts.clock.generation_over != over
        if boundary or parts.clock.ticks % 37 == 10:
            parts = restored(parts, run(p, 3))
            points += 1
    assert points > 6
    assert equal_states(straight.state(), parts.state()) == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_member_that_diverged_has_no_children_and_makes_room(strategy: str, run: Callable[..., Any]) -> None:
    """It is scored −∞, no strategy lets it live on or has a child of it, and others are what they were."""
    p = problem(strategy, budget=3000)
    loop = run(p, 3)
    while not loop.clock.generation_over or loop.waiting:
        go_on(loop)
    slot = loop.active[0]
    plant_weight(loop, slot)
    broken = loop.members[slot].id
    close_generation(loop)
    scored = {member.id: member for member in loop.lineage[-1].members}
    assert (scored[broken].healthy, scored[broken].fitness) == (False, -math.inf)
    finish(loop)
    later = [record for record in loop.lineage if record.generation > 1]
    assert len(later) >= 2
    assert all(member.parent != broken and member.id != broken for record in later for member in record.members)
    assert all(child.parent != broken for record in loop.lineage for child in record.children)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_equal_searches_have_equal_bits_and_another_seed_has_others(strategy: str, run: Callable[..., Any]) -> None:
    first, again, other = (run(problem(strategy, seed=seed), 3) for seed in (3, 3, 4))
    for loop in (first, again, other):
        finish(loop)
    assert equal_states(first.state(), again.state()) == []
    assert not any(same(one, its) for one, its in zip(first.members, other.members, strict=True))


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if searchers.get(name).PAUSES])
def test_whoever_waits_costs_no_step(strategy: str, run: Callable[..., Any]) -> None:
    """The steps of a run are those of who lived, and of their evaluations."""
    loop = run(problem(strategy), 3)
    finish(loop)
    lived = [record.members for record in loop.lineage[1:]]
    assert min(map(len, lived)) < 3
    assert loop.clock.env_steps == 100 * sum(map(len, lived))
    assert loop.clock.spent >= 1500
