"""Evaluation in environments that are tensors. No number leaves the device before the last episode has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evopipe.algos import by_kernels, on_policy
from evopipe.core.cohort import Cohort
from evopipe.envs.compiled import CompiledPool
from evopipe.native.episodes import Played, by_choice, by_policy
from evopipe.run.act import choose, step
from evopipe.run.episodes import Episodes, Stopped
from evopipe.run.pace import FASTER, next_count
from evopipe.run.spec import EnvSpec
from evopipe.run.world import in_slots, legal_actions

_LOOK = 16  # ticks on a device after which the host asks whether anybody still plays: that waits for all work
_SECONDS = 0.01  # that a call of C takes, about


def evaluate_tensors(
    spec: EnvSpec, cohorts: Sequence[Cohort], pool: Any, seeds: np.ndarray, cap: int | None, stopped: Callable[[], bool]
) -> Episodes:
    """Play one greedy episode for each seed with every member, in environments that are tensors; return the results.

    On the CPU the results equal those of `evaluate` to the bit.

    Args:
        spec: the run's configuration.
        cohorts: the members, `P` in all, in groups whose networks are computed as one batch.
        pool: the environments, a `TensorPool`; each member uses up to `pool.rows // P` of them at a time.
        seeds: the n seeds of the episodes, `[n]`, the same for all members.
        cap: the most steps of an episode; None for no cap.
        stopped: a function that is called again and again and returns True to stop the evaluation.

    Raises:
        Stopped: `stopped` returned True.
        EnvironmentFailed: an environment raised an exception or broke its contract.
    """
    device, agents, n = pool.device, spec.spaces.agents, len(seeds)
    slots = sorted(slot for cohort in cohorts for slot in cohort.slots)
    place = {slot: p for p, slot in enumerate(slots)}
    own = [torch.tensor([place[slot] for slot in cohort.slots], device=device) for cohort in cohorts]
    members = len(slots)
    width = min(pool.rows // members, n)
    play = _Episodes(members, width, torch.from_numpy(np.asarray(seeds, np.int64)).to(device), agents, pool)
    legal = legal_actions(spec, pool, members, width)
    memories = [torch.zeros(len(c.members), width * agents, c.memory, device=device) for c in cohorts]
    in_c = _in_c(spec, cohorts, own, memories, play, cap)
    count = FASTER
    while in_c and bool(play.active.any()):
        if stopped():
            raise Stopped
        began = time.perf_counter()
        for call in in_c:
            call(count)
        play.took()
        count = next_count(count, time.perf_counter() - began, _SECONDS)
    tick, look = 0, 1 if device.type == "cpu" else _LOOK
    while tick % look or bool(play.active.any()):
        tick += 1
        if stopped():
            raise Stopped
        obs, begins = play.observed()
        chosen = []
        for i, (cohort, mine) in enumerate(zip(cohorts, own, strict=True)):
            whole = len(mine) == members and len(cohorts) == 1 and slots == cohort.slots
            seen, may, fresh = (x if whole else x[mine] for x in (obs, legal, begins))
            if on_policy(spec.algo):
                took = step(spec, cohort, cohort.normalised(seen), may, fresh, memories[i], None)
                memories[i] = took.memory
                chosen.append(took.action)
            else:
                chosen.append(choose(spec, cohort, seen, may, None))
        play.step(in_slots(spec, chosen, own), cap)
    returns, lengths = play.returns[:, :n].cpu().numpy(), play.lengths[:, :n].cpu().numpy()
    limited = int((lengths >= pool.limit).sum()) if pool.limit is not None else 0
    steps = int(play.steps)
    return Episodes(spec.score(returns), lengths, steps, spec.of_agents(returns), limited)


def _in_c(
    spec: EnvSpec, cohorts: Sequence[Cohort], own: Sequence[Tensor], memories: Sequence[Tensor], play: _Episodes,
    cap: int | None,
) -> list[Callable[[int], None]]:  # fmt: skip
    """Return what lets each cohort take so many ticks in C; nothing where Python must."""
    played, algo, cfg, found = play.in_c(cap), spec.algo, spec.algo_config, []
    name = "play" if on_policy(algo) else "choice"
    if played is None or by_kernels(algo, name) is None or spec.paths.capture != "none":
        return []
    for cohort, places, memory in zip(cohorts, own, memories, strict=True):
        shown = None if cohort.normaliser is None else cohort.normaliser.now()
        if name == "play":
            call = by_policy(cfg, cohort.state, places, memory, played, shown)
        else:
            choice = algo.choice(cfg, cohort.state)
            call = choice and by_choice(choice, spec.actions, spec.observations, places, played, shown)
        if call is None:
            return []
        found.append(call)
    return found


class _Episodes:
    """`n` episodes for each of `P` members. `W` of each member run at a time, in the pool's first `P · W` rows.

    Attributes:
        returns, lengths: `[P, n + 1, K]` float64 and `[P, n + 1]` int64; the last entry is a dummy that is never read.
        active: `[P, W]` bool, which rows have an episode to play.
        steps: `[]`, steps taken in all.
    """

    def __init__(self, members: int, width: int, seeds: Tensor, agents: int, pool: Any) -> None:
        self._pool, self._seeds, self._agents, device = pool, seeds, agents, pool.device
        self._shape, n = (members, width), len(seeds)
        self.returns = torch.full((members, n + 1, agents), torch.nan, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(members, n + 1, dtype=torch.int64, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self._episode = torch.arange(width, device=device).repeat(members, 1)  # which one each row plays
        self._waiting = torch.full((members,), width, device=device)  # the next one of each member
        self.active = torch.ones(members, width, dtype=torch.bool, device=device)
        self._total = torch.zeros(members, width, agents, dtype=torch.float64, device=device)
        self._rows = members * width
        pool.reset(torch.arange(self._rows, device=device), seeds[self._episode.flatten()])

    def in_c(self, cap: int | None) -> Played | None:
        """Return what C needs to play them; None where environments are others. `took` must follow its ticks."""
        if not isinstance(self._pool, CompiledPool):
            return None
        self._played = Played(
            self._pool.in_c, self._seeds, cap, self._pool.sound, self._episode, self._waiting, self._total[..., 0],
            self.returns[..., 0], self.lengths, torch.zeros(self._shape[0], dtype=torch.int64),
        )  # fmt: skip
        return self._played

    def took(self) -> None:
        """Take note of ticks in C."""
        self.active, self.steps = self._episode < len(self._seeds), self._played.steps.sum()

    def observed(self) -> tuple[Tensor, Tensor]:
        """Return observations `[P, W · K, O]`, and whether an episode begins, `[P, W · K]`."""
        members, width = self._shape
        obs = self._pool.obs[: self._rows].reshape(members, width * self._agents, -1)
        begins = self._pool.begins[: self._rows].view(members, width)
        return obs, begins.repeat_interleave(self._agents, dim=1)

    def step(self, actions: Tensor, cap: int | None) -> None:
        """Take a step in every row that is active, note the episodes that end, and begin the next ones."""
        shape, active = self._shape, self.active
        gave = self._pool.step_where(actions, active.flatten())
        self.steps += active.sum()
        over = gave.terminated | gave.truncated
        if over.ndim > 1:
            over = over.all(dim=1)  # a team's agents end together
        over, length = over.view(shape), self._pool.length[: self._rows].view(shape)
        self._total += torch.where(active[..., None], gave.reward.view(*shape, -1), 0.0)
        score = self._total
        if not self._pool.sound:
            parts = (gave.obs.reshape(*shape, -1), gave.reward.reshape(*shape, -1))
            broken = ~(parts[0].isfinite().all(dim=2) & parts[1].isfinite().all(dim=2))
            over, score = over | broken, score.masked_fill(broken[..., None], torch.nan)
        if cap is not None:
            over = over | (length >= cap)
        over = over & active
        last = self._seeds.shape[0]
        place = torch.where(over, self._episode, last)
        self.returns.scatter_(1, place[..., None].expand_as(score), score)
        self.lengths.scatter_(1, place, length)
        following = self._waiting[:, None] + over.cumsum(dim=1) - 1
        self._episode = torch.where(over, following, self._episode)
        self._waiting = self._waiting + over.sum(dim=1)
        self._total.masked_fill_(over[..., None], 0.0)
        self.active = self._episode < last
        self._begin((over & self.active).flatten())

    def _begin(self, again: Tensor) -> None:
        """Begin the next episodes: on a device in all rows at once, which waits for nothing."""
        seeds = self._seeds[self._episode.flatten().clamp(max=len(self._seeds) - 1)]
        if again.device.type == "cpu":
            if len(rows := again.nonzero()[:, 0]):
                self._pool.reset(rows, seeds[rows])
            return
        spare = self._pool.rows - self._rows
        self._pool.reset_where(*(torch.nn.functional.pad(x, (0, spare)) for x in (again, seeds)))
