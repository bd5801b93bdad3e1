"""Off-policy: members act, what they did goes into a replay memory, and they learn from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evopipe.core import normalise, pixels
from evopipe.core.cohort import Cohort
from evopipe.core.graphs import upload
from evopipe.core.member import Member
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import Step
from evopipe.envs.workers import Workers
from evopipe.errors import ParamsError
from evopipe.memory.nstep import NStep
from evopipe.memory.priorities import Priorities
from evopipe.memory.replay import Replay, RowLayout
from evopipe.run.act import act, take_note
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, Evaluator
from evopipe.run.learn import ReplayLessons, turn_at, updates_due
from evopipe.run.learners import Learners
from evopipe.run.spec import Spec
from evopipe.run.world import World
from evopipe.types import Image

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions

_BYTES = ((0.0, 255.0), (0.0, 1.0))  # bounds of such images


class OffPolicy:
    """The regime (see `Regime`) of off-policy algorithms.

    Args:
        spec: what the run is about.
        clock: the run's.
        keys: of the members, `[P]`.
        warm: transitions to learn from before the first step, or None.
        workers: worker processes for the environments; None steps them in this process.
        learners: processes that may learn, this one included. No result depends on these two.

    Raises:
        ParamsError: the environment masks actions, which `warm` knows nothing of.
    """

    def __init__(
        self,
        spec: Spec,
        clock: Clock,
        keys: np.ndarray,
        warm: Transitions | None = None,
        workers: Workers | None = None,
        learners: int = 1,
    ) -> None:
        self.spec, self.clock, self.keys = spec, clock, keys
        self.whole = True
        pool = EnvPool(spec.env, len(keys) * clock.envs, workers=workers, overlapped=True)
        self.evaluator = Evaluator(spec, len(keys), workers)
        self.world = World(spec, keys, clock, pool)
        self.threshold = pool.reward_threshold
        if self.world.masked and warm is not None and len(warm):
            raise ParamsError(
                "train.warm_start: the environment masks actions, the dataset has no masks, and learning would "
                "bootstrap from illegal actions; set it to 0"
            )
        cfg, memories = spec.train.replay, len(keys) if spec.train.replay.sharing == "own" else 1
        layout = RowLayout.of(spec.spaces, self.world.masked, cfg.n_step, spec.algo.MASKED_LOSS)
        self.replay = replay_for(spec, layout, len(keys), memories, cfg.capacity, byte_images(pool, warm))
        self.nstep = NStep(layout, pool.rows) if cfg.n_step > 1 else None
        self.seen = warm.obs if warm is not None and len(warm) else None  # what members saw before they were born
        self.warm = min(0 if warm is None else len(warm), cfg.capacity)
        if warm is not None and self.warm:
            rows = layout.pack(warm.obs, warm.action, warm.reward, warm.terminated, warm.next_obs)
            keep = np.ones((memories, len(rows)), bool)
            self.replay.add(np.repeat(rows[None], memories, axis=0), keep, each=len(rows))
        self.learners = Learners(spec, ReplayLessons(spec, self.replay), learners)

    def first(self, member: Member) -> Member:
        """Return a member that has seen the transitions that it begins with, if it takes note of what it sees."""
        return after(self.spec, member, self.seen)

    @property
    def remarks(self) -> Sequence[str]:
        """See `Regime.remarks`."""
        return ()

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """See `Regime.adopt`."""
        self.cohorts, self.seen = cohorts, None
        self.learners.adopt(cohorts)

    def hand_down(self, parents: Sequence[int] | None) -> None:
        """Hand priorities down, see `hand_down_priorities`."""
        hand_down_priorities(self.replay, len(self.keys), parents)

    def advance(self) -> None:
        """Take one step in every environment, store the transitions, learn what is due.

        The members learn while the environments step, from the memory as it was before this tick.

        Raises:
            EnvironmentFailed: an environment failed. The state is whole: its actions are chosen and stay pending.
        """
        spec, clock, world, pool = self.spec, self.clock, self.world, self.world.pool
        if world.pending is None:
            epsilon = spec.algo.explore(spec.algo_config, clock.step)
            take_note(self.cohorts, pool.obs)
            world.pending = act(spec, self.cohorts, pool.obs, pool.mask, epsilon, clock.tick)
            pool.send(world.pending)
            self.whole = False
            if clock.step + clock.envs > spec.train.learning_delay:
                self._learn()
            self.whole = True
        else:
            pool.send(world.pending)
        obs = pool.obs.copy()
        legal = pool.mask.copy() if self.replay.layout.legal else None
        step = pool.receive()
        self.whole = False
        self._store(obs, legal, world.pending, step)
        world.end(step)
        self.whole = True
        world.refuse_broken()

    def _store(self, obs: np.ndarray, legal: np.ndarray | None, actions: np.ndarray, step: Step) -> None:
        layout, memories = self.replay.layout, self.replay.memories
        if self.nstep is None:
            rows = layout.pack(obs, actions, step.reward, step.terminated, step.obs, step.mask, legal=legal)
            keep = ~step.broken & np.isfinite(obs).all(axis=1)
        else:
            ends = step.terminated, step.truncated
            rows, keep = self.nstep.add(obs, actions, step.reward, *ends, step.obs, step.mask, step.broken, legal)
        self.replay.add(rows.reshape(memories, -1, layout.size), keep.reshape(memories, -1))

    def _learn(self) -> None:
        """Update each cohort as often as its learn step says for this tick of the generation."""
        if self.replay.size.min() > 0:  # not a batch full: a neighbour's broken rows would delay all
            learn_what_is_due(self.spec, self.clock, self.learners, self.cohorts)

    def evaluate(self, cohorts: Sequence[Cohort], seeds: Any, stopped: Callable[[], bool]) -> Episodes:
        """See `Regime.evaluate`."""
        return self.evaluator(cohorts, seeds, stopped)

    def state(self) -> dict[str, torch.Tensor]:
        """See `Regime.state`."""
        tensors = {f"replay.{k}": v for k, v in self.replay.state().items()} | self.world.state()
        if self.nstep is not None:
            tensors |= {f"nstep.{k}": torch.from_numpy(v) for k, v in self.nstep.state().items()}
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """See `Regime.restore`."""
        self.replay.restore({k.removeprefix("replay."): v for k, v in tensors.items() if k.startswith("replay.")})
        if self.nstep is not None:
            self.nstep.restore({k: tensors[f"nstep.{k}"].numpy() for k in self.nstep.state()})
        lost = self.world.restore(tensors)
        if len(lost) and self.nstep is not None:
            self.nstep.forget(lost)
        return len(lost)

    def close(self) -> None:
        """See `Regime.close`."""
        self.learners.close()
        self.world.pool.close()
        self.evaluator.pool.close()


def after(spec: Spec, member: Member, obs: np.ndarray | None) -> Member:
    """Return a member that has seen observations `[n, O]`, if it takes note of what it sees."""
    if obs is None or not spec.train.normalise.observations:
        return member
    return replace(member, tensors=normalise.after(spec.equip(member).tensors, torch.from_numpy(obs)))


def learn_what_is_due(spec: Spec, clock: Clock, learners: Learners, cohorts: Sequence[Cohort]) -> None:
    """Update each cohort as often as its learn step says for this tick of the generation."""
    due = [updates_due(cohort, clock.here, clock.envs) for cohort in cohorts]
    turns = [turn_at(spec, cohort, clock.here, clock.envs) for cohort in cohorts]
    learners.learn(cohorts, clock.tick, due, turns)


def hand_down_priorities(replay: Replay, members: int, parents: Sequence[int] | None) -> None:
    """Let no member draw by a stranger's errors: on a shared memory a child has its parent's priorities; on its slot's
    own, which has other rows than the parent's, and where all diverged, rows count alike again."""
    trees = replay.priorities
    if trees is None:
        return
    replaced = [slot for slot in range(members) if parents is None or parents[slot] != slot]
    slots = upload(torch.tensor(replaced, dtype=torch.int64), replay.device)
    if parents is None or replay.memories > 1:
        trees.forget(slots)
    else:
        trees.inherit(slots, upload(torch.tensor(parents), replay.device)[slots])


def replay_for(
    spec: Spec, layout: RowLayout, members: int, memories: int, capacity: int, images: Sequence[Image]
) -> Replay:
    """Return an empty replay memory, with priorities of each member's own if `train.replay` says so."""
    cfg = spec.train.replay
    trees = Priorities(members, capacity, cfg.alpha, spec.device) if cfg.prioritised else None
    return Replay(layout, memories, capacity, spec.device, trees, images)


def byte_images(pool: EnvPool, data: Transitions | None = None) -> list[Image]:
    """Return the images that are whole 255ths in an observation: those of bytes from 0 to 255, and of bools.

    The environment's are, if it keeps to its space; transitions that come from elsewhere are looked at.
    """
    found, start = [], 0
    for leaf in pool.observations.leaves:
        space: Any = pool.observation_space
        for key in leaf.path:
            space = space[key]
        if leaf.channels is not None and space.dtype in (np.uint8, np.bool_) and (leaf.low, leaf.high) in _BYTES:
            found.append(leaf.image(start))
        start += leaf.size
    return found if data is None else [image for image in found if _bytes_in(data, image)]


def _bytes_in(data: Transitions, image: Image) -> bool:
    columns = slice(image.start, image.start + image.size)
    return all(pixels.exact(obs[:, columns]) is not None for obs in (data.obs, data.next_obs))
