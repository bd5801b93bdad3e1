"""`evopipe env check`: exact sentences for what is wrong, none for what is right."""

from __future__ import annotations

import pytest

from evopipe.envs.check import check
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
