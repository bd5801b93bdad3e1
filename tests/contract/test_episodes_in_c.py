"""Evaluation in many ticks a call of C: scores and lengths are, to the bit, those of a pool that is stepped tick by
tick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import populations
from breaking import BREAKS
from evopipe.core.cohort import Cohort
from evopipe.envs.compiled import CompiledPool
from evopipe.envs.pool import EnvPool
from evopipe.native import build
from evopipe.problems.specs import spaces_of
from evopipe.rng import Purpose
from evopipe.run.episodes import Episodes, Stopped
from evopipe.run.evaluate import evaluate
from evopipe.run.evaluate_tensors import evaluate_tensors
from evopipe.run.spec import EnvSpec

SHORT = {"kwargs": {"max_episode_steps": 13}}
LSTM = {"config": {"max_seq_len": 8, "network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}}}
JOBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", {}),
    "continuous": ("ppo", "Pendulum-v1", SHORT),
    "squashed": ("ppo", "MountainCarContinuous-v0", {**SHORT, "config": {"squash": True}}),
    "with-draws": ("ppo", "FrozenLake-v1", {}),
    "recurrent": ("ppo", "CartPole-v1", LSTM),
    "shared-encoder": ("ppo", "CartPole-v1", {"config": {"share_encoder": True}}),
    "unlike-members": ("ppo", "CartPole-v1", {"mutation": populations.UNLIKE}),
    "one-cohort-of-unlike": ("ppo", "CartPole-v1", {"mutation": populations.UNLIKE, "cohorts": "whole"}),
    "normalised": ("ppo", "Acrobot-v1", {**SHORT, "train": {"normalise": {"observations": True, "clip": 1.5}}}),
    "normalised-values": ("sac", "Pendulum-v1", {**SHORT, "train": {"normalise": {"observations": True}}}),
    "normalised-rewards": ("ppo", "CartPole-v1", {"train": {"normalise": {"rewards": True}}}),
    "dqn": ("dqn", "CartPole-v1", {"mutation": populations.UNLIKE}),
    "many-choices": ("dqn", "Taxi-v4", SHORT),
    "cqn": ("cqn", "Acrobot-v1", SHORT),
    "sac": ("sac", "Pendulum-v1", {**SHORT, "mutation": populations.UNLIKE}),
    "td3": ("td3", "MountainCarContinuous-v0", SHORT),
    "ddpg": ("ddpg", "Pendulum-v1", SHORT),
}
APART: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rainbow": ("rainbow", "CartPole-v1", {}),
    "sac-discrete": ("sac", "CartPole-v1", {}),
    "shared-critic": ("td3:continuous:shared", "Pendulum-v1", SHORT),
}
"""Which the kernels cannot evaluate so."""


@pytest.fixture(autouse=True)
def _kernels_that_are_here() -> Iterator[None]:
    build.use(build.load())
    yield
    build.use(None)


def job(name: str) -> EnvSpec:
    algo, env, more = (JOBS | APART)[name]
    return in_c(populations.problem(env, algo, **more))


def in_c(p: EnvSpec, **given: Any) -> EnvSpec:
    cfg = p.env.model_copy(update={"backend": "c", **given})
    return replace(p, env=cfg, spaces=spaces_of(cfg, p.train.algo))


class Idle:
    """Is asked whether to stop, and counts how often."""

    def __init__(self, after: int | None = None) -> None:
        self.asked, self.after = 0, after

    def __call__(self) -> bool:
        self.asked += 1
        return self.after is not None and self.asked > self.after


def both(
    p: EnvSpec, cohorts: Sequence[Cohort], rows: int, episodes: int, cap: int | None = None
) -> tuple[Episodes, Episodes, int]:
    """Evaluate in C and tick by tick; return both, and how often the former asked whether to stop."""
    seeds, idle = p.seeds(Purpose.EVALUATE, episodes), Idle()
    pool = CompiledPool(p.env, rows, torch.device("cpu"))
    found = evaluate_tensors(p, cohorts, pool, seeds, cap, idle)
    return found, evaluate(p, cohorts, EnvPool(p.env, rows), seeds, cap), idle.asked


def assert_equal(found: Episodes, expected: Episodes) -> None:
    np.testing.assert_array_equal(found.returns, expected.returns)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    assert (found.steps, found.cut) == (expected.steps, expected.cut)


@pytest.mark.parametrize(
    ("rows", "episodes", "cap"),
    [(7, 5, None), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((3, 2, 9), (64, 3, None)))],
)  # each member plays in 2, 1 and 3 of them
@pytest.mark.parametrize("name", JOBS)
def test_scores_are_those_of_a_pool_to_the_bit(
    name: str, rows: int, episodes: int, cap: int | None, run: Callable[..., Any]
) -> None:
    p = job(name)
    made = run(p, 3)
    populations.advance(made, 60)
    found, expected, asked = both(p, made.cohorts, rows, episodes, cap)
    assert_equal(found, expected)
    longest = int(found.lengths.max())
    assert longest <= (cap or longest)
    assert asked < max(3, longest / 2), "many ticks were taken at once"


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_cap_cuts_an_episode_at_its_last_step(name: str, run: Callable[..., Any]) -> None:
    p = job(name)
    found, expected, _ = both(p, run(p, 2).cohorts, 3, 2, 7)  # nothing falls so soon
    assert_equal(found, expected)
    assert (found.lengths.ravel().tolist(), found.steps) == ([7] * 4, 28)


@pytest.mark.parametrize("name", APART)
def test_what_c_cannot_play_goes_tick_by_tick(name: str, run: Callable[..., Any]) -> None:
    p = job(name)
    made = run(p, 2)
    populations.advance(made, 30)
    found, expected, asked = both(p, made.cohorts, 4, 3, 20)
    assert_equal(found, expected)
    assert asked >= int(found.lengths.max())


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_an_episode_that_breaks_has_no_score_and_the_others_theirs(
    algo: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "own.c").write_text(BREAKS)
    p = populations.problem("CartPole-v1", algo, train={"eval_episodes": 6})
    p = in_c(p, id="Own", source=str(tmp_path / "own.c"), kwargs={"often": 0.02})
    made = run(p, 3)
    found, expected, asked = both(p, made.cohorts, 7, 40)
    assert_equal(found, expected)
    assert np.isnan(found.returns).any()
    assert np.isfinite(found.returns).any()
    assert asked < 40


def test_some_members_are_evaluated_and_others_are_not(run: Callable[..., Any]) -> None:
    """A race goes on with those who are undecided: their rows are the pool's first."""
    p = job("unlike-members")
    made = run(p, 4)
    populations.advance(made, 60)
    some = [cohort for cohort in made.cohorts if 0 not in cohort.slots]
    assert 0 < len(some) < len(made.cohorts)
    assert_equal(*both(p, some, 9, 4)[:2])


def test_what_a_member_sees_has_its_own_bound(run: Callable[..., Any]) -> None:
    p = in_c(populations.problem("Pendulum-v1", "ppo", **SHORT, train={"normalise": {"observations": True}}))
    made = run(p, 3)
    populations.advance(made, 20)
    (cohort,) = made.cohorts
    cohort.normaliser.clip.copy_(torch.tensor([0.5, 0.1, 0.01]))
    assert_equal(*both(p, made.cohorts, 6, 2, 9)[:2])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads: int, run: Callable[..., Any]) -> None:
    p = job("one-cohort-of-unlike")
    made = run(p, 5)
    populations.advance(made, 60)
    alone = both(p, made.cohorts, 11, 6)[0]
    build.kernels().share_among(threads)
    try:
        assert_equal(both(p, made.cohorts, 11, 6)[0], alone)
    finally:
        build.kernels().share_among(1)


def test_an_evaluation_that_is_stopped_says_so(run: Callable[..., Any]) -> None:
    p = job("continuous")
    made = run(p, 2)
    pool = CompiledPool(in_c(p, kwargs={"max_episode_steps": 200_000}).env, 2, torch.device("cpu"))
    idle = Idle(after=2)
    with pytest.raises(Stopped):
        evaluate_tensors(p, made.cohorts, pool, np.arange(1), None, idle)
    assert int(pool.length.max()) < 200_000
