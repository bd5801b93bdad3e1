"""Choosing the actions of members by their algorithm's own `act`, `step` or `greedy`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evopipe.algos import by_kernels
from evopipe.core.cohort import Cohort
from evopipe.core.graphs import upload
from evopipe.native import build
from evopipe.native.ticks import Chooser
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import EnvSpec
from evopipe.types import Chosen


def act(
    spec: EnvSpec, cohorts: Sequence[Cohort], obs: np.ndarray, legal: np.ndarray, epsilon: float, tick: int,
    places: Sequence[Any] | None = None,
) -> np.ndarray:  # fmt: skip
    """Choose every member's actions with exploration. The result is `[P · E]` int64, or `[P · E, A]` float32 if actions
    are continuous.

    There are P members with E environments each. An observation has O numbers. A is the number of discrete actions, or
    of the numbers in a continuous one. For a team, every array has an axis `K` (agents) after the first. A diverged
    member's environments continue with random legal actions, because its network's outputs mean nothing.

    Args:
        spec: the run's configuration.
        cohorts: the members, in groups whose networks are computed as one batch.
        obs: `[P · E, O]` float32, the observations, sorted by the members' slots (places in the population).
        legal: `[P · E, A]` bool, whether each action is legal.
        epsilon: the exploration rate.
        tick: the number of this step; together with the members' keys it fixes the random draws.
        places: for each cohort the indices of its members in the list of all P members, which is ordered by slot.
            `EVERYONE` if there is one cohort with all members in this order. None if each member's index is equal to
            its slot (place in the population).
    """
    obs, legal = _by_member(cohorts, obs), _by_member(cohorts, legal)
    places = [cohort.slots for cohort in cohorts] if places is None else places
    given = zip(cohorts, places, strict=True)
    chosen = [choose(spec, cohort, obs[own], legal[own], (epsilon, tick)) for cohort, own in given]
    return by_row(spec, gather(chosen, places))


EVERYONE = [slice(None)]
"""The places of a cohort of all living members, ordered by slot (place in the population). Nothing is copied to find
them."""


def places_of(cohorts: Sequence[Cohort]) -> list[list[int]]:
    """Return, for each cohort, the index of each of its members among the members of all cohorts.

    For this index, the members of all cohorts are sorted by slot, the number of a member in the population. A cohort is
    a group of members whose networks are computed as one batch.
    """
    at = {slot: place for place, slot in enumerate(sorted(slot for cohort in cohorts for slot in cohort.slots))}
    return [[at[slot] for slot in cohort.slots] for cohort in cohorts]


def choosers(
    spec: EnvSpec, cohorts: Sequence[Cohort], rows: np.ndarray, places: Sequence[Sequence[int]]
) -> list[Chooser] | None:
    """Return the objects by which the C kernels choose members' actions, with exploration: one for each cohort.

    The result is None if the kernels cannot choose them. Torch then does.

    Args:
        spec: the run's configuration.
        cohorts: the members, P in all, in groups whose networks are computed as one batch.
        rows: `[P]`, the index of each member's first row of observations. Members are ordered by slot (place in the
            population).
        places: for each cohort the indices of its members in the list of all P members, ordered by slot.
    """
    choice, found = by_kernels(spec.algo, "choice"), []
    if choice is None or spec.paths.capture != "none" or build.chosen() is None:
        return None
    for cohort, own in zip(cohorts, places, strict=True):
        how = choice(spec.algo_config, cohort.state) if build.serve(cohort.keys) else None
        if how is None or cohort.normaliser is not None or not Chooser.serves(how, spec.observations, cohort.keys):
            return None
        at = torch.from_numpy(rows[list(own)]), torch.tensor(own) * spec.env.num_envs
        sizes = spec.actions, spec.observations, spec.env.num_envs
        found.append(Chooser(how, *sizes, cohort.keys, cohort.healthy, *at))
    return found


def by_row(spec: EnvSpec, actions: np.ndarray) -> np.ndarray:
    """Reshape members' actions `[P, E, …]` (P members, E environments each) to the rows of a pool, `[P · E, …]`.

    For a team of K agents, actions `[P, E · K, …]` become `[P · E, K, …]`.
    """
    return actions.reshape(-1, *spec.spaces.by_agent, *actions.shape[2:])


def take_note(
    cohorts: Sequence[Cohort], obs: np.ndarray, alive: np.ndarray | None = None,
    places: Sequence[Any] | None = None,
) -> None:  # fmt: skip
    """Update every member's observation normaliser with the observations that the member is about to act on.

    Call this once before each step of the members, and never in an evaluation.

    Args:
        cohorts: the P members, in groups whose networks are computed as one batch.
        obs: the observations in the order of slots, of O numbers for each of a member's E environments: `[P · E, O]`,
            or `[P · E, K, O]` for a team of K agents.
        alive: for a team, `[P · E, K]`, which agents are present; None if all are.
        places: for each cohort the indices of its members in the list of all P members, which is ordered by slot. None
            if each member's index is equal to its slot (place in the population).
    """
    for i, cohort in enumerate(cohorts):
        if cohort.normaliser is not None:
            mine = cohort.slots if places is None else places[i]
            parts = (obs, np.ones(obs.shape[:-1], np.bool_) if alive is None else alive)
            own = [torch.from_numpy(_by_member(cohorts, x)[mine]) for x in (parts[0], parts[1][..., None])]
            seen, there = (upload(x, cohort.keys.device) for x in own)
            cohort.normaliser.update(seen, cohort.healthy, there[..., 0])


def _by_member(cohorts: Sequence[Cohort], x: np.ndarray) -> np.ndarray:
    return x.reshape(sum(len(cohort.members) for cohort in cohorts), -1, x.shape[-1])


def choose(
    spec: EnvSpec, cohort: Cohort, obs: np.ndarray | Tensor, legal: np.ndarray | Tensor,
    explore: tuple[float, int] | None,
) -> Tensor:  # fmt: skip
    """Choose the actions of one cohort, a group of P members whose networks are computed as one batch.

    The result, for E environments of each member, is `[P, E]` int64, or `[P, E, A]` float32 for continuous actions of A
    numbers. It is on the cohort's device, which may still be computing when this function returns.

    Args:
        spec: configuration.
        cohort: the members.
        obs: `[P, E, O]` float32, observations of O numbers, in the order of the cohort's members.
        legal: `[P, E, A]` bool, whether each of the A actions is legal.
        explore: the exploration rate and the number of the step; None for greedy actions.
    """
    algo, cfg, own, explores = spec.algo, spec.algo_config, cohort.without_runner, explore is not None
    epsilon, tick = explore or (0.0, 0)

    def work(obs: Tensor, legal: Tensor, epsilon: Tensor, tick: Tensor) -> tuple[Tensor]:
        obs = own.normalised(obs)
        if not explores:
            return (algo.greedy(cfg, own.state, obs, legal),)
        each = torch.where(own.healthy, epsilon, 1.0)
        return (algo.act(cfg, own.state, obs, legal, each, Stream(own.keys, Purpose.ACT, tick)),)

    def bound() -> list[Tensor]:
        return [own.keys, *([own.healthy] if explores else []), *own.tensors(), *own.normaliser_tensors()]

    name = ("choose", explores, obs.shape, legal.shape)
    inputs = (torch.as_tensor(obs), torch.as_tensor(legal), torch.tensor(epsilon), torch.tensor([tick]))
    return cohort.runner.ready(name, lambda _: work, inputs, cohort.keys.device, bound)()[0]


def step(
    spec: EnvSpec, cohort: Cohort, obs: Tensor, legal: Tensor, begins: Tensor, memory: Tensor, tick: int | None
) -> Chosen:
    """Choose actions for one step of an on-policy algorithm; return the actions with log-probabilities, values and
    recurrent memory.

    The host does not wait for the device.

    Args:
        spec: configuration.
        cohort: P members whose networks are computed as one batch; each acts in E environments.
        obs: `[P, E, O]` float32, observations of O numbers, normalised (`cohort.normalised`).
        legal: `[P, E, A]` bool, whether each of the A actions is legal.
        begins: `[P, E]` bool, true where an episode begins; the recurrent memory is cleared there.
        memory: `[P, E, M]`, the recurrent memory of M numbers.
        tick: the number of the step, which together with the members' keys fixes the random draws; None for greedy
            actions.
    """
    algo, cfg, own, draws = spec.algo, spec.algo_config, cohort.without_runner, tick is not None

    def work(obs: Tensor, legal: Tensor, begins: Tensor, memory: Tensor, tick: Tensor) -> Chosen:
        draw = Stream(own.keys, Purpose.ACT, tick) if draws else None
        if memory.shape[-1]:
            memory = memory.masked_fill(begins[..., None], 0.0)
        return algo.step(cfg, own.state, obs, legal, memory, draw)

    def bound() -> list[Tensor]:
        return [own.keys, *own.tensors()]

    name, inputs = ("step", draws, obs.shape), (obs, legal, begins, memory, torch.tensor([tick or 0]))
    return Chosen(*cohort.runner.ready(name, lambda _: work, inputs, cohort.keys.device, bound)())


def gather(chosen: Sequence[Tensor], places: Sequence[Any]) -> np.ndarray:
    """Return the actions of all P members in E environments each, `[P, E, …]`, as one NumPy array, sorted by the
    members' slots (places in the population).

    `chosen` has the actions of each cohort (group of members computed as one batch). `places` has, for each cohort, the
    indices of its members among all P members. If one cohort has all members in order, `places` is `EVERYONE`. All
    copies from the device to the host start before the function waits for the first.
    """
    if places is EVERYONE:
        return np.asarray(chosen[0].cpu())
    order, found = [*chain(*places)], np.asarray(torch.cat([each.cpu() for each in chosen]))
    if order == [*range(len(order))]:
        return found
    actions = np.empty_like(found)
    actions[order] = found
    return actions
