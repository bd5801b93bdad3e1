"""Environments as tensors: all rows step in a few operators, on any device.

The state of `R` rows is one tensor and a step is arithmetic on it, so a loop that learns on a device never leaves it.
Nothing in `reset_where`, `step` and `obs` makes the host wait, and what they change they change in place, so a CUDA
graph can hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError

from evopipe.envs.make import close, make_env
from evopipe.envs.rows import Actions, Begun, Ints, Step, Upcoming
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.tensors.dynamics import Acrobot, CartPole, Dynamics, MountainCar, MountainCarContinuous, Pendulum
from evopipe.errors import ParamsError, did_you_mean
from evopipe.rng import Purpose, uniform
from evopipe.schema.blocks import EnvConfig

if TYPE_CHECKING:
    import numpy.typing as npt

OFFERED: dict[str, Callable[..., Dynamics]] = {
    "Acrobot-v1": Acrobot,
    "CartPole-v0": CartPole,
    "CartPole-v1": CartPole,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
}
_OF_MAKE = "max_episode_steps"  # the one argument that `gymnasium.make` keeps for itself


class TensorStep(NamedTuple):
    """What one step of `n` rows gave, see `Step`. Nothing in it is overwritten by a later step."""

    obs: torch.Tensor  # [n, O] float32, the true next observation, also where the episode ended
    reward: torch.Tensor  # [n] float32
    terminated: torch.Tensor  # [n] bool
    truncated: torch.Tensor  # [n] bool, the time limit cut the episode: bootstrap from `obs`


class TensorPool:
    """`R` environments on one device. A row that ended must be reset by the caller, with a seed.

    An episode is a function of its seed and its actions, whatever its row played before and whatever others play.

    Args:
        cfg: which environment.
        rows: `R`.
        device: where they live.

    Attributes:
        physics: `[R, S]` float64, the physical state, always the same memory; zeros before the first reset.
        length: `[R]` int64, steps of the running episodes, always the same memory.
        actions: the action space, as Gymnasium has it.
        spaces: what an algorithm knows of the spaces.
        masked: False, none of these environments masks actions.
        max_steps: the time limit.
        reward_threshold: see `EnvPool`.

    Raises:
        ParamsError: the environment is not offered as tensors, or `env.kwargs` holds what it does not take.
    """

    def __init__(self, cfg: EnvConfig, rows: int, device: torch.device) -> None:
        if cfg.id not in OFFERED:
            raise ParamsError(
                f"env.backend: torch has no {cfg.id!r}{did_you_mean(cfg.id, OFFERED)}; it has {', '.join(OFFERED)}; "
                "`sync` serves every Gymnasium environment"
            )
        env = make_env(cfg)
        close(env)
        if env.spec is None or env.spec.max_episode_steps is None:
            raise ParamsError(f"env.kwargs: torch's {cfg.id!r} needs a time limit; set {_OF_MAKE} to 1 or more")
        self.rows, self.device, self.masked = rows, device, False
        self.max_steps, self.reward_threshold = env.spec.max_episode_steps, env.spec.reward_threshold
        self.actions = ActionSpace.of(env.action_space)
        self.spaces = self.actions.spaces(ObservationSpace.of(env.observation_space))
        self._dynamics = _dynamics(cfg)
        self._first = torch.zeros(1, dtype=torch.int64, device=device)
        self._bounds = tuple(torch.from_numpy(bound).to(device) for bound in self.actions.bounds or ())
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        # [S, R]: arithmetic wants each quantity in one piece of memory.
        self._columns = torch.zeros_like(self._start(self.length))
        self.physics = self._columns.T

    @property
    def obs(self) -> torch.Tensor:
        """`[R, O]` float32, current observation of every row."""
        return self._dynamics.observe(self._columns)

    @property
    def begins(self) -> torch.Tensor:
        """`[R]` bool, whether an episode begins."""
        return self.length == 0

    def reset(self, rows: npt.ArrayLike, seeds: npt.ArrayLike) -> None:
        """Start a new episode in `rows` `[n]`, each from its own seed `[n]`."""
        index, drawn = (torch.as_tensor(x, device=self.device) for x in (rows, seeds))
        self._columns[:, index] = self._start(drawn)
        self.length[index] = 0

    def reset_where(self, over: torch.Tensor, seeds: torch.Tensor) -> None:
        """Start a new episode where `over` `[R]` says so, from the rows' seeds `[R]`; waits for nothing."""
        torch.where(over, self._start(seeds), self._columns, out=self._columns)
        self.length.masked_fill_(over, 0)

    def step(self, actions: torch.Tensor, rows: torch.Tensor | None = None) -> TensorStep:
        """Step `rows` `[n]`, all where None, with indices int64 `[n]`, or float32 `[n, A]` in [-1, 1]."""
        where = slice(None) if rows is None else rows
        columns, reward, terminated = self._dynamics.advance(self._columns[:, where], self._own(actions))
        length = self.length[where] + 1
        self._columns[:, where], self.length[where] = columns, length
        return TensorStep(self._dynamics.observe(columns), reward.float(), terminated, length >= self.max_steps)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what rebuilds the pool: `state` `[R, S]` float64, `length` `[R]`."""
        return {"state": self.physics.cpu().numpy().copy(), "length": self.length.cpu().numpy().copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
        """Take over what `state` returned; no row `[R]` comes out different."""
        self.physics.copy_(torch.from_numpy(state["state"]))
        self.length.copy_(torch.from_numpy(state["length"]))
        return np.zeros(self.rows, np.bool_)

    def close(self) -> None:
        """Nothing to close."""

    def _start(self, seeds: torch.Tensor) -> torch.Tensor:
        """Initial columns `[S, n]` of these seeds `[n]`."""
        drawn = uniform(seeds, Purpose.EPISODE, self._first, self._dynamics.draws)[:, 0].T  # [draws, n]
        return self._dynamics.start(drawn.contiguous())

    def _own(self, actions: torch.Tensor) -> torch.Tensor:
        """The environment's own actions, to the bit those of `ActionSpace.own`."""
        if not self._bounds:
            return actions
        low, high = self._bounds
        share = (actions.double().nan_to_num().clamp(-1.0, 1.0) + 1.0) / 2.0
        return torch.clamp(low + share * (high - low), low, high).float()


class TensorRows:
    """The rows of an `EnvPool` as tensors on the CPU: NumPy in and out, any rows at a time; see `TensorPool`."""

    def __init__(self, cfg: EnvConfig, rows: int) -> None:
        self._pool = TensorPool(cfg, rows, torch.device("cpu"))

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        """Begin an episode in `rows` `[n]`, each from its own seed. See `Rows.reset`."""
        self._pool.reset(rows, seeds)
        return self._pool.obs.numpy()[rows], None

    def send(self, rows: Ints, actions: Actions) -> None:
        """Begin a step: here the work is done when its result is asked for."""

    def receive(self, rows: Ints, actions: Actions) -> Step:
        """End it, see `Rows.step`."""
        step = self._pool.step(torch.tensor(actions), torch.tensor(rows))
        obs, reward, terminated, truncated = (part.numpy() for part in step)
        return Step.of(self._pool.actions, obs, reward, terminated, truncated, None)

    def close(self) -> None:
        """Nothing is held but memory."""


def _dynamics(cfg: EnvConfig) -> Dynamics:
    """The environment with the arguments of `env.kwargs`."""
    arguments = {name: value for name, value in cfg.kwargs.items() if name != _OF_MAKE}
    try:
        return OFFERED[cfg.id](**arguments)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        raise ParamsError(
            f"env.kwargs: torch's {cfg.id!r} does not take {name}: {problem['msg']}; change it, or set "
            "env.backend to sync"
        ) from error
