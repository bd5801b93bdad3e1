"""Environments of DeepMind's interface (`dm_env`) as environments of Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from dm_env import Environment, specs
from gymnasium import spaces

from evopipe.errors import ParamsError


class DmEnv(gymnasium.Env[Any, Any]):
    """A `dm_env.Environment` as a Gymnasium environment.

    A last step whose discount is 0 is a termination, with any other discount a truncation. Other discounts are not
    passed on.

    Args:
        make: a function that makes the environment, by keyword arguments; one of them is `seed`.
        reseed: a function (environment, seed) that seeds the next episode; None makes the environment anew for each
            episode.
        kwargs: further keyword arguments of `make`.

    Raises:
        ParamsError: a spec has no space that corresponds to it.
    """

    def __init__(
        self, make: Callable[..., Environment], reseed: Callable[[Any, int], None] | None, kwargs: Mapping[str, Any]
    ) -> None:
        self._make, self._reseed, self._kwargs = make, reseed, dict(kwargs)
        self.dm: Environment = make(seed=0, **self._kwargs)
        self._action = self.dm.action_spec()
        self.observation_space = space_of(self.dm.observation_spec(), "observation")
        self.action_space = space_of(self._action, "action")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        if self._reseed is not None:
            self._reseed(self.dm, seed)
        else:
            self.dm.close()
            self.dm = self._make(seed=seed, **self._kwargs)
        return shaped(self.dm.reset().observation, self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.dm.step(_as_specified(action, self._action))
        terminated = bool(step.last() and step.discount == 0)
        obs = shaped(step.observation, self.observation_space)
        return obs, float(step.reward or 0.0), terminated, step.last() and not terminated, {}

    def close(self) -> None:
        self.dm.close()


def space_of(spec: Any, what: str) -> gymnasium.Space[Any]:
    """Return the Gymnasium space of a spec of `dm_env`, which may be nested in mappings and sequences.

    A mapping becomes `Dict`, and a sequence `Tuple`. A single integer with bounds becomes `Discrete`, and a vector of
    them `MultiDiscrete`. Booleans become `MultiBinary`. All other numbers become `Box`. A `Box` or `MultiBinary` of a
    single number has the shape `[1]`. `what` is the spec's name in error messages.

    Raises:
        ParamsError: the spec is of another kind, such as texts.
    """
    if isinstance(spec, Mapping):
        return spaces.Dict({str(key): space_of(part, f"{what} {key!r}") for key, part in spec.items()})
    if isinstance(spec, list | tuple):
        return spaces.Tuple([space_of(part, f"{what} {place}") for place, part in enumerate(spec)])
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(int(spec.num_values))
    if not isinstance(spec, specs.Array) or spec.dtype.kind not in "biuf":
        raise ParamsError(f"env.id: the {what} is specified as {spec!r:.80}, for which Gymnasium has no space")
    bounded, shape = isinstance(spec, specs.BoundedArray), spec.shape or (1,)
    if spec.dtype.kind == "b":
        return spaces.MultiBinary(shape)
    low: Any = spec.minimum if bounded else -np.inf if spec.dtype.kind == "f" else np.iinfo(spec.dtype).min
    high: Any = spec.maximum if bounded else np.inf if spec.dtype.kind == "f" else np.iinfo(spec.dtype).max
    low, high = (np.broadcast_to(np.asarray(end, spec.dtype), spec.shape) for end in (low, high))
    if bounded and spec.dtype.kind in "iu" and len(spec.shape) < 2:
        first, count = low.astype(np.int64), high.astype(np.int64) - low.astype(np.int64) + 1
        return spaces.MultiDiscrete(count, start=first) if spec.shape else spaces.Discrete(int(count), start=int(first))
    return spaces.Box(low.reshape(shape), high.reshape(shape), shape, spec.dtype.type)


def shaped(value: Any, space: gymnasium.Space[Any]) -> Any:
    """Return an observation of `dm_env` in the form that its Gymnasium space has."""
    if isinstance(space, spaces.Dict):
        return {key: shaped(value[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(shaped(own, part) for own, part in zip(value, space.spaces, strict=True))
    if isinstance(space, spaces.Discrete):
        return int(value)
    found = np.asarray(value, space.dtype)
    return found.reshape(space.shape) if found.ndim == 0 else found


def _as_specified(action: Any, spec: Any) -> Any:
    """Return an action of the Gymnasium space in the form that its spec has."""
    if isinstance(spec, Mapping):
        return {key: _as_specified(action[str(key)], part) for key, part in spec.items()}
    if isinstance(spec, list | tuple):
        return [_as_specified(own, part) for own, part in zip(action, spec, strict=True)]
    return np.asarray(action, spec.dtype).reshape(spec.shape)
