"""What every training loop shares: towards a generation's end tick by tick, then evaluate, select, clone, mutate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from evopipe import rng
from evopipe.core import health, normalise, population
from evopipe.core.population import Member, acting_networks
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Crew
from evopipe.errors import DivergedError, EnvironmentFailed
from evopipe.evolve.mutate import NONE, Mutation
from evopipe.evolve.select import windowed
from evopipe.evolve.step import evolve
from evopipe.loops.evaluate import Episodes, evaluate
from evopipe.loops.learners import Learners, Lessons
from evopipe.loops.problem import Problem
from evopipe.ops.statistics import mean_of_finite, standard_error
from evopipe.rng import Purpose
from evopipe.storage import members as stored

if TYPE_CHECKING:
    import numpy.typing as npt

    from evopipe.storage.dataset import Transitions

DIVERGED_IN_A_ROW = 3
BROKEN_SHARE, BROKEN_TICKS = 0.1, 10  # of a generation's transitions that may be broken, and at least so many ticks'


@dataclass(frozen=True)
class Champion:
    """The best member so far, a snapshot.

    Attributes:
        member: the member as it was then.
        score: its mean return; `error` is its standard error.
        confirmed: whether a second, longer evaluation gave the score.
        generation: when.
    """

    member: Member
    score: float
    error: float
    confirmed: bool
    generation: int


class Environments(Protocol):
    """What a loop needs of the environments that its members play in, see `EnvPool`."""

    rows: int
    reward_threshold: float | None

    def reset(self, rows: npt.ArrayLike, seeds: npt.ArrayLike) -> None: ...

    def state(self) -> dict[str, npt.NDArray[Any]]: ...

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]: ...

    def close(self) -> None: ...


class Loop(ABC):
    """One run: its state, and what advances it.

    Args:
        problem: configuration.
        members: the initial population.
        warm: transitions to learn from before the first step, or None.
        births: how the initial members were mutated, where they were.
        crew: worker processes for the environments; None steps them in this process.
        learners: processes that may learn, this one included. No result depends on these two.

    Raises:
        ParamsError: the environment masks actions, which `warm` knows nothing of.

    The state between two ticks is `state()`: from it `restore()` continues bit for bit.
    """

    def __init__(
        self,
        problem: Problem,
        members: Sequence[Member],
        warm: Transitions | None = None,
        births: Sequence[Mutation] | None = None,
        crew: Crew | None = None,
        learners: int = 1,
    ) -> None:
        self.problem = problem
        size, envs = len(members), problem.env.num_envs
        self.keys = np.array([member.key for member in members])
        self.pool = self._make_pool(size * envs, crew)
        episodes = problem.train.eval_episodes
        self.eval_pool = EnvPool(problem.env, size * min(episodes, max(8, 64 // size)), what="evaluation", crew=crew)
        self.tick = self.generation = self.ticks_here = 0  # ticks_here: of this generation
        self.env_steps = self.eval_steps = self.broken_rows = self.broken_here = self.diverged = 0
        self.episodes = np.zeros(self.pool.rows, np.int64)
        self.next_id = max(member.id for member in members) + 1
        self.warm = 0  # transitions that were there from the start
        self.champion: Champion | None = None
        self.lineage: list[dict[str, Any]] = [_beginning(members, births or [NONE] * size)]
        self.curve: list[list[float | int | None]] = []
        self.reason = ""
        self.whole = True  # where `state()` is one moment's
        self.pending: np.ndarray | None = None  # actions chosen, but not yet taken
        self.births = list(births or [NONE] * size)
        self.losses = [float("nan")] * size
        self._reset_rows(np.arange(self.pool.rows))
        self.learners = Learners(problem, self._make_lessons(warm), learners)
        begun = members if warm is None or not len(warm) else [self._after(member, warm) for member in members]
        self._adopt(begun)

    # ------------------------------------------------------------------------------------------ for each data regime

    @abstractmethod
    def _make_pool(self, rows: int, crew: Crew | None) -> Environments:
        """Return the environments that members play in."""

    @abstractmethod
    def _make_lessons(self, warm: Transitions | None) -> Lessons:
        """Return what members learn from."""

    @abstractmethod
    def advance(self) -> None:
        """Take one tick: a step in every environment, and what learning is due.

        Raises:
            EnvironmentFailed: an environment failed. The state is whole: its actions are chosen and stay `pending`.
        """

    @abstractmethod
    def _memory(self) -> dict[str, torch.Tensor]:
        """Return the state of what members learn from."""

    @abstractmethod
    def _remember(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `_memory` returned."""

    @abstractmethod
    def _forget(self, rows: np.ndarray) -> None:
        """Forget what led to where these environments were: they could not be brought back there."""

    def _hand_down(self, parents: Sequence[int] | None) -> None:  # noqa: B027
        """Let new members have what is kept of the old ones beside the members themselves; nothing, as a rule.

        Args:
            parents: `[P]`, in which slot the parent of each new member was; None where they are last generation's.
        """

    @property
    def remarks(self) -> list[str]:
        """What will happen that the parameters do not say."""
        return []

    # ------------------------------------------------------------------------------------------ set-up

    def _adopt(self, members: Sequence[Member]) -> None:
        """Take a population over: form cohorts, remember it as the one to return to."""
        self.last_good = list(members)
        self._form(members)

    def _after(self, member: Member, warm: Transitions) -> Member:
        """Return a member that has seen the transitions that it begins with, where it takes note of what it sees."""
        if not self.problem.train.normalise.observations:
            return member
        return replace(member, tensors=normalise.after(self.problem.equip(member).tensors, torch.from_numpy(warm.obs)))

    def _form(self, members: Sequence[Member]) -> None:
        self.cohorts = self.problem.form(members)
        self.learners.adopt(self.cohorts)
        device = self.problem.device
        self.cohort_losses = [torch.full((len(c.members),), torch.nan, device=device) for c in self.cohorts]

    def _reset_rows(self, rows: np.ndarray) -> None:
        """Begin new episodes; an episode's seed depends on the member's key, its environment and its number."""
        seeds = self._episode_seeds(rows, 1)[:, 0]
        self.episodes[rows] += 1
        self.pool.reset(rows, seeds)

    def _episode_seeds(self, rows: np.ndarray, ahead: int) -> np.ndarray:
        """Return the seeds of the next episodes of these rows, `[n, ahead]`."""
        envs = self.problem.env.num_envs
        number = self.episodes[rows][:, None] + np.arange(ahead)
        keys, env = self.keys[rows // envs][:, None], (rows % envs)[:, None]
        seeds: np.ndarray = rng.seeds(keys, Purpose.EPISODE, env, number)
        return seeds

    # ------------------------------------------------------------------------------------------ one tick

    @property
    def step(self) -> int:
        """Environment steps of each member so far."""
        return self.tick * self.problem.env.num_envs

    def _count_tick(self, broken: int = 0) -> None:
        """Enter a tick, and how many of its transitions were broken, in the books."""
        self.broken_rows += broken
        self.broken_here += broken
        self.env_steps += len(self.keys) * self.problem.env.num_envs
        self.tick += 1
        self.ticks_here += 1

    def _refuse_broken_environment(self) -> None:
        steps = self.ticks_here * self.pool.rows
        if self.broken_here > max(BROKEN_SHARE * steps, BROKEN_TICKS * self.pool.rows):
            raise EnvironmentFailed(
                f"environment {self.problem.env.id!r} returned non-finite observations or rewards (or no legal action) "
                f"in {self.broken_here} of its last {steps} steps: mend it; `evopipe env check "
                f"{self.problem.env.id}` may show where"
            )

    # ------------------------------------------------------------------------------------------ a generation

    @property
    def total_ticks(self) -> int:
        """Ticks until `max_steps`."""
        return -(-self.problem.train.max_steps // self.problem.env.num_envs)

    @property
    def generation_over(self) -> bool:
        """Whether evaluation and evolution are due."""
        train, envs = self.problem.train, self.problem.env.num_envs
        return self.ticks_here >= -(-train.evo_steps // envs) or self.tick >= self.total_ticks

    def close_generation(self, stopped: Callable[[], bool]) -> None:
        """Evaluate, record, and evolve unless the run ends here.

        Raises:
            Stopped: a signal came while evaluating; the state is as before the call.
            DivergedError: no member is healthy, for the third generation in a row.
        """
        played, members = self._evaluate(stopped)
        champion, confirm_steps = self._crown(played, members, stopped)
        # From here on nothing can stop half-way: the state changes all at once.
        self.champion = champion
        self.eval_steps += played.steps + confirm_steps
        self.generation += 1
        self.losses = self._losses()
        fitness = np.array(
            [windowed(m.fitness, self.problem.tournament.window) if m.healthy else -np.inf for m in members]
        )
        self._record(members)
        self.ticks_here = self.broken_here = 0
        if self._reached():
            self.reason = "target"
        elif self.tick >= self.total_ticks:
            self.reason = "max_steps"
        if self.reason:
            self._form(members)
        elif np.isfinite(fitness).any():
            self.diverged = 0
            self._evolve(members, fitness)
        else:
            self._return_to_last_good()

    def _evaluate(self, stopped: Callable[[], bool]) -> tuple[Episodes, list[Member]]:
        """Evaluate every member on the run's fixed seeds; return its members with the new fitness."""
        train = self.problem.train
        acting = acting_networks(self.problem.algo.POLICY, self.problem.widths)
        cohorts = [
            replace(c, healthy=c.healthy & health.of_parameters(*(getattr(c.state, net) for net in acting)))
            for c in self.cohorts
        ]
        seeds = self.problem.seeds(Purpose.EVALUATE, train.eval_episodes)
        played = evaluate(self.problem, cohorts, self.eval_pool, seeds, train.eval_steps, stopped)
        if not np.isfinite(played.returns).any():
            raise EnvironmentFailed(
                f"environment {self.problem.env.id!r} returned non-finite observations or rewards in every evaluation "
                f"episode: mend it; `evopipe env check {self.problem.env.id}` may show where"
            )
        members = []
        for member, returns in zip(population.dissolve(cohorts), played.returns, strict=True):
            # Few broken episodes are left out; a member with many must not be judged by those that went well.
            broken = int((~np.isfinite(returns)).sum())
            mean = mean_of_finite(returns) if broken <= max(1, BROKEN_SHARE * len(returns)) else math.nan
            healthy = member.healthy and math.isfinite(mean)
            members.append(replace(member, healthy=healthy, fitness=(*member.fitness, mean if healthy else -math.inf)))
        return played, members

    def _crown(
        self, played: Episodes, members: Sequence[Member], stopped: Callable[[], bool]
    ) -> tuple[Champion | None, int]:
        """Return the champion after this generation, and the steps that finding out cost.

        A new best that clears the target (any, where there is none) is evaluated again, longer: the best of many noisy
        scores is biased upwards, a second, independent evaluation is not.
        """
        best = max(members, key=lambda m: (m.fitness[-1], -m.slot))
        fitness, held = best.fitness[-1], self.champion
        confirm = math.isfinite(fitness) and (self.target is None or fitness >= self.target)
        # A confirmed score is worth more than a lucky one: only its like can beat it.
        bar = held.score if held and held.confirmed >= confirm else -math.inf
        if not fitness > bar or (held and held.confirmed > confirm):
            return held, 0
        returns, steps = played.returns[best.slot], 0
        if confirm:
            again = self._play_again(best, stopped)
            returns, steps = again.returns[0], again.steps
        score = mean_of_finite(returns)
        if not score > bar:
            return held, steps
        error = standard_error(returns[np.isfinite(returns)])
        return Champion(best, score, error, confirm, self.generation + 1), steps

    def _play_again(self, member: Member, stopped: Callable[[], bool]) -> Episodes:
        """Evaluate one member on the run's confirmation seeds."""
        p = self.problem
        seeds = self.problem.seeds(Purpose.CONFIRM, p.train.confirm_episodes)
        return evaluate(p, p.form_alone(member), self.eval_pool, seeds, p.train.eval_steps, stopped)

    @property
    def target(self) -> float | None:
        """The score that ends training early."""
        target = self.problem.train.target
        return self.pool.reward_threshold if target == "auto" else target

    def _reached(self) -> bool:
        if self.champion is None or self.target is None or not self.champion.confirmed:
            return False
        return self.champion.score - self.problem.train.target_sigmas * self.champion.error >= self.target

    def _evolve(self, members: Sequence[Member], fitness: np.ndarray) -> None:
        """Select, clone, mutate; the lineage records every child."""
        p = self.problem
        born = evolve(p.tournament, p.mutation, p.traits, members, fitness, p.seed, self.generation, self.next_id)
        self.next_id += len(members)
        self.births = list(born.mutations)
        self.lineage[-1]["children"] = [
            _birth(child, mutation, parent)
            for child, mutation, parent in zip(born.members, born.mutations, born.parents, strict=True)
        ]
        self._hand_down(born.parents)
        self._adopt(born.members)

    def _return_to_last_good(self) -> None:
        """Go back to the last healthy generation: all its members diverged."""
        self.diverged += 1
        if self.diverged >= DIVERGED_IN_A_ROW:
            block, rates = f"algos.{self.problem.train.algo}", self.problem.rates
            raise DivergedError(
                f"every member diverged in {self.diverged} generations in a row (generation {self.generation}, step "
                f"{self.step}), no elite was written: lower "
                f"{' and '.join(f'{block}.{rate}' for rate in rates)}, tighten grad_clip, or narrow "
                f"{' and '.join(f'evolve.{rate}.max' for rate in rates)}"
            )
        self.lineage[-1]["restored"] = True
        self._hand_down(None)
        self._form(self.last_good)

    # ------------------------------------------------------------------------------------------ records

    def _losses(self) -> list[float]:
        losses = [math.nan] * len(self.keys)
        for cohort, values in zip(self.cohorts, self.cohort_losses, strict=True):
            for slot, value in zip(cohort.slots, values.tolist(), strict=True):
                losses[slot] = value
        return losses

    def _record(self, members: Sequence[Member]) -> None:
        """Append this generation to the lineage and the fitness curve."""
        finite = [m.fitness[-1] for m in members if math.isfinite(m.fitness[-1])]
        champion = self.champion
        self.curve.append(
            [
                self.generation,
                self.step,
                self.env_steps,
                self.eval_steps,
                max(finite, default=None),
                sum(finite) / len(finite) if finite else None,
                champion.score if champion else None,
            ]
        )
        self.lineage.append(
            {
                "generation": self.generation,
                "step": self.step,
                "members": [stored.describe(m) | {"fitness": stored.describe(m)["fitness"][-1]} for m in members],
                "champion": None if champion is None else {"id": champion.member.id, "score": champion.score},
                "children": [],
            }
        )

    @property
    def members(self) -> list[Member]:
        """The population as it stands."""
        return population.dissolve(self.cohorts)

    # ------------------------------------------------------------------------------------------ state

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the whole run as tensors and JSON data."""
        tensors: dict[str, torch.Tensor] = self._memory()
        meta: dict[str, Any] = {name: getattr(self, name) for name in _COUNTERS}
        groups = {"members": self.members, "last_good": self.last_good}
        if self.champion:
            groups["champion"] = [self.champion.member]
            meta["confirmed"] = {k: getattr(self.champion, k) for k in ("score", "error", "confirmed", "generation")}
        for name, group in groups.items():
            packed, meta[name] = stored.pack(group, name)
            tensors |= packed
        tensors |= {f"pool.{k}": torch.from_numpy(v) for k, v in self.pool.state().items()}
        tensors["episodes"] = torch.from_numpy(self.episodes.copy())
        tensors["losses"] = torch.tensor(self.losses)
        if self.pending is not None:
            tensors["pending"] = torch.from_numpy(self.pending.copy())
        for i, values in enumerate(self.cohort_losses):
            tensors[f"cohort_losses.{i}"] = values.cpu()
        meta |= {"lineage": self.lineage, "curve": self.curve, "births": [m.to_json() for m in self.births]}
        return tensors, meta

    def restore(self, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> int:
        """Take a saved run over.

        Returns:
            Environments that could not be brought back to where they were, because they are not deterministic. They
            begin new episodes, and the run goes on, but not bit for bit.
        """
        for name in _COUNTERS:
            setattr(self, name, meta[name])
        self.lineage, self.curve = list(meta["lineage"]), list(meta["curve"])
        self.births = [Mutation(**m) for m in meta["births"]]
        self.last_good = stored.unpack(tensors, meta["last_good"], "last_good")
        self._form(stored.unpack(tensors, meta["members"], "members"))
        self.cohort_losses = [tensors[f"cohort_losses.{i}"].to(self.problem.device) for i in range(len(self.cohorts))]
        if "champion" in meta:
            self.champion = Champion(stored.unpack(tensors, meta["champion"], "champion")[0], **meta["confirmed"])
        self._remember(tensors)
        self.episodes = tensors["episodes"].numpy().copy()
        self.losses = tensors["losses"].tolist()
        self.pending = tensors["pending"].numpy().copy() if "pending" in tensors else None
        different = self.pool.restore({k: tensors[f"pool.{k}"].numpy() for k in self.pool.state()})
        lost = np.flatnonzero(different)
        if len(lost):
            self._reset_rows(lost)
            self._forget(lost)
        return len(lost)

    def close(self) -> None:
        """Close the environments, let helpers go."""
        self.learners.close()
        self.pool.close()
        self.eval_pool.close()


def _birth(child: Member, mutation: Mutation, parent_slot: int | None) -> dict[str, Any]:
    """Return what the lineage says of a child."""
    described = {k: v for k, v in stored.describe(child).items() if k not in ("fitness", "healthy", "key")}
    return {**described, "parent_slot": parent_slot, "mutation": mutation.to_json()}


def _beginning(members: Sequence[Member], births: Sequence[Mutation]) -> dict[str, Any]:
    """Return the lineage's record of the initial members: generation 0, which nobody evaluated."""
    children = [_birth(member, mutation, None) for member, mutation in zip(members, births, strict=True)]
    return {"generation": 0, "step": 0, "members": [], "champion": None, "children": children}


_COUNTERS = (
    "tick", "generation", "ticks_here", "env_steps", "eval_steps", "broken_rows", "broken_here", "diverged", "next_id",
    "reason",
)  # fmt: skip
