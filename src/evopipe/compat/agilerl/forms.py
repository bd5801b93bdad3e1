"""The forms of what loops of one's own save: the arrays of an observation, and of an action."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from evopipe.compat.agilerl.transitions import mapped
from evopipe.errors import UsageError


@dataclass(frozen=True)
class Array:
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Form:
    """The arrays of an observation, and of an action."""

    kind: Any  # a leaf, or a dictionary or tuple of such
    action: Array

    @property
    def leaves(self) -> list[Array]:
        return _leaves(self.kind, self.kind)

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
        for leaf, part in zip(self.leaves, _leaves(self.kind, obs), strict=True):
            array = np.asarray(part)
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
        parts = iter(np.split(rows, ends, axis=1))
        return mapped(self.kind, lambda leaf: next(parts).reshape(-1, *leaf.shape).astype(leaf.dtype, copy=False))

    def own(self, actions: np.ndarray) -> np.ndarray:
        """Return actions `[n, …]` again."""
        return actions.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)


def form_of(state: Any, action: Any, several: bool) -> Form:
    """Return the form of what is saved first."""

    def leaf(part: Any) -> Array:
        array = np.asarray(part)
        return Array(array.shape[1 if several else 0 :], array.dtype)

    return Form(mapped(state, leaf), leaf(action))


def _leaves(kind: Any, obs: Any) -> list[Any]:
    """Return an observation's arrays in the order of a kind's."""
    if not isinstance(kind, dict | tuple):
        return [obs]
    keys = kind if isinstance(kind, dict) else range(len(kind))
    return [leaf for key in keys for leaf in _leaves(kind[key], obs[key])]
