"""The configuration of runs in environments, with their spaces, also for stages that make no run."""

from __future__ import annotations

from typing import Any

import torch

from evopipe.algos import get, unserved
from evopipe.core.graphs import Paths
from evopipe.envs.make import opened
from evopipe.envs.team import read_spaces
from evopipe.errors import ParamsError
from evopipe.machine import say_once
from evopipe.params.load import Params
from evopipe.run.spec import EnvSpec
from evopipe.schema.blocks import EnvConfig
from evopipe.types import Spaces


def make_spec(params: Params, device: torch.device | None = None, spaces: Spaces | None = None) -> EnvSpec:
    """Return the configuration of a run in an environment. `device` is the device of the members' tensors, by default
    the CPU. If `spaces` is None, the environment is made once to read its spaces.

    Raises:
        ParamsError: the environment is unknown, or its spaces are not supported in general or by the algorithm.
    """
    device = device or torch.device("cpu")
    module, kernels = params.network, params.runtime.kernels
    if module is not None and kernels in ("native", "portable"):
        say_once(f"runtime.kernels: {kernels} kernels compute evopipe's own networks; torch computes {module}")
    return EnvSpec(
        seed=params.seed,
        env=params.env,
        train=params.train,
        tournament=params.evolution.tournament,
        search=params.search,
        mutation=params.evolution.mutation,
        algo=get(params.train.algo),
        algo_config=params.algo_config,
        spaces=spaces or spaces_of(params.env, params.train.algo),
        device=device,
        cohorts=params.runtime.cohorts,
        paths=Paths.choose(params.runtime.compile, device),
    )


def spaces_of(env_config: EnvConfig, algo: str) -> Spaces:
    """Make the environment once and return its spaces, in the form that algorithms use. `algo` is the algorithm's name.

    Raises:
        ParamsError: the environment is unknown, or its spaces are not supported in general or by the algorithm.
    """
    with opened(env_config) as env:
        spaces, _ = read_spaces(env)
    if sentence := unserved(algo, spaces, env_config.id, env.action_space):
        raise ParamsError(sentence)
    return spaces


def describe(spec: EnvSpec) -> dict[str, Any]:
    """Return algorithm, configuration, environment and spaces as JSON data: the part of `policy.json` that is equal for
    all members."""
    with opened(spec.env) as env:
        shown = {"observation_space": str(env.observation_space), "action_space": str(env.action_space)}
        return {**settings_of(spec.env, spec.train.algo, spec.algo_config), **shown, **read_spaces(env)[1]}


def settings_of(env: EnvConfig, algo: str, config: Any) -> dict[str, Any]:
    """Return the algorithm, its configuration and the environment as JSON data.

    These are the entries that the function `describe` returns, without the spaces.

    The arguments are the block `env` of the parameters, the algorithm's name, and the algorithm's block of the
    parameters.
    """
    own = set() if env.source is None else {"source"}
    place = env.model_dump(mode="json", include={"id", "kwargs", "wrappers", *own})
    return {"algo": algo, "config": config.model_dump(mode="json"), "env": place}
