"""What a policy is, beside its tensors: for the stages that write members or policies."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from evopipe.envs.make import make_env
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.schema.params import Params


def describe(params: Params) -> dict[str, Any]:
    """Return as JSON data the algorithm, its configuration, the environment and its spaces, see `policy.load`."""
    with closing(make_env(params.env)) as env:
        shown = {"observation_space": str(env.observation_space), "action_space": str(env.action_space)}
        action, observation = ActionSpace.of(env.action_space), ObservationSpace.of(env.observation_space)
    return {
        "algo": params.train.algo,
        "config": params.algo_config.model_dump(mode="json"),
        "env": {"id": params.env.id, "kwargs": params.env.kwargs},
        **shown,
        **action.to_json(),
        **observation.to_json(),
    }
