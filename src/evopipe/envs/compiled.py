"""Environments in C on the CPU, with tensors as results: some of Gymnasium's, MinAtar's games, and a user's own
(`env.source`).

A row's state is bytes that its C code alone reads, see `native/environment.h`. C writes observations, rewards and ends
into the tensors that learners read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evopipe.envs.make import close, make_env
from evopipe.envs.single import RowInC
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamSpace
from evopipe.envs.tensors import TensorStep
from evopipe.errors import DataError, ParamsError, did_you_mean
from evopipe.native.environment import States, offered
from evopipe.schema.env import EnvConfig

_OF_MAKE = "max_episode_steps"  # the one argument that `gymnasium.make` keeps for itself


class CompiledPool:
    """A pool of `R` environments in C on the CPU, each with a single agent. After the end of an episode, the caller
    must reset the row with the next episode's seed.

    Args:
        cfg: the block `env` of `params.yaml`.
        rows: the number of environments, `R`.
        device: the CPU.

    Attributes:
        memory: `[R, S]` uint8, the state of each environment as `S` bytes, zeros before the first reset. The tensor is
            never replaced.
        length: `[R]` int64, the steps of the running episodes. The tensor is never replaced.
        actions: the action space, which converts actions.
        spaces: the widths and kinds of the spaces, as algorithms use them.
        team: always None, and `masked` always False: there are no teams and no action masks.
        reward_threshold: the return at which the environment counts as solved; None if it is not known.
        max_steps: the number of steps after which an episode is truncated.
        limit: `env.step_limit` if the environment declares no time limit of its own; else None.
        sound: whether the environment is evopipe's own, not a user's C file; then all its numbers are finite.

    Raises:
        ParamsError: the device is no CPU, nothing can be compiled, evopipe has no such environment in C, or the
            environment does not take an argument of `env.kwargs`.
    """

    team: TeamSpace | None = None
    masked = False

    def __init__(self, cfg: EnvConfig, rows: int, device: torch.device) -> None:
        if device.type != "cpu":
            raise ParamsError(f"env.backend: c steps on the CPU alone, and members live on {device}: set it to torch")
        self.rows, self.device, self.sound = rows, device, cfg.source is None
        if self.sound and cfg.id not in offered():
            raise ParamsError(
                f"env.backend: c has no {cfg.id!r}{did_you_mean(cfg.id, offered())}; it has {', '.join(offered())}; "
                "`sync` serves all of Gymnasium's, and `env.source` names a C file of your own"
            )
        env = make_env(cfg)
        close(env)
        assert env.spec is not None
        own = {name: value for name, value in cfg.kwargs.items() if isinstance(env, RowInC) or name != _OF_MAKE}
        kind = env.kind if isinstance(env, RowInC) else offered()[cfg.id]
        self.limit = None if env.spec.max_episode_steps else cfg.step_limit
        self.max_steps, self.reward_threshold = env.spec.max_episode_steps or cfg.step_limit, env.spec.reward_threshold
        self.actions = ActionSpace.of(env.action_space)
        self.observation_space, self.observations = env.observation_space, ObservationSpace.of(env.observation_space)
        self.spaces = self.actions.spaces(self.observations)
        self._states = States(kind, kind.values(own), rows, self.max_steps)
        self.memory, self.length, self._seeds = self._states.memory, self._states.length, self._states.seeds

    @property
    def obs(self) -> torch.Tensor:
        """The current observation of each of the R environments, O numbers each: `[R, O]` float32."""
        obs: torch.Tensor = self._states.observe()
        return obs

    @property
    def begins(self) -> torch.Tensor:
        """Whether each environment is at the beginning of an episode, `[R]` bool."""
        begins: torch.Tensor = self.length == 0
        return begins

    def reset(self, rows: npt.ArrayLike, seeds: npt.ArrayLike) -> None:
        """Begin a new episode in the environments `rows` `[n]`, each from its own seed `[n]`."""
        self._states.reset(torch.as_tensor(rows), torch.as_tensor(seeds))

    def step(self, actions: torch.Tensor, rows: torch.Tensor | None = None) -> TensorStep:
        """Step the environments `rows` `[n]`, or all if None.

        `actions` are indices `[n]` int64, or vectors of A numbers `[n, A]` float32 in [-1, 1], which are scaled to the
        action space's bounds.
        """
        return TensorStep(*self._states.step(actions, rows))

    def step_where(self, actions: torch.Tensor, where: torch.Tensor) -> TensorStep:
        """Step those of the first `n` environments for which `where` `[n]` is True.

        `actions` `[n, …]` are as `step` takes them. The results of the other environments have no meaning.
        """
        return TensorStep(*self._states.step(actions, only=where))

    @property
    def draws_in_steps(self) -> bool:
        """Whether a step of the environment draws random numbers."""
        return self._states.kind.step_draws > 0

    @property
    def in_c(self) -> bytes:
        """The bytes of the C struct `env_call`, which describes the environments. With it, the C kernels step the
        environments many times without a return to Python."""
        return self._states.packed()

    def place(self, numbers: Any) -> bool:
        """Set the state of environment 0, and return True; return False if the C file has no function `place` or
        `numbers` is not numeric.

        `numbers` is the state of the same environment in Gymnasium, such as its attribute `state`.
        """
        return self._states.place(numbers)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays from which `restore` rebuilds this pool of R environments, by name.

        `state` `[R, S]` uint8 has the S bytes of each environment's memory. `length` and `seed`, `[R]` each, are the
        steps so far and the seed of each running episode.
        """
        kept = {"state": self.memory, "length": self.length, "seed": self._seeds}
        return {name: value.numpy().copy() for name, value in kept.items()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
        """Restore the pool from what the method `state` returned.

        Return for each environment whether it could not continue as saved, `[R]` bool. All are False, because all
        environments of such a pool can continue.

        Raises:
            DataError: the state belongs to another pool.
        """
        if state["state"].shape != self.memory.shape:
            saved, here = (list(found) for found in (state["state"].shape, self.memory.shape))
            raise DataError(f"the saved environments in C have states {saved}, those here {here}: train anew")
        for place, name in ((self.memory, "state"), (self.length, "length"), (self._seeds, "seed")):
            place.copy_(torch.from_numpy(state[name]))
        return np.zeros(self.rows, np.bool_)

    def close(self) -> None:
        """Do nothing: the pool holds nothing but memory."""
