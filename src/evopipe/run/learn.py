"""Learning from a replay memory: what is due at a tick, and the updates themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from evopipe import rng
from evopipe.core.cohort import Cohort
from evopipe.core.graphs import Body, upload
from evopipe.memory.replay import Replay
from evopipe.rng import Purpose, Stream
from evopipe.run.learners import Share, updates_per_step
from evopipe.run.spec import Spec
from evopipe.types import Batch

UPDATES_PER_TICK = 1 << 13  # more than any member can take: keeps the replay draws of different ticks apart


def updates_due(cohort: Cohort, tick: int, envs: int) -> int:
    """Return how many updates a cohort owes at the tick-th tick (from 0) of its generation: one every `learn_step`
    environment steps of a member, over the generation exactly so many."""
    every = int(cohort.members[0].hyper.get("learn_step", 1))
    return (tick + 1) * envs // every - tick * envs // every


def turn_at(spec: Spec, cohort: Cohort, tick: int, envs: int) -> int:
    """Return which of the algorithm's unlike updates the first one of this tick is, see `evopipe.algos`."""
    every = int(cohort.members[0].hyper.get("learn_step", 1))
    return tick * envs // every % spec.period


def discount_rate(cohort: Cohort) -> torch.Tensor:
    """Return γ of each member `[P]`: 1 where the algorithm has none, as imitation has not."""
    return cohort.hyper.get("gamma", torch.ones_like(cohort.weight[:, 0]))


def learn(spec: Spec, cohort: Cohort, replay: Replay, tick: int, updates: int, turn: int = 0) -> torch.Tensor:
    """Take so many updates, each on a fresh batch; the cohort's tensors change in place.

    Args:
        spec: configuration.
        cohort: the members that learn.
        replay: where batches come from; every memory must hold at least one row.
        tick: when; with the members' keys it fixes the draws.
        updates: how many, at least 1.
        turn: see `turn_at`.

    Returns:
        The members' losses `[P]` in the last update, `cohort.losses`.
    """
    now = torch.from_numpy(np.concatenate(([tick * UPDATES_PER_TICK], replay.filled(cohort.slots))))  # [1 + P]

    def make(compiled: Callable[[Any], Any]) -> Body:
        memory = _Memory.of(replay, cohort.slots)
        return partial(_updates, spec, compiled(spec.algo.update), cohort.bare, memory, updates, turn)

    def bound() -> list[torch.Tensor]:
        return [*replay.tensors(), cohort.keys, cohort.weight, *cohort.hyper.values(), *cohort.seen()]

    def written() -> list[torch.Tensor]:
        trees = [] if replay.priorities is None else replay.priorities.tensors()
        return [*cohort.tensors(), cohort.healthy, cohort.losses, *trees]

    cohort.runner.run(("learn", updates, turn), make, [now, _beta(spec, tick)], spec.device, bound, written)
    return cohort.losses


@dataclass(frozen=True)
class ReplayLessons:
    """Learning from a replay memory: what is due is a number of updates."""

    spec: Spec
    replay: Replay

    def shared(self) -> list[torch.Tensor]:
        """Return the memory's tensors; its frames are shared as they are."""
        trees = [] if self.replay.priorities is None else self.replay.priorities.tensors()
        places = [] if self.replay.frames is None else [self.replay.frames.places]
        return [self.replay.rows, *places, *trees]

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

    def learn(self, share: Share, cohort: Cohort, tick: int, due: int, turn: int) -> None:
        """See `learn`."""
        learn(self.spec, cohort, self.replay, tick, due, turn)


class _Memory(NamedTuple):
    """A replay memory as the members of a cohort see it: their slots, and where each one's memory begins, `[P]`."""

    replay: Replay
    slots: torch.Tensor
    first: torch.Tensor

    @classmethod
    def of(cls, replay: Replay, slots: Sequence[int]) -> _Memory:
        return cls(replay, upload(torch.tensor(slots), replay.device), replay.first(slots))


def _beta(spec: Spec, tick: int) -> torch.Tensor:
    """How much importance weights correct by now, `[]`: from `beta` to 1 over the run."""
    done = min(1.0, tick * spec.env.num_envs / spec.train.max_steps)
    beta = spec.train.replay.beta
    return torch.tensor(beta + done * (1.0 - beta))


def _updates(
    spec: Spec,
    update: Any,
    cohort: Cohort,
    memory: _Memory,
    updates: int,
    turn: int,
    now: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[()]:
    """Draw, sample and update on the device, in place. `now` `[1 + P]`: counter of the first draw, rows filled."""
    replay, slots, first = memory
    when = now[:1] + torch.arange(updates, device=now.device)
    u = rng.uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch)
    if replay.priorities is None:
        rows = replay.draw(first, now[1:], u)  # [P, U, B, size]
    healthy, gamma = cohort.healthy, discount_rate(cohort)
    for i in range(updates):
        if replay.priorities is None:
            drawn, weight = rows[:, i], cohort.weight
        else:  # one after the other: an update changes what the next one draws
            drawn, index, weight = replay.draw_by_priority(slots, first, now[1:], u[:, i], cohort.weight, beta)
        batch = _shown(cohort, replay.layout.unpack(drawn, weight, gamma))
        draw = Stream(cohort.keys, Purpose.UPDATE, when[i : i + 1])
        losses, healthy, errors = update(
            spec.algo_config, cohort.state, cohort.hyper, batch, healthy, draw, (turn + i) % spec.period
        )
        if replay.priorities is not None and errors is not None:
            errors = torch.where(healthy[:, None], errors, torch.nan)  # a diverged member's tell nothing
            # A member's batch may be smaller than the padded one: where it saw nothing, its first row stands again.
            index, errors = (torch.where(cohort.weight > 0, x, x[:, :1]) for x in (index, errors))
            replay.priorities.update(slots, index, errors)
    cohort.healthy.copy_(healthy)
    cohort.losses.copy_(losses.detach())
    return ()


def _shown(cohort: Cohort, batch: Batch) -> Batch:
    """Return a batch as the members' networks read it: the memory holds what the environments gave."""
    if cohort.normaliser is None:
        return batch
    return replace(batch, obs=cohort.shown(batch.obs), next_obs=cohort.shown(batch.next_obs))
