"""`env.step_limit`: episodes of environments that name no time limit of their own are truncated."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.envs.check import check
from evopipe.envs.pool import EnvPool
from evopipe.envs.tensors import TensorPool
from evopipe.envs.workers import Workers
from evopipe.parallel import can_help
from evopipe.rng import Purpose
from evopipe.run.drive import drive
from evopipe.run.evaluate import evaluate
from evopipe.run.spec import first_members
from evopipe.schema.env import EnvConfig
from evopipe.track.events import Message, Tracker

TEAMS = ("Crew", "Dies", "DiesUnseen", "IsCut", "Leaves", "Stays", "Late", "Returns", "Bees", "Relay", "Masks", "Sees")


def config(env_id: str, limit: int, wrappers: tuple[Any, ...] = (), **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "kwargs": kwargs, "step_limit": limit, "wrappers": wrappers})


def rolled(pool: EnvPool, ticks: int, seed: int, ahead: int = 0) -> list[bytes]:
    """What random legal actions give, to the bit, and what the pool shows after each. The first row may be ahead of the
    others by some steps."""
    draws, rows, found, episodes = np.random.default_rng(seed), np.arange(pool.rows), [], pool.rows
    pool.reset(rows, rows)
    for _ in range(ahead):
        pool.step(np.zeros((1, *pool.mask.shape[1:-1], *pool.spaces.action_shape), np.int64), [0])
    for _ in range(ticks):
        masks = pool.mask.reshape(-1, pool.num_actions)
        actions = np.array([pool.actions.sample(mask, draws) for mask in masks])
        step = pool.step(actions.reshape(*pool.mask.shape[:-1], *actions.shape[1:]))
        found += [part.tobytes() for part in (*step.parts, pool.obs, pool.mask, pool.alive, pool.episode_return)]
        over = np.flatnonzero(step.over)
        pool.reset(over, over + episodes)
        episodes += len(over)
    pool.close()
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.skipif(not can_help(), reason="needs fork"))])
@pytest.mark.thorough
def test_an_episode_is_cut_as_by_a_time_limit(workers: int, seed: int) -> None:
    """As Gymnasium's own wrapper does, whatever number it is, in this process and in workers."""
    draws = np.random.default_rng(seed)
    limit, rows = int(draws.integers(1, 12)), int(draws.integers(1, 5))
    theirs = {"name": "TimeLimit", "kwargs": {"max_episode_steps": limit}}
    with Workers(workers) as here:
        for env_id in ("envs_for_tests:Unlimited-v0", "CliffWalking-v1"):
            pool = EnvPool(config(env_id, limit), rows, workers=here)
            assert pool.limit == limit
            named = EnvPool(config(env_id, 10**6, (theirs,)), rows)
            assert named.limit is None
            assert rolled(pool, 30, seed) == rolled(named, 30, seed)


def test_an_environment_that_names_a_limit_keeps_it() -> None:
    for env_id in ("CartPole-v1", "envs_for_tests:Endless-v0", "simple_spread_v3"):
        with contextlib.closing(EnvPool(config(env_id, 3), 1)) as pool:
            assert pool.limit is None
    pool = EnvPool(config("envs_for_tests:Endless-v0", 3), 1)
    pool.reset([0], [0])
    assert [bool(pool.step([1]).truncated[0]) for _ in range(10)] == [False] * 9 + [True]


@pytest.mark.parametrize("name", TEAMS)
def test_a_team_is_cut_as_one_that_cuts_itself(name: str) -> None:
    """Of agents that come, go and end by themselves: who acted and goes on is truncated, and nobody acts next."""
    env_id = f"teams_for_tests:{name}"
    for limit in (1, 4, 6):  # at 2 and 3 somebody comes, or goes unseen
        own = EnvPool(config(env_id, 10**6, length=limit), 2)
        cut = EnvPool(config(env_id, limit, length=10**6), 2)
        if name == "Relay":  # shows how much of its length is over
            for pool in (own, cut):
                pool.reset([0, 1], [0, 1])
            for env in (cut.env(0), cut.env(1), own.env(0), own.env(1)):
                env.parallel.seen = lambda agent, env=env.parallel: np.zeros(3 - env.number(agent) % 2, np.float32)
        ahead = limit // 2  # so that somebody comes in the one where the other is cut
        assert rolled(cut, 12, limit, ahead) == rolled(own, 12, limit, ahead)


def test_who_comes_when_a_team_is_cut_has_neither_an_end_nor_an_observation() -> None:
    pool = EnvPool(config("teams_for_tests:Returns", 3, length=10**6), 1)
    pool.reset([0], [0])
    for _ in range(3):
        step = pool.step(np.zeros((1, 2), np.int64))
    assert step.alive is not None
    assert step.over[0]
    assert not step.alive.any()
    assert step.truncated.tolist() == [[False, True]]
    assert not step.obs[0, 0].any()
    assert step.obs[0, 1].any()


def test_tensors_are_cut_there_too() -> None:
    for env_id, pool in (("Pendulum-v1", EnvPool), ("Pendulum-v1", TensorPool)):
        cfg = EnvConfig.model_validate(
            {"id": env_id, "kwargs": {"max_episode_steps": -1}, "step_limit": 4, "backend": "torch"}
        )
        made: Any = pool(cfg, 2) if pool is EnvPool else TensorPool(cfg, 2, torch.device("cpu"))
        made.reset(np.arange(2), np.arange(2))
        actions: Any = np.zeros((2, 1), np.float32)
        steps = [made.step(actions if pool is EnvPool else torch.from_numpy(actions)) for _ in range(4)]
        assert [[bool(x) for x in step.truncated] for step in steps] == [[False, False]] * 3 + [[True, True]]
        assert not any(bool(x) for step in steps for x in step.terminated)


def test_an_evaluation_without_an_end_ends_and_says_how_many_were_cut() -> None:
    """Greedy members of no experience never leave the cliff's edge."""
    p = populations.problem("CliffWalking-v1")
    p = replace(p, env=p.env.model_copy(update={"step_limit": 15}))
    members = first_members(p, 2)[0]
    with contextlib.closing(EnvPool(p.env, 4)) as pool:
        played = evaluate(p, p.form(members), pool, p.seeds(Purpose.EVALUATE, 3))
        shorter = evaluate(p, p.form(members), pool, p.seeds(Purpose.EVALUATE, 3), 7)
    assert played.lengths.tolist() == [[15] * 3] * 2
    assert played.returns.max() <= -15.0
    assert played.cut == 6
    assert (shorter.lengths.max(), shorter.cut) == (7, 0), "by train.eval_steps"


@pytest.mark.thorough
def test_by_default_an_evaluation_without_an_end_is_cut_after_ten_thousand_steps() -> None:
    """CliffWalking as Gymnasium registers it, in whose first evaluation nobody leaves the edge."""
    p = populations.problem("CliffWalking-v1", train={"eval_steps": None})
    members = first_members(p, 2)[0]
    with contextlib.closing(EnvPool(p.env, 2)) as pool:
        played = evaluate(p, p.form(members), pool, p.seeds(Purpose.EVALUATE, 1))
    assert (played.lengths.tolist(), played.cut) == ([[10_000]] * 2, 2)


class Heard:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("evaluation", ["full", "race"])
@pytest.mark.parametrize("env", ["Unlimited", "Endless"])
def test_a_run_warns_once_that_episodes_were_cut(env: str, evaluation: str) -> None:
    train = {"evaluation": evaluation, "max_steps": 48, "evo_steps": 16, "eval_steps": None, "eval_episodes": 3}
    p = populations.problem(f"envs_for_tests:{env}-v0", train=train)
    p = replace(p, env=p.env.model_copy(update={"step_limit": 12}))
    loop, heard = populations.started(p, 2), Heard()
    drive(loop, Tracker([heard]), lambda: False, lambda: None)
    loop.close()
    told = [event.text for event in heard.events if isinstance(event, Message)]
    assert loop.lineage[-1].members[0].fitness == (12.0 if env == "Unlimited" else 10.0)
    assert told == [
        f"6 evaluation episodes of {p.name} did not end and were cut by env.step_limit, for there is no time limit: "
        "register it with max_episode_steps, or lower env.step_limit"
    ] * (env == "Unlimited")


def test_a_check_says_where_episodes_will_be_cut() -> None:
    sentence = "there is no time limit; register it with max_episode_steps, or episodes are cut after 10000 steps "
    for env_id, says in (("Unlimited", True), ("Endless", False)):
        found = check(f"envs_for_tests:{env_id}-v0", {})
        assert any(sentence + "(env.step_limit)" in finding for finding in found) == says
