"""`evopipe env check`: exact sentences for what is wrong, none for what is right."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from evopipe.envs.check import _differs, _ends, _team_ends, _values, check
from evopipe.errors import EnvironmentFailed, ParamsError

SHOWN = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them are"
TAKEN = "only Discrete, MultiDiscrete, MultiBinary and bounded Box actions are, and Dicts and Tuples of them"


def own(name: str, **kwargs: object) -> list[str]:
    return check(f"envs_for_tests:{name}-v0", dict(kwargs))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "FrozenLake-v1", "Blackjack-v1"])
def test_good_environments_have_no_findings(env_id: str) -> None:
    assert check(env_id, {}) == []


def test_an_environment_of_images_has_no_findings() -> None:
    assert own("Pixels") == []


@pytest.mark.parametrize("name", ["Chain", "Masked"])
def test_good_own_environments_have_no_findings(name: str) -> None:
    assert own(name) == []
    assert own(name, offset=3) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Text", f"error: observation space Text(1, 4, charset=abc) is not served: {SHOWN}"),
        ("Several", f"error: action space Sequence(Discrete(2), stack=False) is not served: {TAKEN}"),
        ("NanReward", "error: step 3 gave the reward nan"),
        ("NanObs", "error: step 3 gave an observation that is not finite"),
        ("MaskedOut", "error: info['action_mask'] left no legal action in a running episode"),
        (
            "Raises",
            "error: checked environment 'envs_for_tests:Raises-v0' (row 0, episode seed 20011, step 3): "
            "step() raised RuntimeError: the motor broke",
        ),
        (
            "WrongShape",
            "error: checked environment 'envs_for_tests:WrongShape-v0' (row 0, episode seed 20011, step 3): "
            "returned an observation of shape (5,), its space says (4,)",
        ),
        (
            "DoubleObs",
            "warning: Gymnasium's checker stopped: The first element returned by `env.reset()` is not within the "
            "observation space.",
        ),
        (
            "Random",
            "warning: two environments with one seed and the same actions differ at step 1: "
            "a killed run will not continue bit for bit",
        ),
        (
            "HugeObs",
            "warning: element 0 of an observation was inf, outside its declared bounds [0, 1]",
        ),
    ],
)
def test_a_fault_is_said_in_one_exact_sentence(name: str, sentence: str) -> None:
    assert sentence in own(name)


@pytest.mark.parametrize(
    "name", ["envs_for_tests:MaskedNumbers-v0", "teams_for_tests:MasksNumbers", "teams_for_tests:SeesNumbers"]
)
def test_a_mask_of_numbers_is_an_error(name: str) -> None:
    found = [each for each in check(name, {"kind": "continuous"}) if each.startswith("error: ")]
    assert len(found) == 1
    assert "action_mask for actions that are numbers (Box), of which none can be ruled out: leave it out" in found[0]


def test_dependence_on_the_episode_before_is_found() -> None:
    [finding] = own("Remembers")
    assert finding.startswith("warning: an episode depends on what its environment played before")


def test_a_time_limit_that_calls_itself_a_termination_is_found() -> None:
    [finding] = own("OwnLimit")
    assert finding == (
        "warning: each of 4 random episodes was terminated at step 5; "
        "if this is a time limit, return truncated instead of terminated"
    )


def test_what_cannot_be_constructed_raises() -> None:
    with pytest.raises(ParamsError, match="did you mean 'CartPole-v1'"):
        check("CartPol-v1", {})
    with pytest.raises(EnvironmentFailed, match="no display"):
        own("RaisesInConstructor")


# --- findings by hand -------------------------------------------------------------------------------------------------


def steps(ends: str) -> list[Any]:
    """A step for each letter: `t` terminated, `c` cut, `b` both, `-` goes on."""
    flags = [(np.array([each in "tb"]), np.array([each in "cb"])) for each in ends]
    return [SimpleNamespace(terminated=t, truncated=c, over=t | c) for t, c in flags]


@pytest.mark.parametrize(
    ("ends", "lengths", "limit", "begins"),
    [
        ("--b", [3], None, ["a step was terminated and truncated at once; it is learned from as terminated"]),
        ("---", [], 1000, ["no episode ended within 3 random steps and there is no time limit; register it"]),
        ("---", [], None, []),
        ("--c", [3], 1000, []),
        ("-t-t-t-t", [2, 2, 2, 2], None, ["each of 4 random episodes was terminated at step 2; if this is"]),
        ("-t-t-t-c", [2, 2, 2, 2], None, []),
        ("-t-t-t", [2, 2, 2], None, []),
        ("-t-t-t--t", [2, 2, 2, 3], None, []),
        ("tttt", [1, 1, 1, 1], None, []),
    ],
)
def test_ends_of_random_episodes(ends: str, lengths: list[int], limit: int | None, begins: list[str]) -> None:
    pool: Any = SimpleNamespace(limit=limit)
    found = [*_ends(pool, steps(ends), lengths)]
    assert [each.startswith(f"warning: {begin}") for each, begin in zip(found, begins, strict=True)] == [True] * len(
        begins
    )


@pytest.mark.parametrize(
    ("ends", "lengths", "begins"),
    [
        ("--b", [3], ["an agent was terminated and truncated at once; it is learned from as terminated"]),
        ("---", [], ["no episode ended within 3 random steps; let the environment truncate all agents"]),
        ("-t-t-t-t", [2, 2, 2, 2], ["each of 4 random episodes was terminated at step 2; if this is"]),
        ("-t-t-t-c", [2, 2, 2, 2], []),
        ("-t-t-t", [2, 2, 2], []),
        ("-t-t-t--t", [2, 2, 2, 3], []),
        ("tttt", [1, 1, 1, 1], []),
    ],
)
def test_ends_of_a_teams_random_episodes(ends: str, lengths: list[int], begins: list[str]) -> None:
    found = [*_team_ends(steps(ends), lengths)]
    assert [each.startswith(f"warning: {begin}") for each, begin in zip(found, begins, strict=True)] == [True] * len(
        begins
    )


def test_two_plays_differ_at_the_first_step_that_does_or_where_one_has_ended() -> None:
    def played(*numbers: float) -> list[Any]:
        return [SimpleNamespace(parts=(np.zeros(2), np.array([x]))) for x in numbers]

    assert _differs(played(1, 2, 3), played(1, 2, 3)) is None
    assert _differs(played(1, 2, 3), played(1, 9, 9)) == 2
    assert _differs(played(1, 2, 3), played(1, 2)) == _differs(played(1, 2), played(1, 2, 3)) == 3
    assert _differs(played(0.0), played(-0.0)) == 1, "by their bytes"


def values(
    obs: Sequence[Sequence[float]], reward: Sequence[float], mask: Sequence[Sequence[bool]], broken: Sequence[bool]
) -> list[str]:
    """What is found of steps in an environment whose second number goes from -1 to 4."""
    low, high = np.array([-1e9, -1.0], np.float32), np.array([1e9, 4.0], np.float32)
    pool: Any = SimpleNamespace(
        team=None,
        actions=SimpleNamespace(possible=lambda mask: mask.any(axis=1)),
        observation_space=gymnasium.spaces.Box(low, high),
        observations=SimpleNamespace(plain=True, size=2),
    )
    rows = zip(obs, reward, mask, broken, strict=True)
    played: Any = [
        SimpleNamespace(obs=np.array([o], np.float32), reward=np.array([r]), mask=np.array([m]), broken=np.array([b]))
        for o, r, m, b in rows
    ]
    return [*_values(pool, played)]


def test_the_first_number_of_a_kind_is_told_with_its_step_and_place() -> None:
    may, well = [[True, False]] * 3, [False] * 3
    assert values([[0, -1], [0, 4], [5, 0]], [1, 2, 3], may, well) == []
    assert values([[0, 0], [0, 4.5], [0, 9]], [1, 2, 3], may, well) == [
        "warning: element 1 of an observation was 4.5, outside its declared bounds [-1, 4]"
    ]
    assert values([[0, 0], [0, 0], [0, -1.5]], [1, np.inf, np.nan], may, well) == [
        "error: step 2 gave the reward inf",
        "warning: element 1 of an observation was -1.5, outside its declared bounds [-1, 4]",
    ]
    assert values([[0, 0], [0, 0], [np.nan, 0]], [1, 2, 3], may, well) == [
        "error: step 3 gave an observation that is not finite"
    ]
    none = [[True, False], [False, False], [True, True]]
    gone = ["error: info['action_mask'] left no legal action in a running episode"]
    assert values([[0, 0]] * 3, [1, 2, 3], none, [False, True, False]) == gone
    assert values([[0, 0]] * 3, [1, 2, 3], none, well) == [], "after a step that ended no mask counts"
