"""Observation spaces of every served kind become rows, in training, in worker processes, and in an exported policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import populations
from evopipe.envs.make import make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.spaces import LONGEST, ActionSpace, ObservationSpace
from evopipe.envs.workers import Workers
from evopipe.errors import EnvironmentFailed, ParamsError, UsageError
from evopipe.policies import policy
from evopipe.schema.env import EnvConfig
from evopipe.types import Image
from populations import finish, started


def pixels(*shape: int, **more: Any) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8, **more)


ODD = spaces.Dict(
    {
        "map": pixels(5, 6, 3),
        "bag": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
        "arm": spaces.Dict({"angles": spaces.Box(-1, 1, (2, 2)), "gears": spaces.MultiDiscrete([2, 3])}),
    }
)
"""Nested, in Gymnasium's order: arm (angles, gears), bag, map."""


class Odd(gymnasium.Env[Any, Any]):
    """Shows random observations of a space; action 1 pays one where the first number of a row is large."""

    metadata: Mapping[str, Any] = {"render_modes": []}

    def __init__(self, wrong: Any = None) -> None:
        self.observation_space, self.action_space = ODD, spaces.Discrete(2)
        self.wrong, self.steps = wrong, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        obs = self.observation_space.sample()
        if self.wrong is not None and self.steps == 3:
            obs["bag"] = self.wrong
        return obs, float(action), self.steps == 8, False, {}


gymnasium.register("Odd-v0", Odd)


@pytest.mark.parametrize(
    ("space", "obs", "row"),
    [
        (spaces.Box(-1, 1, (3,)), [0.5, -1, 1], [0.5, -1, 1]),
        (spaces.Box(0, 200, (2,), np.uint8), [7, 200], [7, 200]),  # bytes that are no image stay as they are
        (spaces.Box(-np.inf, np.inf, ()), np.float32(4), [4]),
        (spaces.Box(-1, 1, (2, 2)), [[1, 2], [3, 4]], [1, 2, 3, 4]),
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.Discrete(3, start=5), np.int64(5), [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 0], [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([[2], [2]], start=[[1], [0]]), [[2], [0]], [0, 1, 1, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 9, (1,)))), (1, [7.0]), [0, 1, 7]),
    ],
)
def test_rows_by_hand(space: spaces.Space[Any], obs: Any, row: list[float]) -> None:
    seen = ObservationSpace.of(space)
    assert seen.row(obs).tolist() == row
    assert seen.row(obs).dtype == np.float32
    assert seen.size == len(row)
    assert seen.images == ()


def test_a_nested_space_lays_its_parts_one_after_another() -> None:
    seen = ObservationSpace.of(ODD)
    image = np.arange(90, dtype=np.uint8).reshape(5, 6, 3)
    obs = {
        "map": image,
        "bag": (1, np.array([0, 1], np.int8)),
        "arm": {"angles": np.array([[0.25, 0.5], [-0.5, 1]], np.float32), "gears": np.array([0, 2])},
    }
    row = seen.row(obs)
    assert row[:4].tolist() == [0.25, 0.5, -0.5, 1]
    assert row[4:9].tolist() == [1, 0, 0, 0, 1]
    assert row[9:14].tolist() == [0, 0, 1, 0, 1]
    assert seen.images == (Image(14, 3, 5, 6),)
    assert np.array_equal(row[14:].reshape(3, 5, 6), image.transpose(2, 0, 1).astype(np.float32) / np.float32(255))


@pytest.mark.parametrize(
    ("box", "image"),
    [
        (pixels(8, 9, 3), Image(0, 3, 8, 9)),
        (pixels(3, 8, 9), Image(0, 3, 8, 9)),
        (pixels(10, 10, 7), Image(0, 7, 10, 10)),  # bytes with any number of channels
        (pixels(4, 84, 84), Image(0, 4, 84, 84)),
        (spaces.Box(0.0, 1.0, (8, 9, 1)), Image(0, 1, 8, 9)),
        (spaces.Box(0, 1, (10, 10, 6), bool), Image(0, 6, 10, 10)),
        (spaces.Box(-1.0, 1.0, (8, 9, 5)), None),
        (spaces.Box(0, 255, (8, 8), np.uint8), None),
        (spaces.Box(0, 255, (2, 8, 8, 3), np.uint8), None),
    ],
)
def test_what_counts_as_an_image(box: spaces.Box, image: Image | None) -> None:
    seen = ObservationSpace.of(box)
    assert seen.images == (() if image is None else (image,))
    assert seen.size == int(np.prod(box.shape))


def test_channels_first_and_last_give_the_same_row() -> None:
    image = np.random.default_rng(0).integers(256, size=(6, 7, 3), dtype=np.uint8)
    last, first = ObservationSpace.of(pixels(6, 7, 3)), ObservationSpace.of(pixels(3, 6, 7))
    assert np.array_equal(last.row(image), first.row(image.transpose(2, 0, 1)))
    assert (last.row(image).min() >= 0, last.row(image).max() <= 1) == (True, True)


def test_an_image_is_scaled_by_its_own_bounds() -> None:
    seen = ObservationSpace.of(spaces.Box(-2.0, 6.0, (4, 4, 1)))
    image = np.full((4, 4, 1), -2.0, np.float32)
    image[0, 0] = 6.0
    assert seen.row(image).tolist() == [1.0] + [0.0] * 15
    endless = ObservationSpace.of(spaces.Box(-np.inf, np.inf, (4, 4, 1)))
    assert endless.row(image).tolist() == [6.0] + [-2.0] * 15


@pytest.mark.parametrize(
    "space", [ODD, spaces.Discrete(3), pixels(4, 5, 3), spaces.MultiBinary(3), spaces.Box(0, 1, (2,))]
)
def test_a_batch_is_its_rows_and_the_description_survives_json(space: spaces.Space[Any]) -> None:
    seen = ObservationSpace.of(space)
    assert ObservationSpace.from_json(json.loads(json.dumps(seen.to_json()))) == seen
    space.seed(0)
    several = [space.sample() for _ in range(5)]
    batch = gymnasium.vector.utils.concatenate(space, several, gymnasium.vector.utils.create_empty_array(space, 5))
    rows, single = seen.read(batch)
    assert not single
    assert np.array_equal(rows, np.stack([seen.row(obs) for obs in several]))


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Text(5), "is not served: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them are"),
        (
            spaces.Dict(
                {"a": spaces.Box(0, 1, (2,)), "b": spaces.Sequence(spaces.Discrete(2)), "c": spaces.Discrete(2)}
            ),
            "; to train without 'b', set env.wrappers: [{name: FilterObservation, kwargs: {filter_keys: [a, c]}}]",
        ),
        (spaces.Graph(spaces.Box(0, 1, (2,)), None), "is not served"),
        (spaces.Discrete(LONGEST + 1), f"{LONGEST + 1} numbers as a row"),
        (spaces.Box(0, 1, (0,)), "0 numbers as a row"),
        (spaces.Dict({}), "0 numbers as a row"),
    ],
)
def test_what_cannot_be_a_row_is_refused_in_one_sentence(space: spaces.Space[Any], says: str) -> None:
    with pytest.raises(ParamsError, match=r"env\.id: observation space") as caught:
        ObservationSpace.of(space)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ((3, [0, 1]), "an observation['bag'][0] with the value 3, which is not in its space"),
        ((0, [0, 1, 1]), "an observation['bag'][1] of shape (3,), its space says (2,)"),
        ((0.5, [0, 1]), "an observation['bag'][0] of dtype float64, its space has whole numbers"),
        ((0,), "an observation['bag'][1] that is missing or no array (IndexError)"),
    ],
)
def test_a_wrong_part_is_named(wrong: Any, says: str) -> None:
    pool = EnvPool(EnvConfig(id="Odd-v0", kwargs={"wrong": wrong}), 2)
    pool.reset([0, 1], [1, 2])
    pool.step([0, 0])
    pool.step([0, 0])
    with pytest.raises(EnvironmentFailed, match="returned an observation") as caught:
        pool.step([0, 0])
    assert says in str(caught.value)
    pool.close()


@pytest.mark.parametrize(
    "env",
    ["FrozenLake-v1", "Blackjack-v1", "Odd-v0"]
    + [pytest.param(name, marks=pytest.mark.thorough) for name in ("Taxi-v4", "CliffWalking-v1")],
)
@pytest.mark.thorough
def test_dqn_trains_resumes_and_plays_on_it(env: str) -> None:
    """Some generations with unlike members, then the elite acts on the environment's own observations."""
    p = populations.problem(
        env, mutation={"before_training": True}, train={"replay": {"capacity": 500, "sharing": "own"}},
        config={"network": {"conv": [{"channels": 8, "kernel": 3, "stride": 1}], "encoder": [32], "latent": 16}},
    )  # fmt: skip
    run = started(p, 3)
    finish(run)
    assert run.reason == "max_steps"
    member = run.members[0]
    made = make_env(p.env)
    about = {
        **ObservationSpace.of(made.observation_space).to_json(),
        **ActionSpace.of(made.action_space).to_json(),
        "config": p.algo_config.model_dump(mode="json"),
    }
    acting = policy.Policy(p.algo, p.algo_config, member, json.loads(json.dumps(about)))
    obs, info = made.reset(seed=4)
    for _ in range(5):
        action = acting.act(obs, mask=info.get("action_mask"))
        assert made.action_space.contains(int(action))
        row = torch.from_numpy(acting.observation_space.row(obs))
        cohort = p.form_alone(member)[0]
        assert np.allclose(acting.q_values(obs), p.algo.values(p.algo_config, cohort.state, row[None, None])[0, 0])
        obs, _, ended, cut, info = made.step(int(action))
        if ended or cut:
            obs, info = made.reset(seed=5)
    with pytest.raises(UsageError, match="obs holds an observation"):
        acting.act("nothing of the kind")
    made.close()
    run.close()


@pytest.mark.thorough
def test_a_policy_saved_and_loaded_takes_images(tmp_path: Any) -> None:
    p = populations.problem("Odd-v0", config={"network": {"conv": [{"channels": 8, "kernel": 3, "stride": 2}]}})
    run = started(p, 1)
    made = make_env(p.env)
    about = {
        **ObservationSpace.of(made.observation_space).to_json(),
        **ActionSpace.of(made.action_space).to_json(),
        "config": p.algo_config.model_dump(mode="json"),
    }
    policy.save(tmp_path / "elite", "dqn", run.members[0], about, True, "card")
    loaded = policy.load(tmp_path / "elite")
    ODD.seed(1)
    several = [ODD.sample() for _ in range(6)]
    batch = gymnasium.vector.utils.concatenate(ODD, several, gymnasium.vector.utils.create_empty_array(ODD, 6))
    before = policy.Policy(p.algo, p.algo_config, run.members[0], about)
    assert np.array_equal(loaded.act(batch), before.act(batch))
    program = torch.export.load(tmp_path / "elite" / policy.PROGRAM).module()
    actions, values = program(torch.from_numpy(loaded.observation_space.read(batch)[0]))
    assert np.allclose(values.detach().numpy(), loaded.q_values(batch), atol=1e-6)
    assert np.array_equal(actions.numpy(), loaded.act(batch))
    rows = loaded.observation_space.read(batch)[0]
    assert np.array_equal(loaded.on_rows().act(rows), loaded.act(batch))
    assert np.array_equal(loaded.on_rows().act(rows[0]), loaded.act(several[0]))
    made.close()
    run.close()


def test_a_pool_of_such_observations_goes_on_bit_for_bit() -> None:
    pool, again = (EnvPool(EnvConfig(id="FrozenLake-v1"), 3) for _ in range(2))
    pool.reset([0, 1, 2], [5, 6, 7])
    for _ in range(2):
        pool.step([2, 1, 0])
    assert not again.restore(pool.state()).any()
    assert np.array_equal(again.obs, pool.obs)
    assert pool.obs.shape == (3, 16)
    assert pool.row_space.shape == (16,)
    assert pool.row_space.contains(pool.obs[0])
    pool.close()
    again.close()


def test_worker_processes_give_the_same_rows() -> None:
    cfg = EnvConfig(id="envs_for_tests:Pixels-v0")
    with Workers(2) as workers:
        there, here = EnvPool(cfg, 4, workers=workers), EnvPool(cfg, 4)
        for pool in (there, here):
            pool.reset([0, 1, 2, 3], [5, 6, 7, 8])
        assert np.array_equal(there.obs, here.obs)
        for _ in range(3):
            a, b = there.step([1, 1, 0, 1]), here.step([1, 1, 0, 1])
            assert np.array_equal(a.obs, b.obs)
        assert there.worker_count == 2
        assert there.obs.max() == 1.0
        there.close()
        here.close()


@pytest.mark.parametrize(("shape", "channels"), [((3, 5, 4), 0), ((4, 5, 3), 2), ((3, 5, 3), 2)])
def test_channels_are_the_smaller_end_of_an_image_and_the_last_of_equal_ones(
    shape: tuple[int, ...], channels: int
) -> None:
    (leaf,) = ObservationSpace.of(spaces.Box(0, 255, shape, np.uint8)).leaves
    assert leaf.channels == channels
