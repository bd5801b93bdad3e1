"""The names of AgileRL's first versions, as functions and methods that warn and call the present ones.

Their training functions counted episodes, by default of 500 steps of the vector of environments. `docs/scripts.md` has
the import lines.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from evopipe.algos import get, on_policy
from evopipe.compat.agilerl import functions
from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.buffers import ReplayBuffer
from evopipe.compat.agilerl.environments import config_of
from evopipe.compat.agilerl.population import create_population
from evopipe.compat.agilerl.settings import algorithm_of
from evopipe.compat.agilerl.vect import make_vect_envs

_METHODS: tuple[tuple[type, str, str], ...] = (
    (Agent, "getAction", "get_action"),
    (Agent, "saveCheckpoint", "save_checkpoint"),
    (Agent, "loadCheckpoint", "load_checkpoint"),
    (ReplayBuffer, "save2memory", "save_to_memory"),
    (ReplayBuffer, "save2memoryVectEnvs", "save_to_memory_vect_envs"),
)
EPISODE_STEPS = 500


def _aliased(old: str, new: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"{old} is an old spelling: call {new}", DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = old
    return call


def _by_episodes(old: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a training function that counts episodes, by one that counts environment steps."""

    def call(
        env: Any, env_name: str, *args: Any, n_episodes: int = 2000, max_steps: int = EPISODE_STEPS,
        evo_epochs: int = 5, evo_loop: int = 1, net_config: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        warnings.warn(
            f"{old} counts episodes: call {function.__name__} with max_steps and evo_steps", DeprecationWarning, 2
        )
        each = max_steps * config_of(env).num_envs
        if function is functions.train_offline:  # there a step is one update
            each = max_steps
        steps = {"max_steps": n_episodes * each, "evo_steps": evo_epochs * each}
        return function(env, env_name, *args, **steps, eval_steps=max_steps, eval_loop=evo_loop, **kwargs)

    call.__name__ = call.__qualname__ = old
    call.__doc__ = f"""Call `{function.__name__}` by episodes.

    Args:
        n_episodes: episodes of each agent.
        max_steps: steps of the vector of environments in an episode, and the cap of one in an evaluation.
        evo_epochs: episodes between evolutions.
        evo_loop: evaluation episodes for each environment.
        net_config: not needed: the population has its networks.

    The others are those of `{function.__name__}`.
    """
    return call


def initialPopulation(algo: str, INIT_HP: Any = None, **kwargs: Any) -> list[Agent]:  # noqa: N802
    """Return a new population of agents. This is the old name of `create_population`, with the same arguments: `algo`,
    `INIT_HP` and, in `kwargs`, the others.

    For PPO, `LEARN_STEP` in `INIT_HP` is ignored, and rollouts have their default length. Scripts that use the old name
    learned once at the end of each episode, so their `LEARN_STEP` is not the length of a rollout.

    Examples:
        >>> from evopipe import initialPopulation
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     pop = initialPopulation("DQN", state_dim=(4,), action_dim=2, population_size=2)
        >>> len(pop)
        2
    """
    warnings.warn("initialPopulation is an old spelling: call create_population", DeprecationWarning, stacklevel=2)
    hp = dict(INIT_HP or {})
    if on_policy(get(algorithm_of(algo))):
        hp.pop("LEARN_STEP", None)
    return create_population(algo, INIT_HP=hp, **kwargs)


makeVectEnvs = _aliased("makeVectEnvs", "make_vect_envs", make_vect_envs)  # noqa: N816
train = _by_episodes("train", functions.train_off_policy)
train_on_policy = _by_episodes("train_on_policy", functions.train_on_policy)
train_offline = _by_episodes("train_offline", functions.train_offline)
train_multi_agent = _by_episodes("train_multi_agent", functions.train_multi_agent_off_policy)

for _kind, _old, _new in _METHODS:
    setattr(_kind, _old, _aliased(_old, _new, getattr(_kind, _new)))
