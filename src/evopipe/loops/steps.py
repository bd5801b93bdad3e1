"""What a population does at one tick: act, and learn. For the loops here, and for one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from evopipe import rng
from evopipe.buffers.replay import Replay
from evopipe.core.graphs import Body, Runner, upload
from evopipe.core.population import Cohort, tensors_of
from evopipe.loops.acting import choose
from evopipe.loops.problem import Problem
from evopipe.rng import Purpose

UPDATES_PER_TICK = 1 << 13  # more than any member can take: keeps the replay draws of different ticks apart


def act(
    problem: Problem, cohorts: Sequence[Cohort], obs: np.ndarray, legal: np.ndarray, epsilon: float, tick: int
) -> np.ndarray:
    """Choose every member's actions.

    Args:
        problem: configuration.
        cohorts: all members.
        obs: `[P · E, O]` float32, rows by slot.
        legal: `[P · E, A]` bool.
        epsilon: exploration rate.
        tick: when; with the members' keys it fixes the draws.

    Returns:
        `[P · E]` int64. A frozen member's values mean nothing: its environments go on with random legal actions.
    """
    members = sum(len(cohort.members) for cohort in cohorts)
    obs, legal = obs.reshape(members, -1, obs.shape[-1]), legal.reshape(members, -1, legal.shape[-1])
    chosen = [
        choose(problem.algo, cohort, obs[cohort.slots], legal[cohort.slots], (epsilon, tick)) for cohort in cohorts
    ]
    actions = np.empty(obs.shape[:2], np.int64)
    for cohort, each in zip(cohorts, chosen, strict=True):  # all are under way before the first is waited for
        actions[cohort.slots] = each.cpu().numpy()
    return actions.reshape(-1)


def updates_due(cohort: Cohort, tick: int, envs: int) -> int:
    """Return how many updates a cohort owes at the tick-th tick (from 0) of its generation: one every `learn_step`
    environment steps of a member, over the generation exactly so many."""
    every = int(cohort.members[0].hyper.get("learn_step", 1))
    return (tick + 1) * envs // every - tick * envs // every


def learn(problem: Problem, cohort: Cohort, replay: Replay, tick: int, updates: int) -> tuple[Cohort, torch.Tensor]:
    """Take so many updates, each on a fresh batch.

    Args:
        problem: configuration.
        cohort: the members that learn; its tensors are updated in place.
        replay: where batches come from; every memory must hold at least one row.
        tick: when; with the members' keys it fixes the draws.
        updates: how many, at least 1.

    Returns:
        The cohort, and its members' losses `[P]` in the last update.
    """
    now = torch.from_numpy(np.concatenate(([tick * UPDATES_PER_TICK], replay.filled(cohort.slots))))  # [1 + P]
    if cohort.runner.eager:
        first, now = replay.first(cohort.slots), upload(now, problem.device)
        state, losses, healthy = _updates(problem, problem.algo.update, cohort, replay, first, updates, now)
        return replace(cohort, state=state, healthy=healthy), losses

    def make(compiled: Callable[[Any], Any]) -> Body:
        bare, first = replace(cohort, runner=Runner()), replay.first(cohort.slots)
        return partial(_updates_in_place, problem, compiled(problem.algo.update), bare, replay, first, updates)

    written = [*tensors_of(cohort.state), cohort.healthy]
    bound = [replay.rows, cohort.keys, cohort.weight, *cohort.hyper.values(), *written]
    (losses,) = cohort.runner.run(("learn", updates), make, [now], bound, written)
    return cohort, losses


def learn_in_place(problem: Problem, cohort: Cohort, replay: Replay, tick: int, updates: int) -> torch.Tensor:
    """`learn` that leaves everything in the cohort's own tensors; return the losses `[P]`. Eager, on the CPU."""
    now = torch.from_numpy(np.concatenate(([tick * UPDATES_PER_TICK], replay.filled(cohort.slots))))
    (losses,) = _updates_in_place(
        problem, problem.algo.update, cohort, replay, replay.first(cohort.slots), updates, now
    )
    return losses


def _updates(
    problem: Problem, update: Any, cohort: Cohort, replay: Replay, first: torch.Tensor, updates: int, now: torch.Tensor
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Draw, sample and update on the device. `now` `[1 + P]`: counter of the first draw, rows filled."""
    when = now[:1] + torch.arange(updates, device=now.device)
    u = rng.uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch)
    rows = replay.draw(first, now[1:], u)  # [P, U, B, size]
    state, healthy = cohort.state, cohort.healthy
    for i in range(updates):
        batch = replay.layout.unpack(rows[:, i], cohort.weight)
        state, losses, healthy = update(problem.algo_config, state, cohort.hyper, batch, healthy)
    return state, losses, healthy


def _updates_in_place(
    problem: Problem, update: Any, cohort: Cohort, replay: Replay, first: torch.Tensor, updates: int, now: torch.Tensor
) -> tuple[torch.Tensor]:
    """`_updates` that leaves the new state in the tensors of the old, where a replay will look for it."""
    state, losses, healthy = _updates(problem, update, cohort, replay, first, updates, now)
    kept, new = [*tensors_of(cohort.state), cohort.healthy], [*tensors_of(state), healthy]
    for old, tensor in zip(kept, new, strict=True):
        if old is not tensor:
            old.copy_(tensor)
    return (losses,)
