"""Environments as tensors: all rows step in a few operators, on any device.

A pool's environments live in one process each or one after another. Here the state of `R` rows is one tensor and a step
is arithmetic on it, so a loop that learns on a device never leaves it. Nothing in `reset`, `step` and `obs` makes the
host wait, and what they change they change in place, so a CUDA graph can hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import torch
from pydantic import ValidationError

from evopipe.envs.batched.dynamics import Acrobot, CartPole, Dynamics, MountainCar, MountainCarContinuous, Pendulum
from evopipe.envs.make import ActionSpace, make_env
from evopipe.envs.observations import ObservationSpace
from evopipe.errors import ParamsError, did_you_mean
from evopipe.rng import Purpose, uniform
from evopipe.schema.blocks import EnvConfig
from evopipe.types import Spaces

OFFERED: dict[str, Callable[..., Dynamics]] = {
    "Acrobot-v1": Acrobot,
    "CartPole-v0": CartPole,
    "CartPole-v1": CartPole,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
}
_OF_MAKE = "max_episode_steps"  # the one argument that `gymnasium.make` keeps for itself


class BatchedStep(NamedTuple):
    """What one step of `R` rows gave. Nothing in it is overwritten by a later step.

    Attributes:
        obs: `[R, O]` float32, the true next observation, also where the episode ended.
        reward: `[R]` float32.
        terminated: `[R]` bool, the episode reached an end state: nothing to bootstrap from.
        truncated: `[R]` bool, the time limit cut the episode: bootstrap from `obs`.
    """

    obs: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor


class Batched:
    """`R` environments on one device, see `make_batched`. The caller resets a row that ended; none resets by itself.

    An episode is a function of its seed and its actions, whatever its row played before and whatever others play.

    Attributes:
        state: `[R, S]` float64, the physical state, always the same memory; zeros before the first reset.
        length: `[R]` int64, steps of the running episodes, always the same memory.
        actions: the action space, as Gymnasium has it.
        spaces: what an algorithm knows of the spaces.
        max_steps: the time limit.
        reward_threshold: the return at which the environment counts as solved, where Gymnasium names one.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        actions: ActionSpace,
        spaces: Spaces,
        max_steps: int,
        reward_threshold: float | None,
        rows: int,
        device: torch.device,
    ) -> None:
        self.actions, self.spaces = actions, spaces
        self.max_steps, self.reward_threshold = max_steps, reward_threshold
        self._dynamics = dynamics
        self._first = torch.zeros(1, dtype=torch.int64, device=device)
        self._bounds = tuple(torch.from_numpy(bound).to(device) for bound in actions.bounds or ())
        origin = dynamics.start(torch.zeros(dynamics.draws, rows, dtype=torch.float64, device=device))
        self._hold(torch.zeros_like(origin), torch.zeros(rows, dtype=torch.int64, device=device))

    def reset(self, seeds: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Begin an episode in every row, each from its own seed.

        Args:
            seeds: `[R]` int64.
            mask: `[R]` bool, only rows where it is true.
        """
        drawn = uniform(seeds, Purpose.EPISODE, self._first, self._dynamics.draws)[:, 0].T  # [draws, R]
        start = self._dynamics.start(drawn.contiguous())
        if mask is None:
            self._columns.copy_(start)
            self.length.zero_()
        else:
            torch.where(mask, start, self._columns, out=self._columns)
            self.length.masked_fill_(mask, 0)

    def obs(self) -> torch.Tensor:
        """Return the current observations `[R, O]` float32."""
        return self._dynamics.observe(self._columns)

    def step(self, actions: torch.Tensor) -> BatchedStep:
        """Step every row.

        Args:
            actions: indices int64 `[R]`, or float32 `[R, A]` in [-1, 1], which are stretched to the space's bounds.
        """
        columns, reward, terminated = self._dynamics.advance(self._columns, self._own(actions))
        self._columns.copy_(columns)
        self.length.add_(1)
        return BatchedStep(self.obs(), reward.float(), terminated, self.length >= self.max_steps)

    def take(self, rows: torch.Tensor) -> Batched:
        """Return a copy of some rows `[n]`, with memory of its own."""
        some = copy(self)
        some._hold(self._columns[:, rows], self.length[rows])
        return some

    def put(self, rows: torch.Tensor, some: Batched) -> None:
        """Overwrite rows `[n]` by what `take` returned."""
        self._columns[:, rows] = some._columns
        self.length[rows] = some.length

    def _hold(self, columns: torch.Tensor, length: torch.Tensor) -> None:
        self._columns = columns  # [S, R]: arithmetic wants each quantity in one piece of memory
        self.state, self.length = columns.T, length

    def _own(self, actions: torch.Tensor) -> torch.Tensor:
        """The environment's own actions, to the bit those of `ActionSpace.own`."""
        if not self._bounds:
            return actions
        low, high = self._bounds
        share = (actions.double().nan_to_num().clamp(-1.0, 1.0) + 1.0) / 2.0
        return torch.clamp(low + share * (high - low), low, high).float()


def make_batched(cfg: EnvConfig, rows: int, device: torch.device) -> Batched:
    """Make `rows` environments as tensors on a device.

    Raises:
        ParamsError: the environment is not offered as tensors, or `env.kwargs` holds what it does not take.
    """
    if cfg.id not in OFFERED:
        raise ParamsError(
            f"env.backend: torch has no {cfg.id!r}{did_you_mean(cfg.id, OFFERED)}; it has {', '.join(OFFERED)}; "
            "`sync` serves every Gymnasium environment"
        )
    env = make_env(cfg)
    env.close()
    limit, threshold = (env.spec.max_episode_steps, env.spec.reward_threshold) if env.spec else (None, None)
    if limit is None:
        raise ParamsError(f"env.kwargs: torch's {cfg.id!r} needs a time limit; set {_OF_MAKE} to 1 or more")
    actions = ActionSpace.of(env.action_space)
    spaces = actions.spaces(ObservationSpace.of(env.observation_space))
    return Batched(_dynamics(cfg), actions, spaces, limit, threshold, rows, device)


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
