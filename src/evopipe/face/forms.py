"""What a memory knows of the observations and actions that it is given: how they become rows, and themselves again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from evopipe.errors import UsageError

_Path: TypeAlias = "tuple[str | int, ...]"


@dataclass(frozen=True)
class _Leaf:
    path: _Path
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Form:
    """The arrays of an observation, and of an action.

    Attributes:
        kind: the container of an observation, as nested types.
        size: numbers of an observation.
        vectors: whether an action is several numbers, or none that is whole.
        width: numbers of an action.
    """

    leaves: tuple[_Leaf, ...]
    template: Any
    action: _Leaf

    @property
    def size(self) -> int:
        return sum(math.prod(leaf.shape) for leaf in self.leaves)

    @property
    def width(self) -> int:
        return math.prod(self.action.shape)

    @property
    def vectors(self) -> bool:
        return bool(self.action.shape) or np.dtype(self.action.dtype).kind == "f"

    def rows(self, obs: Any, several: bool) -> np.ndarray:
        """Flatten observations: `[n, size]` float32."""
        parts = []
        for leaf in self.leaves:
            array = np.asarray(_at(obs, leaf.path))
            shape = array.shape[1:] if several else array.shape
            if shape != leaf.shape:
                raise UsageError(f"memory: an observation of shape {shape} was saved, the first one had {leaf.shape}")
            parts.append(array.reshape(len(array) if several else 1, -1))
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")

    def actions(self, action: Any, count: int) -> np.ndarray:
        """Flatten actions: `[n]` of indices, else `[n, width]`."""
        flat = np.asarray(action).reshape(count, -1)
        return flat if self.vectors else flat[:, 0]

    def back(self, rows: np.ndarray) -> Any:
        """Return observations `[n, …]` again."""
        ends = np.cumsum([math.prod(leaf.shape) for leaf in self.leaves])[:-1]
        parts = {
            leaf.path: part.reshape(-1, *leaf.shape).astype(leaf.dtype, copy=False)
            for leaf, part in zip(self.leaves, np.split(rows, ends, axis=1), strict=True)
        }
        return _rebuild(self.template, (), parts)

    def own(self, actions: np.ndarray) -> np.ndarray:
        """Return actions `[n, …]` again."""
        return actions.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)


def form_of(state: Any, action: Any, several: bool) -> Form:
    """Return the form of what is saved first."""
    array, skip = np.asarray(action), 1 if several else 0
    leaves = [(path, np.asarray(part)) for path, part in _leaves(state, ())]
    return Form(
        tuple(_Leaf(path, part.shape[skip:], part.dtype) for path, part in leaves),
        _template(state),
        _Leaf((), array.shape[skip:], array.dtype),
    )


def _leaves(obs: Any, path: _Path) -> Any:
    if isinstance(obs, dict | tuple):
        for key, part in obs.items() if isinstance(obs, dict) else enumerate(obs):
            yield from _leaves(part, (*path, key))
    else:
        yield path, obs


def _template(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _template(part) for key, part in obs.items()}
    return tuple(_template(part) for part in obs) if isinstance(obs, tuple) else None


def _at(obs: Any, path: _Path) -> Any:
    for key in path:
        obs = obs[key]
    return obs


def _rebuild(template: Any, path: _Path, parts: dict[_Path, np.ndarray]) -> Any:
    if isinstance(template, dict):
        return {key: _rebuild(part, (*path, key), parts) for key, part in template.items()}
    if isinstance(template, tuple):
        return tuple(_rebuild(part, (*path, i), parts) for i, part in enumerate(template))
    return parts[path]
