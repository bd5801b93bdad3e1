"""Where environment steps go: updates that follow the steps of all, evaluation's transitions in the memory, and fitness
of training's own episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import populations
from evopipe.rng import Purpose
from populations import advance, close_generation, equal_states, finish

SHARED = {"capacity": 5000, "sharing": "shared"}
TRAINING = {"fitness": "training"}
FAR = 1e9
"""A target that nobody reaches, so that nobody is confirmed."""


@pytest.mark.thorough
def test_pooled_updates_follow_the_steps_of_all_who_live(run: Callable[..., Any]) -> None:
    """One member takes as many updates as it takes steps; four take four times as many each."""
    counts = {}
    for members in (1, 4):
        loop = run(
            populations.problem(
                "CartPole-v1", train={"replay": {**SHARED, "updates": "pooled"}, "evo_steps": 400, "max_steps": 400},
                config={"learn_step": 1, "batch_size": 8},
            ),
            members,
        )  # fmt: skip
        advance(loop, 50)
        learning = 50 - 50 // 4  # ticks after the delay of 50 steps, four environments each
        counts[members] = {int(member.tensors["adam.steps"]) for member in loop.members}, learning
    (alone, ticks), (each, _) = counts[1], counts[4]
    (one,), (four,) = alone, each
    assert four == 4 * one
    assert one == pytest.approx(4 * ticks, abs=4)


def test_what_members_do_in_evaluation_goes_into_the_memory(run: Callable[..., Any]) -> None:
    train = {"replay": {**SHARED, "evaluation": True}, "evo_steps": 100, "target": FAR}
    p = populations.problem("CartPole-v1", train=train)
    loop = run(p, 3)
    while not loop.clock.generation_over:
        loop.advance()
    before = int(loop.regime.replay.size[0])
    close_generation(loop)
    assert loop.clock.eval_steps > 0
    assert int(loop.regime.replay.size[0]) == before + loop.clock.eval_steps
    layout, rows = loop.regime.replay.layout, loop.regime.replay.rows[0, before : before + loop.clock.eval_steps]
    moved = (rows[:, : layout.obs] != rows[:, layout.obs : 2 * layout.obs]).any(dim=1)
    assert bool(moved.all()), "each is a step from one observation to another"
    reward = rows[:, 2 * layout.obs + layout.action]
    assert reward.tolist() == [1.0] * len(rows), "CartPole pays 1 a step"
    terminated = rows[:, 2 * layout.obs + layout.action + 1]
    assert 0 < float(terminated.sum()) <= 3 * p.train.eval_episodes


@pytest.mark.parametrize("steps", [1, 3])
def test_each_members_own_memory_gets_its_own_evaluation(steps: int, run: Callable[..., Any]) -> None:
    """Of several steps a transition begins at every step of an episode: as many as it has."""
    replay = {"capacity": 5000, "sharing": "own", "evaluation": True, "n_step": steps}
    loop = run(populations.problem("CartPole-v1", train={"replay": replay, "evo_steps": 100}), 2)
    while not loop.clock.generation_over:
        loop.advance()
    before, played = loop.regime.replay.size.copy(), loop._evaluate(lambda: False)[0]
    loop.regime.adopt(loop.cohorts)
    assert (loop.regime.replay.size - before).tolist() == played.lengths.sum(axis=1).tolist()


@pytest.mark.product
@pytest.mark.parametrize("backend", ["sync", "torch"])
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_fitness_may_be_the_mean_of_the_episodes_that_ended_in_training(
    algo: str, backend: str, run: Callable[..., Any]
) -> None:
    p = populations.problem(
        "CartPole-v1", algo, search=TRAINING, train={"evo_steps": 400, "max_steps": 1200, "target": FAR}
    )
    object.__setattr__(p, "env", p.env.model_copy(update={"backend": backend}))
    loop = run(p, 3)
    sums, counts, running = np.zeros(3), np.zeros(3), np.zeros(12)
    world = loop.regime.world
    begun = world.state()["episodes"].numpy().copy()
    while not loop.clock.generation_over:
        loop.advance()
        now = world.state()["episodes"].numpy().copy()
        running += 1  # CartPole pays 1 a step
        over = now > begun
        np.add.at(sums, np.flatnonzero(over) // 4, running[over])
        np.add.at(counts, np.flatnonzero(over) // 4, 1)
        running[over], begun = 0, now
    close_generation(loop)
    scored = loop.lineage[-1].members
    assert [member.fitness for member in scored] == pytest.approx((sums / counts).tolist())
    assert loop.champion is not None, "the best was evaluated"
    assert loop.clock.eval_steps == int(loop.champion.returns.sum()), "nobody else was"


@pytest.mark.parametrize("backend", ["sync", "torch"])
def test_a_new_trial_is_not_paid_for_the_steps_of_the_one_before(backend: str, run: Callable[..., Any]) -> None:
    """Whose episodes were running: CartPole pays 1 a step, and the new one takes those of whole episodes."""
    p = populations.problem("CartPole-v1", search=TRAINING, train={"evo_steps": 4000, "max_steps": 4000})
    object.__setattr__(p, "env", p.env.model_copy(update={"backend": backend}))
    loop = run(p, 2)
    advance(loop, 5)
    loop.regime.renew([1])
    loop.regime.adopt(loop.cohorts)
    world, running, sums, counts = loop.regime.world, np.zeros(8), np.zeros(2), np.zeros(2)
    running[:4] = 5
    begun = world.state()["episodes"].numpy().copy()
    while not (counts > 2).all():
        loop.advance()
        running += 1
        over = (now := world.state()["episodes"].numpy().copy()) > begun
        np.add.at(sums, np.flatnonzero(over) // 4, running[over])
        np.add.at(counts, np.flatnonzero(over) // 4, 1)
        running[over], begun = 0, now
    assert loop.regime.ended().tolist() == pytest.approx((sums / counts).tolist())


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_new_trial_begins_with_an_empty_memory_of_its_own(prioritised: bool, run: Callable[..., Any]) -> None:
    """Not with what the one before it did in its evaluation, nor with that one's priorities; the others keep theirs."""
    replay = {"sharing": "own", "prioritised": prioritised, "evaluation": True, "capacity": 2000}
    loop = run(populations.problem("CartPole-v1", train={"replay": replay, "evo_steps": 40}), 2)
    while not loop.clock.generation_over:
        loop.advance()
    seeds = loop.spec.seeds(Purpose.EVALUATE, 2)
    loop.regime.evaluate(loop.cohorts, seeds, lambda: False)
    before = int(loop.regime.replay.size[0])
    loop.regime.inherit([0, -1])
    loop.regime.renew([1])
    loop.regime.adopt(loop.cohorts)
    assert before < loop.regime.replay.size[0], "what it did in its evaluation"
    assert loop.regime.replay.size[1] == 0
    trees = loop.regime.replay.priorities
    if trees is not None:
        assert [float(level[1].sum()) for level in trees.levels] == [0.0] * len(trees.levels)


def test_a_budget_counts_the_steps_of_evaluations(run: Callable[..., Any]) -> None:
    train = {"evo_steps": 100, "max_steps": 1000, "target": FAR}
    loop = run(populations.problem("CartPole-v1", search={"budget": 230}, train=train), 2)
    finish(loop)
    clock = loop.clock
    assert (clock.generation, clock.env_steps, loop.reason) == (1, 200, "max_steps")
    assert clock.eval_steps == sum(int(member.fitness[-1] * loop.spec.train.eval_episodes) for member in loop.members)
    assert clock.spent == 200 + clock.eval_steps >= 230


@pytest.mark.thorough
def test_who_ended_no_episode_is_evaluated(run: Callable[..., Any]) -> None:
    p = populations.problem(
        "Pendulum-v1", "sac", search=TRAINING, train={"evo_steps": 400, "max_steps": 800, "target": FAR}
    )
    loop = run(p, 2)
    while not loop.clock.generation_over:
        loop.advance()  # a hundred steps of each environment, and an episode has two hundred
    close_generation(loop)
    assert all(np.isfinite(member.fitness) for member in loop.lineage[-1].members)
    assert loop.clock.eval_steps == 2 * p.train.eval_episodes * 30


@pytest.mark.thorough
@pytest.mark.product
@pytest.mark.parametrize("ticks", [13, 26, 40])
@pytest.mark.parametrize("backend", ["sync", "torch"])
def test_a_killed_run_with_the_whole_ledger_goes_on_to_the_same_bits(
    backend: str, ticks: int, run: Callable[..., Any]
) -> None:
    replay = {**SHARED, "updates": "pooled", "evaluation": True}
    p = populations.problem("CartPole-v1", search=TRAINING, train={"replay": replay, "evo_steps": 80, "max_steps": 240})
    object.__setattr__(p, "env", p.env.model_copy(update={"backend": backend}))
    straight, killed, resumed = run(p, 3), run(p, 3), run(p, 3)
    advance(killed, ticks)
    tensors, meta = killed.state()
    assert resumed.restore({n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))) == 0
    finish(straight)
    finish(resumed)
    assert equal_states(straight.state(), resumed.state()) == []
