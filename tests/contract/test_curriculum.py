"""Curricula: what members train in, and are scored in; that a run comes to the same bits with workers and after a stop;
and what is refused."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

import evopipe
import taught
import tiny
from evopipe.envs.workers import Workers
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError
from evopipe.layout import LINEAGE
from evopipe.params.load import Params, parse_params
from evopipe.searchers.history import read_lineage
from evopipe.stages import population, train
from evopipe.storage.checkpoint import CheckpointStore
from populations import begun, equal_states, go_on

SMALL: dict[str, Any] = {
    "env": {"id": "taught:Level-v0", "num_envs": 4},
    "population": {"size": 2},
    "train": {
        "algo": "ppo", "max_steps": 320, "evo_steps": 80, "eval_episodes": 3, "target": None,
        "curriculum": "taught:rising",
    },
    "algos": {"ppo": {"learn_step": 40, "batch_size": 20, "epochs": 1, "network": {"encoder": [8], "latent": 8}}},
    "runtime": {"device": "cpu", "learners": 1},
    "tracking": {"backends": []},
}  # fmt: skip
LSTM = {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}
KINDS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "lstm": {"algos": {"ppo": {**SMALL["algos"]["ppo"], "max_seq_len": 4, "network": LSTM}}},
    "dqn": {
        "train": {**SMALL["train"], "algo": "dqn", "learning_delay": 8, "warm_start": 0,
                  "replay": {"n_step": 3, "sharing": "own", "capacity": 500}},
        "algos": {"dqn": {"learn_step": 4, "batch_size": 8, "network": {"encoder": [8], "latent": 8}}},
    },
    "team": {
        "env": {"id": "teams_for_tests:Relay", "num_envs": 4},
        "train": {**SMALL["train"], "algo": "ippo", "curriculum": "taught:longer"},
        "algos": {"ippo": SMALL["algos"]["ppo"]},
    },
    "waiting": {
        "population": {"size": 3}, "search": {"strategy": "halving", "budget": 2000, "halving": {"rung": 80}},
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh() -> None:
    taught.CALLED.clear()
    taught.FAILS.clear()


def small(train: dict[str, Any] | None = None, **more: Any) -> Params:
    found = parse_params({**SMALL, **more, "train": {**SMALL["train"], **more.get("train", {}), **(train or {})}})
    assert isinstance(found, Params)
    return found


def test_members_train_in_the_lessons_and_are_scored_in_the_environment_of_the_parameters() -> None:
    with begun(small()) as run:
        seen = []
        while not run.reason:
            go_on(run)
            if run.clock.here == 0:
                seen.append(run.told[0]["charts/episodic_return"][0])
        levels = [1, 2, 3, 4]
        assert [record.curriculum for record in run.lineage] == [None, *({"level": level} for level in levels)]
        assert all(5 * level <= mean <= 5 * (level + 1) for level, mean in zip(levels, seen, strict=True))
        assert all(35 <= each.fitness <= 40 for record in run.lineage[1:] for each in record.members)
        scores = [None, *(record.champion.score for record in run.lineage[1:] if record.champion)]
        progress = [0.0, 0.25, 0.5, 0.75, 1.0]
        assert list(zip(progress, scores, strict=True)) == taught.CALLED


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_stopped_and_one_with_workers_come_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    params = small(**KINDS[kind])
    with begun(params) as straight:
        while not straight.reason:
            go_on(straight)
        expected = straight.state()
    assert len({str(record.curriculum) for record in straight.lineage}) > 3
    with Workers(2) as workers, begun(params, workers) as divided:
        while not divided.reason:
            go_on(divided)
        assert divided.regime.world.pool.worker_count == 2
        assert divided.lineage == straight.lineage
        assert equal_states(divided.state(), expected) == []
    store, draw, count = CheckpointStore(tmp_path), random.Random(3), 0
    with contextlib.ExitStack() as held:
        run = held.enter_context(begun(params))
        while not run.reason:
            go_on(run)
            if draw.random() < 0.1:
                count += 1
                store.save(count, *run.state())
                held.close()
                run, loaded = held.enter_context(begun(params)), store.load()
                assert loaded is not None
                assert run.restore(loaded.tensors, loaded.meta) == 0
        assert count > 3
        (tensors, meta), (expected_tensors, expected_meta) = run.state(), expected
        assert equal_states((tensors, {}), (expected_tensors, {})) == []
        assert meta == expected_meta


@pytest.mark.thorough
def test_one_that_changes_nothing_changes_no_bit() -> None:
    lineages = []
    for name in (None, "taught:as_it_is"):
        with begun(small({"curriculum": name, "max_steps": 160})) as run:
            while not run.reason:
                go_on(run)
            lineages.append([(record.members, record.champion, record.children) for record in run.lineage])
            assert run.lineage[-1].curriculum == (None if name is None else {})
    assert lineages[0] == lineages[1]


FAULTY = {
    "taught:wide": r"training environment 'taught:Level-v0' with {'wide': True} has other spaces than before: a curric",
    "taught:broken": "environment 'taught:Level-v0' could not be constructed: RuntimeError: no such level; check env",
    "taught:a_list": r"train.curriculum: taught:a_list returned \[3\], expected keyword arguments of the environment: ",
    "taught:an_array": r"train.curriculum: taught:an_array returned {'level': array\(\[0, 1, 2\]\)}, expected keyword ",
}


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_faulty_one_is_told_in_a_sentence(name: str, workers: int) -> None:
    with (
        pytest.raises(EnvironmentFailed, match=FAULTY[name]),
        Workers(workers) as helpers,
        begun(small({"curriculum": name}), helpers) as run,
    ):
        while not run.reason:
            go_on(run)


@pytest.mark.thorough
def test_a_run_whose_curriculum_raised_goes_on_from_there(tmp_path: Path) -> None:
    folders = [tmp_path / "straight", tmp_path / "broken"]
    for folder in folders:
        population.run(small(), True, folder)
    train.run(small(), True, folders[0])
    taught.FAILS.append(True)
    with pytest.raises(
        EnvironmentFailed, match=r"^train.curriculum: taught:rising raised ValueError: no more lessons$"
    ):
        train.run(small(), True, folders[1])
    taught.FAILS.clear()
    train.run(small(), True, folders[1])
    assert taught.CALLED[-1][0] == 1.0
    assert tiny.digests(folders[1]) == tiny.digests(folders[0])
    (record,) = read_lineage((folders[1] / LINEAGE).read_bytes(), "lineage")[2:3]
    assert record.curriculum == {"level": 2}


REFUSED: dict[str, tuple[dict[str, Any], type[EvopipeError], str]] = {
    "form": ({"train": {"curriculum": "taught"}}, ParamsError, "'taught' is not of the form 'module:function'"),
    "backend": (
        {"env": {"id": "CartPole-v1", "backend": "c"}}, ParamsError,
        "train.curriculum: env.backend c cannot make environments anew: set it to sync, or this to null",
    ),
    "offline": ({"train": {"algo": "cqn", "mode": "offline"}}, ParamsError, "members learn from a dataset, not in"),
    "fitness": (
        {"search": {"fitness": "training"}}, ParamsError,
        "search.fitness: train.curriculum changes what members train in, generation by generation: set it to eval",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str) -> None:
    given, error, sentence = REFUSED[case]
    with pytest.raises(error, match=sentence.replace(".", r"\.")):
        small(**given)


def test_an_unknown_function_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(
        ParamsError, match=r"train\.curriculum: the module 'taught' has no 'risng', did you mean 'rising'"
    ):
        evopipe.train({"train": {"curriculum": "taught:risng"}}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_shards_are_refused() -> None:
    shards = {"device": "cpu", "cohorts": "exact", "shards": {"count": 2}}
    with pytest.raises(
        ParamsError, match=r"train\.curriculum: shards do not make environments anew; set it to null, or"
    ):
        evopipe.train({**SMALL, "runtime": shards})


def test_results_depend_on_it_and_on_its_module() -> None:
    plain, given = small({"curriculum": None}), small()
    assert "curriculum" not in plain.model_dump()["train"]
    assert given.tracked()["train"]["curriculum"] == "taught:rising"
    assert [file.name for file in given.outside()[1]] == ["taught.py"]
    assert plain.outside() == ([], [])
