"""What a population does at one tick: act, and learn. For the loops here, and for one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from evopipe import rng
from evopipe.buffers.replay import Replay
from evopipe.core.graphs import Body, Runner, upload
from evopipe.core.population import Cohort, seen_by, tensors_of
from evopipe.loops.acting import choose, gather, see
from evopipe.loops.learners import Share, updates_per_step
from evopipe.loops.problem import Problem
from evopipe.rng import Purpose, Stream
from evopipe.types import Batch

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
        `[P · E]` int64, `[P · E, A]` float32 where actions are continuous. A frozen member's values mean nothing: its
        environments go on with random legal actions.
    """
    members = sum(len(cohort.members) for cohort in cohorts)
    obs, legal = obs.reshape(members, -1, obs.shape[-1]), legal.reshape(members, -1, legal.shape[-1])
    chosen = [choose(problem, cohort, obs[cohort.slots], legal[cohort.slots], (epsilon, tick)) for cohort in cohorts]
    return gather(chosen, [cohort.slots for cohort in cohorts]).reshape(-1, *chosen[0].shape[2:])


def take_note(cohorts: Sequence[Cohort], obs: np.ndarray) -> None:
    """Let every member take note of what it is about to act on, see `acting.see`: obs `[P · E, O]`, rows by slot."""
    members = sum(len(cohort.members) for cohort in cohorts)
    for cohort in cohorts:
        if cohort.normaliser is not None:
            own = obs.reshape(members, -1, obs.shape[-1])[cohort.slots]
            see(cohort, upload(torch.from_numpy(own), cohort.keys.device))


def updates_due(cohort: Cohort, tick: int, envs: int) -> int:
    """Return how many updates a cohort owes at the tick-th tick (from 0) of its generation: one every `learn_step`
    environment steps of a member, over the generation exactly so many."""
    every = int(cohort.members[0].hyper.get("learn_step", 1))
    return (tick + 1) * envs // every - tick * envs // every


def turn_at(problem: Problem, cohort: Cohort, tick: int, envs: int) -> int:
    """Return which of the algorithm's unlike updates the first one of this tick is, see `evopipe.algos`."""
    every = int(cohort.members[0].hyper.get("learn_step", 1))
    return tick * envs // every % problem.period


def discount_rate(cohort: Cohort) -> torch.Tensor:
    """Return γ of each member `[P]`: 1 where the algorithm has none, as imitation has not."""
    return cohort.hyper.get("gamma", torch.ones_like(cohort.weight[:, 0]))


def learn(
    problem: Problem, cohort: Cohort, replay: Replay, tick: int, updates: int, turn: int = 0
) -> tuple[Cohort, torch.Tensor]:
    """Take so many updates, each on a fresh batch.

    Args:
        problem: configuration.
        cohort: the members that learn; its tensors are updated in place.
        replay: where batches come from; every memory must hold at least one row.
        tick: when; with the members' keys it fixes the draws.
        updates: how many, at least 1.
        turn: see `turn_at`.

    Returns:
        The cohort, and its members' losses `[P]` in the last update.
    """
    now = torch.from_numpy(np.concatenate(([tick * UPDATES_PER_TICK], replay.filled(cohort.slots))))  # [1 + P]
    if cohort.runner.eager:
        memory, now = _Memory.of(replay, cohort.slots), upload(now, problem.device)
        beta = upload(_beta(problem, tick), problem.device)
        state, losses, healthy = _updates(problem, problem.algo.update, cohort, memory, updates, turn, now, beta)
        return replace(cohort, state=state, healthy=healthy), losses

    def make(compiled: Callable[[Any], Any]) -> Body:
        bare, memory = replace(cohort, runner=Runner()), _Memory.of(replay, cohort.slots)
        return partial(_updates_in_place, problem, compiled(problem.algo.update), bare, memory, updates, turn)

    written = [*tensors_of(cohort.state), cohort.healthy]
    if replay.priorities is not None:
        written += replay.priorities.tensors()
    bound = [*replay.tensors(), cohort.keys, cohort.weight, *cohort.hyper.values(), *seen_by(cohort), *written]
    (losses,) = cohort.runner.run(("learn", updates, turn), make, [now, _beta(problem, tick)], bound, written)
    return cohort, losses


def learn_in_place(
    problem: Problem, cohort: Cohort, replay: Replay, tick: int, updates: int, turn: int = 0
) -> torch.Tensor:
    """`learn` that leaves everything in the cohort's own tensors; return the losses `[P]`. Eager, on the CPU."""
    now = torch.from_numpy(np.concatenate(([tick * UPDATES_PER_TICK], replay.filled(cohort.slots))))
    memory, beta = _Memory.of(replay, cohort.slots), _beta(problem, tick)
    (losses,) = _updates_in_place(problem, problem.algo.update, cohort, memory, updates, turn, now, beta)
    return losses


@dataclass(frozen=True)
class ReplayLessons:
    """Learning from a replay memory: what is due is a number of updates."""

    problem: Problem
    replay: Replay

    def shared(self) -> list[torch.Tensor]:
        """Return the memory's tensors; its frames are shared as they are."""
        trees = [] if self.replay.priorities is None else self.replay.priorities.tensors()
        places = [] if self.replay.frames is None else [self.replay.frames.places]
        return [self.replay.rows, *places, *trees]

    def rebind(self) -> None:
        """Take note that they lie elsewhere now."""
        self.replay.rebind()

    def adopt(self, cohorts: Sequence[Cohort]) -> list[torch.Tensor]:
        """Cohorts have nothing of their own here."""
        return []

    def numbers(self) -> list[int]:
        """Return how far each memory is filled."""
        filled: list[int] = self.replay.size.tolist()
        return filled

    def follow(self, numbers: Sequence[int]) -> None:
        """Take over how far each memory is filled."""
        self.replay.size = np.array(numbers, np.int64)

    def rate(self, cohort: Cohort) -> float:
        """See `updates_per_step`."""
        return updates_per_step(cohort)

    def learn(self, share: Share, cohort: Cohort, tick: int, due: int, turn: int) -> tuple[Cohort, torch.Tensor]:
        """See `learn`."""
        return learn(self.problem, cohort, self.replay, tick, due, turn)

    def learn_in_place(self, share: Share, cohort: Cohort, tick: int, due: int, turn: int) -> torch.Tensor:
        """See `learn_in_place`."""
        return learn_in_place(self.problem, cohort, self.replay, tick, due, turn)


class _Memory(NamedTuple):
    """A replay memory as the members of a cohort see it: their slots, and where each one's memory begins, `[P]`."""

    replay: Replay
    slots: torch.Tensor
    first: torch.Tensor

    @classmethod
    def of(cls, replay: Replay, slots: Sequence[int]) -> _Memory:
        return cls(replay, upload(torch.tensor(slots), replay.device), replay.first(slots))


def _beta(problem: Problem, tick: int) -> torch.Tensor:
    """How much importance weights correct by now, `[]`: from `beta` to 1 over the run."""
    done = min(1.0, tick * problem.env.num_envs / problem.train.max_steps)
    beta = problem.train.replay.beta
    return torch.tensor(beta + done * (1.0 - beta))


def _updates(
    problem: Problem,
    update: Any,
    cohort: Cohort,
    memory: _Memory,
    updates: int,
    turn: int,
    now: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Draw, sample and update on the device. `now` `[1 + P]`: counter of the first draw, rows filled."""
    replay, slots, first = memory
    when = now[:1] + torch.arange(updates, device=now.device)
    u = rng.uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch)
    if replay.priorities is None:
        rows = replay.draw(first, now[1:], u)  # [P, U, B, size]
    state, healthy = cohort.state, cohort.healthy
    gamma = discount_rate(cohort)
    for i in range(updates):
        if replay.priorities is None:
            drawn, weight = rows[:, i], cohort.weight
        else:  # one after the other: an update changes what the next one draws
            drawn, index, weight = replay.draw_by_priority(slots, first, now[1:], u[:, i], cohort.weight, beta)
        batch = _shown(cohort, replay.layout.unpack(drawn, weight, gamma))
        draw = Stream(cohort.keys, Purpose.UPDATE, when[i : i + 1])
        state, losses, healthy, errors = update(
            problem.algo_config, state, cohort.hyper, batch, healthy, draw, (turn + i) % problem.period
        )
        if replay.priorities is not None and errors is not None:
            errors = torch.where(healthy[:, None], errors, torch.nan)  # a diverged member's tell nothing
            # A member's batch may be smaller than the padded one: where it saw nothing, its first row stands again.
            index, errors = (torch.where(cohort.weight > 0, x, x[:, :1]) for x in (index, errors))
            replay.priorities.update(slots, index, errors)
    return state, losses, healthy


def _shown(cohort: Cohort, batch: Batch) -> Batch:
    """Return a batch as the members' networks read it: the memory holds what the environments gave."""
    if cohort.normaliser is None:
        return batch
    return replace(batch, obs=cohort.shown(batch.obs), next_obs=cohort.shown(batch.next_obs))


def _updates_in_place(
    problem: Problem,
    update: Any,
    cohort: Cohort,
    memory: _Memory,
    updates: int,
    turn: int,
    now: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor]:
    """`_updates` that leaves the new state in the tensors of the old, where a replay will look for it."""
    state, losses, healthy = _updates(problem, update, cohort, memory, updates, turn, now, beta)
    kept, new = [*tensors_of(cohort.state), cohort.healthy], [*tensors_of(state), healthy]
    for old, tensor in zip(kept, new, strict=True):
        if old is not tensor:
            old.copy_(tensor)
    return (losses,)
