"""Actions of one cohort, by the algorithm's own `act`: while training, and greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from evopipe.core.graphs import Body, Runner, upload
from evopipe.core.population import Cohort, tensors_of
from evopipe.loops.problem import Problem
from evopipe.rng import Purpose, Stream


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

    bound = [cohort.keys, *([cohort.healthy] if explores else []), *tensors_of(cohort.state)]
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
    algo, cfg = problem.algo, problem.algo_config
    if not explore:
        return (algo.greedy(cfg, cohort.state, obs, legal),)
    each = torch.where(cohort.healthy, epsilon, 1.0)
    return (algo.act(cfg, cohort.state, obs, legal, each, Stream(cohort.keys, Purpose.ACT, tick)),)


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
