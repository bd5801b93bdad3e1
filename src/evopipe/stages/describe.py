"""What a policy is, beside its tensors: for the stages that write members or policies."""

from __future__ import annotations

from typing import Any

from evopipe.envs.make import opened
from evopipe.envs.team import read_spaces
from evopipe.schema.params import Params


def describe(params: Params) -> dict[str, Any]:
    """Return as JSON data the algorithm, its configuration, the environment and its spaces, see `policy.load`."""
    with opened(params.env) as env:
        shown = {"observation_space": str(env.observation_space), "action_space": str(env.action_space)}
        _, spaces = read_spaces(env)
    return {
        "algo": params.train.algo,
        "config": params.algo_config.model_dump(mode="json"),
        "env": params.env.model_dump(mode="json", include={"id", "kwargs", "wrappers"}),
        **shown,
        **spaces,
    }
