"""Gymnasium's spaces as JSON text, as Minari's metadata has them: https://minari.farama.org/content/dataset_standards/."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Space = gymnasium.Space[Any]


def space_to_text(space: Space) -> str:
    """Return a space as JSON text, equal to what Minari writes.

    Raises:
        TypeError: the space, or one inside it, is of a kind that Minari does not store.
    """
    return json.dumps(_described(space))


def space_from(description: str | Mapping[str, Any]) -> Space:
    """Build the space that a JSON text, or the object in it, describes.

    Raises:
        TypeError, ValueError, LookupError, ArithmeticError, AssertionError, RecursionError: it describes none.
    """
    found = json.loads(description) if isinstance(description, str) else description
    match found["type"]:
        case "Box":
            low, high = (np.array(found[end], dtype=found["dtype"]) for end in ("low", "high"))
            return spaces.Box(low, high, tuple(found["shape"]), found["dtype"])
        case "Discrete":
            return spaces.Discrete(found["n"], start=found["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(found["nvec"], dtype=found["dtype"], start=found["start"])
        case "MultiBinary":
            return spaces.MultiBinary(found["n"])
        case "Text":
            return spaces.Text(found["max_length"], min_length=found["min_length"], charset=found["charset"])
        case "Dict":
            return spaces.Dict({key: space_from(each) for key, each in found["subspaces"].items()})
        case "Tuple":
            return spaces.Tuple([space_from(each) for each in found["subspaces"]])
    raise TypeError(f"no space is of the type {found['type']!r}")


def _described(space: Space) -> dict[str, Any]:
    match space:
        case spaces.Box():
            ends = {"low": space.low.tolist(), "high": space.high.tolist()}
            return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **ends}
        case spaces.Discrete():
            # Every Discrete is said to be int64, whatever its own type is.
            return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case spaces.MultiDiscrete():
            sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", "dtype": str(space.dtype), **sizes}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": space.n}
        case spaces.Text():
            lengths = {"max_length": space.max_length, "min_length": space.min_length}
            return {"type": "Text", **lengths, "charset": space.characters}
        case spaces.Dict():
            return {"type": "Dict", "subspaces": {key: _described(each) for key, each in space.spaces.items()}}
        case spaces.Tuple():
            return {"type": "Tuple", "subspaces": [_described(each) for each in space.spaces]}
    raise TypeError(f"a {type(space).__name__} cannot be described as text")
