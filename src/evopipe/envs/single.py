"""Gymnasium environments that wrap one row of a user's own environment, written with tensors or in C.

They serve to read its spaces, and to watch or step it.

A tensor environment is a class in a module of the user's (`env.id: module:Class`). Like the classes in
`envs.tensors` it has `draws`, `start`, `advance` and `observe`. It also has Gymnasium's `observation_space` (a Box of
one axis) and `action_space`, and may have `max_episode_steps` and `reward_threshold`. `env.kwargs` are the arguments of
its constructor.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

from evopipe.errors import ParamsError
from evopipe.native.environment import States, compiled
from evopipe.rng import Purpose, Stream

_METHODS = ("start", "advance", "observe")
_HAS = (*_METHODS, "draws", "observation_space", "action_space")


def is_tensor_class(found: Any) -> bool:
    """Return whether an object is the class of a tensor environment: a class with the methods `start`, `advance` and
    `observe`."""
    return isinstance(found, type) and all(callable(getattr(found, name, None)) for name in _METHODS)


class OneRow(gymnasium.Env[Any, Any]):
    """A Gymnasium environment that wraps a user's tensor environment. It steps one environment, so all tensors have a
    single row.

    Args:
        kind: the user's class, with the methods `start`, `advance` and `observe`.
        name: the environment's name in messages.
        kwargs: the arguments of the constructor of `kind`.

    Raises:
        ParamsError: the class lacks a method or attribute, or its spaces are not supported.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  Gymnasium's own way

    def __init__(self, kind: type[Any], name: str, kwargs: dict[str, Any]) -> None:
        self.dynamics = kind(**kwargs)
        lacking = [part for part in _HAS if not hasattr(self.dynamics, part)]
        if lacking:
            raise ParamsError(f"env.id: {name!r} lacks {', '.join(lacking)}, which a tensor environment must have")
        self.observation_space, self.action_space = self.dynamics.observation_space, self.dynamics.action_space
        box = self.observation_space
        if not (isinstance(box, gymnasium.spaces.Box) and len(box.shape) == 1):
            raise ParamsError(
                f"env.id: {name!r} shows {box}; a tensor environment's observations are a Box of one axis"
            )
        if not isinstance(self.action_space, gymnasium.spaces.Box | gymnasium.spaces.Discrete):
            raise ParamsError(
                f"env.id: {name!r} takes {self.action_space}; a tensor environment takes a Box or Discrete"
            )
        self._most: int | None = getattr(self.dynamics, "max_episode_steps", None)
        self.spec = EnvSpec(
            name.rpartition(":")[2], max_episode_steps=self._most,
            reward_threshold=getattr(self.dynamics, "reward_threshold", None),
        )  # fmt: skip
        self._columns = torch.empty(0)
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; return its first observation and an empty info.

        The episode is the same as that of a `TensorPool` with this seed. If `seed` is None, a seed is drawn. `options`
        has no effect.
        """
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        draw = Stream(torch.tensor([chosen]), Purpose.EPISODE, torch.zeros(1, dtype=torch.int64))
        self._columns, self._length = self.dynamics.start(draw.uniform(self.dynamics.draws).T.contiguous()), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step with an action of the action space; return what Gymnasium's `step` returns."""
        box = isinstance(self.action_space, gymnasium.spaces.Box)
        taken = torch.as_tensor(np.asarray(action, np.float32 if box else np.int64))[None]
        if not box:
            taken = taken - self.action_space.start  # type: ignore[attr-defined]
        self._columns, reward, terminated = self.dynamics.advance(self._columns, taken)
        self._length += 1
        cut = self._most is not None and self._length >= self._most
        return self._seen(), float(reward.float()[0]), bool(terminated[0]), cut, {}

    def _seen(self) -> np.ndarray:
        found: np.ndarray = self.dynamics.observe(self._columns)[0].numpy().copy()
        return found


class RowInC(gymnasium.Env[Any, Any]):
    """A Gymnasium environment that wraps a single copy of a user's environment in C.

    Args:
        source: the C file.
        name: the environment's name in messages.
        kwargs: the environment's settings.

    Raises:
        ParamsError: the file cannot be compiled, or a setting is unknown or has a wrong value.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  Gymnasium's own way

    def __init__(self, source: str, name: str, kwargs: dict[str, Any]) -> None:
        self.kind = compiled(source)
        most = self.kind.max_steps
        self._states = States(self.kind, self.kind.values(kwargs), 1, most)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.kind.observations,), np.float32)
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(self.kind.actions)
        if self.kind.continuous:
            low, high = (np.array(bound, np.float32) for bound in (self.kind.low, self.kind.high))
            self.action_space = gymnasium.spaces.Box(low, high)
        self.spec = EnvSpec(
            name.rpartition(":")[2], f"{__name__}:RowInC", self.kind.threshold, max_episode_steps=most,
            kwargs={"source": source, "name": name, "kwargs": kwargs},
        )  # fmt: skip

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the episode of this seed, which is the same episode as in a `CompiledPool`; return its observation and
        an empty info. `options` has no effect."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        self._states.reset(torch.zeros(1, dtype=torch.int64), torch.tensor([chosen]))
        return self._states.observe()[0].numpy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step with an action of the action space; return what Gymnasium's `step` returns."""
        taken = torch.as_tensor(np.asarray(action, np.float32 if self.kind.continuous else np.int64))[None]
        obs, reward, terminated, truncated = self._states.step(taken, own=True)
        return obs[0].numpy(), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}
