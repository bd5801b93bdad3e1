"""Checks of parameters that need the environment itself: whether it exists, and whether it suits the run."""

from __future__ import annotations

from typing import Any

from evopipe import algos
from evopipe.errors import EvopipeError, ParamsError
from evopipe.own import foreign, import_name
from evopipe.params.load import Params
from evopipe.schema.env import EnvConfig

_CHOICE = ("CartPole-v1", "MountainCar-v0", "Acrobot-v1", "LunarLander-v3")
_BOX = ("Pendulum-v1", "MountainCarContinuous-v0", "LunarLanderContinuous-v3", "BipedalWalker-v3", "CarRacing-v3")
KNOWN = {**dict.fromkeys(_CHOICE, "discrete"), **dict.fromkeys(_BOX, "continuous")}
"""Actions of environments that Gymnasium brings, none of which masks any: for these it need not be loaded, let alone
made. That takes half a second, and `evopipe params check` is to answer in a quarter."""
_NO_SPACES = {"num_envs", "backend", "step_limit", "step_seconds"}  # keys of `env` that change no space


def check(params: Params) -> None:
    """Check parameters before the first stage runs: that the environment exists, and that algorithm and data suit it.

    Raises:
        ParamsError: the environment is unknown, the algorithm does not support its spaces, or a user's own network
            or curriculum cannot be used. Or the environment has action masks, although its actions are continuous or
            the run learns from a dataset (datasets have no masks).
        EnvironmentFailed: the environment could not be made or reset.
    """
    name, cfg = params.train.algo, params.env
    if params.train.curriculum is not None:
        import_name(params.train.curriculum, "train.curriculum")
    if params.train.self_play.every:
        _refuse_no_game(cfg)
    if params.network is not None:  # the user's own: what it is made of is seen where it is made
        from evopipe.problems.specs import make_spec

        make_spec(params)
    if params.train.replay.hindsight is not None:
        from evopipe.envs.goals import check as check_goals

        check_goals(cfg)
    plain = not any(cfg.model_dump(exclude={"id", *_NO_SPACES}).values())
    if plain and not algos.get(name).TEAM and KNOWN.get(cfg.id) in algos.get(name).ACTIONS:
        return
    from evopipe.envs.make import opened
    from evopipe.envs.spaces import NO_MASK
    from evopipe.envs.team import read_spaces

    with opened(cfg) as env:
        spaces, _ = read_spaces(env)
        if sentence := algos.unserved(name, spaces, cfg.id, env.action_space):
            raise ParamsError(sentence)
        if params.needs_dataset and spaces.team is not None:
            raise ParamsError(algos.ONE_AGENT)
        if (spaces.continuous or params.needs_dataset) and _masks(_reset(env, cfg), spaces.team is not None):
            reason = f"env.id: {cfg.id} gives an action_mask {NO_MASK}" if spaces.continuous else None
            raise ParamsError(reason or algos.MASKED[params.train.mode])


def _refuse_no_game(cfg: EnvConfig) -> None:
    """Raise ParamsError if an environment takes no opponents."""
    from evopipe.envs.make import opened

    if "opponents" in cfg.kwargs:
        raise ParamsError("env.kwargs: 'opponents' is set by train.self_play and cannot be given; remove it")
    with opened(cfg):
        pass  # that it can be made without them is another matter
    try:
        with opened(cfg.model_copy(update={"kwargs": {**cfg.kwargs, "opponents": []}})):
            pass
    except EvopipeError as error:
        raise ParamsError(
            f"train.self_play: {cfg.id!r} takes no argument `opponents`, which an environment of one seat of a game "
            "has, such as those of evopipe.envs.from_openspiel; set train.self_play.every to 0, or choose a game"
        ) from error


def _reset(env: Any, cfg: EnvConfig) -> dict[str, Any]:
    from evopipe.envs.make import guard

    with foreign(f"environment {cfg.id!r}: reset()", guard(cfg)):
        _, info = env.reset(seed=0)
    return info if isinstance(info, dict) else {}


def _masks(info: dict[str, Any], team: bool) -> bool:
    """Whether an environment, or any agent of a team, rules actions out at its reset."""
    infos = info.values() if team else (info,)
    return any(isinstance(own, dict) and own.get("action_mask") is not None for own in infos)
