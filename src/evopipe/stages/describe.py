"""What a policy is, beside its tensors: for the stages that write members or policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evopipe.envs.make import opened
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamEnv, TeamSpace
from evopipe.schema.params import Params

if TYPE_CHECKING:
    import gymnasium

    from evopipe.types import Spaces


def describe(params: Params) -> dict[str, Any]:
    """Return as JSON data the algorithm, its configuration, the environment and its spaces, see `policy.load`."""
    with opened(params.env) as env:
        shown = {"observation_space": str(env.observation_space), "action_space": str(env.action_space)}
        _, spaces = spaces_of(env)
    return {
        "algo": params.train.algo,
        "config": params.algo_config.model_dump(mode="json"),
        "env": params.env.model_dump(mode="json", include={"id", "kwargs", "wrappers"}),
        **shown,
        **spaces,
    }


def spaces_of(env: gymnasium.Env[Any, Any]) -> tuple[Spaces, dict[str, Any]]:
    """Return what an algorithm knows of an environment's spaces, and how a policy's description has them.

    Raises:
        ParamsError: they are not served.
    """
    if isinstance(env, TeamEnv):
        team = TeamSpace.of(env)
        return team.spaces, team.to_json()
    action, observation = ActionSpace.of(env.action_space), ObservationSpace.of(env.observation_space)
    return action.spaces(observation), action.to_json() | observation.to_json()
