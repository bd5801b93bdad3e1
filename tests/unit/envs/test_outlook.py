"""What random play shows: silent about environments that are learned as they are, one exact sentence for each that is
not; and the speeds of an environment's backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

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
def test_every_backend_that_has_it_is_measured(env_id: str, names: set[str]) -> None:
    measured = list(speeds(described(env_id, {}), 4, 0.02))
    assert names <= {way.backend for way in measured}
    assert measured[0].workers == 0
    assert all(way.rate > 0 for way in measured)


def test_the_fastest_is_named(tmp_path: Path) -> None:
    answer = call(tmp_path, "env", "bench", "CartPole-v1", "--seconds", "0.05", "--rows", "64")
    assert (answer.code, answer.err) == (0, "")
    head, *rows, last = answer.out.splitlines()
    assert head.split("  ")[0] == "env.backend"
    rates = {row.split()[0]: float(row.split()[-2].replace(",", "")) for row in rows}
    assert last.startswith(f"fastest here: env.backend: {max(rates, key=rates.__getitem__)}")
    answer = call(tmp_path, "env", "bench", "CartPol-v1")
    assert (answer.code, answer.err.count("\n")) == (65, 1)
