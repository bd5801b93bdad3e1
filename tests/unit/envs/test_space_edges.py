"""Actions of several boxes and choices by hand, and edges of what spaces are taken for."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from evopipe.envs import aec, from_openspiel, from_pettingzoo, games, mixed, mpe, openspiel
from evopipe.envs.make import guard
from evopipe.envs.rows import floats
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamSpace
from evopipe.schema.env import EnvConfig


def test_parts_of_several_numbers_and_choices_stand_one_behind_the_other() -> None:
    """Two boxes of two and three numbers, between and behind choices that begin at 5, and at 0 and 2."""
    space = spaces.Dict({
        "a": spaces.Box(-10.0, 10.0, (2,), np.float32), "b": spaces.Discrete(3, start=5),
        "c": spaces.Box(0.0, 4.0, (3,), np.float32), "d": spaces.MultiDiscrete([2, 4], start=[0, 2]),
    })  # fmt: skip
    actions = ActionSpace.of(space)
    rows = np.array([[2, 1, 3, 0.5, -0.5, 1, 2, 3], [0, 0, 1, 1, -1, 4, 0, 1]], np.float32)
    found = [np.asarray(each).tolist() for each in mixed.own(actions.parts, rows)]
    numbers = ActionSpace.of(space["a"]).own(rows[:, 3:5]), ActionSpace.of(space["c"]).own(rows[:, 5:])
    assert found == [numbers[0].tolist(), [7, 5], numbers[1].tolist(), [[1, 5], [0, 3]]]
    low, high = mixed.bounds(actions.parts)
    assert (low.tolist(), high.tolist()) == ([-10, -10, 0, 0, 0], [10, 10, 4, 4, 4])


def test_what_is_drawn_of_several_choices_is_legal_in_each() -> None:
    """The masks of parts stand one behind the other, as many values as each part has."""
    parts = ActionSpace.of(spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Discrete(4), spaces.Discrete(2)])).parts
    legal = np.array([0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0], np.bool_)  # [1], [0, 2], [3], [0]
    g = np.random.default_rng(0)
    drawn = {tuple(mixed.sample(parts, legal, g).tolist()) for _ in range(60)}
    assert drawn == {(1, 0, 3, 0), (1, 2, 3, 0)}


def test_a_description_of_a_box_whose_bounds_are_turned_in_one_number_is_refused() -> None:
    told = {"actions": 2, "action_shape": [2], "action_low": [-1.0, 0.0], "action_high": [1.0, 0.0]}
    assert ActionSpace.from_json(told).size == 2
    for low, high in (([-1.0, 2.0], [1.0, 1.0]), ([2.0, -1.0], [1.0, 1.0]), ([-1.0], [1.0]), ([-1.0, 0.0], [1.0])):
        with pytest.raises(ValueError, match="does not fit"):
            ActionSpace.from_json({**told, "action_low": low, "action_high": high})


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [
        (0.0, 255.0, (0.0, 255.0)),
        (-2.0, 2.0, (-2.0, 2.0)),
        (0.0, 1e29, (0.0, float(np.float32(1e29)))),
        (0.0, 1e31, (0.0, 1.0)),
        (-math.inf, math.inf, (0.0, 1.0)),
        (3.0, 3.0, (0.0, 1.0)),
        ([[[1.0]], [[-4.0]], [[0.0]]], [[[2.0]], [[9.0]], [[5.0]]], (-4.0, 9.0)),
    ],
)
def test_an_image_is_scaled_by_its_lowest_and_highest_value(low: Any, high: Any, scale: tuple[float, float]) -> None:
    bounds = (np.broadcast_to(np.asarray(each, np.float32), (3, 6, 6)).copy() for each in (low, high))
    (leaf,) = ObservationSpace.of(spaces.Box(*bounds, dtype=np.float32)).leaves
    assert (leaf.channels, leaf.low, leaf.high) == (2 if leaf.channels == 2 else 0, *scale)


def test_a_team_has_one_hot_parts_that_all_its_agents_have() -> None:
    one, two = (
        ObservationSpace.of(spaces.Dict({"a": spaces.Discrete(3), "b": second}))
        for second in (spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,), np.float32))
    )
    action = ActionSpace.of(spaces.Discrete(2))
    assert len(one.one_hot) == 2
    assert len(two.one_hot) == 1
    for seen, expected in (((one, one), one.one_hot), ((one, two), two.one_hot), ((two, one), two.one_hot)):
        assert TeamSpace(("x", "y"), seen, (action, action), (False, False)).spaces.one_hot == tuple(expected)


def test_rewards_too_large_for_a_float_are_infinite_and_the_others_themselves() -> None:
    assert floats([1, 2.5, np.float32(0.25)]).tolist() == [1.0, 2.5, 0.25]
    assert floats([3, 10**400, -0.5]).tolist() == [3.0, math.inf, -0.5]


def test_the_time_of_a_guard_is_the_configured_one_by_its_factor() -> None:
    cfg = EnvConfig(id="CartPole-v1", step_seconds=7.0)
    seconds = [
        [value for value in vars(guard(cfg, factor=factor)).values() if isinstance(value, float)]
        for factor in (1.0, 3.0)
    ]
    assert 7.0 in seconds[0]
    assert 21.0 in seconds[1]


def test_who_sees_how_many_neighbours() -> None:
    for given, found in (({}, (4, 5)), ({"num_agent_neighbors": 2}, (2, 5)), ({"num_landmark_neighbors": 1}, (4, 1)),
                         ({"num_agent_neighbors": 1, "num_landmark_neighbors": 3}, (1, 3))):  # fmt: skip
        assert mpe._Spread(**given)._slots(4, 5) == found


@pytest.mark.parametrize(("make", "module", "name"), [
    (from_openspiel, openspiel, "OpenSpielGame"), (from_pettingzoo, aec, "AecGame"),
])  # fmt: skip
def test_arguments_of_a_game_reach_it(make: Any, module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(module, name, lambda game, kwargs: (game, kwargs))
    monkeypatch.setattr(games, "GameEnv", lambda *given: told.append(given) or gymnasium.Env())
    league = [{"chance": 0.5}]
    make("chess", seat=1, opponent="a", opponents=league, loss_weight=2.5, more=3)
    make("chess")
    assert [each[0][0] for each in told] == ["chess", "chess"]
    assert told[0][0][1] == {"more": 3}
    assert [each[1:] for each in told] == [(1, "a", league, None, 2.5), (None, "random", (), None, 1.0)]
