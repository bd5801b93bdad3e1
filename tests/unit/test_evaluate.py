"""Evaluation: whole greedy episodes on given seeds, the same for every member."""

from __future__ import annotations

import numpy as np
import pytest

import populations
from evopipe.envs.pool import EnvPool
from evopipe.rng import Purpose
from evopipe.run.evaluate import Stopped, evaluate
from evopipe.run.spec import Spec, first_members


def play(p: Spec, size: int, rows: int, n: int, cap: int | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    members, _ = first_members(p, size)
    pool = EnvPool(p.env, rows, what="evaluation")
    played = evaluate(p, p.form(members), pool, p.seeds(Purpose.EVALUATE, n), cap)
    pool.close()
    return played.returns, played.lengths, played.steps


def test_an_episode_depends_on_its_seed_and_not_on_the_row_that_plays_it() -> None:
    """CartPole gives a reward of 1 a step: returns equal lengths, and all steps are counted."""
    p = populations.problem()
    returns, lengths, steps = play(p, size=3, rows=3, n=7)
    wide, _, _ = play(p, size=3, rows=21, n=7)
    assert returns.shape == (3, 7)
    assert returns.tolist() == lengths.tolist() == wide.tolist()
    assert steps == lengths.sum()


def test_every_member_plays_the_same_seeds() -> None:
    """Members with equal weights reach equal returns; the first member alone reaches what it reached among others."""
    p = populations.problem()
    members, _ = first_members(p, 2)
    twin = members[0].clone(1, 7, members[1].key)
    pool = EnvPool(p.env, 6, what="evaluation")
    played = evaluate(p, p.form([members[0], twin]), pool, p.seeds(Purpose.EVALUATE, 5))
    assert played.returns[0].tolist() == played.returns[1].tolist()
    again = evaluate(p, p.form_alone(members[0]), pool, p.seeds(Purpose.EVALUATE, 5))
    assert again.returns[0].tolist() == played.returns[0].tolist()
    pool.close()


def test_selection_confirmation_and_held_out_scores_use_seeds_of_their_own() -> None:
    p = populations.problem()
    sets = [set(p.seeds(purpose, 200).tolist()) for purpose in (Purpose.EVALUATE, Purpose.CONFIRM, Purpose.HELD_OUT)]
    assert [len(s) for s in sets] == [200, 200, 200]
    assert not sets[0] & sets[1]
    assert not sets[0] & sets[2]
    assert not sets[1] & sets[2]


def test_the_step_cap_ends_an_episode() -> None:
    _, lengths, _ = play(populations.problem(), size=2, rows=4, n=5, cap=6)
    assert lengths.max() == 6


def test_a_broken_episode_has_no_return_and_leaves_the_others_alone() -> None:
    p = populations.problem("envs_for_tests:NanReward-v0")
    returns, _, _ = play(p, size=1, rows=2, n=4)
    assert np.isnan(returns).any()


def test_a_stop_leaves_at_once() -> None:
    p = populations.problem()
    members, _ = first_members(p, 1)
    pool = EnvPool(p.env, 1, what="evaluation")
    with pytest.raises(Stopped):
        evaluate(p, p.form(members), pool, p.seeds(Purpose.EVALUATE, 2), None, lambda: True)
    pool.close()
