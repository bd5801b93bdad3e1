"""The loop of on-policy algorithms where the environments are tensors: a tick never leaves the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evopipe import rng
from evopipe.core.population import Member
from evopipe.envs.batched.pool import TensorPool
from evopipe.envs.workers import Crew
from evopipe.errors import UsageError
from evopipe.loops.acting import see, step
from evopipe.loops.on_policy import CollectRollouts, OnPolicy
from evopipe.rng import Purpose


class OnDevice(OnPolicy):
    """One run of an on-policy algorithm, see `OnPolicy`, in environments of `env.backend: torch`."""

    pool: TensorPool  # type: ignore[assignment]

    def __init__(self, *args: Any, collect_rollouts: CollectRollouts | None = None, **options: Any) -> None:
        if collect_rollouts is not None:
            raise UsageError("OnDevice collects its rollouts itself: give collect_rollouts to OnPolicy")
        super().__init__(*args, **options)

    def _make_pool(self, rows: int, crew: Crew | None) -> TensorPool:  # type: ignore[override]
        envs, device = self.problem.env.num_envs, self.problem.device
        self._row_keys = torch.from_numpy(np.repeat(self.keys, envs)).to(device)
        self._row_envs = torch.arange(rows, device=device) % envs
        self._legal = torch.ones(len(self.keys), envs, self.problem.actions, dtype=torch.bool, device=device)
        self._broken = torch.zeros(len(self.keys), envs, dtype=torch.bool, device=device)
        return TensorPool(self.problem.env, rows, device)

    def _reset_rows(self, rows: np.ndarray) -> None:
        super()._reset_rows(rows)
        self._numbers = torch.from_numpy(self.episodes.copy()).to(self.problem.device)  # `episodes`, on the device

    @torch.no_grad()
    def advance(self) -> None:
        """Take one step in every environment; let the members learn whose rollout is over."""
        self.whole = False
        obs, begins = self._grid(self.pool.obs), self._grid(self.pool.begins)
        chosen = []
        for i, (cohort, rollout) in enumerate(zip(self.cohorts, self.lessons.rollouts, strict=True)):
            mine, legal, fresh = self._of(cohort, (obs, self._legal, begins))
            see(cohort, mine)
            mine, before = cohort.shown(mine), self.memories[i]
            took = step(self.problem, cohort, mine, legal, fresh, before, self.tick)
            rollout.enter(self._place(cohort), mine, legal, fresh, before, took)
            self.memories[i] = took.memory
            chosen.append(took.action)
        actions = chosen[0] if len(chosen) == 1 else torch.cat(chosen)[self._order]
        taken = self.pool.step(actions.flatten(0, 1))
        gave = [*(self._grid(x) for x in taken), self._broken]
        for cohort, rollout in zip(self.cohorts, self.lessons.rollouts, strict=True):
            rollout.finish(self._place(cohort), *self._as_shown(cohort, *self._of(cohort, gave)))
        self._begin_where(taken.terminated | taken.truncated)
        self._count_tick()
        with torch.enable_grad():
            self._learn()
        self.whole = True

    def _form(self, members: Sequence[Member]) -> None:
        super()._form(members)
        rows = [slot for cohort in self.cohorts for slot in cohort.slots]
        self._order = torch.tensor(rows, device=self.problem.device).argsort()  # of the cohorts' members, by slot

    def _begin_where(self, over: torch.Tensor) -> None:
        """Begin new episodes in the rows `over` `[R]`: on a device in all at once, which waits for nothing; on the CPU
        in those few alone, which costs less."""
        if over.device.type != "cpu":
            seeds = rng.seeds(self._row_keys, Purpose.EPISODE, self._row_envs, self._numbers)
            self.pool.reset_where(over, seeds)
        elif len(rows := over.nonzero()[:, 0]):
            numbers = self._numbers[rows]
            self.pool.reset(rows, rng.seeds(self._row_keys[rows], Purpose.EPISODE, self._row_envs[rows], numbers))
        self._numbers = self._numbers + over

    def _grid(self, x: torch.Tensor) -> torch.Tensor:
        """`[P · E, …]` → `[P, E, …]`."""
        return x.view(len(self.keys), -1, *x.shape[1:])

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the whole run as tensors and JSON data."""
        self.episodes = self._numbers.cpu().numpy().copy()
        return super().state()

    def restore(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> int:
        """Take a saved run over; 0, for tensors come back to where they were."""
        lost = super().restore(tensors, meta)
        self._numbers = torch.from_numpy(self.episodes.copy()).to(self.problem.device)
        return lost
