"""Actions of one cohort, by the algorithm's own `act`: while training, and greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evopipe.algos import on_policy
from evopipe.core.graphs import Body, Runner, upload
from evopipe.core.population import Cohort, seen_by, tensors_of
from evopipe.loops.problem import Problem
from evopipe.rng import Purpose, Stream
from evopipe.types import Chosen

if TYPE_CHECKING:
    import numpy.typing as npt


def choose(
    problem: Problem, cohort: Cohort, obs: np.ndarray, legal: np.ndarray, explore: tuple[float, int] | None
) -> torch.Tensor:
    """Choose the actions of one cohort's members; nothing waits for the device.

    Args:
        problem: configuration.
        cohort: the members.
        obs: `[P, E, O]` float32, in the order of the cohort's members.
        legal: `[P, E, A]` bool.
        explore: exploration rate and tick, which with the members' keys fixes the draws; None for greedy actions.

    Returns:
        `[P, E]` int64, or `[P, E, A]` float32 where actions are continuous, on the cohort's device.
    """
    epsilon, tick = explore or (0.0, 0)
    inputs = (torch.from_numpy(obs), torch.from_numpy(legal), torch.tensor(epsilon), torch.tensor([tick]))
    explores = explore is not None
    if cohort.runner.eager:
        return _choose(problem, cohort, explores, *(upload(x, cohort.keys.device) for x in inputs))[0]

    def make(_: Any) -> Body:
        return partial(_choose, problem, replace(cohort, runner=Runner()), explores)

    bound = [cohort.keys, *([cohort.healthy] if explores else []), *tensors_of(cohort.state), *seen_by(cohort)]
    return cohort.runner.run(("choose", explores, obs.shape, legal.shape), make, inputs, bound)[0]


def _choose(
    problem: Problem,
    cohort: Cohort,
    explore: bool,
    obs: torch.Tensor,
    legal: torch.Tensor,
    epsilon: torch.Tensor,
    tick: torch.Tensor,
) -> tuple[torch.Tensor]:
    """`choose` on the device."""
    algo, cfg, obs = problem.algo, problem.algo_config, cohort.shown(obs)
    if not explore:
        return (algo.greedy(cfg, cohort.state, obs, legal),)
    each = torch.where(cohort.healthy, epsilon, 1.0)
    return (algo.act(cfg, cohort.state, obs, legal, each, Stream(cohort.keys, Purpose.ACT, tick)),)


def step(
    problem: Problem,
    cohort: Cohort,
    obs: torch.Tensor,
    legal: torch.Tensor,
    begins: torch.Tensor,
    memory: torch.Tensor,
    tick: int | None,
) -> Chosen:
    """Let the members of a cohort that learns on-policy choose; nothing waits for the device.

    Args:
        problem: configuration.
        cohort: the members.
        obs: `[P, E, O]` float32, in the order of the cohort's members, as their networks read them (`cohort.shown`).
        legal: `[P, E, A]` bool.
        begins: `[P, E]` bool, an episode begins: what was remembered is forgotten.
        memory: `[P, E, M]`.
        tick: when; with the members' keys it fixes the draws. None for greedy actions.
    """
    inputs = (obs, legal, begins, memory, torch.tensor([tick or 0]))
    draws = tick is not None
    if cohort.runner.eager:
        return Chosen(*_step(problem, cohort, draws, *(upload(x, cohort.keys.device) for x in inputs)))

    def make(_: Any) -> Body:
        return partial(_step, problem, replace(cohort, runner=Runner()), draws)

    bound = [cohort.keys, *tensors_of(cohort.state)]
    return Chosen(*cohort.runner.run(("step", draws, obs.shape), make, inputs, bound))


def _step(
    problem: Problem,
    cohort: Cohort,
    draws: bool,
    obs: torch.Tensor,
    legal: torch.Tensor,
    begins: torch.Tensor,
    memory: torch.Tensor,
    tick: torch.Tensor,
) -> Chosen:
    """`step` on the device."""
    draw = Stream(cohort.keys, Purpose.ACT, tick) if draws else None
    if memory.shape[-1]:
        memory = memory.masked_fill(begins[..., None], 0.0)
    return problem.algo.step(problem.algo_config, cohort.state, obs, legal, memory, draw)


def see(cohort: Cohort, obs: torch.Tensor) -> None:
    """Let the members of a cohort take note of what they are about to act on, `[P, E, O]` on their device, in place.

    Nothing happens unless observations are normalised. Once a tick, before they act; never where they are evaluated.
    """
    if cohort.normaliser is not None:
        cohort.normaliser.see(obs, cohort.healthy)


class Greedy:
    """Greedy actions of all members, who remember what they saw of their episodes where they can.

    Args:
        problem: configuration.
        cohorts: all members.
        places: where in `[P, W, …]` each cohort's members are.
        width: `W`, environments of each member.
    """

    def __init__(
        self, problem: Problem, cohorts: Sequence[Cohort], places: Sequence[npt.NDArray[np.int64]], width: int
    ) -> None:
        self._problem, self._cohorts, self._places = problem, cohorts, places
        self._memories = [torch.zeros(len(c.members), width, c.memory, device=problem.device) for c in cohorts]

    def __call__(self, obs: np.ndarray, legal: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Return actions `[P, W, …]`; obs is `[P, W, O]`, legal `[P, W, A]`, begins `[P, W]`, all by place."""
        chosen = []
        for i, (cohort, place) in enumerate(zip(self._cohorts, self._places, strict=True)):
            if on_policy(self._problem.algo):
                on_device = (upload(torch.from_numpy(x[place]), self._problem.device) for x in (obs, legal, begins))
                seen, may, fresh = on_device
                took = step(self._problem, cohort, cohort.shown(seen), may, fresh, self._memories[i], None)
                self._memories[i] = took.memory
                chosen.append(took.action)
            else:
                chosen.append(choose(self._problem, cohort, obs[place], legal[place], None))
        return gather(chosen, self._places)


def gather(chosen: Sequence[torch.Tensor], places: Sequence[Any]) -> np.ndarray:
    """Put cohorts' actions `[P, E, …]` in the places of their members, for all members.

    All are under way before the first is waited for.
    """
    first = chosen[0]
    actions = np.empty((sum(len(place) for place in places), *first.shape[1:]), _NUMPY[first.dtype])
    for place, each in zip(places, chosen, strict=True):
        actions[place] = each.cpu().numpy()
    return actions


_NUMPY = {torch.int64: np.int64, torch.float32: np.float32}
