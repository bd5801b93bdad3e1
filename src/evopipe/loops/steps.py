"""What a population does at one tick: act, and learn. For the loops here, and for one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from evopipe import rng
from evopipe.buffers.replay import Replay
from evopipe.core.population import Cohort
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
    x = torch.from_numpy(obs).view(members, -1, obs.shape[-1]).to(problem.device)
    allowed = torch.from_numpy(legal).view(members, -1, legal.shape[-1]).to(problem.device)
    envs, when = x.shape[1], torch.tensor([tick], device=problem.device)
    actions = np.empty((members, envs), np.int64)
    for cohort in cohorts:
        slots = cohort.slots
        u = rng.uniform(cohort.keys, Purpose.ACT, when, 2 * envs).view(-1, 2, envs)
        each = torch.where(cohort.healthy, epsilon, 1.0)
        actions[slots] = problem.algo.act(cohort.state, x[slots], allowed[slots], each, u).cpu().numpy()
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
    when = tick * UPDATES_PER_TICK + torch.arange(updates, device=problem.device)
    u = rng.uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch)
    rows = replay.sample(cohort.slots, u)  # [P, U, B, size]
    state, healthy = cohort.state, cohort.healthy
    for i in range(updates):
        batch = replay.layout.unpack(rows[:, i], cohort.weight)
        state, losses, healthy = problem.algo.update(problem.algo_config, state, cohort.hyper, batch, healthy)
    return replace(cohort, state=state, healthy=healthy), losses
