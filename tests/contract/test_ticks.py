"""Ticks by the kernels, several in one call where the environment is in C: members become, to the bit, what they become
where Python does every part by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import populations
import rota
from breaking import BREAKS
from evopipe.errors import EnvironmentFailed
from evopipe.memory.replay import Replay
from evopipe.native import build
from evopipe.native.ticks import Chooser, ManyTicks, Updates
from evopipe.problems.specs import spaces_of
from evopipe.regimes import in_c, learn
from evopipe.run import act
from evopipe.run.drive import drive
from evopipe.run.spec import EnvSpec
from evopipe.track.events import Tracker
from populations import equal_states, finish

MANY = 1_000
SHORT = {"kwargs": {"max_episode_steps": 13}}
OWN, SHARED = {"capacity": 300, "sharing": "own"}, {"capacity": 1_000, "sharing": "shared"}
SURPRISED = {"prioritised": True, "alpha": 0.7}


def replay(**given: Any) -> dict[str, Any]:
    return {"train": {"replay": given}}


JOBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dqn": ("dqn", "CartPole-v1", replay(**OWN)),
    "shared": ("dqn", "CartPole-v1", replay(**SHARED, updates="pooled")),
    "prioritised": ("dqn", "CartPole-v1", replay(**OWN, **SURPRISED, updates=3)),
    "prioritised-shared": ("dqn", "CartPole-v1", replay(**SHARED, **SURPRISED)),
    "truncated": ("dqn", "MountainCar-v0", SHORT),
    "with-draws": ("dqn", "FrozenLake-v1", {}),
    "small-memory": ("dqn", "CartPole-v1", replay(capacity=3, sharing="own")),
    "unlike-members": ("dqn", "CartPole-v1", {"mutation": populations.UNLIKE}),
    "one-cohort-prioritised": (
        "dqn",
        "CartPole-v1",
        {
            "mutation": populations.UNLIKE,
            "cohorts": "merged",
            "config": {"evolve": {"batch_size": {"min": 8, "max": 64}}},
            **replay(**OWN, **SURPRISED),
        },
    ),
    "one-cohort": ("dqn", "CartPole-v1", {"mutation": populations.UNLIKE, "cohorts": "merged"}),
    "evaluation": ("dqn", "CartPole-v1", replay(**OWN, evaluation=True)),
    "one-environment": ("dqn", "CartPole-v1", {"num_envs": 1}),
    "seldom": ("dqn", "CartPole-v1", {"config": {"learn_step": 7}}),
    "hard-target": ("dqn", "CartPole-v1", {"config": {"target": "hard", "target_interval": 9, "double": False}}),
    "cqn": ("cqn", "CartPole-v1", {}),
    "sac": ("sac", "Pendulum-v1", {**SHORT, "config": {"random_steps": 80}}),
    "by-training": ("sac", "Pendulum-v1", {**SHORT, "search": {"fitness": "training"}}),
    "td3": ("td3", "Pendulum-v1", {**SHORT, "config": {"random_steps": 80, "policy_delay": 3}}),
    "td3-prioritised": ("td3", "MountainCarContinuous-v0", replay(**SHARED, **SURPRISED, updates=2)),
    "td3-twice": ("td3", "Pendulum-v1", {**SHORT, **replay(**OWN, updates=2), "config": {"policy_delay": 3}}),
    "ddpg": ("ddpg", "Pendulum-v1", {"config": {"random_steps": 0}}),
}
APART: dict[str, tuple[str, str, dict[str, Any]]] = {
    "n-step": ("dqn", "CartPole-v1", replay(**OWN, **SURPRISED, n_step=3)),
    "rainbow": ("rainbow", "CartPole-v1", replay(**OWN, **SURPRISED)),
    "ornstein-uhlenbeck": ("td3", "Pendulum-v1", {"config": {"noise": "ou", "random_steps": 80}}),
    "sac-discrete": ("sac", "CartPole-v1", {}),
    "normalised": ("dqn", "CartPole-v1", {"train": {"normalise": {"observations": True}}}),
    "shared-encoder": ("td3:continuous:shared", "Pendulum-v1", {}),
}
"""Of which the kernels cannot take whole ticks."""


@pytest.fixture(autouse=True)
def _kernels_that_are_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    build.use(build.load())
    rota.offer(monkeypatch)
    monkeypatch.setattr(in_c, "_SECONDS", 1e9)  # no test depends on how fast this machine is
    yield
    build.use(None)


def job(name: str, backend: str = "c") -> EnvSpec:
    algo, env, more = (JOBS | APART)[name]
    return problem(algo, env, backend, **more)


def problem(algo: str, env: str, backend: str = "c", **more: Any) -> EnvSpec:
    train = {"evo_steps": 200, "max_steps": 500, **more.pop("train", {})}
    return on(populations.problem(env, algo, train=train, **more), backend=backend)


def on(p: EnvSpec, **given: Any) -> EnvSpec:
    cfg = p.env.model_copy(update=given)
    return replace(p, env=cfg, spaces=spaces_of(cfg, p.train.algo))


def by_calls(loop: Any, most: int = MANY, ticks: int = MANY) -> int:
    """Take so many ticks, at most to the run's end; return in how many calls."""
    calls, end = 0, loop.clock.ticks + ticks
    while not loop.reason and loop.clock.ticks < end:
        if loop.clock.generation_over:
            populations.go_on(loop)
        else:
            loop.advance(min(most, end - loop.clock.ticks))
            calls += 1
    return calls


def plainly(loop: Any, ticks: int = MANY) -> None:
    """Take so many ticks without any of the calls that this file is about."""

    def none(*args: Any) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        for module in (act, learn):
            patch.setattr(module, "by_kernels", none)
        patch.setattr(Replay, "incoming", none)
        regime = loop.regime
        regime.learning.adopt(loop.cohorts)
        regime._incoming = regime.world._choosers = None
        by_calls(loop, 1, ticks)


LIKE = {
    "prioritised-shared",
    "small-memory",
    "one-cohort",
    "one-cohort-prioritised",
    "td3-prioritised",
    "ddpg",
    "unlike-members",
    "evaluation",
    "one-environment",
    "td3-twice",
    "by-training",
    "seldom",
    "hard-target",
    "cqn",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.thorough) if n in LIKE else n for n in JOBS])
def test_a_run_has_the_bits_of_one_by_ticks(name: str, run: Callable[..., Any]) -> None:
    together, apart, plain = (run(job(name), 3) for _ in range(3))
    calls = by_calls(together)
    finish(apart)
    plainly(plain)
    assert equal_states(together.state(), apart.state()) == []
    assert equal_states(together.state(), plain.state()) == []
    assert calls < apart.clock.ticks / 4, "many ticks were taken at once"
    assert together.regime.replay.size.min() > 0
    assert np.isfinite(together.losses).all(), "members learned"


@pytest.mark.thorough
@pytest.mark.parametrize("name", JOBS)
def test_so_has_one_in_pythons_environments(
    name: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    p = job(name, "sync")
    bound, plain = run(p, 3), run(p, 3)
    finish(bound)
    ticks = bound.clock.ticks
    assert calls["choose"] >= ticks
    assert calls["learn"] > 0
    before = dict(calls)
    plainly(plain)
    assert calls == before
    assert equal_states(bound.state(), plain.state()) == []


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the kernels choose and learn for a whole cohort."""
    calls = {"choose": 0, "learn": 0}
    for name, kind in (("choose", Chooser), ("learn", Updates)):
        original = kind.__call__

        def watched(self: Any, *given: Any, name: str = name, original: Any = original) -> Any:
            calls[name] += 1
            return original(self, *given)

        monkeypatch.setattr(kind, "__call__", watched)
    return calls


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["c", "sync"])
@pytest.mark.parametrize("name", APART)
def test_what_the_kernels_do_not_know_goes_tick_by_tick(name: str, backend: str, run: Callable[..., Any]) -> None:
    together, plain = run(job(name, backend), 2), run(job(name, backend), 2)
    assert by_calls(together, ticks=70) == 70
    plainly(plain, 70)
    assert equal_states(together.state(), plain.state()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dqn", "prioritised-shared", "by-training", "td3"])
@pytest.mark.parametrize("at", [5, 29, 77])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(name: str, at: int, run: Callable[..., Any]) -> None:
    straight, killed, resumed = (run(job(name), 3) for _ in range(3))
    by_calls(killed, 7, at)
    plainly(straight, at)
    tensors, meta = killed.state()
    assert equal_states(straight.state(), (tensors, meta)) == []
    by_calls(resumed, 3, 11)  # of another past
    assert resumed.restore({n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))) == 0
    assert by_calls(resumed) < resumed.clock.ticks - at
    plainly(straight)
    assert equal_states(straight.state(), resumed.state()) == []


@pytest.mark.parametrize("backend", ["c", "sync"])
@pytest.mark.parametrize("more", [{}, replay(**SHARED, **SURPRISED)], ids=["own", "shared"])
@pytest.mark.thorough
def test_members_that_wait_come_back_to_the_same_bits(
    backend: str, more: dict[str, Any], run: Callable[..., Any]
) -> None:
    order = ((0,), (0, 2), (1, 2), (1,), (0, 1))
    search = {"strategy": "rota", "rota": {"order": order, "births": ((2, 0, 2),)}}
    more = {"train": {"evo_steps": 100, "max_steps": 300, "learning_delay": 20, **more.get("train", {})}}
    p = problem("dqn", "CartPole-v1", backend, mutation=populations.UNLIKE, search=search, **more)
    together, plain = run(p, 3), run(p, 3)
    calls = by_calls(together)
    assert calls < together.clock.ticks / 2 if backend == "c" else calls == together.clock.ticks
    plainly(plain)
    assert equal_states(together.state(), plain.state()) == []


def test_slots_that_begin_anew_have_the_same_bits(run: Callable[..., Any]) -> None:
    together, plain = run(job("by-training"), 3), run(job("by-training"), 3)
    by_calls(together, ticks=23)
    plainly(plain, 23)
    for loop in (together, plain):
        loop.regime.renew([1])
    by_calls(together, ticks=20)
    plainly(plain, 20)
    assert equal_states(together.state(), plain.state()) == []


def test_threads_change_no_bit(run: Callable[..., Any]) -> None:
    loops = [run(job("one-cohort"), 5, processes) for processes in (1, 3)]
    assert loops[0].spec.compiled
    by_calls(loops[1])  # made last: its number of threads is everybody's
    build.kernels().share_among(1)
    by_calls(loops[0])
    assert equal_states(loops[0].state(), loops[1].state()) == []


def test_ticks_at_once_and_one_by_one_may_alternate(run: Callable[..., Any]) -> None:
    mixed, plain = run(job("sac"), 2), run(job("sac"), 2)
    for most in (1, 9, 1, 1, 30, 2):
        by_calls(mixed, most, most)
    plainly(plain, 44)
    assert mixed.clock.ticks == 44
    assert equal_states(mixed.state(), plain.state()) == []


def test_actions_that_were_chosen_are_taken_first(run: Callable[..., Any]) -> None:
    chosen, plain = run(job("dqn"), 2), run(job("dqn"), 2)
    by_calls(chosen, ticks=5)
    epsilon = chosen.spec.algo.explore(chosen.spec.algo_config, chosen.clock.step)
    chosen.regime.world.decide(chosen.cohorts, epsilon)
    chosen.advance(MANY)
    assert chosen.clock.ticks == 6
    plainly(plain, 6)
    assert equal_states(chosen.state(), plain.state()) == []


def test_no_call_goes_beyond_what_was_asked(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    loop, seen = run(job("dqn"), 2), []
    for asked in (1, 3, 17):
        monkeypatch.setattr(loop.regime._whole_ticks, "_most", MANY)
        before = loop.clock.ticks
        loop.advance(asked)
        seen.append(loop.clock.ticks - before)
    monkeypatch.setattr(loop.regime._whole_ticks, "_most", MANY)
    loop.advance(MANY)
    assert seen == [1, 3, 17]
    assert loop.clock.here == loop.clock.generation_ticks
    assert loop.clock.generation_over


def test_a_call_takes_a_few_milliseconds(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock says that a tick takes 1 ms: the first call takes one, all others five."""
    loop, now = run(job("dqn"), 2), [0.0]
    took: list[int] = []
    original = ManyTicks.__call__

    def timed(self: Any, tick: int, here: int, epsilon: Any, beta: Any) -> Any:
        found = original(self, tick, here, epsilon, beta)
        took.append(found[0])
        now[0] += found[0] / 1024
        return found

    monkeypatch.setattr(in_c, "_SECONDS", 0.005)
    monkeypatch.setattr(ManyTicks, "__call__", timed)
    monkeypatch.setattr(in_c.time, "perf_counter", lambda: now[0])
    by_calls(loop, ticks=46)
    assert took == [1, *[5] * 9]


@pytest.mark.parametrize("often", [0.004, 0.02])
def test_broken_transitions_are_left_out_alike(often: float, run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "breaks.c").write_text(BREAKS)
    cfg = {"backend": "c", "id": "Own", "source": str(tmp_path / "breaks.c"), "kwargs": {"often": often}}
    p = on(populations.problem("CartPole-v1", "dqn", train={"eval_episodes": 6}), **cfg)
    together, plain = run(p, 2), run(p, 2)
    by_calls(together, ticks=45)
    plainly(plain, 45)
    assert together.clock.broken == plain.clock.broken > 0
    assert together.regime.replay.size.sum() < 45 * 8
    assert equal_states(together.state(), plain.state()) == []


def test_too_many_broken_transitions_end_both_at_the_same_tick(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "breaks.c").write_text(BREAKS)
    cfg = {"backend": "c", "id": "Own", "source": str(tmp_path / "breaks.c"), "kwargs": {"often": 0.45}}
    p = on(populations.problem("CartPole-v1", "dqn"), **cfg)
    loops, said = [run(p, 2), run(p, 2)], []
    for loop, most in zip(loops, (MANY, 1), strict=True):
        with pytest.raises(EnvironmentFailed) as failed:
            by_calls(loop, most)
        said.append(str(failed.value))
    assert said[0] == said[1]
    assert loops[0].clock.ticks == loops[1].clock.ticks
    assert equal_states(loops[0].state(), loops[1].state()) == []


def test_a_diverged_member_acts_at_random_and_leaves_its_priorities(run: Callable[..., Any]) -> None:
    together, plain = (run(job("prioritised-shared"), 3) for _ in range(2))
    for loop, take in ((together, by_calls), (plain, plainly)):
        take(loop, ticks=20)
        cohort, row = populations.of_slot(loop.cohorts, 1)
        cohort.state.q.values[row, 0] = torch.nan
        take(loop, ticks=25)
        assert not cohort.healthy[row]
    assert equal_states(together.state(), plain.state()) == []


def test_who_is_healthy_no_more_gives_no_priorities_even_where_its_errors_are_numbers(run: Callable[..., Any]) -> None:
    together, plain = (run(job("prioritised"), 3) for _ in range(2))
    for loop, take in ((together, by_calls), (plain, plainly)):
        take(loop, ticks=20)
        cohort, row = populations.of_slot(loop.cohorts, 1)
        cohort.healthy[row] = False
        take(loop, ticks=20)
    assert equal_states(together.state(), plain.state()) == []


@pytest.mark.parametrize("name", ["prioritised", "sac", "td3", "td3-twice"])
def test_every_hyper_parameter_is_each_members_own(name: str, run: Callable[..., Any]) -> None:
    together, apart, plain = (run(job(name), 3) for _ in range(3))
    for loop, take in ((together, by_calls), (apart, partial(by_calls, most=1)), (plain, plainly)):
        populations.make_unlike(loop)
        (cohort,) = loop.cohorts
        assert len(set(cohort.hyper["gamma"].tolist())) == 3
        take(loop, ticks=45)
    assert equal_states(together.state(), apart.state()) == []
    assert equal_states(together.state(), plain.state()) == []


def test_driving_a_run_takes_many_ticks_at_once_and_heeds_a_signal(run: Callable[..., Any]) -> None:
    loop, plain, saved = run(job("dqn"), 2), run(job("dqn"), 2), []
    drive(loop, Tracker([]), lambda: False, lambda: saved.append(loop.clock.ticks))
    plainly(plain)
    assert equal_states(loop.state(), plain.state()) == []
    assert len(saved) < loop.clock.ticks / 4
    again = run(job("dqn"), 2)
    drive(again, Tracker([]), lambda: again.clock.ticks >= 1, lambda: None)
    assert 1 <= again.clock.ticks < again.clock.generation_ticks


def test_rows_that_wait_are_not_entered(run: Callable[..., Any]) -> None:
    loop = run(job("shared"), 3)
    incoming = loop.regime.replay.incoming(12, np.arange(4, 8))
    incoming.before(np.full((4, 4), 2.0, np.float32), np.ones((4, 2), bool))
    ones = np.ones(4, np.float32)
    flags = np.array([False, False, True, False])
    incoming.after(np.ones(4, np.int64), ones, flags, np.full((4, 4), [[np.nan], [3], [4], [5]], np.float32),
                   np.ones((4, 2), bool), np.array([False, True, False, False]))  # fmt: skip
    assert loop.regime.replay.size.tolist() == [2]
    rows = loop.regime.replay.rows[0, :2]
    assert rows[:, 4].tolist() == [4, 5]
    assert rows[:, -1].tolist() == [1, 0]
    assert (rows[:, :4] == 2).all()
