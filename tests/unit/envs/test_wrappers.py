"""`env.wrappers`: Gymnasium's own and one's own, around every environment that evopipe makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worker_envs
from envs_for_tests import LENGTH
from evopipe.envs.check import check
from evopipe.envs.make import make_env, source_of
from evopipe.envs.pool import EnvPool
from evopipe.envs.spaces import ObservationSpace
from evopipe.envs.workers import Workers
from evopipe.errors import ParamsError
from evopipe.parallel import can_help
from evopipe.params.load import parse_params
from evopipe.schema.env import EnvConfig
from evopipe.types import Image

RIGHT = 1
STACK = {"name": "FrameStackObservation", "kwargs": {"stack_size": 3}}


def config(env_id: str, *wrappers: Any, **more: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "wrappers": list(wrappers), **more})


@pytest.mark.parametrize("count", [0, pytest.param(1, marks=pytest.mark.skipif(not can_help(), reason="needs fork"))])
def test_the_first_is_the_innermost_and_a_pool_steps_through_all(count: int) -> None:
    with Workers(count) as workers:
        pool = EnvPool(config("envs_for_tests:Countdown-v0", STACK, "FlattenObservation"), 1, workers=workers)
        pool.reset([0], [0])
        seen = [pool.obs[0].copy(), *(pool.step([RIGHT]).obs[0] for _ in range(2))]
    one_hot = np.eye(LENGTH, dtype=np.float32)  # of the number of steps; a stack begins with the first one again
    for obs, steps in zip(seen, ([0, 0, 0], [0, 0, 1], [0, 1, 2]), strict=True):
        np.testing.assert_array_equal(obs, one_hot[steps].reshape(-1))


def test_stacked_grey_frames_are_one_image_of_bytes() -> None:
    shape = {"name": "ReshapeObservation", "kwargs": {"shape": [6, 6]}}
    env = make_env(config("envs_for_tests:Pixels-v0", shape, STACK))
    assert ObservationSpace.of(env.observation_space).images == (Image(0, 3, 6, 6),)
    assert env.observation_space.dtype == np.uint8


def test_rewards_are_transformed_and_episodes_cut() -> None:
    clip = {"name": "ClipReward", "kwargs": {"max_reward": 0.25}}
    limit = {"name": "TimeLimit", "kwargs": {"max_episode_steps": 2}}
    pool = EnvPool(config("envs_for_tests:Endless-v0", clip, limit, "worker_envs:Doubled"), 1)
    pool.reset([0], [0])
    steps = [pool.step([RIGHT]) for _ in range(2)]
    assert [float(step.reward[0]) for step in steps] == [0.5, 0.5]
    assert [bool(step.truncated[0]) for step in steps] == [False, True]


def test_a_wrapper_of_ones_own_counts_with_its_file() -> None:
    cfg = config("CartPole-v1", "worker_envs:Doubled")
    make_env(cfg)
    assert source_of(cfg) == [Path(str(worker_envs.__file__))]


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        (STACK | {"kwargs": {}}, "FrameStackObservation cannot be put around 'CartPole-v1': TypeError: FrameStackObs"),
        ({"name": "ClipReward", "kwargs": {"top": 1}}, "ClipReward with {'top': 1} cannot be put around 'CartPole-v1'"),
        ("worker_envs:Doubles", "the module 'worker_envs' has no 'Doubles', did you mean 'Doubled'?"),
        ("worker_enws:Doubled", "no module named 'worker_enws' in "),
        ("worker_envs:Refuses", "worker_envs:Refuses cannot be put around 'CartPole-v1': SystemExit: never"),
        ("os.path:exists", "os.path:exists cannot be put around 'CartPole-v1': TypeError: "),
    ],
)
def test_one_that_cannot_be_put_around_is_told(wrapper: Any, said: str) -> None:
    with pytest.raises(ParamsError) as refused:
        make_env(config("CartPole-v1", "FlattenObservation", wrapper))
    assert str(refused.value).startswith(f"env.wrappers.1: {said}")


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (
            {"wrappers": ["FlattenObservation", "FrameStack"]},
            "env.wrappers.1.name: gymnasium.wrappers has no 'FrameStack', did you mean 'FrameStackObservation'?; one's "
            "own is 'module:Wrapper'",
        ),
        ({"wrappers": ["a:b:c"]}, "env.wrappers.0.name: 'a:b:c' is not of the form 'module:Wrapper'"),
        ({"wrappers": [STACK | {"kwarg": {}}]}, "env.wrappers.0.kwarg: unknown key, did you mean 'kwargs'?"),
        (
            {"wrappers": [STACK | {"kwargs": {"size": 1}}]},
            "env.wrappers.0.kwargs: DVC's run cache overlooks keys named",
        ),
        (
            {"wrappers": ["FlattenObservation"], "backend": "torch"},
            "env.wrappers: env.backend torch steps no Gymnasium",
        ),
        ({"wrappers": [STACK], "backend": "envpool"}, "env.wrappers: env.backend envpool steps no Gymnasium"),
    ],
)
def test_what_no_environment_is_needed_for_is_told_by_the_params(env: Any, said: str) -> None:
    with pytest.raises(ParamsError) as refused:
        parse_params({"env": env})
    assert str(refused.value).startswith(said)


def test_they_are_tracked_and_a_name_alone_is_one_without_arguments() -> None:
    tracked = parse_params({"env": {"wrappers": ["FlattenObservation"], "step_seconds": 5.0}}).tracked("env")["env"]
    assert tracked["wrappers"] == [{"name": "FlattenObservation", "kwargs": {}}]
    assert "step_seconds" not in tracked


def test_the_check_looks_at_the_wrapped_environment() -> None:
    assert check("CartPole-v1", {}, [STACK]) == []
    with pytest.raises(ParamsError, match=r"env.wrappers.0.name: gymnasium.wrappers has no 'Stack'"):
        check("CartPole-v1", {}, ["Stack"])
    with pytest.raises(ParamsError, match=r"env.kwargs: DVC's run cache overlooks keys named 'size'"):
        check("CartPole-v1", {"size": 4})


def test_minigrid_runs_by_parameters_alone() -> None:
    pytest.importorskip("minigrid", reason="an extra of its own: pip install 'evopipe[minigrid]'")
    env_id, wrappers = "minigrid:MiniGrid-Empty-5x5-v0", ["minigrid.wrappers:ImgObsWrapper"]
    assert check(env_id, {}, wrappers) == []
    assert ObservationSpace.of(make_env(config(env_id, *wrappers)).observation_space).images == (Image(0, 3, 7, 7),)
