"""The shapes and dtypes of the observations and actions that users' own loops save in a replay buffer."""

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
    """The form of the observations and actions in a replay buffer: shapes and dtypes of their arrays.

    Attributes:
        kind: an `Array` (shape, dtype) for an observation of one array; for a nested observation, a dictionary or tuple
            of these.
        action: the `Array` of an action.
    """

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
        """Return observations as flat rows `[n, size]` float32, where `size` is the number of all entries of an
        observation.

        `obs` has `n` observations if `several` is True; else it is a single observation, and n is 1.

        Raises:
            UsageError: a shape differs from that of the form.
        """
        parts = []
        for leaf, part in zip(self.leaves, _leaves(self.kind, obs), strict=True):
            array = np.asarray(part)
            shape = array.shape[1:] if several else array.shape
            if shape != leaf.shape:
                raise UsageError(f"memory: an observation of shape {shape} was saved, the first one had {leaf.shape}")
            parts.append(array.reshape(len(array) if several else 1, -1))
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")

    def actions(self, action: Any, count: int) -> np.ndarray:
        """Return n = `count` actions as a flat array: `[n]` for discrete actions, `[n, width]` for actions that are
        vectors of `width` entries."""
        flat = np.asarray(action).reshape(count, -1)
        return flat if self.vectors else flat[:, 0]

    def back(self, rows: np.ndarray) -> Any:
        """Return n flat rows of `size` numbers, `[n, size]`, as observations `[n, …]` of this form; this is the inverse
        of the method `rows`."""
        ends = np.cumsum([math.prod(leaf.shape) for leaf in self.leaves])[:-1]
        parts = iter(np.split(rows, ends, axis=1))
        return mapped(self.kind, lambda leaf: next(parts).reshape(-1, *leaf.shape).astype(leaf.dtype, copy=False))

    def own(self, actions: np.ndarray) -> np.ndarray:
        """Return n flat actions as actions `[n, …]` of this form; this is the inverse of the method `actions`."""
        return actions.reshape(-1, *self.action.shape).astype(self.action.dtype, copy=False)


def form_of(state: Any, action: Any, several: bool) -> Form:
    """Return the form of an observation `state` and an action. If `several`, both have a first axis of environments,
    which is not part of the form."""

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
