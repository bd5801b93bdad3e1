"""Environments: pools of those of Gymnasium and PettingZoo, and adapters for those of other interfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evopipe.errors import need_package

if TYPE_CHECKING:
    import gymnasium

__all__ = ["from_dm_env"]


def from_dm_env(
    make: Callable[..., Any], reseed: Callable[[Any, int], None] | None = None, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """Return an environment of DeepMind's interface, `dm_env.Environment`, as a Gymnasium environment.

    An episode is a function of its seed and actions. By default the environment is made anew for each episode,
    with the episode's seed.

    Args:
        make: a function that makes the environment; its keyword arguments are `seed`, an int, and `kwargs`.
        reseed: a function (environment, seed) that seeds the next episode, where making the environment anew would take
            long; None makes it anew.
        kwargs: further keyword arguments of `make`, those of `env.kwargs`.

    Raises:
        MissingInputError: the package dm-env is not installed.
        ParamsError: Gymnasium has no space for an observation or action spec, for example for one of texts.
    """
    need_package("dm_env", "dm-env", "evopipe.envs.from_dm_env")
    from evopipe.envs.dm import DmEnv

    return DmEnv(make, reseed, kwargs)
