"""`pipelines/dqn-minigrid` shows MiniGrid as its own wrapper draws it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from evopipe.envs.check import check
from evopipe.envs.make import make_env
from evopipe.envs.spaces import ObservationSpace
from evopipe.errors import EnvironmentFailed
from evopipe.params.load import load_params
from evopipe.schema.env import EnvConfig
from evopipe.types import Image
from tiny import ROOT

FOLDER = ROOT / "pipelines/dqn-minigrid"
TASKS = ("MiniGrid-DoorKey-5x5-v0", "MiniGrid-LavaGapS5-v0", "MiniGrid-Empty-Random-6x6-v0")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The pipeline's module, found as in its folder."""
    pytest.importorskip("minigrid", reason="an extra of its own: pip install 'evopipe[minigrid]'")
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("minigrid_pixels")


def play(env: gymnasium.Env[Any, Any], steps: int) -> list[Any]:
    """Observations of random play, episodes from seeds 0, 1, …; turning, walking, carrying and opening are likely."""
    rng, episode = np.random.default_rng(0), 0
    seen = [env.reset(seed=0)[0]]
    for action in rng.choice(6, p=[0.15, 0.15, 0.35, 0.15, 0.05, 0.15], size=steps):
        obs, _, terminated, truncated, _ = env.step(action)
        seen.append(obs)
        if terminated or truncated:
            episode += 1
            seen.append(env.reset(seed=episode)[0])
    return seen


@pytest.mark.thorough
@pytest.mark.parametrize("pixels", [4, 7])
@pytest.mark.parametrize("task", TASKS)
def test_views_are_drawn_as_by_the_wrapper_of_minigrid(
    task: str, pixels: int, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    monkeypatch.setattr(module, "LARGEST", 5)  # so that views are forgotten and drawn again
    drawn = gymnasium.make(task, disable_env_checker=True)
    expected = play(ImgObsWrapper(RGBImgPartialObsWrapper(drawn, tile_size=pixels)), 400)
    found = play(module.make(task, pixels), 400)
    assert len({view.tobytes() for view in expected}) > 20
    assert len(module.Pixels.drawn) <= 5
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))


def test_a_view_that_was_changed_is_not_remembered(module: ModuleType) -> None:
    env = module.make(TASKS[0])
    first, _ = env.reset(seed=1)
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(env.reset(seed=1)[0], kept)


def test_the_environment_of_the_pipeline_has_no_findings(module: ModuleType) -> None:
    env = load_params(FOLDER / "params.yaml").env
    assert check(env.id, env.kwargs) == []


def test_it_shows_an_image_of_bytes(module: ModuleType) -> None:
    space: Any = make_env(load_params(FOLDER / "params.yaml").env).observation_space
    assert ObservationSpace.of(space).images == (Image(0, 3, 28, 28),)
    assert (space.dtype, space.low.min(), space.high.max()) == (np.uint8, 0, 255)  # what the replay keeps as bytes


def test_it_can_be_watched(module: ModuleType) -> None:
    env = make_env(load_params(FOLDER / "params.yaml").env, render_mode="rgb_array")
    env.reset(seed=0)
    assert np.shape(env.render())[2] == 3


@pytest.mark.parametrize("task", ["CartPole-v1", "MiniGrid-Lock-v0"])
def test_what_is_no_task_of_minigrid_is_refused(task: str, module: ModuleType) -> None:
    with pytest.raises(EnvironmentFailed, match=f"'{task}' is no task of MiniGrid; gymnasium.pprint_registry"):
        make_env(EnvConfig(id="minigrid_pixels:MiniGridPixels-v0", kwargs={"task": task}))


def test_a_cell_without_pixels_is_refused(module: ModuleType) -> None:
    with pytest.raises(EnvironmentFailed, match="pixels is 0; a cell needs at least 1"):
        make_env(EnvConfig(id="minigrid_pixels:MiniGridPixels-v0", kwargs={"task": TASKS[0], "pixels": 0}))
