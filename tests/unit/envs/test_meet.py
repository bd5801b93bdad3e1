"""`pipelines/ippo-meet` has a team of its own, which sees images."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tiny import ROOT

STAY, UP, DOWN, LEFT, RIGHT = range(5)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The pipeline's module, found as in its folder."""
    monkeypatch.syspath_prepend(ROOT / "pipelines/ippo-meet")
    return importlib.import_module("meet")


def put(module: ModuleType, *places: tuple[int, int]) -> Any:
    """A game whose agents stand there."""
    env = module.Meet()
    env.reset(seed=1)
    env.places = np.array(places)
    return env


@pytest.mark.parametrize(
    ("places", "moves", "after"),
    [
        (((2, 2), (2, 3)), (RIGHT, STAY), None),
        (((2, 2), (2, 3)), (RIGHT, LEFT), [[2, 3], [2, 2]]),  # they change places
        (((0, 0), (6, 6)), (UP, RIGHT), [[0, 0], [6, 6]]),  # the board ends there
        (((1, 1), (2, 2)), (DOWN, LEFT), None),
        (((5, 1), (2, 2)), (LEFT, DOWN), [[5, 0], [3, 2]]),
    ],
)
def test_two_meet_on_one_field_alone(
    places: Any, moves: tuple[int, int], after: list[list[int]] | None, module: ModuleType
) -> None:
    env = put(module, *places)
    seen, rewards, terminations, truncations, _ = env.step(dict(zip(env.agents, moves, strict=True)))
    assert rewards == dict.fromkeys(("agent_0", "agent_1"), float(after is None))
    assert (env.places[0] != env.places[1]).any()
    if after is not None:
        assert env.places.tolist() == after
    for agent, (own, other) in (("agent_0", (0, 1)), ("agent_1", (1, 0))):
        assert np.argwhere(seen[agent][..., 0]).tolist() == [env.places[own].tolist()]
        assert np.argwhere(seen[agent][..., 1]).tolist() == [env.places[other].tolist()]
    assert not any(terminations.values())
    assert not any(truncations.values())


def test_it_is_cut_after_40_steps_and_begins_as_its_seed_says(module: ModuleType) -> None:
    env, other = module.Meet(), module.Meet()
    first = env.reset(seed=7)[0]["agent_0"]
    assert (other.reset(seed=7)[0]["agent_0"] == first).all()
    for step in range(1, 41):
        assert env.agents == ["agent_0", "agent_1"]
        *_, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, STAY))
        assert set(truncations.values()) == {step == 40}
        assert set(terminations.values()) == {False}
    assert env.agents == []
