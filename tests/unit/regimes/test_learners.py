"""Learning divided among processes: which rows go where, that no bit depends on it, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from evopipe.core.cohort import cost
from evopipe.errors import ParamsError, ResourceError
from evopipe.language.tokens import games
from evopipe.native import build
from evopipe.params.text import LanguageParams
from evopipe.problems.env import begin
from evopipe.problems.text import make_spec, regime_of
from evopipe.problems.text_data import task_of
from evopipe.regimes import learn as steps
from evopipe.regimes import learners
from evopipe.regimes.learners import LearnerPool, Share, _divide, learner_count
from evopipe.run.clock import Clock
from evopipe.run.run import Run
from evopipe.run.spec import EnvSpec, first_members
from players import small_params
from populations import cases, equal_states, problem

SIZE = 5


@pytest.fixture(autouse=True)
def small_work_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "LEAST_WORK", 0.0)


def online(processes: int, cohorts: Literal["merged", "exact"] = "merged", algo: str = "dqn") -> Run:
    """A run of unlike members: activations, widths, depths, batch sizes and learn steps differ."""
    mutation = {"before_training": True, "activations": ["ReLU", "ELU", "GELU", "Tanh"]}
    p = problem(algo=algo, cohorts=cohorts, mutation=mutation, train={"evo_steps": 120})
    members, births = first_members(p, SIZE)
    each = int(members[0].hyper["learn_step"])
    members = [replace(m, hyper={**m.hyper, "learn_step": each * (1 + (m.slot == 3))}) for m in members]
    return begin(p, members, None, births, learners=processes)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


@pytest.mark.product
@pytest.mark.parametrize("cohorts", ["merged", "exact"])
@pytest.mark.parametrize("processes", [2, 3, 9])
@pytest.mark.thorough
def test_no_bit_depends_on_how_many_processes_learn(
    processes: int, cohorts: Literal["merged", "exact"], runs: list[Run]
) -> None:
    runs += [online(1, cohorts), online(processes, cohorts)]
    for _ in range(2):
        for run in runs:
            while not run.clock.generation_over:
                run.advance()
        assert 0 < len(runs[1].regime.learners._helpers) < min(processes, SIZE), "the work was divided"
        assert equal_states(runs[0].state(), runs[1].state()) == []
        for run in runs:
            run.close_generation(lambda: False)
        assert equal_states(runs[0].state(), runs[1].state()) == []


@pytest.mark.parametrize("algo", cases(teams=True))
@pytest.mark.thorough
def test_every_algorithm_learns_alike_in_two_processes(algo: str, runs: list[Run]) -> None:
    runs += [online(1, algo=algo), online(2, algo=algo)]
    for run in runs:
        while not run.clock.generation_over:
            run.advance()
    assert len(runs[1].regime.learners._helpers) == 1, "the work was divided"
    assert equal_states(runs[0].state(), runs[1].state()) == []


@pytest.mark.thorough
def test_players_learn_alike_in_two_processes(runs: list[Run]) -> None:
    """Three GPTs of unlike forms, for two generations."""
    data = small_params("ilql")
    data["evolution"]["mutation"]["before_training"] = True
    params = LanguageParams.model_validate(data)
    spec, task = make_spec(params), task_of(params.language)
    rows = task.rows(np.random.default_rng(0), 60)
    corpus = games(rows, task.encode(rows), spec.base, params.fetch, 1)
    for processes in (1, 2):
        clock, (members, births) = Clock.of(spec, 3), first_members(spec, 3)
        runs.append(Run(spec, regime_of(spec, clock, corpus, processes), clock, members, births))
    for _ in range(2):
        for run in runs:
            while not run.clock.generation_over:
                run.advance()
        assert len(runs[1].regime.learners._helpers) == 1, "the work was divided"
        for run in runs:
            run.close_generation(lambda: False)
        assert equal_states(runs[0].state(), runs[1].state()) == []


def test_a_saved_run_goes_on_with_another_number_of_processes(runs: list[Run]) -> None:
    runs += [online(3), online(1), online(2)]
    first, whole, resumed = runs
    for run in (first, whole):
        for _ in range(7):
            run.advance()
    resumed.restore(*first.state())
    for run in (whole, resumed):
        for _ in range(7):
            run.advance()
    assert equal_states(whole.state(), resumed.state()) == []


def test_a_killed_helper_is_named_and_not_waited_for(runs: list[Run]) -> None:
    runs.append(online(2))
    run = runs[0]
    while not run.regime.learners._helpers:
        run.advance()
    os.kill(run.regime.learners._helpers[0].pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ResourceError, match=r"learner process \d+ was ended by SIGKILL.*runtime\.learners: 1"):
        for _ in range(3):
            run.advance()
    assert time.monotonic() - began < 5
    assert not run.regime.whole, "half of the members have learned: such a state must not be saved"


def test_helpers_end_with_their_generation_and_with_the_run(runs: list[Run]) -> None:
    runs.append(online(SIZE))
    run = runs[0]
    while not run.clock.generation_over:
        run.advance()
    pids = [helper.pid for helper in run.regime.learners._helpers]
    assert pids
    run.close_generation(lambda: False)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_error_in_a_helper_is_an_error_of_the_run(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    runs.append(online(2))
    run, parent = runs[0], os.getpid()
    whole = steps._updates

    def fail(*args: Any) -> Any:
        if os.getpid() != parent:
            raise FloatingPointError("no such number")
        return whole(*args)

    monkeypatch.setattr(steps, "_updates", fail)
    with pytest.raises(FloatingPointError, match="no such number") as failed:
        for _ in range(20):
            run.advance()
    assert "helper process" in failed.value.__notes__[0]
    assert "in fail" in failed.value.__notes__[0], "where it was raised"


def cohort_of(rows: int, width: int = 128, learn_step: int = 1) -> Any:
    """What `divide` looks at."""
    p = problem()
    member = first_members(p, 1)[0][0]
    arch = replace(member.arch, latent=width)
    member = replace(member, arch=arch, hyper={**member.hyper, "learn_step": learn_step})
    return SimpleNamespace(members=(member,) * rows, pace=EnvSpec.pace)


def test_rows_are_divided_in_order_whole_and_evenly() -> None:
    plan = _divide([cohort_of(6), cohort_of(2)], 4, [1.0, 1.0])
    rows = [(s.cohort, r) for shares in plan for s in shares for r in range(s.first, s.end)]
    assert rows == [(0, r) for r in range(6)] + [(1, r) for r in range(2)]
    assert plan == [[Share(0, 0, 2)], [Share(0, 2, 4)], [Share(0, 4, 6)], [Share(1, 0, 2)]]


def test_the_slowest_process_has_as_little_as_possible() -> None:
    """Against all ways to cut."""
    cohorts = [cohort_of(2, 256), cohort_of(3, 32), cohort_of(1, 64, learn_step=8)]
    units = [(c, r) for c, cohort in enumerate(cohorts) for r in range(len(cohort.members))]

    def slowest(borders: tuple[int, ...]) -> float:
        worst = 0.0
        for a, b in zip((0, *borders), (*borders, len(units)), strict=True):
            used = {c: sum(d == c for d, _ in units[a:b]) for c, _ in units[a:b]}
            members = {c: cohorts[c].members[:rows] for c, rows in used.items()}
            worst = max(worst, sum(cost(some, EnvSpec.pace) / some[0].hyper["learn_step"] for some in members.values()))
        return worst

    every = [slowest((i, j)) for i in range(len(units)) for j in range(i, len(units))]
    plan = _divide(cohorts, 3, [1.0, 1.0, 1.0 / 8.0])
    places = [units.index((shares[0].cohort, shares[0].first)) for shares in plan[1:]]
    assert slowest(tuple(places)) == pytest.approx(min(every))


def test_a_cohort_that_learns_more_often_has_more_to_do() -> None:
    """Six equal cohorts of one member, of which the first learns as often as the others together."""
    cohorts, rates = [cohort_of(1, 64) for _ in range(6)], [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [len(shares) for shares in _divide(cohorts, 2, rates)] == [1, 5]
    assert [len(shares) for shares in _divide(cohorts, 2, rates[::-1])] == [5, 1]
    assert [len(shares) for shares in _divide(cohorts, 2, [1.0] * 6)] == [3, 3]


def test_one_process_where_more_would_not_help() -> None:
    assert _divide([cohort_of(1)], 8, [1.0]) == [[Share(0, 0, 1)]]


def test_several_threads_and_several_processes_exclude_each_other() -> None:
    assert learner_count("auto", threads=2) == 1
    assert learner_count(1, threads=2) == 1
    with pytest.raises(ParamsError, match=r"runtime\.learners: 3 processes need runtime\.threads: 1"):
        learner_count(3, threads=2)


def test_our_own_kernels_leave_half_of_the_cpus_to_environments_that_step_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cpus, by_torch, by_ours in ((1, 1, 1), (2, 2, 1), (4, 4, 2)):
        monkeypatch.setattr(learners, "available_cpus", lambda cpus=cpus: cpus)
        build.use(None)
        assert learner_count("auto", threads=1, environments_first=True) == by_torch
        build.use(build.load())
        assert learner_count("auto", threads=1, environments_first=True) == by_ours
        assert learner_count("auto", threads=1, environments_first=False) == by_torch


def test_environments_step_while_members_learn_from_older_steps_and_not_for_long() -> None:
    long = {"learn_step": 1, "batch_size": 128, "network": {"encoder": [128], "latent": 128, "head": [128]}}
    assert problem(algo="dqn").overlapped
    assert problem(algo="dqn").environments_first
    # (4 · 128 + 128 + 128 · 128 + 128 + 128 · 2 + 2) parameters · 128 rows, every second step: between 1 and 2 million.
    middling = problem(algo="dqn", config={"network": {"encoder": [128], "latent": 128}, "batch_size": 128})
    assert middling.overlapped
    assert not middling.environments_first
    assert not problem(algo="ppo").environments_first
    assert not problem(algo="dqn", config=long).overlapped
    assert not problem(algo="ppo").overlapped
    assert not problem(algo="dqn", train={"mode": "offline"}).overlapped


def test_little_work_is_not_divided(monkeypatch: pytest.MonkeyPatch, runs: list[Run]) -> None:
    monkeypatch.setattr(learners, "LEAST_WORK", 1e12)
    runs.append(online(4))
    while not runs[0].clock.generation_over:
        runs[0].advance()
    assert runs[0].regime.learners._helpers == []
    assert isinstance(runs[0].regime.learners, LearnerPool)
