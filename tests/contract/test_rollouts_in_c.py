"""Whole rollouts in one call of C: members become, to the bit, what they become where every tick is a call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import populations
import rota
from breaking import BREAKS
from evopipe.errors import EnvironmentFailed
from evopipe.native import build
from evopipe.problems.specs import spaces_of
from evopipe.regimes import on_policy
from evopipe.run.drive import drive
from evopipe.run.pace import next_count
from evopipe.run.spec import EnvSpec
from evopipe.track.events import Tracker
from populations import equal_states, finish

MANY = 1_000
SECONDS = on_policy._SECONDS
LSTM = {"config": {"max_seq_len": 8, "network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}}}
SHORT = {"kwargs": {"max_episode_steps": 13}}
NORMALISED = {"train": {"normalise": {"observations": True, "rewards": True}}}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete": ("CartPole-v1", {}),
    "truncated": ("CartPole-v1", SHORT),
    "continuous": ("Pendulum-v1", SHORT),
    "squashed": ("MountainCarContinuous-v0", {**SHORT, "config": {"squash": True}}),
    "with-draws": ("FrozenLake-v1", {}),
    "recurrent": ("CartPole-v1", LSTM),
    "shared-encoder": ("CartPole-v1", {"config": {"share_encoder": True, "network": {"head": [16], "encoder": [16]}}}),
    "unlike-members": ("CartPole-v1", {"mutation": populations.UNLIKE}),
    "one-cohort-of-unlike": ("CartPole-v1", {"mutation": populations.UNLIKE, "cohorts": "whole"}),
    "by-training": ("CartPole-v1", {"search": {"fitness": "training"}}),
    "normalised": ("Pendulum-v1", NORMALISED),
    "observations-normalised": ("Acrobot-v1", {"train": {"normalise": {"observations": True}}, **SHORT}),
    "rewards-normalised": ("MountainCarContinuous-v0", {"train": {"normalise": {"rewards": True}}, **SHORT}),
    "normalised-recurrent-unlike": ("CartPole-v1", {**NORMALISED, **LSTM, "mutation": populations.UNLIKE}),
    "many-environments": (  # more than act at once
        "CartPole-v1",
        {"num_envs": 150, "config": {"learn_step": 2_250}, "train": {"evo_steps": 4_500, "max_steps": 9_000}},
    ),
}
SLOW = BREAKS.replace("#include <env", "#include <unistd.h>\n#include <env").replace("s->steps++;", "usleep(1000);")


@pytest.fixture(autouse=True)
def _kernels_that_are_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    build.use(build.load())
    rota.offer(monkeypatch)
    monkeypatch.setattr(on_policy, "_SECONDS", 60.0)  # how many calls there are must not depend on a machine's load
    yield
    build.use(None)


def problem(env: str, **more: Any) -> EnvSpec:
    """A problem in C, whose generation of 50 ticks has three rollouts unless `more` says otherwise."""
    return in_c(populations.problem(env, "ppo", **more))


def of_own(source: Path, often: float, fitness: str = "evaluation", normalise: bool = False) -> EnvSpec:
    """A problem in an environment of a user's own."""
    train = {"eval_episodes": 6, **(NORMALISED["train"] if normalise else {})}
    p = populations.problem("CartPole-v1", "ppo", train=train, search={"fitness": fitness})
    return in_c(p, id="Own", source=str(source), kwargs={"often": often})


def in_c(p: EnvSpec, **given: Any) -> EnvSpec:
    cfg = p.env.model_copy(update={"backend": "c", **given})
    return replace(p, env=cfg, spaces=spaces_of(cfg, "ppo"))


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


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.thorough
def test_a_run_has_the_bits_of_one_by_ticks(name: str, run: Callable[..., Any]) -> None:
    p = problem(JOBS[name][0], **JOBS[name][1])
    together, apart = run(p, 3), run(p, 3)
    calls = by_calls(together)
    finish(apart)
    assert equal_states(together.state(), apart.state()) == []
    ticks = apart.clock.ticks
    assert calls < ticks / 4 if ticks > 20 else calls < ticks, "whole rollouts were taken at once"


@pytest.mark.parametrize("name", ["normalised", "rewards-normalised"])
def test_every_hyper_parameter_is_each_members_own(name: str, run: Callable[..., Any]) -> None:
    p = problem(JOBS[name][0], **JOBS[name][1])
    together, apart = run(p, 3), run(p, 3)
    for loop in (together, apart):
        populations.make_unlike(loop)
        (cohort,) = loop.cohorts
        assert len(set(cohort.hyper["gamma"].tolist())) == 3
    assert by_calls(together, ticks=20) < 10
    by_calls(apart, 1, 20)
    assert equal_states(together.state(), apart.state()) == []


def test_a_truncated_step_ends_an_episode_and_bootstraps(run: Callable[..., Any]) -> None:
    loop = run(problem("Pendulum-v1", **SHORT), 2)
    assert by_calls(loop, ticks=14) < 5
    after, rows = loop.regime.playing[0].rollout.after, loop.regime.playing[0].rollout.rows
    terminated, cut, valid = after[:, :14, :, -3:].unbind(dim=-1)
    assert not terminated.any()
    assert (cut.sum(dim=1) == 1).all()
    assert (cut[:, 12] == 1).all()
    assert (valid == 1).all()
    assert after[:, 12, :, :3].isfinite().all()
    assert (after[:, 12, :, :3] != rows[:, 13, :, :3]).any(dim=-1).all(), "what follows is another episode's"
    assert (after[:, 11, :, :3] == rows[:, 12, :, :3]).all()
    begins = rows[:, :14, :, loop.regime._layout.log_prob + 2]
    assert (begins[:, [0, 13]] == 1).all()
    assert begins.sum() == begins[:, [0, 13]].sum()


def test_a_member_that_is_ill_keeps_its_statistics_and_others_go_on(run: Callable[..., Any]) -> None:
    loop = run(problem("Pendulum-v1", **NORMALISED), 3)
    by_calls(loop, ticks=5)
    (cohort,) = loop.cohorts
    cohort.healthy[1] = False
    held = {name: rows for name, rows in cohort.normaliser.held.items() if rows.dtype == torch.float64}
    before = {name: rows.clone() for name, rows in held.items()}
    assert by_calls(loop, ticks=9) < 9
    for name, rows in held.items():
        assert populations.equal(rows[1], before[name][1]), name
        if "count" in name:
            assert (rows - before[name]).tolist() == [36, 0, 36], name


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["discrete", "recurrent", "by-training", "normalised"])
@pytest.mark.parametrize("at", [5, 16, 29, 77])
def test_a_run_that_was_killed_within_a_rollout_goes_on_to_the_same_bits(
    name: str, at: int, run: Callable[..., Any]
) -> None:
    p = problem(JOBS[name][0], **JOBS[name][1])
    straight, killed, resumed = run(p, 3), run(p, 3), run(p, 3)
    by_calls(killed, 7, at)
    by_calls(straight, 1, at)
    tensors, meta = killed.state()
    assert equal_states(straight.state(), (tensors, meta)) == []
    assert resumed.restore({n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))) == 0
    assert by_calls(resumed) < resumed.clock.ticks - at
    finish(straight)
    assert equal_states(straight.state(), resumed.state()) == []


@pytest.mark.parametrize("more", [{}, LSTM], ids=["plain", "recurrent"])
def test_members_that_wait_come_back_to_the_same_bits(more: dict[str, Any], run: Callable[..., Any]) -> None:
    order = ((0,), (0, 2), (1, 2), (1,), (0, 1))
    p = problem(
        "CartPole-v1", mutation=populations.UNLIKE, train={"evo_steps": 100, "max_steps": 300},
        search={"strategy": "rota", "rota": {"order": order}}, **more,
    )  # fmt: skip
    together, apart = run(p, 3), run(p, 3)
    assert by_calls(together) < together.clock.ticks / 2
    finish(apart)
    assert equal_states(together.state(), apart.state()) == []


def test_threads_change_no_bit(run: Callable[..., Any]) -> None:
    p = problem("CartPole-v1", cohorts="whole", mutation=populations.UNLIKE)
    assert p.compiled
    loops = [run(p, 5, processes) for processes in (1, 3)]  # the last one's number of threads is everybody's
    by_calls(loops[1])
    build.kernels().share_among(1)
    by_calls(loops[0])
    assert equal_states(loops[0].state(), loops[1].state()) == []


@pytest.mark.parametrize("more", [{"config": {"network": {"module": "nets_for_tests:Net"}}}])
def test_what_c_does_not_know_goes_tick_by_tick(more: dict[str, Any], run: Callable[..., Any]) -> None:
    p = problem("CartPole-v1", **more)
    together, apart = run(p, 2), run(p, 2)
    assert by_calls(together, ticks=20) == 20
    by_calls(apart, 1, 20)
    assert equal_states(together.state(), apart.state()) == []


def test_so_does_an_algorithm_that_says_nothing_of_c(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem("CartPole-v1")
    monkeypatch.setattr(p.algo, "play", None)
    assert by_calls(run(p, 2), ticks=20) == 20


def test_actions_that_were_chosen_are_taken_first(run: Callable[..., Any]) -> None:
    p = problem("CartPole-v1")
    chosen, apart = run(p, 2), run(p, 2)
    by_calls(chosen, ticks=5)
    chosen.regime.choose()
    chosen.advance(MANY)
    assert chosen.clock.ticks == 6
    by_calls(apart, 1, 6)
    assert equal_states(chosen.state(), apart.state()) == []


def test_no_call_goes_beyond_a_rollout_or_what_was_asked(run: Callable[..., Any]) -> None:
    loop = run(problem("CartPole-v1"), 2)
    loop.regime._quick = MANY
    seen = []
    while not loop.clock.generation_over:
        loop.advance(9)
        seen.append(loop.clock.here)
    assert seen == [9, 16, 25, 32, 41, 50], "rollouts of 64 steps in 4 environments, and 50 ticks"


@pytest.mark.parametrize(
    ("often", "fitness", "normalise"),
    [(0.003, "evaluation", False), (0.003, "training", False), (0.2, "evaluation", False), (0.01, "evaluation", True)],
)
def test_broken_steps_are_left_out_and_counted_as_by_ticks(
    often: float, fitness: str, normalise: bool, run: Callable[..., Any], tmp_path: Path
) -> None:
    """Where too much is broken, the run fails at the same tick, in the same state."""
    (tmp_path / "own.c").write_text(BREAKS)
    p, ended = of_own(tmp_path / "own.c", often, fitness, normalise), []
    together, apart = run(p, 3), run(p, 3)
    for loop, most in ((together, MANY), (apart, 1)):
        try:
            ended.append(str(by_calls(loop, most) and None))
        except EnvironmentFailed as error:
            ended.append(str(error))
    assert ended[0] == ended[1]
    assert ("non-finite" in ended[0]) == (often > 0.1)
    assert together.clock.broken == apart.clock.broken > 0
    assert equal_states(together.state(), apart.state()) == []


def test_so_many_ticks_may_go_unseen_as_cannot_break_too_much(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "own.c").write_text(BREAKS)
    loop = run(of_own(tmp_path / "own.c", 0.1), 2)
    world, clock = loop.regime.world, loop.clock
    rows = clock.living * clock.envs
    for clock.broken_here in range(12 * rows):
        left = 10 * rows - clock.broken_here  # so many more are borne in any case
        assert world.bearable == max(1, left // rows)


def test_a_call_of_slow_environments_takes_few_ticks(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick of eight rows takes 8 ms at least, so that no call but the first may take two."""
    monkeypatch.setattr(on_policy, "_SECONDS", SECONDS)
    (tmp_path / "slow.c").write_text(SLOW)
    loop = run(of_own(tmp_path / "slow.c", 0.0), 2)
    loop.advance(MANY)
    first = loop.clock.ticks
    assert first <= 8
    for _ in range(3):
        loop.advance(MANY)
    assert loop.clock.ticks == first + 3


@pytest.mark.parametrize(
    ("ticks", "seconds", "following"), [(8, 0.0, 64), (8, 1e-4, 64), (8, 0.02, 4), (8, 9.0, 1), (100, 0.005, 200)]
)
def test_a_call_takes_a_hundredth_of_a_second(ticks: int, seconds: float, following: int) -> None:
    assert next_count(ticks, seconds, SECONDS) == following


def test_a_run_that_is_driven_takes_whole_rollouts(run: Callable[..., Any]) -> None:
    """What `evopipe train` does: it can be stopped and saved between two calls."""
    driven, apart = run(problem("CartPole-v1"), 2), run(problem("CartPole-v1"), 2)
    saves: list[int] = []
    drive(driven, Tracker([]), lambda: False, lambda: saves.append(driven.clock.ticks))
    finish(apart)
    assert equal_states(driven.state(), apart.state()) == []
    assert len(saves) < driven.clock.ticks / 3
