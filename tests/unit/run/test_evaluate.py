"""Evaluation: whole greedy episodes on given seeds, the same for every member."""

from __future__ import annotations

import math
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from envs_for_tests import Diary
from evopipe.core.member import Member
from evopipe.envs.pool import EnvPool
from evopipe.errors import EnvironmentFailed, Interrupted
from evopipe.params.load import parse_params
from evopipe.problems.env_evaluate import _of_agents, _refuse_or_warn
from evopipe.problems.told import score_of
from evopipe.rng import Purpose
from evopipe.run.evaluate import Stopped, evaluate
from evopipe.run.spec import EnvSpec, first_members
from evopipe.stages.evaluate import interruptible
from evopipe.stages.tell import tell_elite


def play(p: EnvSpec, size: int, rows: int, n: int, cap: int | None = None) -> tuple[np.ndarray, np.ndarray, int]:
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


def test_an_episode_ends_by_itself_or_by_the_cap_and_a_broken_one_has_no_return() -> None:
    """More episodes than environments: each on its own seed, at its own length; steps are counted once."""
    p = populations.problem("envs_for_tests:Diary-v0", mutation=populations.UNLIKE)
    seeds = p.seeds(Purpose.EVALUATE, 11)
    ends = [Diary.end_of(float(Diary().reset(seed=int(seed))[0][0])) for seed in seeds]
    assert set(ends) == {0, 1, 2, 3}
    lengths = np.array([Diary.LENGTHS[end] for end in ends])
    pool = EnvPool(p.env, 10, what="evaluation")
    cohorts = p.form(first_members(p, 3)[0])
    assert len(cohorts) > 1
    for cap in (None, 3):
        played = evaluate(p, cohorts, pool, seeds, cap)
        capped = np.minimum(lengths, cap or 9)
        assert played.lengths.tolist() == [capped.tolist()] * 3
        assert played.steps == 3 * capped.sum()
        assert np.isnan(played.returns).tolist() == [[end >= 2 for end in ends]] * 3
        paid = np.array([sum(range(10, 10 * n + 1, 10)) for n in capped])
        bonus = played.returns - paid
        assert ((np.isnan(bonus)) | ((bonus >= 0) & (bonus <= 2))).all()
    pool.close()


def test_members_with_a_memory_are_evaluated_with_it() -> None:
    """Each episode by itself, step by step, from an empty memory; who forgets between steps fares otherwise."""
    p = populations.problem(
        algo="ppo", config={"network": {"encoder": [16], "latent": 16, "encoder_kind": "lstm"}},
        mutation=populations.UNLIKE,
    )  # fmt: skip
    members, _ = first_members(p, 3)
    for member in members:  # so that what was seen decides from the first
        for name, part in member.arch.named(p.widths["actor"], member.tensors["actor"]).items():
            part.mul_(0.0 if name.endswith("bias") else 2.0)
    seeds, pool, single = p.seeds(Purpose.EVALUATE, 7), EnvPool(p.env, 6, what="evaluation"), EnvPool(p.env, 1)
    cohorts = p.form(members)
    assert len(cohorts) > 1

    def alone(member: Member, seed: int, forgets: bool) -> float:
        (cohort,) = p.form_alone(member)
        memory, legal = torch.zeros(1, 1, cohort.memory), torch.ones(1, 1, 2, dtype=torch.bool)
        single.reset([0], [seed])
        while single.episode_length[0] < 40:
            took = p.algo.step(
                p.algo_config, cohort.state, torch.from_numpy(single.obs[None].copy()), legal, memory, None
            )
            memory = memory if forgets else took.memory
            if single.step(took.action[0].numpy()).terminated[0]:
                break
        return float(single.episode_return[0])

    played = evaluate(p, cohorts, pool, seeds, 40).returns.tolist()
    assert played == [[alone(member, int(seed), False) for seed in seeds] for member in members]
    assert played != [[alone(member, int(seed), True) for seed in seeds] for member in members]
    pool.close()
    single.close()


def test_a_stop_leaves_at_once() -> None:
    p = populations.problem()
    members, _ = first_members(p, 1)
    pool = EnvPool(p.env, 1, what="evaluation")
    with pytest.raises(Stopped):
        evaluate(p, p.form(members), pool, p.seeds(Purpose.EVALUATE, 2), None, lambda: True)
    pool.close()


def test_a_failure_is_an_interruption_only_where_a_signal_came() -> None:
    """An environment that dies of the signal too."""
    for failure in (EnvironmentFailed("it broke"), Stopped()):
        with pytest.raises(type(failure)), interruptible() as stopped:
            assert not stopped()
            raise failure
        with pytest.raises(Interrupted), interruptible() as stopped:
            signal.raise_signal(signal.SIGTERM)
            assert stopped()
            raise failure


def test_a_teams_score_names_each_agents_mean_and_each_groups_sum() -> None:
    returns = np.array([[1.0, 10.0, 100.0], [3.0, 30.0, 300.0]])
    assert _of_agents(populations.problem(algo="maddpg"), returns) == {
        "agents": {"red_0": 2.0, "blue_0": 20.0, "red_1": 200.0}, "groups": {"red": 202.0, "blue": 20.0}
    }  # fmt: skip


def test_one_members_broken_episodes_are_not_thinned_by_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of each member's may be left out."""
    whole = np.ones((8, 20), np.bool_)
    whole[3, :2] = False
    assert _refuse_or_warn(whole, "E-v0") is whole
    assert "in 2 of 160 episodes; they are left out" in capsys.readouterr().err
    whole[3, 2] = False
    with pytest.raises(EnvironmentFailed, match="in 3 of 160 episodes: mend it"):
        _refuse_or_warn(whole, "E-v0")


def test_each_member_has_draws_of_its_own_and_of_the_runs_seed_for_its_interval() -> None:
    returns, lengths = np.random.default_rng(0).normal(size=50), np.ones(50)
    params = {seed: parse_params({"seed": seed, "evaluate": {"bootstrap": 100}}) for seed in (1, 2)}
    ends = [score_of(params[seed], place, returns, lengths)["interval"] for seed, place in ((1, 0), (1, 1), (2, 0))]
    assert len({*map(tuple, ends)}) == 3
    assert score_of(params[1], 1, returns, lengths)["interval"] == ends[1]


@pytest.mark.parametrize(("fitness", "warned"), [(3.5, False), (4.0, False), (4.5, True)])
def test_an_elite_is_warned_of_whose_interval_lies_below_its_fitness(
    fitness: float, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_elite({"mean": 3.0, "interval": [2.0, 4.0]}, "5 episodes", {"elite": {"score": fitness}}, True)
    assert ("raise train.eval_episodes" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("ended", "healthy", "played"),
    [([3.0, 5.0, 5.0], [True] * 3, [[1]]), ([math.nan, 2.0, 5e9], [True] * 3, [[0], [2]]),
     ([7.0, 5.0, 5.0], [False, True, True], [[1]]), ([math.nan, math.nan, -1e9], [True] * 3, [[0, 1]])],
)  # fmt: skip
def test_by_training_those_are_evaluated_of_whom_nothing_is_known_and_the_first_of_the_best(
    ended: list[float], healthy: list[bool], played: list[list[int]]
) -> None:
    """If that one is not among them, and healthy; what others reached is the mean of their own episodes."""
    run = populations.started(populations.problem(search={"fitness": "training"}, train={"learning_delay": 10**6}), 3)
    regime: Any = run.regime
    asked, gave, evaluate = [], [], regime.evaluate

    def noted(cohorts: Any, seeds: Any, stopped: Any) -> Any:
        asked.append(sorted(slot for cohort in cohorts for slot in cohort.slots))
        gave.append(replace(evaluate(cohorts, seeds, stopped), cut=10 ** len(asked)))
        return gave[-1]

    regime.ended, regime.evaluate = lambda: np.array(ended), noted
    members = [replace(member, healthy=well) for member, well in zip(run.members, healthy, strict=True)]
    seeds = run.spec.seeds(Purpose.EVALUATE, 2)
    found, scored = run._by_training(members, seeds, lambda: False)
    assert asked == played
    there = sorted(slot for each in played for slot in each)
    assert np.isfinite(found.returns).any(axis=1).nonzero()[0].tolist() == there
    assert [found.steps, found.cut] == [sum(each.steps for each in gave), sum(each.cut for each in gave)]
    lengths = np.concatenate([each.lengths for each in gave])[np.argsort([slot for each in played for slot in each])]
    assert found.lengths[there].tolist() == lengths.tolist()
    for place, (member, mean) in enumerate(zip(scored, ended, strict=True)):
        right = found.returns[place].mean() if math.isnan(mean) else mean if healthy[place] else -math.inf
        assert member.fitness[-1] == right
        assert member.healthy == healthy[place]
    regime.evaluate = evaluate
    run.close()
