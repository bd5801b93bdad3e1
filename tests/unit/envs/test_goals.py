"""Environments with goals: what their rewards are asked for, what is refused, and the package's own, BitFlip."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import goal_envs
from evopipe.envs.bitflip import BitFlip
from evopipe.envs.check import check
from evopipe.envs.goals import Goals
from evopipe.errors import EnvironmentFailed, ParamsError
from evopipe.schema.env import EnvConfig, WrapperConfig

BITFLIP = "evopipe.envs.bitflip:BitFlip-v0"


@contextlib.contextmanager
def goals(env_id: str, wrappers: tuple[Any, ...] = (), **kwargs: Any) -> Iterator[Goals]:
    with contextlib.closing(Goals(EnvConfig(id=env_id, kwargs=kwargs, wrappers=wrappers))) as found:
        yield found


def test_goals_stand_in_the_columns_of_the_dict() -> None:
    with goals(BITFLIP, bits=3) as found:
        assert (found.achieved, found.desired) == (slice(0, 3), slice(3, 6))
        a, b = np.array([[0, 1, 1], [0, 1, 0]], np.float32), np.array([[0, 1, 1], [1, 1, 1]], np.float32)
        reward, ends = found.outcome(a, b)
        assert reward.dtype == np.float32
        assert reward.tolist() == [0.0, -1.0]
        assert ends is not None
        assert ends.tolist() == [True, False]


def test_goals_are_given_as_the_space_has_them() -> None:
    """A Discrete space's numbers from its start, float64 and its shape; without a method for ends there are none."""
    with goals("goal_envs:Rooms-v0") as rooms:
        rows = np.eye(5, dtype=np.float32)
        assert rooms._own(rows).tolist() == [3, 4, 5, 6, 7]
        reward, ends = rooms.outcome(rows, rows[[0, 0, 2, 2, 4]])
        assert reward.tolist() == [1, 0, 1, 0, 1]
        assert ends is not None
        assert ends.tolist() == [True, False, True, False, True]
    with goals("goal_envs:Reach-v0") as reach:
        assert reach._own(np.zeros((4, 2), np.float32)).dtype == np.float64
        reward, ends = reach.outcome(np.zeros((2, 2), np.float32), np.array([[0.2, 0.0], [0.3, 0.0]], np.float32))
        assert reward.tolist() == [0.0, -1.0]
        assert ends is None


@pytest.mark.parametrize(
    ("kwargs", "error", "says"),
    [
        ({"bad": "none"}, ParamsError, "has no compute_reward"),
        ({"bad": "space"}, ParamsError, "another shape than it desires"),
        ({"bad": "image"}, ParamsError, "one array each, and no image"),
        ({"bad": "unlike"}, ParamsError, r"gives -1.0 by compute_reward.* and -0.5 by step\(\)"),
        ({"bad": "once"}, ParamsError, r"at step 5 of random play, and -?\d\.5 by step\(\)"),
        ({"bad": "words"}, EnvironmentFailed, r"returned <U4\[32\] for 32 pairs of goals, expected 32 numbers"),
        ({"bad": "several"}, EnvironmentFailed, r"compute_terminated.*returned bool\[1\], expected a bool"),
        ({"bad": "number"}, EnvironmentFailed, r"compute_terminated.*returned float64\[\], expected a bool"),
        ({"bad": "shape"}, EnvironmentFailed, r"float64\[\] for 32 pairs of goals, expected 32 numbers"),
        ({"bad": "info"}, EnvironmentFailed, r"compute_reward\(achieved_goal, desired_goal, \{\}\) raised KeyError"),
        ({"bad": "ends"}, EnvironmentFailed, r"compute_terminated.*returned int64\[2\], expected a bool"),
    ],
)
def test_what_cannot_be_relabelled_is_refused_in_a_sentence(kwargs: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says), goals("goal_envs:Reach-v0", **kwargs):
        pass


def test_what_was_achieved_comes_first_and_what_is_desired_second() -> None:
    """Of rewards that are the difference of both: in a step's own, which are compared, and in those asked for."""
    with goals("goal_envs:Reach-v0", bad="onesided") as found:
        here, there = np.array([[1.5, 0.0]], np.float32), np.array([[0.25, 9.0]], np.float32)
        assert found.outcome(here, there)[0].tolist() == [1.25]


def test_environments_without_goals_and_wrappers_that_change_rewards_are_refused() -> None:
    with pytest.raises(ParamsError, match=r"'CartPole-v1' has the observations Box.*null"), goals("CartPole-v1"):
        pass
    wrapper = WrapperConfig(name="goal_envs:halved")
    says = r"gives -1.0 by compute_reward.* and -0.5 by step\(\)"
    with pytest.raises(ParamsError, match=says), goals("goal_envs:Reach-v0", (wrapper,)):
        pass


def test_an_environment_is_made_anew_with_other_arguments() -> None:
    with goals("goal_envs:Reach-v0") as found, pytest.raises(ParamsError, match="has no compute_reward"):
        found.reopen({"bad": "none"})
    assert goal_envs.NEAR == 0.25


def test_bitflip_is_a_sound_environment_of_the_size_asked_for() -> None:
    assert check(BITFLIP, {"bits": 5}) == []
    env = BitFlip(4)
    for seed in range(40):
        seen, _ = env.reset(seed=seed)
        wrong = np.flatnonzero(seen["achieved_goal"] != seen["desired_goal"])
        assert len(wrong), "an episode does not begin at its goal"
        steps = [env.step(int(bit)) for bit in wrong]
        assert [reward for _, reward, *_ in steps] == [-1.0] * (len(wrong) - 1) + [0.0]
        assert [terminated for _, _, terminated, *_ in steps] == [False] * (len(wrong) - 1) + [True]
        assert not any(truncated for *_, truncated, _ in steps)
    env.reset(seed=0)
    flips = [env.step(int(wrong[0] == 0)) for _ in range(4)]  # to and fro
    assert [truncated for *_, truncated, _ in flips] == [False] * 3 + [True]
    with pytest.raises(TypeError, match="from 1 to 1024"):
        BitFlip(0)
