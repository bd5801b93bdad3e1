"""The online loop of off-policy algorithms: act, store, learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evopipe.buffers.nstep import NStep
from evopipe.buffers.priorities import Priorities
from evopipe.buffers.replay import Replay, RowLayout
from evopipe.core import pixels
from evopipe.core.graphs import upload
from evopipe.envs.pool import EnvPool, Step
from evopipe.envs.workers import Crew
from evopipe.errors import ParamsError
from evopipe.loops.base import Loop
from evopipe.loops.steps import ReplayLessons, act, take_note, turn_at, updates_due
from evopipe.types import Image

if TYPE_CHECKING:
    from evopipe.storage.dataset import Transitions

_BYTES = ((0.0, 255.0), (0.0, 1.0))  # bounds of such images


class Online(Loop):
    """One run of an off-policy algorithm, see `Loop`: it plays, and learns from a replay memory."""

    pool: EnvPool

    def _make_pool(self, rows: int, crew: Crew | None) -> EnvPool:
        pool = EnvPool(self.problem.env, rows, crew=crew, overlapped=True)
        pool.upcoming = self._episode_seeds
        return pool

    def _make_lessons(self, warm: Transitions | None) -> ReplayLessons:
        cfg = self.problem.train.replay
        legal = getattr(self.problem.algo, "MASKED_LOSS", False)
        layout = RowLayout.of(self.problem.spaces, self.pool.masked, cfg.n_step, legal)
        memories = len(self.keys) if cfg.sharing == "own" else 1
        device = self.problem.device
        trees = Priorities(len(self.keys), cfg.capacity, cfg.alpha, device) if cfg.prioritised else None
        self.replay = Replay(layout, memories, cfg.capacity, device, trees, byte_images(self.pool, warm))
        self.nstep = NStep(layout, self.pool.rows) if cfg.n_step > 1 else None
        self.warm = min(0 if warm is None else len(warm), cfg.capacity)  # transitions that were there from the start
        if warm is not None and self.warm:
            if self.pool.masked:
                raise ParamsError(
                    "train.warm_start: the environment masks actions, the dataset has no masks, and learning would "
                    "bootstrap from illegal actions; set it to 0"
                )
            rows = layout.pack(warm.obs, warm.action, warm.reward, warm.terminated, warm.next_obs)
            keep = np.ones((memories, len(rows)), bool)
            self.replay.add(np.repeat(rows[None], memories, axis=0), keep, each=len(rows))
        return ReplayLessons(self.problem, self.replay)

    def advance(self) -> None:
        """Take one step in every environment, store the transitions, learn what is due.

        The members learn while the environments step, from the memory as it was before this tick.

        Raises:
            EnvironmentFailed: an environment failed. The state is whole: its actions are chosen and stay `pending`.
        """
        if self.pending is None:
            epsilon = self.problem.algo.explore(self.problem.algo_config, self.step)
            take_note(self.cohorts, self.pool.obs)
            self.pending = act(self.problem, self.cohorts, self.pool.obs, self.pool.mask, epsilon, self.tick)
            self.pool.send(self.pending)
            self.whole = False
            if self.step + self.problem.env.num_envs > self.problem.train.learning_delay:
                self._learn()
            self.whole = True
        else:
            self.pool.send(self.pending)
        obs = self.pool.obs.copy()
        legal = self.pool.mask.copy() if self.replay.layout.legal else None
        step = self.pool.receive()
        self.whole = False
        self._store(obs, legal, self.pending, step)
        self.pending = None
        over = np.flatnonzero(step.terminated | step.truncated | step.broken)
        if len(over):
            self._reset_rows(over)
        self._count_tick(int(step.broken.sum()))
        self.whole = True
        self._refuse_broken_environment()

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
            p, now, envs = self.problem, self.ticks_here, self.problem.env.num_envs
            due = [updates_due(cohort, now, envs) for cohort in self.cohorts]
            turns = [turn_at(p, cohort, now, envs) for cohort in self.cohorts]
            self.learners.learn(self.cohorts, self.cohort_losses, self.tick, due, turns)

    def _hand_down(self, parents: Sequence[int] | None) -> None:
        """Let no member draw by a stranger's errors: on a shared memory a child has its parent's priorities; on its
        slot's own, which has other rows than the parent's, and where all diverged, rows count alike again."""
        trees = self.replay.priorities
        if trees is None:
            return
        replaced = [slot for slot in range(len(self.keys)) if parents is None or parents[slot] != slot]
        slots = upload(torch.tensor(replaced, dtype=torch.int64), self.problem.device)
        if parents is None or self.replay.memories > 1:
            trees.forget(slots)
        else:
            trees.inherit(slots, upload(torch.tensor(parents), self.problem.device)[slots])

    def _memory(self) -> dict[str, torch.Tensor]:
        tensors = {f"replay.{k}": v for k, v in self.replay.state().items()}
        if self.nstep is not None:
            tensors |= {f"nstep.{k}": torch.from_numpy(v) for k, v in self.nstep.state().items()}
        return tensors

    def _remember(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.replay.restore({k.removeprefix("replay."): v for k, v in tensors.items() if k.startswith("replay.")})
        if self.nstep is not None:
            self.nstep.restore({k: tensors[f"nstep.{k}"].numpy() for k in self.nstep.state()})

    def _forget(self, rows: np.ndarray) -> None:
        if self.nstep is not None:
            self.nstep.forget(rows)


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
