"""The offline loop: learn from a dataset; every `evo_steps` evaluate in the environment, select, clone, mutate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evopipe.buffers.priorities import Priorities
from evopipe.buffers.replay import Replay, RowLayout
from evopipe.envs.pool import EnvPool
from evopipe.errors import DataError, ParamsError
from evopipe.loops.online import Online
from evopipe.loops.steps import ReplayLessons

if TYPE_CHECKING:
    from evopipe.envs.workers import Crew
    from evopipe.storage.dataset import Transitions


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
        rows = pack(layout, warm)
        device = self.problem.device
        trees = Priorities(len(self.keys), len(rows), cfg.alpha, device) if cfg.prioritised else None
        self.replay = Replay(layout, 1, len(rows), device, trees)
        self.replay.add(rows[None], np.ones((1, len(rows)), bool))
        self.nstep = None
        self.warm = len(rows)
        return ReplayLessons(self.problem, self.replay)

    def advance(self) -> None:
        """Learn what is due."""
        self.whole = False
        self._learn()
        self._count_tick()
        self.whole = True

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the whole run but the dataset, which does not change."""
        tensors, meta = super().state()
        del tensors["replay.rows"]
        return tensors, meta

    def restore(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> int:
        """Take a saved run over; 0, for no environment was under way."""
        super().restore({**tensors, "replay.rows": self.replay.rows.cpu()}, meta)
        return 0


def pack(layout: RowLayout, data: Transitions) -> np.ndarray:
    """Pack transitions into rows `[N, size]`, each over `layout.steps` steps, fewer where its episode ends before.

    A transition that runs into an end takes the end's own next observation: it bootstraps from it where the episode was
    cut, and not where it terminated.
    """
    n = layout.steps
    if n == 1:
        return layout.pack(data.obs, data.action, data.reward, data.terminated, data.next_obs)
    ends = data.terminated | data.truncated
    ends[:-1] |= data.episode[1:] != data.episode[:-1]
    ends[-1] = True
    begin = np.arange(len(data))
    last = np.flatnonzero(ends)
    taken = np.minimum(last[np.searchsorted(last, begin)] - begin + 1, n)
    final = begin + taken - 1
    step = np.arange(n)
    reward = data.reward[np.minimum(begin[:, None] + step, len(data) - 1)] * (step < taken[:, None])
    return layout.pack(data.obs, data.action, reward, data.terminated[final], data.next_obs[final], None, taken)
