"""On-policy: members learn from what they have just done, a rollout at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from evopipe.core.cohort import Cohort
from evopipe.core.graphs import upload
from evopipe.core.member import Member
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import Step
from evopipe.envs.workers import Workers
from evopipe.errors import ParamsError, UsageError
from evopipe.memory.rollout import StepLayout
from evopipe.run.act import see, step
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, Evaluator
from evopipe.run.learn import discount_rate
from evopipe.run.learners import Learners
from evopipe.run.rollouts import RolloutLessons
from evopipe.run.spec import Spec
from evopipe.run.world import Playable, TensorWorld, World

if TYPE_CHECKING:
    from evopipe.data.transitions import Transitions


_RECORDED: dict[str, type] = {
    "obs": np.float32,
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "broken": np.bool_,
}

CollectRollouts: TypeAlias = "Callable[[OnPolicy, int], None]"


def collect(regime: OnPolicy, ticks: int) -> None:
    """Take so many steps in every environment: what a function for `collect_rollouts` does in its own way."""
    for _ in range(ticks):
        regime.pool.send(regime.choose())
        regime.record(regime.pool.receive())


class OnPolicy:
    """The regime (see `Regime`) of on-policy algorithms.

    Args:
        spec: what the run is about.
        clock: the run's.
        keys: of the members, `[P]`.
        warm: must be none: members learn from their own steps alone.
        workers: worker processes for the environments; None steps them in this process.
        learners: processes that may learn, this one included. No result depends on these two.
        collect_rollouts: takes this regime and a number of ticks, and collects these in place of `collect`: so many
            times `choose()`, a step of `pool`, and `record(step)`, whose rewards and ends may be its own.

    Raises:
        ParamsError: transitions are given to learn from first, which the members did not take.
        UsageError: `collect_rollouts` is given where environments are tensors.
    """

    warm = 0

    def __init__(
        self,
        spec: Spec,
        clock: Clock,
        keys: np.ndarray,
        warm: Transitions | None = None,
        workers: Workers | None = None,
        learners: int = 1,
        collect_rollouts: CollectRollouts | None = None,
    ) -> None:
        if warm is not None and len(warm):
            raise ParamsError(f"train.warm_start: {spec.train.algo} learns from its own steps alone; set it to 0")
        self.spec, self.clock, self.keys = spec, clock, keys
        self.whole = True
        self._collect_rollouts = collect_rollouts
        self._until: int | None = None  # tick at which `collect_rollouts` must end; None: it was never asked
        self.cohorts: Sequence[Cohort] = []
        self.memories: list[torch.Tensor] = []
        self.world = self._make_world(workers)
        self.evaluator = Evaluator(spec, len(keys), workers)
        self.threshold = self.pool.reward_threshold
        shape = (len(keys), clock.envs)
        self.returns = torch.zeros(shape, dtype=torch.float64, device=spec.device)  # discounted, of running episodes
        layout = StepLayout(spec.spaces, self.world.masked)
        self.lessons = RolloutLessons(spec, layout, lambda: self.clock.generation_ticks)
        self.learners = Learners(spec, self.lessons, learners)

    def _make_world(self, workers: Workers | None) -> Playable:
        if self.spec.env.backend == "torch":
            if self._collect_rollouts is not None:
                raise UsageError("collect_rollouts: environments as tensors step by themselves; set env.backend: sync")
            return TensorWorld(self.spec, self.keys, self.clock)
        pool = EnvPool(self.spec.env, len(self.keys) * self.clock.envs, workers=workers)
        return World(self.spec, self.keys, self.clock, pool)

    @property
    def pool(self) -> Any:
        """The environments, see `EnvPool`."""
        return self.world.pool

    def first(self, member: Member) -> Member:
        """Return the member: it has seen nothing yet."""
        return member

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """See `Regime.adopt`. Episodes go on, so whoever goes on with a slot's networks goes on with its memory."""
        remembered = self._remembered()
        self.cohorts = cohorts
        self.learners.adopt(cohorts)
        device, envs = self.spec.device, self.clock.envs
        self.memories = [torch.zeros(len(c.members), envs, c.memory, device=device) for c in cohorts]
        for cohort, memory in zip(cohorts, self.memories, strict=True):
            for row, member in enumerate(cohort.members):
                before = remembered.get(member.slot)
                if before is not None and before[0].id in (member.id, member.parent) and before[0].arch == member.arch:
                    for piece, place in cohort.pieces(memory[row]).items():
                        if piece in before[1]:  # pads may differ
                            width = min(place.shape[-1], before[1][piece].shape[-1])
                            place[..., :width] = before[1][piece][..., :width]

    def _remembered(self) -> dict[int, tuple[Member, dict[tuple[str, int], torch.Tensor]]]:
        """Return each slot's member, and the pieces of its memory `[E, width]`; nothing of one that is not finite."""
        found: dict[int, tuple[Member, dict[tuple[str, int], torch.Tensor]]] = {}
        for cohort, memory in zip(self.cohorts, self.memories, strict=True):
            if cohort.memory:
                usable = memory.isfinite().flatten(1).all(dim=1).tolist()
                for member, own, finite in zip(cohort.members, memory, usable, strict=True):
                    if finite:
                        found[member.slot] = member, cohort.pieces(own)
        return found

    def _ends(self, cohort: Cohort) -> list[int]:
        return self.lessons.ends(cohort)

    def _place(self, cohort: Cohort) -> int:
        """Return how many ticks of the running rollout were taken."""
        return self.clock.here - max((end for end in self._ends(cohort) if end <= self.clock.here), default=0)

    @property
    def remarks(self) -> list[str]:
        """What the learn step becomes where it is no whole number of ticks, or longer than a generation; and a batch
        that is then larger than it; and what is set that members do not use."""
        p, envs = self.spec, self.clock.envs
        asked, batch, algo = p.algo_config.learn_step, p.algo_config.batch_size, f"algos.{p.train.algo}"
        each, generation = -(-asked // envs) * envs, -(-p.train.evo_steps // envs) * envs
        found = []
        if each > generation:
            found.append(f"{algo}.learn_step: {asked} steps are more than a generation has: members learn once in "
                         f"each, every {generation} steps")  # fmt: skip
        elif each > asked:
            found.append(f"{algo}.learn_step: {asked} steps are no whole number of ticks of {envs} environments: "
                         f"members learn every {each} steps")  # fmt: skip
        if batch > (held := min(each, generation)):
            found.append(f"{algo}.batch_size: {batch} steps are more than a rollout has: a minibatch is all its {held}")
        return [*found, *self._unused()]

    def _unused(self) -> list[str]:
        train = self.spec.train
        asked = {
            "warm_start": train.warm_start > 0,
            "replay.n_step": train.replay.n_step > 1,
            "replay.prioritised": train.replay.prioritised,
        }
        keys = " and ".join(f"train.{key}" for key, given in asked.items() if given)
        return [f"{keys}: not used, {train.algo} learns from its own last steps alone"] if keys else []

    # ------------------------------------------------------------------------------------------ one tick

    def advance(self) -> None:
        """Take one step in every environment, or let `collect_rollouts` take a rollout; let the members learn whose
        rollout is over.

        Raises:
            EnvironmentFailed: an environment failed. The state is whole: its actions are chosen and stay `pending`.
            UsageError: `collect_rollouts` recorded another number of steps than it was asked for.
        """
        if self._collect_rollouts is None:
            self._enter(self.world.take(self.choose()))
        else:
            self._let_collect(self._collect_rollouts)
        self.whole = False
        self._learn()
        self.whole = True
        self.world.refuse_broken()

    def _let_collect(self, collect_rollouts: CollectRollouts) -> None:
        """Have the user's function take all ticks until a member learns."""
        before = self.clock.here
        ticks = min(end for cohort in self.cohorts for end in self._ends(cohort) if end > before) - before
        self._until = before + ticks
        collect_rollouts(self, ticks)
        if self.clock.here != self._until or self.world.pending is not None:
            raise UsageError(
                f"collect_rollouts recorded {self.clock.here - before} steps of every environment where it was asked "
                f"for {ticks}: call choose() and then record(step) so many times"
            )

    def choose(self) -> Any:
        """Return every environment's action `[P · E, …]`, drawn from its member's policy for what `pool` shows now.

        Until `record` was called it returns the same again.
        """
        if self.world.pending is None:
            self.world.pending = self._choose()
        return self.world.pending

    def record(self, taken: Step) -> None:
        """Enter what the chosen actions gave; begin new episodes where some ended.

        A row whose reward or observation is not finite counts as broken: nothing is learned from it, and its
        environment begins anew.

        Raises:
            UsageError: no action was chosen, or an array is of a wrong shape, or none.
        """
        if self.world.pending is None:
            raise UsageError("no action was chosen: call choose() before record(step)")
        if self.clock.here == self._until:
            raise UsageError("collect_rollouts recorded more steps of every environment than it was asked for")
        self._enter(self._read(taken))

    def _enter(self, taken: Any) -> None:
        """Enter what the actions led to; begin new episodes where some ended."""
        self.whole = False
        gave = self.world.gave(taken)
        for cohort, rollout in zip(self.cohorts, self.lessons.rollouts, strict=True):
            rollout.finish(self._place(cohort), *self._as_shown(cohort, *self._of(cohort, gave)))
        self.world.end(taken)
        self.whole = True

    def _read(self, taken: Step) -> Step:
        """Return a step as the loop learns from it: arrays, and broken where it is not finite."""
        read = {name: self._array(name, getattr(taken, name), kind) for name, kind in _RECORDED.items()}
        step = replace(taken, **read)
        finite = np.isfinite(step.obs).all(axis=1) & np.isfinite(step.reward)
        return replace(step, broken=step.broken | ~finite)

    def _array(self, name: str, value: Any, kind: type) -> np.ndarray:
        rows, observations = self.pool.rows, self.spec.observations
        shape = (rows, observations) if name == "obs" else (rows,)
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"step.{name} is no array of numbers ({error}); record NumPy arrays") from error
        if array.shape != shape:
            raise UsageError(f"step.{name} has shape {array.shape}; expected {shape}, one row for each environment")
        if array.dtype.kind not in "biuf":
            raise UsageError(f"step.{name} is no array of numbers (dtype {array.dtype}); record NumPy arrays")
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows float32 becomes infinite: a broken row
            return np.require(array, kind, ("C", "W"))

    def _choose(self) -> Any:
        """Choose every member's actions, and enter what led to them."""
        everyone, chosen = self.world.seen(), []
        for i, (cohort, rollout) in enumerate(zip(self.cohorts, self.lessons.rollouts, strict=True)):
            obs, legal, begins = self._of(cohort, everyone)
            see(cohort, obs)
            obs, before = cohort.shown(obs), self.memories[i]
            took = step(self.spec, cohort, obs, legal, begins, before, self.clock.tick)
            rollout.enter(self._place(cohort), obs, legal, begins, before, took)
            self.memories[i] = took.memory
            chosen.append(took.action)
        return self.world.actions(chosen, self.cohorts)

    def _of(self, cohort: Cohort, everyone: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a cohort's share, on its device."""
        rows = slice(None) if cohort.slots == list(range(len(self.keys))) else cohort.slots
        return [upload(x[rows], self.spec.device) for x in everyone]

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
            rows = upload(torch.tensor(cohort.slots), self.spec.device)
            given = ~broken & cohort.healthy[:, None]
            reward, returns = cohort.normaliser.earn(self.returns[rows], reward, discount_rate(cohort), given)
            self.returns[rows] = returns.masked_fill(terminated | truncated | broken, 0.0)
        return cohort.shown(next_obs), reward, terminated, truncated, broken

    def _learn(self) -> None:
        """Let each cohort learn whose rollout ends at this tick."""
        due = []
        for cohort in self.cohorts:
            ends = [0, *self._ends(cohort)]
            at = ends.index(self.clock.here) if self.clock.here in ends else 0
            due.append(ends[at] - ends[at - 1] if at else 0)
        if any(due):
            self.learners.learn(self.cohorts, self.clock.tick, due, [0] * len(due))

    def evaluate(self, cohorts: Sequence[Cohort], seeds: Any, stopped: Callable[[], bool]) -> Episodes:
        """See `Regime.evaluate`."""
        return self.evaluator(cohorts, seeds, stopped)

    def hand_down(self, parents: Sequence[int] | None) -> None:
        """Nothing is kept beside the members."""

    # ------------------------------------------------------------------------------------------ state

    def state(self) -> dict[str, torch.Tensor]:
        """See `Regime.state`."""
        tensors = self.world.state()
        for i, (cohort, rollout) in enumerate(zip(self.cohorts, self.lessons.rollouts, strict=True)):
            filled = self._place(cohort) + (self.world.pending is not None)
            tensors |= {f"rollout.{i}.{name}": tensor for name, tensor in rollout.state(filled).items()}
            tensors[f"rollout.{i}.remembered"] = self.memories[i].to("cpu", copy=True)
        if self.spec.train.normalise.rewards:
            tensors["returns"] = self.returns.to("cpu", copy=True)
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """See `Regime.restore`."""
        for i, rollout in enumerate(self.lessons.rollouts):
            rollout.restore({name: tensors[f"rollout.{i}.{name}"] for name in ("rows", "after", "memory")})
            self.memories[i] = tensors[f"rollout.{i}.remembered"].to(self.spec.device)
        if "returns" in tensors:
            self.returns.copy_(tensors["returns"])
        lost = self.world.restore(tensors)
        if len(lost):
            self._forget(lost)
        return len(lost)

    def _forget(self, rows: np.ndarray) -> None:
        """Cut the episodes that led there, and choose again: what was chosen was for where they were."""
        member, env = np.divmod(rows, self.clock.envs)
        self.returns[member, env] = 0.0
        for i, (cohort, rollout) in enumerate(zip(self.cohorts, self.lessons.rollouts, strict=True)):
            place, mine = self._place(cohort), np.isin(member, cohort.slots)
            if place:
                rollout.cut(place - 1, [cohort.slots.index(slot) for slot in member[mine]], env[mine].tolist())
            if self.world.pending is not None:
                self.memories[i] = rollout.memory[:, place].clone()
        self.world.pending = None

    def close(self) -> None:
        """See `Regime.close`."""
        self.learners.close()
        self.pool.close()
        self.evaluator.pool.close()
