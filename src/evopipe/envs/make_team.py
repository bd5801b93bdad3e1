"""How a team is made: an environment of PettingZoo. Importing this module imports PettingZoo."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel, aec_to_parallel_wrapper, turn_based_aec_to_parallel
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

from evopipe.envs.team import TeamEnv
from evopipe.errors import ParamsError


def make_team(function: Callable[..., Any], env_id: str, arguments: dict[str, Any]) -> TeamEnv:
    """Make a team. An AECEnv becomes parallel by PettingZoo's converter: by that of games whose agents take turns,
    unless the environment's `metadata["is_parallelizable"]` says that all act in one cycle. Raises ParamsError if what
    `function` gave is no environment of PettingZoo, or does not say who its agents are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PettingZoo's, of what an environment leaves to its base class
        env, turns = function(**arguments), None
        if isinstance(env, AECEnv):
            if env.metadata.get("is_parallelizable", False):
                env = aec_to_parallel(env)
            else:
                env, turns = turn_based_aec_to_parallel(env), env
        if not isinstance(env, ParallelEnv):
            instead = "'module:function' must name what makes one"
            if isinstance(env, gymnasium.Env):
                env.close()
                instead = "gymnasium.register it, and use 'module:EnvId'"
            name = type(env).__name__
            raise ParamsError(f"env.id: {env_id!r} gave no environment of PettingZoo but {name}; {instead}")
        if type(env) is aec_to_parallel_wrapper:
            # Each of its steps reads attributes some fifty times, through wrappers that only check what holds here
            # anyway: the converter keeps the order, and an action is one of the space's. They take a third of a step.
            while type(env.aec_env) in (OrderEnforcingWrapper, AssertOutOfBoundsWrapper):
                env.aec_env = env.aec_env.env
        return TeamEnv(env, turns)
