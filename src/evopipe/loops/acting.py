"""Actions of one cohort, by the algorithm's own `act`: while training, and greedily."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from evopipe import rng
from evopipe.algos import Algorithm
from evopipe.core.graphs import Body, Runner, upload
from evopipe.core.population import Cohort, tensors_of
from evopipe.rng import Purpose


def choose(
    algo: Algorithm, cohort: Cohort, obs: np.ndarray, legal: np.ndarray, explore: tuple[float, int] | None
) -> torch.Tensor:
    """Choose the actions of one cohort's members; nothing waits for the device.

    Args:
        algo: the algorithm.
        cohort: the members.
        obs: `[P, E, O]` float32, in the order of the cohort's members.
        legal: `[P, E, A]` bool.
        explore: exploration rate and tick, which with the members' keys fixes the draws; None for greedy actions.

    Returns:
        `[P, E]` int64 on the cohort's device.
    """
    epsilon, tick = explore or (0.0, 0)
    inputs = (torch.from_numpy(obs), torch.from_numpy(legal), torch.tensor(epsilon), torch.tensor([tick]))
    explores = explore is not None
    if cohort.runner.eager:
        return _choose(algo, cohort, explores, *(upload(x, cohort.keys.device) for x in inputs))[0]

    def make(_: Any) -> Body:
        return partial(_choose, algo, replace(cohort, runner=Runner()), explores)

    bound = [cohort.keys, *([cohort.healthy] if explores else []), *tensors_of(cohort.state)]
    return cohort.runner.run(("choose", explores, obs.shape, legal.shape), make, inputs, bound)[0]


def _choose(
    algo: Algorithm,
    cohort: Cohort,
    explore: bool,
    obs: torch.Tensor,
    legal: torch.Tensor,
    epsilon: torch.Tensor,
    tick: torch.Tensor,
) -> tuple[torch.Tensor]:
    """`choose` on the device."""
    members, envs = obs.shape[:2]
    if explore:
        u = rng.uniform(cohort.keys, Purpose.ACT, tick, 2 * envs).view(-1, 2, envs)
        each = torch.where(cohort.healthy, epsilon, 1.0)
    else:
        u = torch.zeros(members, 2, envs, device=obs.device)
        each = torch.zeros(members, device=obs.device)
    return (algo.act(cohort.state, obs, legal, each, u),)
