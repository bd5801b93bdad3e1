"""Environments in C and Gymnasium's, step for step from the same states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.toy_text.frozen_lake import MAPS

from evopipe import rng
from evopipe.envs.compiled import CompiledPool
from evopipe.envs.make import make_env
from evopipe.native.environment import offered
from evopipe.rng import Purpose
from evopipe.schema.env import EnvConfig

CPU, PI, ROWS = torch.device("cpu"), np.pi, 20
STEPS = [pytest.param(1_000, id="1e3"), pytest.param(100_000, marks=pytest.mark.slow, id="1e5")]
# Half the width of the states from which some steps begin: where random actions do not lead.
ANYWHERE = {
    "Acrobot-v1": [PI, PI, 4 * PI, 9 * PI],
    "CartPole-v0": [3.0, 4.0, 0.3, 4.0],
    "CartPole-v1": [3.0, 4.0, 0.3, 4.0],
    "MountainCar-v0": [1.2, 0.07],
    "MountainCarContinuous-v0": [1.2, 0.07],
    "Pendulum-v1": [30.0, 8.0],
}
ICE = {name: [i for i, cell in enumerate("".join(rows)) if cell in "SF"] for name, rows in MAPS.items()}
CELLS = {  # in which an episode may be
    "CliffWalking-v1": [*range(37)],
    "CliffWalkingSlippery-v1": [*range(37)],
    "FrozenLake-v1": ICE["4x4"],
    "FrozenLake8x8-v1": ICE["8x8"],
    "Taxi-v4": [*range(500)],
}
OTHER: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {"sutton_barto_reward": True}),
    ("CliffWalking-v1", {"is_slippery": True}),
    ("FrozenLake-v1", {"is_slippery": False}),
    ("FrozenLake8x8-v1", {"success_rate": 0.7}),
    ("MountainCar-v0", {"goal_velocity": 0.02}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.02}),
    ("Pendulum-v1", {"g": 9.81}),
]
TERMINATES = {*ANYWHERE, *CELLS} - {"Pendulum-v1"}


class Drawn:
    """One number in place of a generator: what the C code draws, Gymnasium's twin draws too."""

    def __init__(self, u: float) -> None:
        self.u = u

    def random(self) -> float:
        return self.u


def of_numbers(pool: CompiledPool, row: int, inner: Any) -> None:
    pool.memory[row].view(torch.float64)[: len(inner.state)] = torch.tensor(np.array(inner.state, np.float64))


def of_cells(pool: CompiledPool, row: int, inner: Any) -> None:
    pool.memory[row].view(torch.int64)[0] = int(inner.s)


def elsewhere(env_id: str, inner: Any, draw: np.random.Generator) -> None:
    """Put Gymnasium's environment into a state drawn from all there are."""
    if env_id in CELLS:
        inner.s = int(draw.choice(CELLS[env_id]))
        return
    wide = np.array(ANYWHERE[env_id])
    state = draw.uniform(-wide, wide)
    if "Continuous" in env_id:
        state = state.astype(np.float32)
    inner.state = tuple(state.tolist()) if env_id.startswith(("MountainCar-", "CartPole")) else state


def compare(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Step both so many times; return how many episodes were terminated.

    Ends are compared exactly: a state would have to lie within the last bits of a float64 from a bound to differ, and
    these steps come to none.
    """
    cfg = EnvConfig.model_validate({"id": env_id, "kwargs": kwargs, "backend": "c"})
    pool, draw = CompiledPool(cfg, ROWS, CPU), np.random.default_rng(5)
    copy: Callable[..., None] = of_cells if env_id in CELLS else of_numbers
    twins, rows, seeds = [make_env(cfg.on_gymnasium) for _ in range(ROWS)], torch.arange(ROWS), torch.arange(ROWS) * 7
    for row, twin in enumerate(twins):
        twin.reset(seed=row)
    pool.reset(rows, seeds)
    ended = 0
    for tick in range(1, steps // ROWS + 1):
        for row, twin in enumerate(twins):
            if draw.random() < 0.1:
                elsewhere(env_id, twin.unwrapped, draw)
            copy(pool, row, twin.unwrapped)
        pool.length[:] = tick - 1
        drawn = rng.uniform(seeds, Purpose.EPISODE, torch.tensor([tick]), 1).flatten().tolist()
        if pool.spaces.continuous:
            actions: np.ndarray = draw.uniform(-1.2, 1.2, (ROWS, pool.spaces.actions)).astype(np.float32)
        else:
            actions = draw.integers(pool.spaces.actions, size=ROWS)
        own, step = pool.actions.own(actions), pool.step(torch.from_numpy(actions))
        for row, twin in enumerate(twins):
            if env_id in CELLS:
                twin.unwrapped.np_random = Drawn(drawn[row])  # type: ignore[assignment]
            obs, reward, terminated, *_ = twin.step(own[row])
            seen = pool.observations.row(obs)
            np.testing.assert_allclose(step.obs[row].numpy(), seen, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(float(step.reward[row]), reward, rtol=1e-6, atol=1e-6)
            assert bool(step.terminated[row]) == terminated, (env_id, tick, row)
            ended += terminated
            if terminated or tick % 50 == 0:
                twin.unwrapped.np_random = np.random.default_rng(tick)
                twin.reset()
    return ended


def test_every_environment_has_a_twin() -> None:
    """MinAtar's games have theirs in a file of their own."""
    assert {name for name in offered() if not name.startswith("MinAtar/")} == {*ANYWHERE, *CELLS}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("env_id", sorted({*ANYWHERE, *CELLS}))
def test_a_step_is_gymnasiums(env_id: str, steps: int) -> None:
    assert (compare(env_id, {}, steps) > 0) == (env_id in TERMINATES)


@pytest.mark.thorough
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("env_id", "kwargs"), OTHER, ids=[f"{name}-{next(iter(given))}" for name, given in OTHER])
def test_so_is_one_with_other_arguments(env_id: str, kwargs: dict[str, Any], steps: int) -> None:
    assert (compare(env_id, kwargs, steps) > 0) == (env_id in TERMINATES)
