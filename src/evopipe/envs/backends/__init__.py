"""The environment backends: what `env.backend` names, one file each, found by name.

A backend's file defines one of

- `rows(cfg, rows, spaces, threads)`: an object with the methods of `EnvHost`, which steps `rows` environments in NumPy,
  with the spaces that Gymnasium's own has, on so many threads;
- `tensors(cfg, rows, device)`: an object with what `TensorPool` has, which steps them as tensors on a device.

and may define `TEAMS = True` where it serves environments of several agents. `sync` defines neither: a pool makes
Gymnasium's environments itself. Another package may bring a backend by an entry point of the group `evopipe.backends`,
the name of a module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from evopipe import plugins
from evopipe.errors import ParamsError
from evopipe.schema.blocks import BACKENDS, EnvConfig

if TYPE_CHECKING:
    from evopipe.envs.rows import Actions, Begun, Ints, RowStep, Upcoming


class EnvHost(Protocol):
    """Where the environments of a pool live: any rows `[n]` of them at a time."""

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        """Begin an episode in each of these rows, from its own seed `[n]`; raise `Fault` where one fails."""

    def send(self, rows: Ints, actions: Actions) -> None:
        """Begin a step with actions in an algorithm's terms."""

    def receive(self, rows: Ints, actions: Actions) -> RowStep:
        """End it, and return what it gave; raise `Fault` where one fails."""

    def close(self) -> None:
        """Let the environments go."""


class Backend(NamedTuple):
    """What a backend's file defines."""

    rows: Callable[..., EnvHost] | None
    tensors: Callable[..., Any] | None
    teams: bool


def get(cfg: EnvConfig) -> Backend:
    """Return the backend that `env.backend` names.

    Raises:
        ParamsError: no package offers it, or two, or it cannot be imported, or lacks what a backend must define.
    """
    outside = plugins.find(plugins.BACKENDS, cfg.backend, "env.backend", BACKENDS)
    if outside is None and cfg.backend not in BACKENDS:
        raise ParamsError(
            f"env.backend: no package offers {cfg.backend!r}: install the one that did, or set it to sync"
        )
    module = outside.load("env.backend") if outside else importlib.import_module(f"{__name__}.{cfg.backend}")
    rows, tensors = (getattr(module, name, None) for name in ("rows", "tensors"))
    found = Backend(rows, tensors, bool(getattr(module, "TEAMS", False)))
    if outside is not None and not (callable(found.rows) or callable(found.tensors)):
        raise ParamsError(f"env.backend: {outside} defines neither rows() nor tensors(): every backend must define one")
    return found


def as_tensors(cfg: EnvConfig) -> Callable[..., Any] | None:
    """Return what makes the environments as tensors, see `TensorPool`; None where the backend has none."""
    return get(cfg).tensors
