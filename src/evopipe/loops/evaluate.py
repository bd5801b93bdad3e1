"""Evaluation: members play whole episodes, deterministically, on given seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evopipe.core.population import Cohort
from evopipe.envs.pool import EnvPool
from evopipe.loops.acting import choose, gather
from evopipe.loops.problem import Problem


class Stopped(Exception):
    """A signal came in the middle of an evaluation, which leaves nothing behind and can be run again."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """What members reached: undiscounted `returns` and `lengths`, both `[P, n]` in slot order; `steps` in all."""

    returns: np.ndarray
    lengths: np.ndarray
    steps: int


def evaluate(
    problem: Problem,
    cohorts: Sequence[Cohort],
    pool: EnvPool,
    seeds: np.ndarray,
    cap: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Episodes:
    """Play one greedy episode a seed with every member.

    Args:
        problem: configuration.
        cohorts: the members, `P` in all.
        pool: environments, at least `P`; each member uses `rows // P` of them at a time.
        seeds: `[n]` episode seeds, the same for all members.
        cap: most steps of an episode, None for no cap.
        stopped: asked at every step.

    Returns:
        Returns and lengths. A return is not finite where the environment broke in that episode.

    Raises:
        Stopped: `stopped` said so.
        EnvironmentFailed: an environment raised or broke its contract.
    """
    slots = sorted(slot for cohort in cohorts for slot in cohort.slots)
    place = {slot: p for p, slot in enumerate(slots)}
    rows = [torch.tensor([place[slot] for slot in cohort.slots]) for cohort in cohorts]
    members, n = len(slots), len(seeds)
    width = min(pool.rows // members, n)
    returns, lengths = np.full((members, n), np.nan), np.zeros((members, n), np.int64)
    episode = np.tile(np.arange(width), members)  # which episode each row plays
    waiting = np.full(members, width)  # next episode of each member
    running = np.arange(members * width)
    pool.reset(running, seeds[episode])
    steps = 0
    while len(running):
        if stopped():
            raise Stopped
        actions = greedy(problem, cohorts, rows, pool, members, width)
        step = pool.step(actions.reshape(-1, *actions.shape[2:])[running], running)
        steps += len(running)
        over = step.terminated | step.truncated | step.broken
        if cap is not None:
            over |= pool.episode_length[running] >= cap
        for row, broken in zip(running[over].tolist(), step.broken[over].tolist(), strict=True):
            member = row // width
            returns[member, episode[row]] = np.nan if broken else pool.episode_return[row]
            lengths[member, episode[row]] = pool.episode_length[row]
            episode[row] = waiting[member]
            waiting[member] += 1
        again = running[over][episode[running[over]] < n]
        if len(again):
            pool.reset(again, seeds[episode[again]])
        running = running[episode[running] < n]
    return Episodes(returns, lengths, steps)


def greedy(
    problem: Problem, cohorts: Sequence[Cohort], rows: Sequence[torch.Tensor], pool: EnvPool, members: int, width: int
) -> np.ndarray:
    """Return every member's greedy actions `[P, W]`, or `[P, W, A]`, on the pool's first `P × W` rows."""
    obs = pool.obs[: members * width].reshape(members, width, -1)
    legal = pool.mask[: members * width].reshape(members, width, -1)
    places = [index.numpy() for index in rows]
    chosen = [choose(problem, c, obs[place], legal[place], None) for c, place in zip(cohorts, places, strict=True)]
    return gather(chosen, places)
