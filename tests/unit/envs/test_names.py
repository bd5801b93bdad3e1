"""Ids of environments that packages register: by an entry point, or as a sentence that says whose they are."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import pytest

from evopipe.envs.make import make_env
from evopipe.envs.names import extra_of
from evopipe.errors import ParamsError
from evopipe.schema.env import EnvConfig


def refused(env_id: str) -> str:
    with pytest.raises(ParamsError) as caught:
        make_env(EnvConfig(id=env_id))
    return str(caught.value).removeprefix(f"env.id: unknown environment {env_id!r}")


def test_an_id_without_its_module_is_answered_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in gymnasium.registry if name.startswith(("MiniGrid", "BabyAI"))]:  # by another test
        monkeypatch.delitem(gymnasium.registry, name)
    assert refused("minatar:MinAtar/Asterix-v1") == ", did you mean 'MinAtar/Asterix-v1'?"
    assert refused("MiniGrid-DoorKey-5x5-v0") == ", did you mean 'minigrid:MiniGrid-DoorKey-5x5-v0'?"
    assert refused("BabyAI-GoToObj-v0") == ", did you mean 'minigrid:BabyAI-GoToObj-v0'?"


def test_an_id_of_a_package_that_is_not_installed_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in gymnasium.registry if name.startswith("MinAtar/")]:  # by another test
        monkeypatch.delitem(gymnasium.registry, name)
    monkeypatch.delitem(sys.modules, "minatar", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    install = "; it is of the package highway-env: `pip install 'evopipe[highway]'`, then "
    for name in ("highway-v0", "parking-v0", "intersection-v1", "roundabout-v0"):
        assert refused(name) == f"{install}'highway_env:{name}'"
    assert refused("MinAtar/Breakout-v1").endswith("`pip install 'evopipe[minatar]'`, then 'MinAtar/Breakout-v1'")
    assert refused("FetchReach-v4").endswith(
        "`pip install gymnasium-robotics`, then 'gymnasium_robotics:FetchReach-v4'"
    )


@pytest.mark.parametrize("written", ["highway_env:parking-v0", "of_mine:Team"])
def test_an_id_whose_module_needs_a_package_names_its_extra(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_mine.py").write_text("import highway_env\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.delitem(sys.modules, "highway_env", raising=False)
    needs = f"env.id: {written!r} needs a package that is not installed: pip install 'evopipe[highway]'"
    assert refused(written) == needs


def test_an_id_that_an_entry_point_registers_needs_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MinAtar's ids are: Gymnasium itself looks at these entry points no more."""
    (tmp_path / "games_of_mine.py").write_text(
        "import gymnasium\n"
        "def register():\n"
        "    gymnasium.register('Mine/Pole-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    info = tmp_path / "games_of_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: games-of-mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gymnasium.envs]\nMine = games_of_mine:register\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    env = make_env(EnvConfig(id="Mine/Pole-v0"))
    assert env.spec is not None
    assert env.spec.max_episode_steps == 9
    env.close()
    gymnasium.registry.pop("Mine/Pole-v0")


@pytest.mark.thorough
def test_a_game_of_atari_is_played_from_its_memory() -> None:
    """Its package brings the ROM, so that nothing is fetched."""
    pytest.importorskip("ale_py", reason="an extra of its own: pip install 'evopipe[atari]'")
    env = make_env(EnvConfig(id="ale_py:ALE/Pong-v5", kwargs={"obs_type": "ram"}))
    obs, _ = env.reset(seed=1)
    assert (obs.shape, extra_of("ale_py:ALE/Pong-v5")) == ((128,), "atari")
    assert (env.step(0)[0] != obs).any()
    env.close()
