"""Environments that a caller made, converted to blocks of `params.yaml`.

A run makes its environments itself: each member has as many as the vector holds, and others for evaluation. From the
caller's environment it needs the way to make more:

- `make_vect_envs` remembers the name that it makes;
- a vector of `gymnasium` holds the functions that made its environments, wrappers included, which are called again;
- a single environment, of Gymnasium or PettingZoo, is copied, or made by its spec if it cannot be copied;
- a vector that is one program (`vector_entry_point`) is made by its spec.

Anything else is refused with a sentence. Functions and copies are known in this process and those that it forks.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import sys
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv, VectorWrapper

from evopipe.envs.make import close
from evopipe.envs.pool import EnvPool
from evopipe.envs.team import TeamEnv
from evopipe.errors import EvopipeError, UsageError, said
from evopipe.schema.env import EnvConfig

_HARMLESS = (gymnasium.wrappers.vector.RecordEpisodeStatistics,)  # they change nothing that members see
_OF_VECTORS = frozenset({"num_envs", "vectorization_mode", "vector_kwargs", "render_mode"})
_known: weakref.WeakKeyDictionary[Any, EnvConfig] = weakref.WeakKeyDictionary()
_pools: weakref.WeakKeyDictionary[Any, EnvPool] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


class _Anew(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment under the name that it was registered by, whatever its own wrappers call it."""

    @property
    def spec(self) -> Any:  # type: ignore[override]
        return self.unwrapped.spec


def config_of(env: Any) -> EnvConfig:
    """Return the block `env` of `params.yaml` from which a run makes more environments like `env`.

    If `env` is a vector of environments, their number becomes the number of environments of each member.

    Raises:
        UsageError: more environments like this one cannot be made.
    """
    try:
        if env not in _known:
            _known[env] = _find(env)
        return _known[env]
    except TypeError:  # it has no hash, or no weak reference
        return _find(env)


def made_by(function: Callable[[], Any], num_envs: int) -> EnvConfig:
    """Return the block `env` of `params.yaml` for a function that makes one environment of Gymnasium or PettingZoo.

    `num_envs` is each member's number of environments.

    Raises:
        UsageError: the function does not return an environment.
    """
    example = function()
    if isinstance(example, gymnasium.Env):
        close(example)
        return _registered(function, example.spec, num_envs)
    if not hasattr(example, "possible_agents"):
        raise UsageError(f"make_env: the function gave no environment but {type(example).__name__}")
    return _named_team(example, function, num_envs)


def remember(env: Any, config: EnvConfig) -> None:
    """Store the configuration from which an environment was made, so that the function `config_of` returns it.

    `config` has the form of the block `env` of `params.yaml`.
    """
    _known[env] = config


def evaluation_pool(env: Any, rows: int) -> EnvPool:
    """Return a pool of at least `rows` environments like `env` for testing agents. The pool is closed when `env` is
    garbage-collected."""
    if env not in _pools or _pools[env].rows < rows:
        if env in _pools:
            _pools.pop(env).close()
        _pools[env] = pool = EnvPool(config_of(env), rows, what="evaluation")
        weakref.finalize(env, pool.close)
    return _pools[env]


def _find(env: Any) -> EnvConfig:
    if isinstance(env, VectorWrapper):
        if not isinstance(env, _HARMLESS):
            raise UsageError(
                f"env: {type(env).__name__} is put around a whole vector, and each member lives in environments of its "
                "own: put its like around each environment (gymnasium.make_vec(..., wrappers=[...]))"
            )
        return config_of(env.env)
    if isinstance(env, VectorEnv):
        return _of_vector(env)
    if isinstance(env, gymnasium.Env):
        return _of_one(env)
    if hasattr(env, "possible_agents") and hasattr(env, "step"):
        template, why = _copied(env)
        if template is None:
            raise UsageError(f"env: it cannot be copied ({why}): name it, make_vect_envs('module:function', ...)")
        return _named_team(env, lambda: copy.deepcopy(template), 1)
    raise UsageError(
        f"env: a {type(env).__name__} is no environment: pass what make_vect_envs gives, a vector or an environment of "
        "Gymnasium, or a parallel environment of PettingZoo"
    )


def _of_vector(env: VectorEnv[Any, Any, Any]) -> EnvConfig:
    functions = getattr(env, "env_fns", None)
    if not functions:
        if env.spec is not None and (found := _of_spec(env.spec, env.num_envs)) is not None:
            return found
        raise UsageError(
            f"env: a {type(env).__name__} holds no functions that make its environments, and has no spec that does: "
            "pass gymnasium.vector.SyncVectorEnv([function, ...]), or what make_vect_envs gives"
        )
    codes = {getattr(function, "__code__", None) for function in functions}
    if len(codes) > 1:
        raise UsageError(
            "env: its environments are made by unlike functions, and members would not all live in the same ones: make "
            "all of them by one function"
        )
    example = getattr(env, "envs", [None])[0]
    spec = example.spec if example is not None else env.spec
    return _registered(functions[0], spec, env.num_envs)


def _of_one(env: gymnasium.Env[Any, Any]) -> EnvConfig:
    template, why = _copied(env)
    if template is not None:
        return _registered(lambda: copy.deepcopy(template), env.spec, 1)
    if env.spec is not None and (found := _of_spec(env.spec, 1)) is not None:
        return found
    raise UsageError(
        f"env: it can neither be copied ({why}) nor made anew by its spec: pass "
        "gymnasium.vector.SyncVectorEnv([function, ...]) with a function that makes it"
    )


def _named_team(example: Any, function: Callable[[], Any], num_envs: int) -> EnvConfig:
    known = (getattr(example, "metadata", None) or {}).get("name") or type(example).__name__
    name = f"{_word(str(known))}_{next(_numbers)}"
    setattr(sys.modules[__name__], name, function)
    return EnvConfig(id=f"{__name__}:{name}", num_envs=num_envs)


def _copied(env: Any) -> tuple[Any, str]:
    """Return a copy of an environment, or why there is none."""
    try:
        return copy.deepcopy(env), ""
    except Exception as error:
        return None, said(error)


def _registered(function: Callable[[], Any], spec: Any, num_envs: int) -> EnvConfig:
    """Return the configuration of environments that a function makes, of Gymnasium or of PettingZoo."""
    named = _word(spec.id.partition(":")[2] or spec.id) if spec is not None else "Given"
    name = f"{named}-{next(_numbers)}-v0"

    def make(**_: Any) -> Any:
        made = function()
        if not isinstance(made, gymnasium.Env) or isinstance(made, TeamEnv):
            raise TypeError(f"the function gave no environment of Gymnasium but {type(made).__name__}")
        return _Anew(made)

    threshold = None if spec is None else spec.reward_threshold
    gymnasium.register(id=name, entry_point=make, reward_threshold=threshold, order_enforce=False)
    return EnvConfig(id=f"{__name__}:{name}", num_envs=num_envs)


def _word(text: str) -> str:
    return re.sub(r"\W", "_", text)


def _of_spec(spec: Any, num_envs: int) -> EnvConfig | None:
    """Return what a spec of Gymnasium's says in terms of `params.yaml`; None where it says more than fits there."""
    known = gymnasium.registry.get(spec.id)
    if known is None or spec.kwargs is None:
        return None
    kwargs = {name: value for name, value in spec.kwargs.items() if name not in _OF_VECTORS}
    kwargs = {name: value for name, value in kwargs.items() if known.kwargs.get(name, _OF_VECTORS) != value}
    if spec.max_episode_steps != known.max_episode_steps:
        kwargs["max_episode_steps"] = spec.max_episode_steps
    wrappers = [
        {"name": w.name if hasattr(gymnasium.wrappers, w.name) else w.entry_point, "kwargs": w.kwargs}
        for w in spec.additional_wrappers
    ]
    try:
        json.dumps([kwargs, wrappers])
        return EnvConfig.model_validate({"id": spec.id, "kwargs": kwargs, "wrappers": wrappers, "num_envs": num_envs})
    except (EvopipeError, TypeError, ValueError):
        return None
