"""The algorithms: one file each, discovered by name.

An algorithm is a module of this package that defines the names below. Params validation, command-line help, contract
tests, evolution ranges and checkpoints follow from them; a missing one fails at import with a sentence.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

from evopipe.errors import ParamsError, did_you_mean

REQUIRED = {
    "PAPER": "the paper's link",
    "POLICY": "the network that acts",
    "ACTIONS": "the kind of action space served: `discrete`",
    "Config": "the pydantic schema of its block in params.yaml",
    "State": "the dataclass of everything that learns",
    "networks": "input and output width of every network",
    "init": "the state from fresh networks",
    "explore": "the exploration rate after so many steps",
    "act": "actions from observations",
    "values": "action values from observations",
    "loss": "each member's loss",
    "update": "one learning step",
}


class Algorithm(Protocol):
    """What a module of this package defines."""

    PAPER: str
    POLICY: str
    ACTIONS: str
    Config: type[Any]
    State: type[Any]
    networks: Callable[[int, int], Mapping[str, Any]]
    init: Callable[[Mapping[str, Any]], Any]
    explore: Callable[[Any, int], float]
    act: Callable[..., Any]
    values: Callable[..., Any]
    loss: Callable[..., Any]
    update: Callable[..., Any]


@cache
def names() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


@cache
def get(name: str) -> Algorithm:
    """Return an algorithm.

    Raises:
        ParamsError: there is none of that name.
        ImportError: its file lacks a name that an algorithm must define.
    """
    if name not in names():
        raise ParamsError(
            f"train.algo: no algorithm {name!r}{did_you_mean(name, names())} (there are: {', '.join(names())})"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    for needed, what in REQUIRED.items():
        if not hasattr(module, needed):
            raise ImportError(f"algos/{name}.py does not define {needed!r} ({what}): every algorithm must")
    return module
