"""A population in this process is the run of `evopipe.train`, in parts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evopipe
from evopipe.errors import UsageError
from evopipe.layout import LINEAGE, TRAINED
from evopipe.policies.team import TeamPolicy
from evopipe.rng import Purpose
from evopipe.run.evaluate import in_environments
from evopipe.searchers.history import read_lineage
from evopipe.storage.files import read_bytes, read_json

SMALL: dict[str, Any] = {
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "population": {"size": 3},
    "train": {"max_steps": 400, "evo_steps": 200, "eval_episodes": 4, "learning_delay": 50, "target": None,
              "confirm_episodes": 2, "warm_start": 0},
    "fetch": {"source": "collect", "collect": {"episodes": 2}},
    "runtime": {"device": "cpu", "env_workers": 0, "learners": 1},
    "export": {"program": False},
    "evaluate": {"episodes": 6},
    "tracking": {"backends": []},
}  # fmt: skip


@pytest.mark.thorough
def test_it_is_the_run_of_train_generation_by_generation(tmp_path: Path) -> None:
    params = SMALL | {"train": SMALL["train"] | {"warm_start": 100}}
    result = evopipe.train(params)
    with evopipe.Population(params) as population:
        assert (len(population), population.generation, population.reason) == (3, 0, "")
        first = population.train(generations=1)
        assert [record.generation for record in first] == [1]
        again = population.evaluate()
        assert np.array_equal(population.evaluate(), again)  # looking changes nothing
        rest = population.train()
        assert population.train() == []
        assert (population.lineage[1:], population.reason) == ([*first, *rest], "max_steps")
        held_out = population.evaluate()
        population.save(tmp_path)
    assert population.lineage == result.lineage
    means = [result.members[f"member_{i}"]["mean"] for i in range(3)]
    assert held_out.shape == (3, 6)
    assert held_out.mean(axis=1).tolist() == pytest.approx(means)
    assert read_lineage(read_bytes(tmp_path / LINEAGE), "lineage") == result.lineage
    assert read_json(tmp_path / "reports/train.json") == result.summary
    obs = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
    for slot, policy in enumerate(result.policies):
        assert np.array_equal(evopipe.load(tmp_path / TRAINED, member=slot).q_values(obs), policy.q_values(obs))


def test_members_are_evaluated_on_the_held_out_seeds() -> None:
    with evopipe.Population(SMALL) as population:
        spec, env = population._spec, population.params.env.on_gymnasium
        with contextlib.closing(in_environments(spec, env, 3, 6, None, 0)) as scored:
            held, others = (
                scored.evaluate(spec.form(population.members), spec.seeds(purpose, 6), lambda: False).returns
                for purpose in (Purpose.HELD_OUT, Purpose.EVALUATE)
            )
        assert np.array_equal(population.evaluate(), held)
        assert not np.array_equal(held, others)


def test_policies_are_what_load_reads(tmp_path: Path) -> None:
    obs = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
    population = evopipe.Population(SMALL)
    with pytest.raises(UsageError, match="no generation has ended yet"):
        population.elite  # noqa: B018
    with pytest.raises(UsageError, match="no generation has ended yet"):
        population.save(tmp_path)
    population.train(generations=1)
    second = population.policies[1]
    before = second.q_values(obs)
    population.train()
    assert np.array_equal(second.q_values(obs), before)
    assert not np.array_equal(population.policies[1].q_values(obs), before)
    population.save(tmp_path)
    population.close()
    assert np.array_equal(
        evopipe.load(tmp_path / TRAINED, member=1).q_values(obs), population.policies[1].q_values(obs)
    )
    assert population.elite.value(obs).shape == (16,)


def test_the_next_one_goes_on_from_its_members(tmp_path: Path) -> None:
    with evopipe.Population(SMALL) as population:
        population.train(generations=1)
        population.save(tmp_path / "first")
        elite = population.elite
    start = SMALL | {"population": {"size": 2, "start": str(tmp_path / "first" / TRAINED)}}
    with evopipe.Population(start) as following:
        assert np.array_equal(following.policies[0].q_values([0.1] * 4), elite.q_values([0.1] * 4))


def test_what_it_cannot_train_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"call evopipe\.train"):
        evopipe.Population({"language": {"task": "symbols"}})
    with pytest.raises(UsageError, match=r"runtime\.shards\.engine"):
        evopipe.Population(SMALL | {"runtime": {"shards": {"engine": "accelerate"}}})


def test_evaluate_plays_a_policy_on_the_seeds_that_it_is_given() -> None:
    with evopipe.Population(SMALL) as population:
        policy = population.policies[0]
    returns = evopipe.evaluate(policy, episodes=5, seed=7)
    assert returns.shape == (5,)
    assert np.array_equal(evopipe.evaluate(policy, episodes=2, seed=9), returns[2:4])
    assert evopipe.evaluate(policy, "CartPole-v1", episodes=1, seed=7, max_steps=3).tolist() == [3.0]
    with pytest.raises(UsageError, match="at least 1"):
        evopipe.evaluate(policy, episodes=0)
    with pytest.raises(UsageError, match="acts in no environment"):
        evopipe.evaluate("models/elite")  # type: ignore[arg-type]


def test_dir_shows_the_small_door() -> None:
    assert {"train", "load", "Population", "Policy", "Params", "evaluate"} <= {*dir(evopipe)}
    assert "create_population" not in dir(evopipe)
    assert evopipe.__all__[:5] == ["train", "load", "evaluate", "Population", "Policy"]
    assert {*dir(evopipe)} - {"agents", "errors", "parts", "zoo"} <= {*evopipe.__all__}
    assert all(getattr(evopipe, name) is not None for name in dir(evopipe))


def test_a_team_and_a_dataset_train_alike(tmp_path: Path) -> None:
    team = SMALL | {"env": {"id": "teams_for_tests:Relay", "num_envs": 2}, "train": SMALL["train"] | {"algo": "ippo"}}
    ppo = {"learn_step": 64, "batch_size": 16, "epochs": 1}
    with evopipe.Population(team | {"algos": {"ippo": ppo}}) as population:
        population.train(generations=1)
        assert population.evaluate(episodes=2).shape == (3, 2)
        assert isinstance(population.elite, TeamPolicy)
    offline = SMALL["train"] | {"algo": "cqn", "mode": "offline", "max_steps": 40, "evo_steps": 20}
    with evopipe.Population(SMALL | {"train": offline}) as population:
        assert len(population.train()) == 2
