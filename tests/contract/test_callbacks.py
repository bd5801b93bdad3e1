"""Callbacks: what they are called with, and when; that no bit of a run depends on them; and what becomes of a run in
which one raises."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evopipe
import tiny
import watching
from evopipe.errors import EnvironmentFailed, EvopipeError, ParamsError, UsageError
from evopipe.params.load import parse_params
from evopipe.policies.policy import of_member
from evopipe.problems import problem_of
from evopipe.problems.specs import describe, make_spec
from evopipe.run import session
from evopipe.run.callbacks import Snapshot
from evopipe.run.population import read_members
from evopipe.searchers.history import read_lineage
from evopipe.stages import train

SHORT: dict[str, Any] = {"train.max_steps": 800, "algos.dqn.learn_step": 16}
ALL: dict[str, Any] = {
    "on_generation": "watching:generation", "on_best": "watching:best", "on_tick": "watching:tick", "tick_steps": 150,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh() -> None:
    watching.SEEN.clear()
    watching.FAILS.clear()


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a first population, whose run has no callbacks and is over."""
    folder = tiny.prepared(tmp_path_factory.mktemp("plain"), SHORT)
    train.run(parse_params(tiny.params(SHORT)), True, folder)
    return folder


def run(members: Path, folder: Path, given: Any = None, functions: Any = None) -> Path:
    """Train these members in another folder."""
    if not folder.exists():
        (folder / "models").mkdir(parents=True)
        (folder / "models/population").symlink_to(members / "models/population")
    params = parse_params(tiny.params(SHORT | ({} if given is None else {"train.callbacks": given})))
    train.run(params, True, folder, functions or {})
    return folder


@pytest.mark.thorough
def test_no_bit_depends_on_them_and_they_see_what_the_run_writes(members: Path, tmp_path: Path) -> None:
    folder = run(members, tmp_path / "seen", ALL)
    assert tiny.digests(folder) == tiny.digests(members)
    kinds = [kind for kind, _ in watching.SEEN]
    # A generation has 400 steps, 4 of them a tick: 150, 300, and 450, 600, 750 are passed.
    first = ["on_tick"] * 2 + ["on_best", "on_generation"]
    assert kinds[:7] == [*first, *["on_tick"] * 3]
    assert kinds[7:] in (["on_generation"], ["on_best", "on_generation"])
    ticks = [seen.step for kind, seen in watching.SEEN if kind == "on_tick"]
    assert ticks == [152, 300, 452, 600, 752]
    assert watching.SEEN[0][1].fitness == {}
    assert (watching.SEEN[0][1].elite_score, watching.SEEN[0][1].elite_id) == (None, None)
    last = watching.SEEN[-1][1]
    record = read_lineage((folder / "reports/lineage.jsonl").read_bytes(), "lineage")[-1]
    assert last.fitness == {each.slot: each.fitness for each in record.members}
    assert (last.elite_score, last.elite_id) == (record.champion.score, record.champion.id)
    assert (last.generation, last.step, last.env_steps, last.folder) == (2, 800, 2400, folder.absolute())


@pytest.mark.thorough
def test_the_policy_is_the_elite_and_a_copy(members: Path, tmp_path: Path) -> None:
    """What is done to it does nothing to the run."""

    def spoil(seen: Snapshot) -> None:
        assert seen.policy.act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
        for part in seen.policy.module().parameters():
            part.data.fill_(math.nan)

    acted: list[Any] = []
    obs = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
    folder = run(members, tmp_path / "spoilt", functions={"on_best": spoil})
    assert tiny.digests(folder) == tiny.digests(members)
    functions = {"on_generation": lambda seen: acted.append(seen.policy.q_values(obs))}
    run(members, tmp_path / "asked", functions=functions)
    params = parse_params(tiny.params(SHORT))
    spec = make_spec(params)
    found, _ = read_members(folder, Path("models/trained"), spec)
    elite = of_member(found[-1], describe(spec))
    assert np.array_equal(acted[-1], elite.q_values(obs))


@pytest.mark.thorough
def test_a_snapshot_can_only_be_read(members: Path, tmp_path: Path) -> None:
    run(members, tmp_path / "seen", {"on_generation": "watching:generation"})
    (_, seen), *_ = watching.SEEN
    with pytest.raises(TypeError):
        seen.fitness[0] = 1e9
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.generation = 7


@pytest.mark.thorough
def test_one_that_raises_ends_the_run_and_nothing_is_lost(members: Path, tmp_path: Path) -> None:
    folder, given = tmp_path / "broken", {"on_generation": "watching:raising", "on_best": "watching:best"}
    watching.FAILS.append(True)
    with pytest.raises(EnvironmentFailed) as failed:
        run(members, folder, given)
    assert str(failed.value) == "callback on_generation (watching:raising) raised ValueError: no such chart"
    assert failed.value.exit_code == 71
    watching.FAILS.clear()
    watching.SEEN.clear()
    run(members, folder, given)  # goes on after that generation: `on_best` of the first one was called
    assert [seen.generation for _, seen in watching.SEEN] in ([], [2])
    assert tiny.digests(folder) == tiny.digests(members)


@pytest.mark.thorough
def test_a_run_goes_on_with_other_callbacks(members: Path, tmp_path: Path) -> None:
    """They change no result, so another one is no other run: there is one state, not two."""
    folder = tmp_path / "other"
    watching.FAILS.append(True)
    with pytest.raises(EnvironmentFailed):
        run(members, folder, {"on_generation": "watching:raising"})
    assert session.key_of(problem_of(parse_params(tiny.params(SHORT)), folder), folder) in [
        found.name for found in folder.glob(".evopipe/train/*")
    ]
    run(members, folder)
    assert tiny.digests(folder) == tiny.digests(members)


@pytest.mark.thorough
def test_an_error_of_ours_that_one_raises_is_told_as_its_own(members: Path, tmp_path: Path) -> None:
    def wrong(seen: Snapshot) -> None:
        evopipe.load(tmp_path / "nowhere")

    with pytest.raises(EnvironmentFailed, match=r"^callback on_best \(.*wrong\) raised MissingInputError: .*nowhere"):
        run(members, tmp_path / "wrong", functions={"on_best": wrong})


def test_a_population_calls_them_too() -> None:
    small = {
        "env": {"id": "CartPole-v1", "num_envs": 2}, "population": {"size": 2},
        "runtime": {"learners": 1, "env_workers": 0, "kernels": "torch", "device": "cpu"},
        "train": {"max_steps": 200, "evo_steps": 100, "eval_episodes": 2, "warm_start": 0, "callbacks": ALL},
    }  # fmt: skip
    with evopipe.Population(small) as population:
        population.train(generations=1)
        assert [kind for kind, _ in watching.SEEN] == ["on_best", "on_generation"]
        assert watching.SEEN[0][1].elite_score == population.lineage[-1].champion.score
        population.train(generations=1)
    assert [kind for kind, _ in watching.SEEN][2] == "on_tick"


REFUSED: dict[str, tuple[Any, type[EvopipeError], str]] = {
    "form": ("watching", ParamsError, r"train.callbacks.on_best: 'watching' is not of the form 'module:function'"),
    "name": ("watching:bst", ParamsError, r"has no 'bst', did you mean 'best'\?"),
    "module": ("no_such_module:best", ParamsError, "train.callbacks.on_best: no module named 'no_such_module'"),
    "kind": ("watching:not_a_function", ParamsError, "is of type int, and cannot be called"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_function_is_refused_before_anything_runs(case: str, tmp_path: Path) -> None:
    name, error, sentence = REFUSED[case]
    with pytest.raises(error, match=sentence):
        evopipe.train({"train": {"callbacks": {"on_best": name}}}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_what_is_given_twice_is_refused(members: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"on_best: given here and as train\.callbacks\.on_best: remove one"):
        run(members, tmp_path / "a", ALL, {"on_best": print})
    no_function: Any = 3
    with pytest.raises(UsageError, match="on_best: expected a function of one argument, got int"):
        run(members, tmp_path / "b", functions={"on_best": no_function})


@pytest.mark.thorough
def test_from_python(tmp_path: Path) -> None:
    seen: list[Snapshot] = []
    result = evopipe.train(tiny.params(SHORT), tmp_path, on_generation=seen.append, on_tick=None)
    assert [each.generation for each in seen] == [1, 2]
    assert seen[-1].elite_score == result.summary["elite"]["score"]


def test_without_them_parameters_are_written_as_before() -> None:
    plain = parse_params({})
    assert "callbacks" not in plain.model_dump()["train"]
    given = parse_params({"train": {"callbacks": ALL}})
    assert given.model_dump(mode="json")["train"]["callbacks"] == ALL
    assert given.tracked() == plain.tracked()
