"""The rules by which datasets are played, by hand; which episodes' draws are whose; and what of nothing is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.seeding import np_random

from envs_for_tests import NanReward
from evopipe.data.collect import GOOD, POOR, collect, totals
from evopipe.envs.pool import EnvPool
from evopipe.errors import ParamsError
from evopipe.schema.env import EnvConfig
from evopipe.schema.fetch import CollectConfig


@pytest.mark.parametrize(
    ("rules", "obs", "action"),
    [(GOOD, (0.0, 0.0, 0.0, 0.0), 0), (GOOD, (1.0, 0.0, -0.04, 0.0), 1), (GOOD, (1.0, 0.0, -0.06, 0.0), 0),
     (GOOD, (0.0, 1.0, -0.14, 0.0), 1), (GOOD, (0.0, 1.0, -0.16, 0.0), 0), (GOOD, (0.0, 0.0, -0.49, 1.0), 1),
     (GOOD, (0.0, 0.0, -0.51, 1.0), 0), (POOR, (1.0, 0.0, 0.39, 0.0), 0), (POOR, (1.0, 0.0, 0.41, 0.0), 1),
     (POOR, (0.0, 1.0, 0.39, 0.0), 0), (POOR, (0.0, 1.0, 0.41, 0.0), 1), (POOR, (0.0, 0.0, -0.49, 1.0), 1),
     (POOR, (0.0, 0.0, -0.51, 1.0), 0)],
)  # fmt: skip
def test_a_cart_is_pushed_to_where_the_weighted_sum_points(rules: Any, obs: tuple[float, ...], action: int) -> None:
    assert rules["CartPole-v1"](None, np.array(obs, np.float32)) == action
    assert rules["CartPole-v0"](None, np.array(obs, np.float32)) == action


@pytest.mark.parametrize(
    ("angle", "speed", "torque"),
    [  # by energy: (15 − θ̇²/2 − 15 cos θ) times the sign of θ̇; near the top −12 θ − 3 θ̇; each within ±2
        (np.pi / 2, 5.4, 0.42), (np.pi / 2, -5.4, -0.42), (-np.pi / 2, 5.5, -0.125), (np.pi, 0.0, 2.0), (np.pi, -0.1,
        -2.0),
        (0.1, 0.0, -1.2), (-0.1, 0.2, 0.6), (0.0, 1.0, -2.0), (np.arccos(0.899), 1.0, 1.015), (np.arccos(0.901), 0.0,
        -2.0),
    ],
)  # fmt: skip
def test_a_pendulum_is_swung_up_by_energy_and_held_by_angle(angle: float, speed: float, torque: float) -> None:
    obs = np.array([np.cos(angle), np.sin(angle), speed], np.float32)
    (found,) = GOOD["Pendulum-v1"](None, obs)
    assert found == pytest.approx(torque, abs=1e-4)


def test_no_episodes_have_no_return() -> None:
    assert totals([]) == {"episodes": 0, "transitions": 0, "return": None}


def test_a_rule_does_not_read_what_a_wrapper_shows() -> None:
    cfg = CollectConfig.model_validate({"episodes": 1, "policies": {"heuristic": 1.0, "medium": 1.0}})
    env = EnvConfig(id="CartPole-v1", wrappers=("TimeAwareObservation",))
    said = r"policies: CartPole-v1 in env.wrappers has no heuristic and no medium; give"
    with closing(EnvPool(env, 1, what="behaviour")) as pool, pytest.raises(ParamsError, match=said):
        collect(cfg, pool, "CartPole-v1", 1)


class BreaksAtOnce(NanReward):
    """Its first step is broken, if it begins in the second cell."""

    @property
    def now(self) -> bool:
        return self.steps == 1 and self.began == 1

    def reset(self, **how: Any) -> Any:
        found = super().reset(**how)
        self.began = self.cell
        return found


@pytest.fixture
def breaking() -> Iterator[str]:
    gymnasium.register("BreaksAtOnce-v0", entry_point=BreaksAtOnce, max_episode_steps=10)
    yield "BreaksAtOnce-v0"
    del gymnasium.registry["BreaksAtOnce-v0"]


def test_an_episode_draws_by_its_number_though_others_had_no_step(breaking: str) -> None:
    cfg = CollectConfig.model_validate({"episodes": 12, "policies": {"random": 1.0}})
    seeds = {}
    for name in (breaking, "CartPole-v1"):
        with closing(EnvPool(EnvConfig(id=name), 1, what="behaviour")) as pool:
            found, told = collect(cfg, pool, name, 3)
        seeds[name] = [each.seed for each in found]
    well = [seed for seed in seeds["CartPole-v1"] if np_random(seed)[0].integers(2) == 0]  # begins in the first cell
    assert seeds[breaking] == well
    assert 1 < len(well) < 11
    assert (told["broken_steps"], told["policies"]["random"]["episodes"]) == (0, 12)
    n = next(n for n, seed in enumerate(seeds["CartPole-v1"]) if seed not in well) + 1
    cfg = cfg.model_copy(update={"episodes": max(n, 2)})
    with closing(EnvPool(EnvConfig(id=breaking), 1, what="behaviour")) as pool:
        found, told = collect(cfg, pool, breaking, 3)
    assert (len(found), told["broken_steps"], len(told["notes"])) == (max(n, 2) - 1, 1, 1), "one is told of too"
