"""Hindsight experience replay in runs: what memories hold, that runs continue to the bit and do not depend on who steps
environments, and what is refused before they begin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from evopipe.envs.workers import Workers
from evopipe.errors import EnvironmentFailed, ParamsError
from evopipe.params.load import Params, parse_params
from evopipe.problems.env_check import check
from evopipe.run.run import Run
from populations import advance, begun, equal_states, finish

BITS = 6
NET = {"network": {"encoder": [8], "latent": 8}, "learn_step": 8, "batch_size": 8}
SMALL: dict[str, Any] = {
    "env": {"id": "evopipe.envs.bitflip:BitFlip-v0", "kwargs": {"bits": BITS}, "num_envs": 3},
    "population": {"size": 2},
    "train": {
        "algo": "dqn", "max_steps": 480, "evo_steps": 240, "eval_episodes": 2, "target": None, "learning_delay": 20,
        "warm_start": 0, "replay": {"capacity": 4000, "sharing": "own", "hindsight": {"goals": 3}},
    },
    "algos": {"dqn": NET},
    "runtime": {"device": "cpu", "learners": 1},
    "tracking": {"backends": []},
}  # fmt: skip


def small(replay: dict[str, Any] | None = None, env: dict[str, Any] | None = None, **train: Any) -> Params:
    algo, block = train.get("algo", "dqn"), {**SMALL["train"], **train}
    block["replay"] = {**SMALL["train"]["replay"], **(replay or {})}
    found = parse_params({**SMALL, "env": {**SMALL["env"], **(env or {})}, "train": block, "algos": {algo: NET}})
    assert isinstance(found, Params)
    return found


REACH = {"id": "goal_envs:Reach-v0", "kwargs": {}}


def held(run: Run[Any]) -> Iterator[np.ndarray]:
    """The transitions of each memory, `[n, size]`."""
    replay = run.regime.replay
    for rows, size in zip(replay.rows, replay.size.tolist(), strict=True):
        yield rows[:size].numpy()


@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_of_ended_episodes_k_of_k_plus_1_rows_are_relabelled_and_true(sharing: str) -> None:
    """Rewards and ends are those of the goal in the row, and the goal was achieved in the row's own episode."""
    with begun(small({"sharing": sharing})) as run:
        advance(run, 60)
        running = run.regime._hindsight._length.sum()
        for rows in held(run):
            obs, after = rows[:, : 3 * BITS], rows[:, 3 * BITS : 6 * BITS]
            state, goal = after[:, :BITS], after[:, BITS : 2 * BITS]
            assert np.array_equal(obs[:, BITS : 2 * BITS], goal), "one goal before and after a step"
            there = (state == goal).all(axis=1)
            assert np.array_equal(rows[:, -2], there - 1.0)
            assert np.array_equal(rows[:, -1], there)
            assert there.mean() > 0.15, "hindsight finds goals"
        total = run.regime.replay.size.sum()
        assert total == 60 * 6 + 3 * (60 * 6 - running)


@pytest.mark.parametrize("ticks", [7, 85])
@pytest.mark.thorough
def test_a_restored_run_continues_bit_for_bit(ticks: int) -> None:
    """In the middle of episodes, in the second generation after the ring went round."""
    params = small({"capacity": 300})
    with begun(params) as whole, begun(params) as resumed:
        advance(whole, ticks)
        assert (whole.regime._hindsight._length > 0).any()
        tensors, meta = whole.state()
        tensors, meta = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))
        assert "hindsight.rows" in tensors
        advance(resumed, 3)  # whatever it held before is gone
        assert resumed.restore(tensors, meta) == 0
        assert equal_states(whole.state(), resumed.state()) == []
        for run in (whole, resumed):
            finish(run)
        assert equal_states(whole.state(), resumed.state()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["dqn", "qrdqn", "rainbow", "sac", "td3", "ddpg", "tqc", "crossq", "redq"])
@pytest.mark.parametrize("prioritised", [False, True])
def test_every_algorithm_with_a_memory_learns_from_it_whoever_steps(algo: str, prioritised: bool) -> None:
    """Discrete ones flip bits, continuous ones reach places; worker processes change no bit, priorities work too."""
    env = REACH if algo in ("sac", "td3", "ddpg", "tqc", "crossq", "redq") else None
    params = small({"prioritised": prioritised}, env, algo=algo)
    with begun(params) as alone, begun(params, Workers(2, 1)) as divided:
        for run in (alone, divided):
            finish(run)
        assert equal_states(alone.state(), divided.state()) == []
        assert all(float(member.tensors["updates"]) > 20 for member in alone.members)


def test_members_that_wait_and_members_that_are_renewed_keep_no_others_episodes() -> None:
    params = small()
    with begun(params) as run:
        advance(run, 4)
        hindsight = run.regime._hindsight
        length = hindsight._length.copy()
        run.regime.renew([1])
        assert hindsight._length[3:].tolist() == [0, 0, 0]
        assert np.array_equal(hindsight._length[:3], length[:3])
        advance(run, 30)
        assert (run.regime.replay.size > 3 * 30).all()


def test_episodes_that_cannot_be_brought_back_are_not_told_again() -> None:
    """Of two environments that are elsewhere than they were what was recorded is gone, of the others nothing is."""
    with begun(small()) as whole, begun(small()) as resumed:
        advance(whole, 4)
        before = whole.regime._hindsight._length.copy()
        assert (before > 0).all()
        tensors, meta = whole.state()
        tensors = {n: t.clone() for n, t in tensors.items()}
        tensors["pool.obs"][[1, 4]] += 1.0  # no episode of these seeds and actions leads there
        assert resumed.restore(tensors, json.loads(json.dumps(meta))) == 2
        before[[1, 4]] = 0
        assert resumed.regime._hindsight._length.tolist() == before.tolist()
        assert resumed.regime.world.pool.episode_length.tolist() == before.tolist()


def test_environments_that_are_made_anew_go_on_with_no_episode_of_before() -> None:
    with begun(small()) as run:
        advance(run, 4)
        assert run.regime._hindsight._length.any()
        run.regime.reopen({"bits": BITS})
        assert not run.regime._hindsight._length.any()


def test_a_reward_that_fails_later_ends_the_run_with_a_sentence() -> None:
    params, says = (
        small(env={**REACH, "kwargs": {"bad": "late"}}, algo="sac"),
        r"compute_reward.*raised ValueError: no more",
    )
    with begun(params) as run, pytest.raises(EnvironmentFailed, match=says):
        advance(run, 60)


@pytest.mark.parametrize(
    ("replay", "train", "says"),
    [
        ({"n_step": 3}, {}, "set train.replay.n_step to 1, or this to null"),
        ({"evaluation": True}, {}, "set train.replay.evaluation to false, or this to null"),
        ({}, {"algo": "ppo"}, "ppo with train.mode online fills no memory"),
        ({}, {"mode": "offline"}, "dqn with train.mode offline fills no memory"),
        ({}, {"algo": "maddpg"}, "maddpg with train.mode online is for teams"),
        ({"hindsight": {"strategy": "final"}}, {}, "an episode has one final state: set it to 1, got 4"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(replay: Any, train: Any, says: str) -> None:
    with pytest.raises(ParamsError, match=r"train\.replay\.hindsight.*" + says):
        small(replay, **train)


@pytest.mark.parametrize("backend", ["torch", "c"])
def test_backends_other_than_sync_are_refused(backend: str) -> None:
    with pytest.raises(
        ParamsError, match=rf"train\.replay\.hindsight: env\.backend {backend} .* set it to sync, or this"
    ):
        small(env={"id": "CartPole-v1", "kwargs": {}, "backend": backend})


def test_an_environment_without_goals_is_refused_by_the_check_and_at_the_start() -> None:
    params = small(env={"id": "CartPole-v1", "kwargs": {}})
    with pytest.raises(ParamsError, match=r"train\.replay\.hindsight: 'CartPole-v1'"):
        check(params)
    with pytest.raises(ParamsError, match=r"train\.replay\.hindsight: 'CartPole-v1'"), begun(params):
        pass
    check(small())


def test_a_file_without_the_key_is_as_before() -> None:
    """The key may be left out, and then is not written: what is stored of older runs stays theirs."""
    params = small({"hindsight": None})
    assert "hindsight" not in params.model_dump(mode="json")["train"]["replay"]
    assert small().model_dump(mode="json")["train"]["replay"]["hindsight"] == {"goals": 3, "strategy": "future"}
