"""What random play shows: silent about environments that are learned as they are, one exact sentence for each that is
not; and the speeds of an environment's backends."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from evopipe.envs import outlook as shown
from evopipe.envs import speed
from evopipe.envs.check import described
from evopipe.envs.outlook import outlook
from evopipe.envs.speed import speeds
from tiny import call


class Told(gymnasium.Env[Any, Any]):
    """Episodes of a given length, reward and scale of observations; every return differs unless `same`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, length: int = 20, reward: float = 1.0, scale: float = 1.0, same: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.reward, self.scale, self.same, self.steps = length, reward, scale, same, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        share = 1.0 if self.same else float(self.np_random.uniform(0.5, 1.0))
        return self.seen(), self.reward * share, False, self.steps >= self.length, {}

    def seen(self) -> Any:
        return np.array([0.5, self.scale * self.np_random.uniform(-1, 1)], np.float32)


gymnasium.register("Told-v0", Told)


def found(**kwargs: Any) -> list[str]:
    note, *warnings = outlook(described("Told-v0", kwargs))
    assert note.startswith("note: random play: ")
    return warnings


@pytest.mark.thorough
@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3", "FrozenLake-v1", "Taxi-v4", "simple_spread_v3"],
)
def test_environments_that_are_learned_as_they_are_have_no_warning(env_id: str) -> None:
    warnings = outlook(described(env_id, {}))[1:]
    if env_id == "Acrobot-v1":  # it is learned, though by chance alone at first
        warnings = [each for each in warnings if "had the same return, -500" not in each]
    assert warnings == []


def test_the_note_has_the_figures() -> None:
    (note,) = outlook(described("Told-v0", {"length": 100, "reward": 1.0}))
    assert note.startswith("note: random play: 50 episodes of 100 steps in the mean, returns 7")
    assert note.endswith(" steps a second in one process")


@pytest.mark.parametrize(
    ("kwargs", "begin", "end"),
    [
        ({"scale": 500.0}, "element 1 of an observation goes from -499.", "true, or scale it in the environment"),
        ({"reward": 1e4}, "a reward was 9999", "or scale rewards in the environment"),
        ({"reward": 1e-5}, "no reward was larger than ", "; scale rewards in the environment"),
        (
            {"reward": 0.0},
            "random play had the same return, 0, in all of 250 episodes: what is rewarded",
            "",
        ),
        ({"length": 1000}, "episodes last 1,000 steps, and γ of 0.99 sees some 100 ahead: ", "to 0.995 if it should"),
    ],
)
@pytest.mark.thorough
def test_what_makes_learning_slow_is_one_sentence(kwargs: dict[str, Any], begin: str, end: str) -> None:
    (warning,) = found(**kwargs)
    assert warning.startswith(f"warning: {begin}")
    assert warning.endswith(end)


@pytest.mark.thorough
def test_a_discount_that_sees_far_enough_is_not_warned_of() -> None:
    assert outlook(described("Told-v0", {"length": 1000}), 0.999)[1:] == []
    assert outlook(described("Told-v0", {"length": 1000}), 1.0)[1:] == []


def test_the_figures_of_a_note_by_hand() -> None:
    assert shown._figures(1234, [3.0, -1.5, 12.0], [10, 21, 11], 5678.4) == (
        "note: random play: 3 episodes of 14 steps in the mean, returns -1.5 to 12, mean 4.5; "
        "5,678 steps a second in one process"
    )
    assert shown._figures(5000, [], [], 10.0) == (
        "note: random play: no episode ended in 5,000 steps; 10 steps a second in one process"
    )


def test_an_observation_is_far_by_its_mean_or_by_its_spread() -> None:
    """Beyond 10, and the farthest is named."""
    said = "warning: element {} of an observation goes from {} to {}: networks learn best from numbers"
    for column, ends in (
        ([12.0, 12.0, 12.0], "12 12"),
        ([-11.0, -12.0, -10.5], "-12 -10.5"),
        ([-40.0, 0.0, 40.0], "-40 40"),
    ):
        seen = np.array([[10.0, *each] for each in zip([9.0, 9.5, 9.9], column, strict=True)])
        (told,) = shown._of_observations(seen)
        assert told.startswith(said.format(2, *ends.split()))
    (told,) = shown._of_observations(np.array([[11.0, -30.0, 12.0], [11.0, -50.0, 12.0]]))
    assert told.startswith(said.format(1, -50, -30))
    assert [*shown._of_observations(np.array([[10.0, -10.0], [10.0, 10.0]]))] == []


@pytest.mark.parametrize(
    ("rewards", "returns", "begin"),
    [
        ([200.0, -200.0], [1.0, 2.0], ""),
        ([5.0, -200.5], [1.0, 2.0], "a reward was -200.5: "),
        ([5.0, 300.0], [1.0, 2.0], "a reward was 300: "),
        ([0.001, 0.0], [1.0, 2.0], ""),
        ([0.0005, -0.0009], [1.0, 2.0], "no reward was larger than 9e-4: "),
        ([1.0, -1.0], [-3.0] * 5, "random play had the same return, -3, in all of 5 episodes: "),
        ([1.0, -1.0], [-3.0] * 4, ""),
        ([1.0, -1.0], [-3.0] * 5 + [-2.0], ""),
        ([0.0, 0.0], [0.0, 1.0], ""),
    ],
)
def test_rewards_are_told_of_from_their_bounds_on(rewards: list[float], returns: list[float], begin: str) -> None:
    found = [*shown._of_rewards(np.array(rewards), returns)]
    assert [each.startswith(f"warning: {begin}") for each in found] == [True] * bool(begin)


def test_episodes_are_long_beyond_six_horizons() -> None:
    assert [*shown._of_lengths([60, 60], 0.9)] == []
    (told,) = shown._of_lengths([50, 72, 64], 0.9)
    assert told.startswith("warning: episodes last 62 steps, and γ of 0.9 sees some 10 ahead: ")
    assert told.endswith("raise gamma to 0.9194 if it should")
    assert [*shown._of_lengths([], 0.9)] == []


def test_a_rate_is_of_all_rows_and_of_whole_rounds_of_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that shows half a second more at every look: of a second are two rounds of eight ticks, after a first."""
    clock, ticks = itertools.count(0.0, 0.5), list[int]()
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert speed._rate(lambda: ticks.append(1), 5, 1.4) == 16 * 5 / 1.5
    assert len(ticks) == 17


@pytest.mark.thorough
def test_the_check_says_it_after_its_own_findings(tmp_path: Path) -> None:
    answer = call(tmp_path, "env", "check", "MountainCar-v0")
    assert (answer.code, answer.out) == (0, "MountainCar-v0: ok\n")
    note, warning = answer.err.splitlines()
    assert note.startswith("MountainCar-v0: note: random play: 25 episodes of 200 steps")
    assert warning.startswith("MountainCar-v0: warning: random play had the same return, -200, in all of 25 episodes")
    assert call(tmp_path, "env", "check", "CliffWalking-v1").err.count("time limit") == 1


@pytest.mark.parametrize(
    ("env_id", "names"), [("CartPole-v1", {"sync", "torch", "c"}), ("simple_spread_v3", {"sync", "torch"})]
)
@pytest.mark.thorough
def test_every_backend_that_has_it_is_measured(env_id: str, names: set[str]) -> None:
    measured = list(speeds(described(env_id, {}), 4, 0.02))
    assert names <= {way.backend for way in measured}
    assert measured[0].workers == 0
    assert all(way.rate > 0 for way in measured)


@pytest.mark.thorough
def test_the_fastest_is_named(tmp_path: Path) -> None:
    answer = call(tmp_path, "env", "bench", "CartPole-v1", "--seconds", "0.05", "--rows", "64")
    assert (answer.code, answer.err) == (0, "")
    head, *rows, last = answer.out.splitlines()
    assert head.split("  ")[0] == "env.backend"
    rates = {row.split()[0]: float(row.split()[-2].replace(",", "")) for row in rows}
    assert last.startswith(f"fastest here: env.backend: {max(rates, key=rates.__getitem__)}")
    answer = call(tmp_path, "env", "bench", "CartPol-v1")
    assert (answer.code, answer.err.count("\n")) == (65, 1)


def test_one_long_episode_among_short_ones_says_nothing_of_the_discount() -> None:
    """Six times as far as is seen is too long, in the mean: at γ of 0.99 more than 600 steps."""
    assert [*shown._of_lengths([10] * 9 + [5000], 0.99)] == []
    assert [*shown._of_lengths([500, 690], 0.99)] == []
    (said,) = shown._of_lengths([100, 1900], 0.99)
    assert "episodes last 1,000 steps, and γ of 0.99 sees some 100 ahead" in said
    assert said.endswith("raise gamma to 0.995 if it should")
    assert [*shown._of_lengths([10**6], 1.0)] == [*shown._of_lengths([], 0.99)] == []
