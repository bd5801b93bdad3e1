"""Vector environments for users' own loops; their observations record which step led to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from evopipe.compat.agilerl.breed import params_of
from evopipe.compat.agilerl.environments import made_by, remember
from evopipe.compat.agilerl.team_vect import TeamVectEnv
from evopipe.envs import make
from evopipe.errors import UsageError
from evopipe.schema.env import EnvConfig

_Bools = npt.NDArray[np.bool_]


class Marks(NamedTuple):
    """Flags of `n` environments, bool `[n]` each, for the step that led to their present observations.

    Attributes:
        began: whether that step was a reset.
        terminated, truncated: whether that step terminated or truncated the episode.
    """

    began: _Bools
    terminated: _Bools
    truncated: _Bools


class _Observed(np.ndarray[Any, Any]):
    """Observations `[n, …]` that know what led to them; NumPy's functions hand the knowledge on."""

    marks: Marks | None

    def __array_finalize__(self, obj: Any) -> None:
        self.marks = getattr(obj, "marks", None)


def marks_of(obs: Any, count: int) -> Marks | None:
    """Return the flags (`Marks`) that were attached to observations: for each environment, whether the observation
    comes from a reset, and whether the step that led to it ended an episode.

    The result is None if there are no flags, or if their number of environments is not `count`.
    """
    while isinstance(obs, dict | tuple) and obs:
        obs = next(iter(obs.values())) if isinstance(obs, dict) else obs[0]
    marks = getattr(obs, "marks", None)
    return marks if marks is not None and len(marks.began) == count else None


def marked(obs: Any, marks: Marks) -> Any:
    """Return observations as arrays that have the attribute `marks`.

    `marks` is the record of the step that led to these observations. Arrays inside dictionaries and tuples are
    converted too.
    """
    if isinstance(obs, dict):
        return {name: marked(part, marks) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(marked(part, marks) for part in obs)
    found = np.asarray(obs).view(_Observed)
    found.marks = marks
    return found


class _VectEnvs(SyncVectorEnv):
    """Environments that step together, in this process. One that ended is reset by the next step, whatever its action:
    such a step is no transition, and the buffers, `agent.learn` and the rollouts leave it out. `env.reset()` seeds the
    first time with `seed`, and goes on from there."""

    def __init__(self, config: EnvConfig, seed: int = 1) -> None:
        functions = [partial(make.make_env, config)] * config.num_envs
        super().__init__(functions, autoreset_mode=AutoresetMode.NEXT_STEP)
        self._first_seed: int | None = seed
        remember(self, config)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment; return observations `[n, …]` and infos."""
        seed, self._first_seed = self._first_seed if seed is None else seed, None
        obs, info = super().reset(seed=seed, options=options)  # type: ignore[arg-type]
        nothing = np.zeros(self.num_envs, np.bool_)
        return marked(obs, Marks(~nothing, nothing, nothing)), info

    def step(self, actions: Any) -> tuple[Any, Any, _Bools, _Bools, dict[str, Any]]:
        """Step every environment: observations, rewards, terminated, truncated `[n, …]` and infos."""
        began = self._autoreset_envs.copy()
        obs, reward, terminated, truncated, info = super().step(actions)
        return marked(obs, Marks(began, terminated, truncated)), reward, terminated, truncated, info


def _inside(function: Callable[[], Any], wrappers: Sequence[Callable[[Any], Any]]) -> Callable[[], Any]:
    """Return a function that makes an environment inside wrappers."""
    return lambda: reduce(lambda env, wrapper: wrapper(env), wrappers, function())


def make_multi_agent_vect_envs(
    env: Callable[..., Any], num_envs: int = 1, *, extra_wrappers: Sequence[Any] | None = None, seed: int = 1,
    **env_kwargs: Any,
) -> TeamVectEnv:  # fmt: skip
    """Return a vector of teams' environments that step together, `num_envs` for each member of a population.

    Args:
        env: a function that makes one parallel environment of PettingZoo.
        num_envs: each member's number of environments.
        extra_wrappers: wrappers as functions of an environment, put around each environment in turn.
        seed: seed of the first `env.reset()` in a script's own loop. The training functions seed every episode.
        env_kwargs: keyword arguments of `env`.

    Raises:
        UsageError: the function makes something else.

    Examples:
        >>> from mpe2 import simple_spread_v3
        >>> from evopipe.compat.agilerl import make_multi_agent_vect_envs
        >>> env = make_multi_agent_vect_envs(simple_spread_v3.parallel_env, num_envs=2, max_cycles=5)
        >>> obs, info = env.reset()
        >>> env.agents[0], obs["agent_0"].shape
        ('agent_0', (2, 18))
    """
    config = made_by(_inside(partial(env, **env_kwargs), extra_wrappers or ()), num_envs)
    if not make.is_team(config):
        raise UsageError("env: it makes an environment of one agent: call make_vect_envs(make_env=...)")
    return TeamVectEnv(config, seed)


class AsyncPettingZooVecEnv(TeamVectEnv):
    """A vector of equal environments of a team, each made by a function. In a script's own loop they step in this
    process.

    Args:
        env_fns: functions, each of which makes one parallel environment of PettingZoo.
        seed: seed of the first `reset` without a seed.

    Raises:
        UsageError: there is no function, or the first function does not make such an environment.

    Examples:
        >>> from mpe2 import simple_spread_v3
        >>> from evopipe.compat.agilerl import AsyncPettingZooVecEnv
        >>> env = AsyncPettingZooVecEnv([simple_spread_v3.parallel_env] * 2)
        >>> env.num_envs, env.single_action_space("agent_0")
        (2, Discrete(5))
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], *, seed: int = 1, **_: Any) -> None:
        if not env_fns:
            raise UsageError("AsyncPettingZooVecEnv: env_fns is empty: give a function for each environment")
        config = made_by(env_fns[0], len(env_fns))
        if not make.is_team(config):
            raise UsageError("AsyncPettingZooVecEnv: env_fns make environments of one agent: call make_vect_envs")
        super().__init__(config, seed)


def make_vect_envs(
    env_name: str | None = None, num_envs: int = 1, *, make_env: Any = None, wrappers: Sequence[Any] = (),
    extra_wrappers: Sequence[Any] | None = None, should_async_vector: bool = False, seed: int = 1, **env_kwargs: Any,
) -> Any:  # fmt: skip
    """Return a vector of `num_envs` environments that are stepped together. In a training, each member has that many
    environments.

    Args:
        env_name: an id of Gymnasium, `module:EnvId`, or a team of PettingZoo or mpe2, as `env.id` in `params.yaml`.
        num_envs: each member's number of environments.
        make_env: a function that makes one environment, instead of `env_name`.
        wrappers: names of wrappers around each environment, as in `env.wrappers` of `params.yaml`. A function
            `make_env` must add its wrappers itself.
        extra_wrappers: wrappers as functions of an environment, put around each environment in turn.
        should_async_vector: has no effect. A script's own loop steps the environments in this process; the training
            functions use further processes where that is faster.
        seed: seed of the first `env.reset()` in a script's own loop. The training functions seed every episode.
        env_kwargs: keyword arguments of `gymnasium.make`.

    Returns:
        For an environment of one agent, a vector of Gymnasium. For a team, what `make_multi_agent_vect_envs` returns.

    Raises:
        ParamsError: the name is unknown, or an argument does not fit.
        UsageError: neither or both of `env_name` and `make_env` are given.

    Examples:
        >>> from evopipe import make_vect_envs
        >>> env = make_vect_envs("CartPole-v1", num_envs=3)
        >>> env.reset()[0].shape, env.single_action_space
        ((3, 4), Discrete(2))
    """
    if (env_name is None) == (make_env is None):
        raise UsageError("make_vect_envs: name the environment or give the function that makes it, one of both")
    if extra_wrappers:
        make_env = _inside(make_env or partial(gymnasium.make, str(env_name), **env_kwargs), extra_wrappers)
        env_kwargs = {}
    if make_env is not None:
        if wrappers or env_kwargs:
            raise UsageError("make_vect_envs: make_env takes no wrappers and arguments: put them into the function")
        config = made_by(make_env, num_envs)
    else:
        block = {"id": env_name, "num_envs": num_envs, "kwargs": env_kwargs, "wrappers": list(wrappers)}
        config = params_of({"env": block, "train": {"evo_steps": max(5_000, num_envs)}}).env
    return TeamVectEnv(config, seed) if make.is_team(config) else _VectEnvs(config, seed)
