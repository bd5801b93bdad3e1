"""The loop of on-policy algorithms: play a rollout, learn from it, forget it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from evopipe.buffers.rollout import StepLayout
from evopipe.core.graphs import upload
from evopipe.core.population import Cohort, Member
from evopipe.envs.pool import EnvPool, Step
from evopipe.envs.workers import Crew
from evopipe.errors import ParamsError, UsageError
from evopipe.loops.acting import gather, see, step
from evopipe.loops.base import Loop
from evopipe.loops.evaluate import seen
from evopipe.loops.rollouts import RolloutLessons
from evopipe.loops.steps import discount_rate

if TYPE_CHECKING:
    from evopipe.storage.dataset import Transitions


CollectRollouts: TypeAlias = "Callable[[OnPolicy, int], None]"


def collect(loop: OnPolicy, ticks: int) -> None:
    """Take so many steps in every environment: what a function for `collect_rollouts` does in its own way."""
    for _ in range(ticks):
        loop.pool.send(loop.choose())
        loop.record(loop.pool.receive())


class OnPolicy(Loop):
    """One run of an on-policy algorithm: members learn from what they have just done.

    Args:
        collect_rollouts: takes the loop and a number of ticks, and collects these in place of `collect`: so many times
            `loop.choose()`, a step of `loop.pool`, and `loop.record(step)`, whose rewards and ends may be its own.
        *args, **options: those of `Loop`.

    Raises:
        ParamsError: transitions are given to learn from first, which the members did not take.
    """

    pool: EnvPool

    def __init__(self, *args: Any, collect_rollouts: CollectRollouts | None = None, **options: Any) -> None:
        self._collect_rollouts = collect_rollouts
        super().__init__(*args, **options)

    def _make_pool(self, rows: int, crew: Crew | None) -> EnvPool:
        pool = EnvPool(self.problem.env, rows, crew=crew)
        pool.upcoming = self._episode_seeds
        return pool

    def _make_lessons(self, warm: Transitions | None) -> RolloutLessons:
        if warm is not None and len(warm):
            raise ParamsError(
                f"train.warm_start: {self.problem.train.algo} learns from its own steps alone; set it to 0"
            )
        shape, device = (len(self.keys), self.problem.env.num_envs), self.problem.device
        self.returns = torch.zeros(shape, dtype=torch.float64, device=device)  # discounted, of the running episodes
        self.lessons = RolloutLessons(
            self.problem, StepLayout(self.problem.spaces, self.pool.masked), lambda: self._generation_ticks
        )
        return self.lessons

    def _form(self, members: Sequence[Member]) -> None:
        super()._form(members)
        device, envs = self.problem.device, self.problem.env.num_envs
        self.memories = [torch.zeros(len(c.members), envs, c.memory, device=device) for c in self.cohorts]

    @property
    def _generation_ticks(self) -> int:
        """Ticks of the generation that is running, or about to begin."""
        begun = self.tick - self.ticks_here
        return min(-(-self.problem.train.evo_steps // self.problem.env.num_envs), max(1, self.total_ticks - begun))

    def _ends(self, cohort: Cohort) -> list[int]:
        return self.lessons.ends(cohort)

    def _place(self, cohort: Cohort) -> int:
        """Return how many ticks of the running rollout were taken."""
        return self.ticks_here - max((end for end in self._ends(cohort) if end <= self.ticks_here), default=0)

    @property
    def remarks(self) -> list[str]:
        """What the learn step becomes where it is no whole number of ticks, or longer than a generation."""
        p, envs = self.problem, self.problem.env.num_envs
        asked, key = p.algo_config.learn_step, f"algos.{p.train.algo}.learn_step"
        each, generation = -(-asked // envs) * envs, -(-p.train.evo_steps // envs) * envs
        if each > generation:
            return [f"{key}: {asked} steps are more than a generation has: members learn once in each, every "
                    f"{generation} steps"]  # fmt: skip
        if each > asked:
            return [f"{key}: {asked} steps are no whole number of ticks of {envs} environments: members learn every "
                    f"{each} steps"]  # fmt: skip
        return []

    # ------------------------------------------------------------------------------------------ one tick

    def advance(self) -> None:
        """Take one step in every environment, or let `collect_rollouts` take a rollout; let the members learn whose
        rollout is over.

        Raises:
            EnvironmentFailed: an environment failed. The state is whole: its actions are chosen and stay `pending`.
            UsageError: `collect_rollouts` recorded another number of steps than it was asked for.
        """
        if self._collect_rollouts is None:
            collect(self, 1)
        else:
            self._let_collect(self._collect_rollouts)
        self.whole = False
        self._learn()
        self.whole = True
        self._refuse_broken_environment()

    def _let_collect(self, collect_rollouts: CollectRollouts) -> None:
        """Have the user's function take all ticks until a member learns."""
        before = self.ticks_here
        ticks = min(end for cohort in self.cohorts for end in self._ends(cohort) if end > before) - before
        collect_rollouts(self, ticks)
        if self.ticks_here != before + ticks or self.pending is not None:
            raise UsageError(
                f"collect_rollouts recorded {self.ticks_here - before} steps of every environment where it was asked "
                f"for {ticks}: call loop.choose() and then loop.record(step) so many times"
            )

    def choose(self) -> np.ndarray:
        """Return every environment's action `[P · E, …]`, drawn from its member's policy for what `pool` shows now.

        Until `record` was called it returns the same again.
        """
        if self.pending is None:
            self.pending = self._choose()
        return self.pending

    def record(self, taken: Step) -> None:
        """Enter what the chosen actions gave; begin new episodes where some ended.

        Raises:
            UsageError: no action was chosen, or an array is of a wrong shape.
        """
        if self.pending is None:
            raise UsageError("no action was chosen: call loop.choose() before loop.record(step)")
        self._check_shapes(taken)
        self.whole = False
        self._store(taken)
        self.pending = None
        over = np.flatnonzero(taken.terminated | taken.truncated | taken.broken)
        if len(over):
            self._reset_rows(over)
        self._count_tick(int(taken.broken.sum()))
        self.whole = True

    def _check_shapes(self, taken: Step) -> None:
        rows, observations = self.pool.rows, self.problem.observations
        for name in ("obs", "reward", "terminated", "truncated", "broken"):
            shape = (rows, observations) if name == "obs" else (rows,)
            found = np.shape(getattr(taken, name))
            if found != shape:
                raise UsageError(f"step.{name} has shape {found}; expected {shape}, one row for each environment")

    def _choose(self) -> np.ndarray:
        """Choose every member's actions, and enter what led to them."""
        everyone, chosen = self._by_member(seen(self.pool)), []
        for i, (cohort, rollout) in enumerate(zip(self.cohorts, self.lessons.rollouts, strict=True)):
            obs, legal, begins = self._of(cohort, everyone)
            see(cohort, obs)
            obs, before = cohort.shown(obs), self.memories[i]
            took = step(self.problem, cohort, obs, legal, begins, before, self.tick)
            rollout.enter(self._place(cohort), obs, legal, begins, before, took)
            self.memories[i] = took.memory
            chosen.append(took.action)
        actions = gather(chosen, [cohort.slots for cohort in self.cohorts])
        return actions.reshape(-1, *actions.shape[2:])

    def _by_member(self, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """`[P · E, …]` → `[P, E, …]`."""
        return [torch.from_numpy(x).view(len(self.keys), -1, *x.shape[1:]) for x in arrays]

    def _of(self, cohort: Cohort, everyone: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a cohort's share, on its device."""
        rows = slice(None) if cohort.slots == list(range(len(self.keys))) else cohort.slots
        return [upload(x[rows], self.problem.device) for x in everyone]

    def _store(self, taken: Step) -> None:
        """Enter what the actions led to."""
        everyone = self._by_member((taken.obs, taken.reward, taken.terminated, taken.truncated, taken.broken))
        for cohort, rollout in zip(self.cohorts, self.lessons.rollouts, strict=True):
            rollout.finish(self._place(cohort), *self._as_shown(cohort, *self._of(cohort, everyone)))

    def _as_shown(
        self,
        cohort: Cohort,
        next_obs: torch.Tensor,
        reward: torch.Tensor,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
        broken: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Return what a step gave as the members of a cohort learn from it: next_obs `[P, E, O]`, the rest `[P, E]`."""
        if cohort.normaliser is not None and cohort.normaliser.returns is not None:
            rows = upload(torch.tensor(cohort.slots), self.problem.device)
            given = ~broken & cohort.healthy[:, None]
            reward, returns = cohort.normaliser.earn(self.returns[rows], reward, discount_rate(cohort), given)
            self.returns[rows] = returns.masked_fill(terminated | truncated | broken, 0.0)
        return cohort.shown(next_obs), reward, terminated, truncated, broken

    def _learn(self) -> None:
        """Let each cohort learn whose rollout ends at this tick."""
        due = []
        for cohort in self.cohorts:
            ends = [0, *self._ends(cohort)]
            at = ends.index(self.ticks_here) if self.ticks_here in ends else 0
            due.append(ends[at] - ends[at - 1] if at else 0)
        if any(due):
            self.learners.learn(self.cohorts, self.cohort_losses, self.tick, due, [0] * len(due))

    # ------------------------------------------------------------------------------------------ state

    def _memory(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for i, (cohort, rollout) in enumerate(zip(self.cohorts, self.lessons.rollouts, strict=True)):
            filled = self._place(cohort) + (self.pending is not None)
            tensors |= {f"rollout.{i}.{name}": tensor for name, tensor in rollout.state(filled).items()}
            tensors[f"rollout.{i}.remembered"] = self.memories[i].to("cpu", copy=True)
        if self.problem.train.normalise.rewards:
            tensors["returns"] = self.returns.to("cpu", copy=True)
        return tensors

    def _remember(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for i, rollout in enumerate(self.lessons.rollouts):
            rollout.restore({name: tensors[f"rollout.{i}.{name}"] for name in ("rows", "after", "memory")})
            self.memories[i] = tensors[f"rollout.{i}.remembered"].to(self.problem.device)
        if "returns" in tensors:
            self.returns.copy_(tensors["returns"])

    def _forget(self, rows: np.ndarray) -> None:
        """Cut the episodes that led there, and choose again: what was chosen was for where they were."""
        member, env = np.divmod(rows, self.problem.env.num_envs)
        self.returns[member, env] = 0.0
        for i, (cohort, rollout) in enumerate(zip(self.cohorts, self.lessons.rollouts, strict=True)):
            place, mine = self._place(cohort), np.isin(member, cohort.slots)
            if place:
                rollout.cut(place - 1, [cohort.slots.index(slot) for slot in member[mine]], env[mine].tolist())
            if self.pending is not None:
                self.memories[i] = rollout.memory[:, place].clone()
        self.pending = None
