"""The environment backends that `env.backend` can name, one file each.

A backend's file defines one of

- `rows(cfg, rows, spaces, threads)`: returns an object with the methods of `RowStepper`, which steps `rows`
  environments in NumPy, with Gymnasium's spaces, on up to `threads` threads;
- `tensors(cfg, rows, device)`: returns an object with the methods of `TensorPool` that steps them as tensors on a
  device.

It may define `TEAMS = True` if it serves environments with several agents. `sync` defines neither: there the pool makes
Gymnasium's environments itself. Another package can add a backend by an entry point of the group `evopipe.backends`,
which names a module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from evopipe import plugins
from evopipe.errors import ParamsError
from evopipe.schema.env import BACKENDS, EnvConfig

if TYPE_CHECKING:
    from evopipe.envs.rows import Actions, Begun, Ints, RowStep, Upcoming


class RowStepper(Protocol):
    """The interface of an object that steps the `R` environments of a pool.

    Each environment is a row, numbered from 0. Each call concerns the n environments whose numbers are `rows` `[n]`.
    """

    def reset(self, rows: Ints, seeds: Ints, upcoming: Upcoming = None) -> Begun:
        """Begin an episode in each of the environments `rows` `[n]`, from its own seed `[n]`; return the first
        observations and masks.

        `upcoming` is None, or a function (rows `[n]`, k) → `[n, k]` that returns the seeds of the next k episodes of
        these rows. With such a function, an implementation may begin episodes ahead of time.

        Raises:
            Fault: an environment failed.
        """

    def send(self, rows: Ints, actions: Actions) -> None:
        """Start a step of the environments `rows` `[n]`, which `receive` finishes.

        `actions` are indices from 0: `[n]` for a Discrete action space, `[n, D]` for a MultiDiscrete or MultiBinary one
        of D parts. For a Box of A numbers they are `[n, A]` in [-1, 1], which are scaled to its bounds. For a team of K
        agents they are `[n, K, …]`.
        """

    def receive(self, rows: Ints, actions: Actions) -> RowStep:
        """Finish the step of the environments `rows` that `send` started with the same arguments, and return its
        results.

        Raises:
            Fault: an environment failed.
        """

    def close(self) -> None:
        """Close all environments."""


class Backend(NamedTuple):
    """A backend: the functions of its module that make environments. At least one of them is not None.

    Attributes:
        rows: the function `rows` of the module, which makes a `RowStepper`; None if the module lacks it.
        tensors: the function `tensors` of the module, which makes a `TensorPool` or an object like it; None if the
            module lacks it.
        teams: whether the backend supports teams.
    """

    rows: Callable[..., RowStepper] | None
    tensors: Callable[..., Any] | None
    teams: bool


def get(cfg: EnvConfig) -> Backend:
    """Return the backend that `env.backend` names.

    Raises:
        ParamsError: no installed package offers the backend, or several do; it cannot be imported; or it defines
            neither `rows` nor `tensors`.
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
    """Return the function `tensors` of the backend that `env.backend` names; None if the backend has no such function.

    The function makes a `TensorPool`, or an object with the same methods.
    """
    return get(cfg).tensors
