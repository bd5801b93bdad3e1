"""Teams as tensors: mpe2's environments step for step, rows that do not know each other, a pool's contract."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from device import DEVICE, Device
from evopipe.envs.mpe import OFFERED
from evopipe.envs.tensors import TensorPool, TensorRows, TensorStep
from evopipe.errors import ParamsError
from evopipe.schema.blocks import EnvConfig

CPU = torch.device("cpu")
SPREAD, TALK, TAG, ADVERSARY = (
    "simple_spread_v3",
    "simple_speaker_listener_v4",
    "simple_tag_v3",
    "simple_adversary_v3",
)
# Every argument that changes what happens, and more neighbours than there are.
GAMES: list[tuple[str, dict[str, Any]]] = [
    (SPREAD, {}),
    (SPREAD, {"N": 1, "local_ratio": 1}),
    (SPREAD, {"N": 5, "local_ratio": 0.3, "max_cycles": 9, "num_agent_neighbors": 2, "num_landmark_neighbors": 7}),
    (SPREAD, {"curriculum": True, "dynamic_rescaling": False, "benchmark_data": True}),
    (SPREAD, {"N": 2, "terminate_on_success": True, "num_agent_neighbors": 1}),
    (TALK, {}),
    (TAG, {}),
    (TAG, {"num_good": 3, "num_adversaries": 2, "num_obstacles": 0, "max_cycles": 40, "curriculum": True}),
    (TAG, {"num_good": 2, "num_agent_neighbors": 3, "num_landmark_neighbors": 1, "terminate_on_success": True}),
    (TAG, {"num_good": 2, "num_adversaries": 1, "num_agent_neighbors": 6, "num_landmark_neighbors": 3}),
    (ADVERSARY, {}),
    (ADVERSARY, {"N": 4, "num_agent_neighbors": 2, "num_landmark_neighbors": 5}),
    (ADVERSARY, {"N": 1}),
]
BOTH = [(name, {**kwargs, "continuous_actions": continuous}) for name, kwargs in GAMES for continuous in (False, True)]
FOUR = [(name, {"continuous_actions": continuous}) for name in (SPREAD, TALK, TAG, ADVERSARY) for continuous in (0, 1)]
FOUR = [(name, {"continuous_actions": bool(kwargs["continuous_actions"])}) for name, kwargs in FOUR]


def config(name: str, **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": name, "kwargs": kwargs, "backend": "torch"})


def begun(cfg: EnvConfig, rows: int, device: torch.device = CPU) -> TensorPool:
    batched = TensorPool(cfg, rows, device)
    batched.reset(torch.arange(rows), torch.arange(rows))
    return batched


def theirs(name: str, **kwargs: Any) -> Any:
    return importlib.import_module(f"mpe2.{name}").parallel_env(**kwargs)


def random_actions(batched: TensorPool, rows: int, rng: np.random.Generator) -> np.ndarray:
    """In an algorithm's terms, some of them beyond the bounds."""
    team = batched.spaces.team
    if batched.spaces.continuous:
        return rng.uniform(-1.2, 1.2, (rows, len(team.agents), batched.spaces.actions)).astype(np.float32)
    return np.stack([rng.integers(n, size=rows) for n in team.actions], axis=1)


def physics(env: Any) -> np.ndarray:
    """mpe2's state as the columns of `mpe`: positions, velocities, landmarks, what was said, the goal."""
    world = env.unwrapped.world
    movers = [agent for agent in world.agents if agent.movable]
    planes = [np.array([body.state.p_pos for body in movers]), np.array([body.state.p_vel for body in movers])]
    planes.append(np.array([body.state.p_pos for body in world.landmarks]).reshape(-1, 2))
    state = [plane.T.ravel() for plane in planes]
    if hasattr(world.agents[0], "goal_b"):
        state += [world.agents[0].state.c, [world.landmarks.index(world.agents[0].goal_b)]]
    elif hasattr(world.agents[0], "goal_a"):
        state += [[world.landmarks.index(world.agents[0].goal_a)]]
    return np.concatenate(state, dtype=np.float64)


class Twins:
    """mpe2's environments, and the same as tensors, begun in the states that mpe2 drew.

    The physics are float64 on both sides and taken in the same order. What is left to differ are `exp` and `log1p` of
    two libraries, by units in the last place (1e-16), which contacts as stiff as these amplify some thousand times in
    a long touch: 1e-9 is far above that and far below any error of a formula.
    """

    def __init__(self, name: str, kwargs: dict[str, Any], rows: int) -> None:
        self.envs = [theirs(name, **kwargs) for _ in range(rows)]
        self.batched = TensorPool(config(name, **kwargs), rows, CPU)
        self.team = self.batched.spaces.team
        self.rng, self.episodes = np.random.default_rng(7), 0
        for row in range(rows):
            self.begin(row)

    def begin(self, row: int) -> None:
        obs, _ = self.envs[row].reset(seed=self.episodes)
        self.batched.reset([row], [self.episodes])
        self.batched.physics[row] = torch.from_numpy(physics(self.envs[row]))
        np.testing.assert_array_equal(self.batched.obs[row].numpy(), self.padded(obs))
        self.episodes += 1

    def padded(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        row = np.zeros((len(self.team.agents), self.batched.spaces.observations), np.float32)
        for i, (agent, n) in enumerate(zip(self.team.agents, self.team.observations, strict=True)):
            assert obs[agent].shape == (n,)
            row[i, :n] = obs[agent]
        return row

    def own(self, actions: np.ndarray) -> dict[str, Any]:
        if not self.batched.spaces.continuous:
            return {agent: int(a) for agent, a in zip(self.team.agents, actions, strict=True)}
        share = np.clip((np.clip(actions.astype(np.float64), -1, 1) + 1) / 2, 0, 1).astype(np.float32)
        return {agent: share[i, :n] for i, (agent, n) in enumerate(zip(self.team.agents, self.team.actions, strict=True))}

    def play(self, steps: int) -> tuple[int, int]:
        """Step both, compare all there is, and count the ends: terminated, truncated."""
        ends = [0, 0]
        for _ in range(steps):
            actions = random_actions(self.batched, len(self.envs), self.rng)
            step = self.batched.step(torch.from_numpy(actions))
            for row, env in enumerate(self.envs):
                obs, *rest, _ = env.step(self.own(actions[row]))
                reward, terminated, truncated = ([part[agent] for agent in self.team.agents] for part in rest)
                np.testing.assert_allclose(self.batched.physics[row].numpy(), physics(env), rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(step.obs[row].numpy(), self.padded(obs), rtol=1e-6, atol=1e-7)
                np.testing.assert_allclose(step.reward[row].numpy(), reward, rtol=1e-6, atol=1e-7)
                assert (step.terminated[row].tolist(), step.truncated[row].tolist()) == (terminated, truncated)
                if any(terminated) or any(truncated):
                    assert not env.agents
                    ends = [ends[0] + terminated[0], ends[1] + truncated[0]]
                    self.begin(row)
        return ends[0], ends[1]


# --- The same game ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kwargs"), BOTH)
def test_it_is_mpe2s_environment_step_for_step(name: str, kwargs: dict[str, Any]) -> None:
    twins = Twins(name, kwargs, 3)
    ends = twins.play(2 * kwargs.get("max_cycles", 25))
    assert ends[1] >= 3 or (kwargs.get("terminate_on_success") and sum(ends) >= 6)
