"""Environments of learning curves as both sides play them, where Gymnasium alone does not make them so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BENCHMARKS = Path(__file__).parents[1]
sys.path.append(str(BENCHMARKS.parent / "pipelines" / "recurrent-ppo-masked-cartpole"))
sys.path.append(str(BENCHMARKS / ".venvs" / "games"))  # what pip put there for both sides, see `harness/venvs.py`

import masked  # noqa: E402, F401  it registers MaskedCartPole-v0


def door_key(**options: Any) -> gymnasium.Env[Any, Any]:
    """MiniGrid's DoorKey, what the agent sees as a vector: 7 × 7 cells of kind, colour and state, each over 10."""
    from minigrid.envs.doorkey import DoorKeyEnv
    from minigrid.wrappers import ImgObsWrapper

    env = gymnasium.wrappers.FlattenObservation(ImgObsWrapper(DoorKeyEnv(size=5, **options)))
    shows = spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs.astype(np.float32) / 10, shows)


def relative_pendulum(**options: Any) -> gymnasium.Env[Any, Any]:
    """Pendulum, of its torque the share, so that a deviation of actions means the same to all sides."""
    from gymnasium.envs.classic_control.pendulum import PendulumEnv

    return gymnasium.wrappers.RescaleAction(PendulumEnv(**options), np.float32(-1.0), np.float32(1.0))


class Breakout(gymnasium.Env[Any, Any]):
    """MinAtar's Breakout (Young and Tian, 2019) with its sticky actions: an image of bytes, a plane for each of paddle,
    ball, trail and bricks; of its six actions the three that do something."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  Gymnasium's own

    def __init__(self) -> None:
        import minatar

        self.game = minatar.Environment("breakout")
        self.useful = self.game.minimal_action_set()
        self.observation_space = spaces.Box(0, 255, (4, 10, 10), np.uint8)
        self.action_space = spaces.Discrete(len(self.useful))

    def _shown(self) -> np.ndarray:
        planes: np.ndarray = np.moveaxis(self.game.state(), 2, 0).astype(np.uint8) * 255
        return planes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        super().reset(seed=seed)
        self.game.seed(seed)
        self.game.reset()
        self.game.last_action = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        reward, over = self.game.act(self.useful[int(action)])
        return self._shown(), float(reward), bool(over), False, {}


gymnasium.register("DoorKey-v0", door_key)  # it ends by itself after 250 steps
gymnasium.register("RelativePendulum-v0", relative_pendulum, max_episode_steps=200)
gymnasium.register("MinAtarBreakout-v0", Breakout, max_episode_steps=1_000)
