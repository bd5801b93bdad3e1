"""The environments that members act in, on the host or as tensors on a device. Every episode has its own seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evopipe import rng
from evopipe.core.cohort import Cohort
from evopipe.core.graphs import upload
from evopipe.envs import backends
from evopipe.envs.compiled import CompiledPool
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.envs.tensors import TensorStep
from evopipe.errors import EnvironmentFailed
from evopipe.memory.replay import RowLayout
from evopipe.native import build, policy
from evopipe.native.ticks import Chooser
from evopipe.rng import Purpose
from evopipe.run.act import EVERYONE, act, by_row, choose, choosers, gather, places_of, take_note
from evopipe.run.clock import Clock
from evopipe.run.spec import EnvSpec
from evopipe.run.tally import Tally
from evopipe.types import ACTS, CUT, GONE

_BROKEN_SHARE, _BROKEN_TICKS = 0.1, 10  # of a generation's transitions that may be broken, and at least so many ticks'


class Ended:
    """The returns of the training episodes that ended in this generation: sums and counts for `P` members."""

    def __init__(self, members: int, device: torch.device | None = None) -> None:
        self.sums = torch.zeros(members, dtype=torch.float64, device=device)
        self.counts = torch.zeros(members, dtype=torch.float64, device=device)

    def add(self, members: Tensor, returns: Tensor) -> None:
        """Add n episodes: the indices of their members `[n]` int64, and their returns `[n]`."""
        self.sums.index_add_(0, members, returns.double())
        self.counts.index_add_(0, members, torch.ones_like(returns, dtype=torch.float64))

    def forget(self, members: Sequence[int]) -> None:
        """Reset the sums and counts of these members to 0."""
        self.sums[list(members)] = self.counts[list(members)] = 0.0

    def means(self) -> np.ndarray:
        """Return each member's mean return, `[P]`; NaN for a member without an episode."""
        found: np.ndarray = (self.sums / self.counts).cpu().numpy()
        return found

    def state(self) -> dict[str, Tensor]:
        return {"ended.sums": self.sums.to("cpu", copy=True), "ended.counts": self.counts.to("cpu", copy=True)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.sums.copy_(tensors["ended.sums"])
        self.counts.copy_(tensors["ended.counts"])


class World:
    """The environments on the host in which a population trains: a pool of `P · E` rows, E for each of P members.

    Each episode is begun with a seed of its own, drawn from the member's key. For a team of K agents, members see the
    agents as adjacent rows, `[P, E · K]` in place of `[P, E]`.

    The methods step only the environments of living members (those that train now). The environments of all other
    members stay as they are. In the shapes that the methods document, P is the number of living members.

    Args:
        spec: the run's configuration.
        keys: `[P]`, the members' random keys.
        clock: the run's counters.
        pool: the environments, those of one member after another.

    Attributes:
        rows: the indices of living members' rows in the pool; None if all members train.
        begun: `[R]`, the number of episodes that each of the R rows of the pool has begun.
        pending: actions that were chosen and not yet taken; None if there are none.
    """

    def __init__(self, spec: EnvSpec, keys: np.ndarray, clock: Clock, pool: EnvPool) -> None:
        self._spec, self._clock, self.pool = spec, clock, pool
        self._team = spec.spaces.team
        self._idle: np.ndarray | None = None  # who of a team has nothing to learn from the step under way
        self._places: list[Any] = []  # of each cohort's members among those who live
        self._choosers: list[Chooser] | None = None  # of the actions of those who live
        self.rows: np.ndarray | None = None
        self._living = len(keys)
        self.ended = Ended(len(keys)) if spec.search.fitness == "training" else None
        self.tally = Tally(len(keys), 0, torch.device("cpu"), self._team.agents if self._team else ())
        self.begun = np.zeros(pool.rows, np.int64)
        self.pending: np.ndarray | None = None
        pool.upcoming = self._seeds = partial(_seeds, keys, self.begun)
        self._begin(np.arange(pool.rows))
        self.masked = pool.masked  # known after the first reset

    def _begin(self, rows: np.ndarray) -> None:
        seeds = self._seeds(rows, 1)[:, 0]
        self.begun[rows] += 1
        self.pool.reset(rows, seeds)

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        """Use the members of these cohorts (groups computed as one batch) from now on, and begin a generation of these
        members."""
        places: list[Any] = places_of(cohorts)
        self.rows, self._living = rows_of(cohorts, self._clock)
        self._places = EVERYONE if places == [[*range(self._living)]] else places
        slots = [slot for cohort in cohorts for slot in cohort.slots]
        self.tally.adopt(slots)
        envs = self._clock.envs
        first = np.arange(self._living) * envs if self.rows is None else self.rows[::envs]
        self._choosers = choosers(self._spec, cohorts, first, places)
        if self._choosers is not None:
            self._chosen = self.pool.actions.empty(self._living * envs)
            self._looks = self.pool.obs.ctypes.data, self.pool.mask.ctypes.data, self._chosen.ctypes.data
        if self.ended is not None:
            self.ended.forget(slots)

    def renew(self, slots: Sequence[int]) -> np.ndarray:
        """Begin new episodes in all environments of these slots (places in the population); return the indices of these
        environments in the pool."""
        rows = rows_in(slots, self._clock.envs)
        self._begin(rows)
        return rows

    def reopen(self, kwargs: Mapping[str, Any]) -> None:
        """Make all environments anew, and begin an episode in each. A curriculum asks for this.

        `kwargs` are the environments' new keyword arguments, in place of `env.kwargs`.
        """
        self.pool.reopen(kwargs)
        self._begin(np.arange(self.pool.rows))

    def own(self, x: np.ndarray) -> np.ndarray:
        """Return the rows of an array that belong to living members (those that train now).

        The array `x` has a row for each environment of all members, living or not. The result is `[P · E, …]`, where P
        counts only the living members.
        """
        return x if self.rows is None else x[self.rows]

    def observed(self) -> list[Tensor]:
        """Return what P members need to act in E environments each: observations of O numbers, `[P, E, O]`; whether
        each of A actions is legal, `[P, E, A]`; and whether an episode begins, `[P, E]`.

        For a team a fourth tensor `[P, E]` bool says which agents are present.
        """
        there = [] if self._team is None else [self.pool.alive]
        return [self._by_member(self.own(x)) for x in (self.pool.obs, self.pool.mask, self.pool.begins, *there)]

    def actions(self, chosen: Sequence[Tensor]) -> np.ndarray:
        """Return the actions of all P members in E environments each, as one array `[P · E, …]` for the pool.

        `chosen` has the actions of each cohort (group of members computed as one batch), `[p, E, …]` for the p members
        of that cohort.
        """
        actions = by_row(self._spec, gather(chosen, self._places))
        return actions if self._team is None else self.pool.taken(actions, self.rows)

    def decide(self, cohorts: Sequence[Cohort], epsilon: float) -> None:
        """Choose the actions of off-policy members with exploration rate `epsilon`, and store them in `self.pending`.

        The running statistics that normalise observations are updated with the observations.
        """
        if self._choosers is not None and build.chosen() is not None:
            for choose in self._choosers:
                choose(*self._looks, self._clock.tick, epsilon)
            self.pending = self._chosen
            return
        obs, legal, places = self.own(self.pool.obs), self.own(self.pool.mask), self._places
        take_note(cohorts, obs, self.own(self.pool.alive), places)
        chosen = act(self._spec, cohorts, obs, legal, epsilon, self._clock.tick, places)
        self.pending = self.pool.taken(chosen, self.rows) if self._team is not None else chosen

    def send(self) -> None:
        """Start a step with the pending actions in all environments; `pool.receive` waits for its end."""
        assert self.pending is not None
        self.pool.send(self.pending, self.rows)

    def take(self, actions: np.ndarray) -> RowStep:
        self._idle = None if self._team is None else self.own(self.pool.idle).copy()
        return self.pool.step(actions, self.rows)

    def gave(self, step: RowStep) -> list[Tensor]:
        """Return the results of the step `step` as tensors: next observation, reward, terminated, truncated and broken,
        `[P, E, …]` each.

        For a team `next_alive` follows, which says whether each agent acts next: ACTS, CUT or GONE, constants of
        `evopipe.types`. `broken` is True where nothing can be learned from the step. The reason may be a number that is
        not finite, or that no action is legal. In a team, the agent may also have left before the step, or the
        environment may have set the agent's action.
        """
        gave = [step.obs, step.reward, step.terminated, step.truncated]
        if self._idle is None:
            return [self._by_member(x) for x in (*gave, step.broken)]
        broken = step.broken[:, None]
        next_alive = np.where(broken, np.float32(GONE), step.next_alive)
        return [self._by_member(x) for x in (*gave, broken | self._idle, next_alive)]

    def end(self, step: RowStep) -> None:
        """Count the finished step `step`, add the episodes that ended to the statistics, and begin new episodes."""
        self.pending = None
        over = np.flatnonzero(step.over)
        if len(over):
            rows = over if self.rows is None else self.rows[over]
            good = rows[~step.broken[over]]
            slots, returns = good // self._clock.envs, self.pool.episode_return[good]
            own = () if self._team is None else returns.T  # each agent's
            returns = returns if self._team is None else self._spec.score(returns)
            self.tally.ended(slots, returns, self.pool.episode_length[good], *own)
            if self.ended is not None:
                self.ended.add(torch.from_numpy(slots), torch.from_numpy(returns))
            self._begin(rows)
        self._clock.count(
            int(np.count_nonzero(step.broken)), self._clock.rewarded or bool(step.reward[~step.broken].any())
        )

    def refuse_broken(self) -> None:
        """Raise EnvironmentFailed if too many of this generation's transitions were broken, for example not finite."""
        _refuse_broken(self._spec, self._clock)

    def _by_member(self, x: np.ndarray) -> Tensor:
        shape = x.shape[1:] if self._team is None else x.shape[2:]
        return torch.from_numpy(x.reshape(self._living, -1, *shape))

    def state(self) -> dict[str, Tensor]:
        kept = {f"pool.{name}": torch.from_numpy(value) for name, value in self.pool.state().items()}
        chosen = {} if self.pending is None else {"pending": torch.from_numpy(self.pending.copy())}
        means = {} if self.ended is None else self.ended.state()
        return {**kept, **chosen, **means, **self.tally.state(), "episodes": torch.from_numpy(self.begun.copy())}

    def restore(self, tensors: Mapping[str, Tensor]) -> np.ndarray:
        """Restore the state from the tensors that `state` returned.

        The result has the indices of environments whose episodes could not be restored; new episodes were begun in
        these environments.
        """
        self.begun[:] = tensors["episodes"].numpy()
        self.tally.restore(tensors)
        if self.ended is not None:
            self.ended.restore(tensors)
        self.pending = tensors["pending"].numpy().copy() if "pending" in tensors else None
        lost = np.flatnonzero(self.pool.restore({name: tensors[f"pool.{name}"].numpy() for name in self.pool.state()}))
        if len(lost):
            self._begin(lost)
        return lost


def rows_in(slots: Sequence[int], envs: int) -> np.ndarray:
    """Return the indices of all environments of these slots (places in the population) in a pool where each slot has
    `envs` adjacent environments."""
    rows: np.ndarray = (np.asarray(slots, np.int64)[:, None] * envs + np.arange(envs)).reshape(-1)
    return rows


def rows_of(cohorts: Sequence[Cohort], clock: Clock) -> tuple[np.ndarray | None, int]:
    """Return the environments of the members of some cohorts, as indices in the pool, and the number of these members.

    A cohort is a group of members computed as one batch. `clock` has the run's counters. The indices are None if the
    cohorts contain the whole population.
    """
    slots = sorted(slot for cohort in cohorts for slot in cohort.slots)
    return (None if len(slots) == clock.members else rows_in(slots, clock.envs)), len(slots)


def _refuse_broken(spec: EnvSpec, clock: Clock) -> None:
    if not clock.broken_here:
        return
    rows = clock.living * clock.envs
    steps, broken = clock.here * rows, clock.broken_here
    if broken > max(_BROKEN_SHARE * steps, _BROKEN_TICKS * rows):
        raise EnvironmentFailed(
            f"environment {spec.env.id!r} returned non-finite observations or rewards (or no legal action) in {broken} "
            f"of its last {steps} steps: mend it; `evopipe env check {spec.env.id}` may show where"
        )


def _seeds(keys: np.ndarray, begun: np.ndarray, rows: np.ndarray, ahead: int) -> np.ndarray:
    """The seeds of the next episodes of some rows `[n, ahead]`: by the member's key, environment and number."""
    envs = len(begun) // len(keys)
    number = begun[rows][:, None] + np.arange(ahead)
    seeds: np.ndarray = rng.seeds(keys[rows // envs][:, None], Purpose.EPISODE, (rows % envs)[:, None], number)
    return seeds


def legal_actions(spec: EnvSpec, pool: Any, members: int, envs: int) -> Tensor:
    """Return whether each of A actions is legal in environments that are tensors, `[P, E · K, A]` bool. The legal
    actions of such environments never change.

    Args:
        spec: the run's configuration.
        pool: the environments, a `TensorPool`.
        members: `P`, the number of members.
        envs: `E`, the number of environments of each member; K is the number of agents in each.
    """
    legal = torch.ones(members, envs * spec.spaces.agents, spec.actions, dtype=torch.bool, device=pool.device)
    if spec.spaces.team is not None:
        legal &= torch.from_numpy(pool.team.free).to(pool.device).repeat(envs, 1)
    return legal


def in_slots(spec: EnvSpec, chosen: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
    """Return the actions of all P members in E environments each, as one tensor `[P · E, …]` in the order of slots
    (places in the population).

    `chosen` has the actions of each cohort (group of members computed as one batch), `[p, E, …]` for the p members of
    that cohort. `places` has, for each cohort, the indices of its members among all members.
    """
    actions = chosen[0] if len(chosen) == 1 else torch.cat(list(chosen))
    order = torch.cat(list(places)).argsort()
    actions = actions[order].flatten(0, 1)
    return actions if spec.spaces.team is None else actions.unflatten(0, (-1, spec.spaces.agents))


class TensorWorld:
    """The counterpart of `World` for environments that are tensors (`env.backend: torch`), whose data never leave the
    device.

    Args:
        spec: the run's configuration.
        keys: `[P]`, the random keys of the P members.
        clock: the run's counters.

    evopipe's own tensor environments never return numbers that are not finite. Users' environments are checked for such
    numbers, and the check makes the host wait for the device.
    """

    def __init__(self, spec: EnvSpec, keys: np.ndarray, clock: Clock) -> None:
        envs, device = spec.env.num_envs, spec.device
        self._spec, self._clock, self._team, agents = spec, clock, spec.spaces.team, spec.spaces.agents
        self.pending: Tensor | None = None
        make = backends.as_tensors(spec.env)
        assert make is not None
        self.pool = make(spec.env, len(keys) * envs, device)
        self._keys = torch.from_numpy(np.repeat(keys, envs)).to(device)
        self._envs = torch.arange(self.pool.rows, device=device) % envs
        self._begun = torch.zeros(self.pool.rows, dtype=torch.int64, device=device)
        self._every_legal, self.masked = legal_actions(spec, self.pool, len(keys), envs), self.pool.masked
        self._legal, self._living = self._every_legal, len(keys)  # of those who live
        self.rows: np.ndarray | None = None  # of those who live, None if all do
        self._at: Tensor | None = None  # the same on the device
        self.tally = Tally(len(keys), self.pool.rows, device, self._team.agents if self._team else ())
        if self._team is not None:
            self.tally.score = spec.algo_config.score
        self.ended: Ended | None = None
        if spec.search.fitness == "training":
            self.ended = Ended(len(keys), device)
            self._running = torch.zeros(self.pool.rows, dtype=torch.float64, device=device)  # returns of episodes
            self._whose = torch.arange(self.pool.rows, device=device) // envs
        if self._team is not None:
            self._first_legal = torch.from_numpy(self.pool.team.first).to(device)
        self._broken = torch.zeros(len(keys), envs * agents, dtype=torch.bool, device=device)
        self._order: Tensor | None = None  # of the slots among all cohorts' rows; None: as they are
        self._seen: Tensor | None = None  # what the last step showed; None where the pool is to be asked
        self._begin(torch.ones(self.pool.rows, dtype=torch.bool, device=device))

    def _begin(self, over: Tensor) -> None:
        """Begin new episodes in the rows `over` `[R]`: on a device in all at once, which waits for nothing; on the CPU
        in those few alone, which costs less. Without `rows` of their own who live are all."""
        if self._at is not None:
            every = torch.zeros(self.pool.rows, dtype=torch.bool, device=over.device)
            every[self._at] = over
            over = every
        if over.device.type != "cpu":
            self.pool.reset_where(over, rng.seeds(self._keys, Purpose.EPISODE, self._envs, self._begun))
        elif (found := policy.next_episodes(over, self._keys, self._envs, self._begun)) is not None:
            if len(found[0]):
                self.pool.reset(*found)
                self._seen = None
            return
        elif len(rows := over.nonzero()[:, 0]):
            seeds = rng.seeds(self._keys[rows], Purpose.EPISODE, self._envs[rows], self._begun[rows])
            self.pool.reset(rows, seeds)
            self._seen = None
        self._begun = self._begun + over

    def adopt(self, cohorts: Sequence[Cohort]) -> None:
        slots = [slot for cohort in cohorts for slot in cohort.slots]
        self._order = None if slots == sorted(slots) else upload(torch.tensor(slots).argsort(), self.pool.device)
        before, (self.rows, self._living) = self.rows, rows_of(cohorts, self._clock)
        if before is not None or self.rows is not None:
            self._seen = None
        self._at = None if self.rows is None else upload(torch.from_numpy(self.rows), self.pool.device)
        self._legal = self._every_legal if self.rows is None else self._every_legal[sorted(slots)]
        self._places = [upload(torch.tensor(own), self.pool.device) for own in places_of(cohorts)]
        self.tally.adopt(slots, self._at)
        if self.ended is not None:
            self.ended.forget(slots)

    def renew(self, slots: Sequence[int]) -> np.ndarray:
        """Begin new episodes in all environments of these slots (places in the population); return the indices of these
        environments in the pool."""
        rows, at, self._at = rows_in(slots, self._clock.envs), self._at, None
        over = torch.zeros(self.pool.rows, dtype=torch.bool)
        over[rows] = True
        self._begin(upload(over, self.pool.device))
        self.tally.renew(rows)
        if self.ended is not None:
            self._running[upload(over, self.pool.device)] = 0.0
        self._at, self._seen = at, None
        return rows

    def observed(self) -> list[Tensor]:
        begins = self.pool.begins if self._at is None else self.pool.begins[self._at]
        if self._team is not None:
            begins = begins[:, None].expand(-1, len(self._team.agents)).contiguous()
        obs = self._seen
        if obs is None:
            obs = self.pool.obs if self._at is None else self.pool.obs[self._at]
        return [self._by_member(obs), self._legal, self._by_member(begins)]

    def actions(self, chosen: Sequence[Tensor]) -> Tensor:
        actions = chosen[0] if len(chosen) == 1 else torch.cat(list(chosen))
        actions = actions if self._order is None else actions[self._order]
        actions = actions.flatten(0, 1)
        return actions if self._team is None else actions.unflatten(0, (-1, len(self._team.agents)))

    def decide(self, cohorts: Sequence[Cohort], epsilon: float) -> None:
        """Choose the actions of off-policy members with exploration rate `epsilon`, and store them in `self.pending`.

        The running statistics that normalise observations are updated with the observations.
        """
        obs, legal, _ = self.observed()
        here, chosen = torch.ones(obs.shape[:-1], dtype=torch.bool, device=obs.device), []
        for cohort, place in zip(cohorts, self._places, strict=True):
            own = slice(None) if len(cohorts) == 1 and self._order is None else place
            if cohort.normaliser is not None:
                cohort.normaliser.update(obs[own], cohort.healthy, here[own])
            chosen.append(choose(self._spec, cohort, obs[own], legal[own], (epsilon, self._clock.tick)))
        self.pending = self.actions(chosen)

    def send(self) -> None:
        """Do nothing, because `take` computes the whole step."""

    def packed(self, layout: RowLayout, obs: Tensor, actions: Tensor, step: TensorStep) -> Tensor:
        """Return the transitions of a step as packed rows `[R, size]` for a replay buffer.

        There are R = P · E environments: E for each of P members. For a team, K agents act in each environment; else K
        is 1.

        Args:
            layout: the layout of a row.
            obs: `[P, E · K, O]`, the observations before the step, of O numbers each.
            actions: `[R, …]`, the actions.
            step: the results of the step.
        """
        rows = len(actions)
        legal = self._legal.view(rows, -1, self._legal.shape[-1])
        next_legal = None
        if layout.masked:  # an agent that is gone has its first action alone
            next_legal = torch.where(step.terminated.view(rows, -1, 1), self._first_legal, legal)
        next_alive = None
        if self._team is not None:
            next_alive = torch.where(step.terminated, GONE, torch.where(step.truncated, CUT, ACTS)).float()
        found: Tensor = layout.pack(
            obs.reshape(rows, -1), actions, step.reward, step.terminated, step.obs, next_legal,
            legal=legal if layout.legal else None, next_alive=next_alive,
        )  # fmt: skip
        return found

    def in_c(self, cohort: Cohort) -> dict[str, Any] | None:
        """Return arguments of `native.rollouts.Ticks` by name, which describe the environments of a cohort's members.

        A cohort is a group of members computed as one batch. `Ticks` steps environments in C; the result is None if the
        environments are not written in C.
        """
        if not isinstance(self.pool, CompiledPool):
            return None
        ended, members = self.ended, len(cohort.members)
        self.tally.settle()
        own = self.tally.in_c()
        return {
            "pool": self.pool.in_c,
            "slots": torch.tensor(cohort.slots),
            "episodes": (self._keys, self._envs, self._begun),
            "returns": own if ended is None else (self._running, ended.sums, ended.counts, own[3]),
            "broken": None if self.pool.sound else torch.zeros(members, dtype=torch.int64),
        }

    @property
    def bearable(self) -> int:
        """The number of ticks (steps of all environments) for which `refuse_broken` may be put off, at least 1.

        `refuse_broken` raises an error if too many transitions are broken: they hold numbers that are not finite.
        Within this many ticks the limit cannot be passed, even if all transitions are broken. A number of 1 means that
        every tick is checked.
        """
        if self.pool.sound:
            return self._clock.generation_ticks
        return max(1, _BROKEN_TICKS - -(-self._clock.broken_here // (self._living * self._clock.envs)))

    def took(self, ticks: int, broken: int) -> None:
        """Count ticks (steps of all environments) that the C kernels took, and the broken transitions in them, such as
        those with a number that is not finite (see `Clock`)."""
        self._seen = None
        self._clock.count(broken, ticks=ticks)
        slots = range(self._clock.members) if self.rows is None else self.rows[:: self._clock.envs] // self._clock.envs
        self.tally.took(ticks * self._clock.envs, [int(slot) for slot in slots], self.pool.length)
        if self.ended is not None:  # which the kernels have added to
            self.tally.sums[0], self.tally.sums[2] = self.ended.sums, self.ended.counts
            self.tally.running[0] = self._running

    def take(self, actions: Tensor) -> TensorStep:
        found: TensorStep = self.pool.step(actions) if self._at is None else self.pool.step(actions, self._at)
        return found

    def broken(self, step: TensorStep) -> Tensor | None:
        """Return a mask `[R]` of the R environments whose observation or reward in `step` is not finite; None if that
        cannot happen."""
        if self.pool.sound:
            return None
        parts = (x.reshape(len(step.obs), -1).isfinite().all(dim=1) for x in (step.obs, step.reward))
        finite = torch.stack(list(parts)).all(dim=0)
        return ~finite

    def gave(self, step: TensorStep) -> list[Tensor]:
        bad = self.broken(step)
        none = self._broken[: self._living]
        gave = [*(self._by_member(x) for x in step), none if bad is None else bad.view_as(none)]
        if self._team is not None:
            gave.append(torch.where(gave[2], GONE, torch.where(gave[3], CUT, ACTS)).float())
        return gave

    def end(self, step: TensorStep) -> None:
        self.pending = None
        if step.obs.device.type == "cpu":  # a recorded graph reads what lies in one place
            self._seen = step.obs
        over, bad = step.terminated | step.truncated, self.broken(step)
        over = over if self._team is None else over.all(dim=1)  # their agents end together
        self.tally.add(step.reward, over, bad)
        if self.ended is not None:
            self._sum_up(step.reward, over, bad)
        self._begin(over if bad is None else over | bad)
        self._clock.count(0 if bad is None else int(bad.sum()))

    def _sum_up(self, reward: Tensor, over: Tensor, bad: Tensor | None) -> None:
        """Add a step's rewards `[R]` to the running episodes, and count those that are over, but no broken ones."""
        rows = slice(None) if self._at is None else self._at
        each = reward.double()
        if self._team is not None:
            each = each.sum(dim=1) if self._spec.algo_config.score == "sum" else each.mean(dim=1)
        total = self._running[rows] + each
        good = over if bad is None else over & ~bad
        assert self.ended is not None
        whose = self._whose[rows]
        self.ended.sums.index_add_(0, whose, torch.where(good, total, 0.0))
        self.ended.counts.index_add_(0, whose, good.double())
        ends = over if bad is None else over | bad
        self._running[rows] = total.masked_fill(ends, 0.0)

    def refuse_broken(self) -> None:
        if not self.pool.sound:
            _refuse_broken(self._spec, self._clock)

    def _by_member(self, x: Tensor) -> Tensor:
        return x.reshape(self._living, -1, *(x.shape[1:] if self._team is None else x.shape[2:]))

    def state(self) -> dict[str, Tensor]:
        kept = {f"pool.{name}": torch.from_numpy(value) for name, value in self.pool.state().items()}
        chosen = {} if self.pending is None else {"pending": self.pending.to("cpu", copy=True)}
        means = {} if self.ended is None else {**self.ended.state(), "running": self._running.to("cpu", copy=True)}
        return {**kept, **chosen, **means, **self.tally.state(), "episodes": self._begun.to("cpu", copy=True)}

    def restore(self, tensors: Mapping[str, Tensor]) -> np.ndarray:
        self._begun = tensors["episodes"].to(self.pool.device, copy=True)
        self.tally.restore(tensors)
        self.pending = tensors["pending"].to(self.pool.device) if "pending" in tensors else None
        if self.ended is not None:
            self.ended.restore(tensors)
            self._running.copy_(tensors["running"])
        self.pool.restore({name: tensors[f"pool.{name}"].numpy() for name in self.pool.state()})
        self._seen = None
        return np.empty(0, np.int64)
