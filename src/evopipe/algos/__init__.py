"""The algorithms: one file each, discovered by name.

An algorithm is a module of this package that defines the names below. Params validation, command-line help, contract
tests, evolution ranges and checkpoints follow from them; a missing one fails at import with a sentence. It may define
more: `values(cfg, state, obs)`, action values for `Policy.q_values`; `period(cfg)`, after how many updates the pattern
of its updates repeats (1 where it does not: all are alike; `turn` of `update` counts within it); `OFFLINE_ONLY`, that
it only makes sense on a dataset (`train.mode: offline`); `RECURRENT`, that it serves networks with a memory;
`ACTS_WITH`, rows of the state that an exported policy needs beside its network; `MASKED_LOSS`, that its loss reads
which actions are legal in `obs`, `Batch.legal`.

An algorithm that defines `step` learns on-policy, from what its members have just done and from nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

from evopipe.core.population import least_head
from evopipe.errors import ParamsError, did_you_mean
from evopipe.types import Chosen, Learned, Spaces

REQUIRED = {
    "PAPER": "the paper's link",
    "POLICY": "the network that acts",
    "ACTIONS": "the kinds of action space served: `discrete`, `continuous`",
    "Config": "the pydantic schema of its block in params.yaml",
    "State": "the dataclass of everything that learns",
    "networks": "input and output width of every network",
    "init": "the state from fresh networks",
    "greedy": "the best actions",
    "loss": "each member's loss",
    "update": "one learning step",
}
OFF_POLICY = {
    "explore": "the exploration rate after so many steps",
    "act": "actions while training, exploring",
}
ON_POLICY = {
    "step": "actions drawn from the policy or its best, with their log-probabilities, values and memory",
    "value": "values of observations",
    "schedule": "what hyper-parameters are multiplied by after so many steps",
}


class Algorithm(Protocol):
    """What a module of this package defines."""

    PAPER: str
    POLICY: str
    ACTIONS: tuple[str, ...]
    Config: type[Any]
    State: type[Any]
    networks: Callable[[Any, Spaces], Mapping[str, Any]]
    init: Callable[[Any, Mapping[str, Any]], Any]
    explore: Callable[[Any, int], float]  # explore and act off-policy,
    act: Callable[..., Any]
    step: Callable[..., Chosen]  # step, value and schedule on-policy
    value: Callable[..., Any]
    schedule: Callable[[Any, int], Mapping[str, float]]
    greedy: Callable[..., Any]
    loss: Callable[..., Any]
    update: Callable[..., Learned]


@cache
def names() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def on_policy(algo: Algorithm) -> bool:
    """Whether an algorithm learns from what its members have just done, and from nothing else."""
    return hasattr(algo, "step")


def misfit(name: str, cfg: Any, spaces: Spaces) -> tuple[str, str] | None:
    """Return what an algorithm cannot do with the network of its configuration: key and sentence; None where it can.

    Args:
        name: the algorithm.
        cfg: its `Config`.
        spaces: the environment's.
    """
    algo = get(name)
    if cfg.network.encoder_kind == "lstm" and not getattr(algo, "RECURRENT", False):
        able = [f"train.algo: {other}" for other in names() if getattr(get(other), "RECURRENT", False)]
        remedy = "take mlp, simba or resnet" + (f", or {' or '.join(able)}" if able else "")
        return "network.encoder_kind", f"{name} keeps no memory between steps; {remedy}"
    if len(cfg.network.head) < least_head(algo.networks(cfg, spaces).values()):
        return "network.head", (
            "with share_encoder the critics read the action behind the encoder, and need a hidden layer there; give at "
            "least one width"
        )
    return None


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
    own = ON_POLICY if hasattr(module, "step") else OFF_POLICY
    for needed, what in (REQUIRED | own).items():
        if not hasattr(module, needed):
            raise ImportError(f"algos/{name}.py does not define {needed!r} ({what}): every algorithm must")
    return module
