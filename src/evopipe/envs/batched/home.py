"""Environments as tensors behind a pool's contract: NumPy in and out, on the CPU, any rows at a time."""

from __future__ import annotations

import torch

from evopipe.envs.batched import make_batched
from evopipe.envs.rows import Actions, Begun, Ints, Stepped
from evopipe.schema.blocks import EnvConfig


class Tensors:
    """The rows of one pool, as tensors in this process: the work is done when its result is asked for.

    Args:
        cfg: which environment.
        rows: `R`.

    Raises:
        ParamsError: see `make_batched`.
    """

    def __init__(self, cfg: EnvConfig, rows: int) -> None:
        self._batched = make_batched(cfg, rows, torch.device("cpu"))
        self._actions: Actions | None = None

    def reset(self, rows: Ints, seeds: Ints) -> Begun:
        """Begin an episode in `rows` `[n]`, each from its own seed. See `Rows.reset`."""
        index = torch.tensor(rows)
        some = self._batched.take(index)
        some.reset(torch.tensor(seeds))
        self._batched.put(index, some)
        return some.obs().numpy(), None

    def send(self, rows: Ints | None, actions: Actions, next_seeds: Ints | None) -> None:
        """Begin a step of `rows`, of all where None."""
        self._actions = actions

    def receive(self, rows: Ints | None) -> Stepped:
        """End it. See `Rows.step`."""
        actions = torch.tensor(self._actions)
        if rows is None:
            step = self._batched.step(actions)
        else:
            index = torch.tensor(rows)
            some = self._batched.take(index)
            step = some.step(actions)
            self._batched.put(index, some)
        obs, reward, terminated, truncated = (part.numpy() for part in step)
        return obs, reward, terminated, truncated, None

    def close(self) -> None:
        """Nothing is held but memory."""
