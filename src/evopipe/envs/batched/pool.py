"""Environments as tensors behind a pool's contract: a pool that never leaves its device, and rows of an `EnvPool`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evopipe.envs.batched import BatchedStep, make_batched
from evopipe.envs.rows import Actions, Begun, Ints, Stepped
from evopipe.schema.blocks import EnvConfig

if TYPE_CHECKING:
    import numpy.typing as npt


class TensorPool:
    """`R` environments as tensors. A row that ended must be reset by the caller, with a seed.

    Args:
        cfg: which environment.
        rows: `R`.
        device: where they live.

    Attributes:
        spaces: what an algorithm knows of the spaces.
        masked: False, none of these environments masks actions.
        reward_threshold: the return at which the environment counts as solved, where Gymnasium names one.

    Raises:
        ParamsError: the environment is not offered as tensors, or `env.kwargs` holds what it does not take.
    """

    def __init__(self, cfg: EnvConfig, rows: int, device: torch.device) -> None:
        self.rows, self.device, self.masked = rows, device, False
        self._batched = make_batched(cfg, rows, device)
        self.spaces, self.reward_threshold = self._batched.spaces, self._batched.reward_threshold

    @property
    def obs(self) -> torch.Tensor:
        """`[R, O]` float32, current observation of every row."""
        return self._batched.obs()

    @property
    def begins(self) -> torch.Tensor:
        """`[R]` bool, whether an episode begins."""
        return self._batched.length == 0

    def reset(self, rows: npt.ArrayLike, seeds: npt.ArrayLike) -> None:
        """Start a new episode in `rows` `[n]`, each from its own seed `[n]`."""
        index, drawn = (torch.as_tensor(x, device=self.device) for x in (rows, seeds))
        some = self._batched.take(index)
        some.reset(drawn)
        self._batched.put(index, some)

    def reset_where(self, over: torch.Tensor, seeds: torch.Tensor) -> None:
        """Start a new episode where `over` `[R]` says so, from the rows' seeds `[R]`; waits for nothing."""
        self._batched.reset(seeds, over)

    def step(self, actions: torch.Tensor) -> BatchedStep:
        """Step every row: indices int64 `[R]`, or float32 `[R, A]` in [-1, 1]."""
        return self._batched.step(actions)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what rebuilds the pool: `state` `[R, S]` float64, `length` `[R]`."""
        return {"state": self._batched.state.cpu().numpy().copy(), "length": self._batched.length.cpu().numpy().copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
        """Take over what `state` returned; no row `[R]` comes out different."""
        self._batched.state.copy_(torch.from_numpy(state["state"]))
        self._batched.length.copy_(torch.from_numpy(state["length"]))
        return np.zeros(self.rows, np.bool_)

    def close(self) -> None:
        """Nothing to close."""


class TensorRows:
    """The rows of an `EnvPool` as tensors on the CPU: NumPy in and out, any rows at a time.

    Args:
        cfg: which environment.
        rows: `R`.

    Raises:
        ParamsError: see `make_batched`.
    """

    def __init__(self, cfg: EnvConfig, rows: int) -> None:
        self._batched = make_batched(cfg, rows, torch.device("cpu"))

    def reset(self, rows: Ints, seeds: Ints) -> Begun:
        """Begin an episode in `rows` `[n]`, each from its own seed. See `Rows.reset`."""
        index = torch.tensor(rows)
        some = self._batched.take(index)
        some.reset(torch.tensor(seeds))
        self._batched.put(index, some)
        return some.obs().numpy(), None

    def send(self, rows: Ints | None, actions: Actions, next_seeds: Ints | None) -> None:
        """Begin a step: here the work is done when its result is asked for."""

    def receive(self, rows: Ints | None, actions: Actions) -> Stepped:
        """Step `rows`, all where None. See `Rows.step`."""
        if rows is None:
            step = self._batched.step(torch.tensor(actions))
        else:
            index = torch.tensor(rows)
            some = self._batched.take(index)
            step = some.step(torch.tensor(actions))
            self._batched.put(index, some)
        obs, reward, terminated, truncated = (part.numpy() for part in step)
        return obs, reward, terminated, truncated, None

    def close(self) -> None:
        """Nothing is held but memory."""
