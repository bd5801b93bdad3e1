"""The offline loop: learn from a dataset; every `evo_steps` evaluate in the environment, select, clone, mutate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evopipe.buffers.priorities import Priorities
from evopipe.buffers.replay import Replay, RowLayout
from evopipe.envs.pool import EnvPool
from evopipe.errors import DataError, ParamsError
from evopipe.loops.online import Online, byte_images
from evopipe.loops.steps import ReplayLessons

if TYPE_CHECKING:
    from evopipe.envs.workers import Crew
    from evopipe.storage.dataset import Transitions


_PART = 1 << 24  # bytes of rows that are packed at once


class Offline(Online):
    """One run that learns from a dataset and plays only to be evaluated.

    Its memory is the dataset, all of it and nothing else, one for all members. A step of a member is a chance to learn
    where online it is a step in the environment: at a learn step of 1 it is one update. Everything counted in steps
    means these, `env_steps` too. The arguments are those of `Online`; `warm` is the dataset and must be given.

    Raises:
        DataError: the dataset is empty.
        ParamsError: the environment masks actions, which a dataset knows nothing of.
    """

    def _make_pool(self, rows: int, crew: Crew | None) -> EnvPool:
        """One environment, which is never stepped: it tells the spaces, masks and threshold."""
        return EnvPool(self.problem.env.on_gymnasium, 1)

    def _make_lessons(self, warm: Transitions | None) -> ReplayLessons:
        if warm is None or not len(warm):
            raise DataError("train.mode: offline training needs a dataset with at least one transition, this has none")
        if self.pool.masked:
            raise ParamsError(
                "train.mode: the environment masks actions, the dataset has no masks, and learning would bootstrap "
                "from illegal actions; set it to online"
            )
        cfg = self.problem.train.replay
        layout = RowLayout.of(self.problem.spaces, False, cfg.n_step)
        device = self.problem.device
        trees = Priorities(len(self.keys), len(warm), cfg.alpha, device) if cfg.prioritised else None
        self.replay = Replay(layout, 1, len(warm), device, trees, byte_images(self.pool, warm))
        for rows in _packed(layout, warm):
            self.replay.add(rows[None], np.ones((1, len(rows)), bool), each=len(rows))
        self.nstep = None
        self.warm = len(warm)
        return ReplayLessons(self.problem, self.replay)

    def advance(self) -> None:
        """Learn what is due."""
        self.whole = False
        self._learn()
        self._count_tick()
        self.whole = True

    def restore(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> int:
        """Take a saved run over; 0, for no environment was under way."""
        super().restore(tensors, meta)
        return 0

    def _memory(self) -> dict[str, torch.Tensor]:
        """Return what the memory holds beside the dataset, which does not change."""
        trees = self.replay.priorities
        return {} if trees is None else {f"replay.{k}": v for k, v in trees.state(self.warm).items()}

    def _remember(self, tensors: Mapping[str, torch.Tensor]) -> None:
        if self.replay.priorities is not None:
            state = {k.removeprefix("replay."): v for k, v in tensors.items() if k.startswith("replay.")}
            self.replay.priorities.restore(state)


def pack(layout: RowLayout, data: Transitions) -> np.ndarray:
    """Pack transitions into rows `[N, size]`, each over `layout.steps` steps, fewer where its episode ends before.

    A transition that runs into an end takes the end's own next observation: it bootstraps from it where the episode was
    cut, and not where it terminated.
    """
    return np.concatenate(list(_packed(layout, data)))


def _packed(layout: RowLayout, data: Transitions) -> Iterator[np.ndarray]:
    """Pack them part by part: images as numbers are too large for all at once."""
    taken = _steps_taken(data, layout.steps)
    size = max(1, _PART // (4 * layout.size))
    for start in range(0, len(data), size):
        begin = np.arange(start, min(start + size, len(data)))
        final = begin + taken[begin] - 1
        step = np.arange(layout.steps)
        reward = data.reward[np.minimum(begin[:, None] + step, len(data) - 1)] * (step < taken[begin, None])
        yield layout.pack(
            data.obs[begin],
            data.action[begin],
            reward if layout.steps > 1 else reward[:, 0],
            data.terminated[final],
            data.next_obs[final],
            taken=taken[begin],
        )


def _steps_taken(data: Transitions, most: int) -> np.ndarray:
    """How many steps a transition from each one on spans, `[N]`: at most so many, and none beyond its episode."""
    ends = data.terminated | data.truncated
    ends[:-1] |= data.episode[1:] != data.episode[:-1]
    ends[-1] = True
    begin = np.arange(len(data))
    last = np.flatnonzero(ends)
    taken: np.ndarray = np.minimum(last[np.searchsorted(last, begin)] - begin + 1, most)
    return taken
