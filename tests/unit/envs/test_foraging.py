"""`pipelines/ippo-foraging` shows the package lbforaging as a team."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from evopipe.envs.check import check
from tiny import ROOT

STAY, LOAD = 0, 5


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The pipeline's module, found as in its folder."""
    pytest.importorskip("lbforaging", reason="an extra of its own: pip install 'evopipe[foraging]'")
    monkeypatch.syspath_prepend(ROOT / "pipelines/ippo-foraging")
    return importlib.import_module("foraging")


def put(env: Any, food: tuple[int, int], *places: tuple[int, int]) -> None:
    """Move the food and the agents of levels 1 and 2 there."""
    env.game.field[:] = 0
    env.game.field[food] = 3
    for i, place in enumerate(places):
        env.game.players[i].position, env.game.players[i].level = place, i + 1
    env.game._food_spawned = 3
    env.game._gen_valid_moves()


def test_food_pays_those_that_load_it_together_by_their_levels(module: ModuleType) -> None:
    env = module.Foraging()
    env.reset(seed=1)
    put(env, (2, 2), (2, 1), (2, 3))
    seen, rewards, terminations, truncations, _ = env.step({"agent_0": LOAD, "agent_1": STAY})
    assert seen["agent_0"].tolist() == [2, 2, 3, 2, 1, 1, 2, 3, 2]  # food, itself, the other
    assert seen["agent_1"].tolist() == [2, 2, 3, 2, 3, 2, 2, 1, 1]
    assert rewards == {"agent_0": 0, "agent_1": 0}
    assert not any([*terminations.values(), *truncations.values()])
    _, rewards, terminations, truncations, _ = env.step({"agent_0": LOAD, "agent_1": LOAD})
    assert rewards == pytest.approx({"agent_0": 1 / 3, "agent_1": 2 / 3})
    assert all(terminations.values())
    assert not any(truncations.values())
    assert env.agents == []


def test_it_is_cut_at_its_limit_and_begins_as_its_seed_says(module: ModuleType) -> None:
    env, other = module.Foraging(steps=4, render_mode="rgb_array"), module.Foraging()
    first, again = env.reset(seed=7)[0], other.reset(seed=7)[0]
    assert all((first[agent] == again[agent]).all() for agent in env.agents)
    assert env.render().shape == (120, 120, 3)
    assert len(np.unique(env.render().reshape(-1, 3), axis=0)) == 4  # the board, the food and two agents
    for step in range(1, 5):
        assert env.agents == ["agent_0", "agent_1"]
        *_, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, STAY))
        assert set(truncations.values()) == {step == 4}
        assert set(terminations.values()) == {False}
    assert env.agents == []


def test_it_is_a_team_as_it_should_be(module: ModuleType) -> None:
    assert check("foraging:Foraging", {"side": 6, "agents": 3, "foods": 2, "sight": 2}) == []
