"""What every algorithm promises also holds for teams, whose agents come and go, in the mechanisms that only they use.

`test_algorithms.py` has the whole of it for each of theirs, where `--slow` asks for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.errors import ParamsError
from evopipe.run.spec import EnvSpec, first_members
from evopipe.storage import members as stored
from evopipe.storage.checkpoint import CheckpointStore
from populations import (
    LONG,
    TEAM,
    UNLIKE,
    advance,
    close_generation,
    equal,
    equal_states,
    finish,
    memory_of,
    of_slot,
    same,
)

SMALL = {"encoder": [8], "latent": 8}
LSTM = {"network": {**SMALL, "encoder_kind": "lstm"}, "max_seq_len": 4, "learn_step": 32}
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "n steps and priorities": (
        "matd3:continuous", {"batch_size": 16, "network": SMALL}, {"n_step": 3, "prioritised": True, "capacity": 300},
    ),
    "one network for all, masks": ("maddpg", {"batch_size": 16, "share": "all", "network": SMALL}, {}),
    "memory": ("ippo", LSTM, {}),
    "central memory": ("mappo:multidiscrete", {**LSTM, "share": "none"}, {}),
}  # fmt: skip


def quick(*names: str) -> Any:
    """Every variant as a case; those of other names are slow."""
    marks: list[tuple[str, Any]] = [(name, () if name in names else pytest.mark.slow) for name in VARIANTS]
    return pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in marks])


each_variant = quick("n steps and priorities", "one network for all, masks", "memory")


def variant(name: str, env: str = TEAM, **train: Any) -> EnvSpec:
    algo, config, replay = VARIANTS[name]
    train = {"learning_delay": 20, "evo_steps": 128, "max_steps": 256, **train}
    replay = {"capacity": 2000, "sharing": "own", **replay}
    return populations.problem(env, algo, mutation=UNLIKE, config=config, train={**train, "replay": replay}, num_envs=2)


def played(loop: Any) -> None:
    """Fail unless agents of the run were gone for a time."""
    pool = loop.regime.world.pool
    gone = np.zeros(loop.spec.spaces.agents, bool)
    for _ in range(9):
        loop.advance()
        gone |= ~pool.alive.all(axis=0)
    assert gone.tolist() == [True, True, False]


# -------------------------------------------------------------------------------------------------------- ends


def test_a_rollout_has_each_agents_own_ends(run: Callable[..., Any]) -> None:
    """Also where all end together: advantages stop there."""
    p = populations.problem(algo="ippo", config={"learn_step": 64}, num_envs=2, train=LONG)
    loop = run(p, 1)
    advance(loop, 30)  # less than a rollout; episodes have 9 steps
    rollout = loop.regime.playing[0].rollout
    flags = rollout.after[0, :30, :, -4:-1].view(30, 2, 3, 3).bool()  # [T, E, K, (terminated, cut, valid)]
    tickets = rollout.rows[0, :30, :, 0].view(30, 2, 3)[..., 2]
    for t in range(30):
        for env in range(2):
            step, dies = 1 + t % 9, 3 + int(4 * float(tickets[t, env]))
            last = step == 9
            assert flags[t, env, :, 2].tolist() == [step <= dies, step > 2, True]  # who took part
            if step <= dies:
                assert flags[t, env, 0, :2].tolist() == [step == dies] * 2
            if step > 2:
                assert flags[t, env, 1, :2].tolist() == [False, last]
            assert flags[t, env, 2, :2].tolist() == [False, last]


def test_a_cut_team_is_followed_by_its_true_last_observation(run: Callable[..., Any]) -> None:
    """Not by the next episode's first one; who died has nothing after it."""
    p = populations.problem(algo="maddpg", num_envs=2, train={**LONG, "learning_delay": 1000})
    loop = run(p, 1)
    advance(loop, 30)
    layout = loop.regime.replay.layout
    batch = layout.unpack(loop.regime.replay.rows[:1, :60], torch.ones(1, 60), torch.tensor([0.9]))
    step = (9 * batch.obs[0, :, 2, 1]).round()  # as the third agent sees it
    assert (step == 8).sum() == 6
    assert batch.next_obs[0, step == 8, 2, 1].tolist() == [1.0] * 6
    assert batch.discount[0, :, 2].tolist() == pytest.approx([0.9] * 60)
    dies = 3 + (4 * batch.obs[0, :, 2, 0]).floor()
    assert batch.alive is not None
    assert batch.alive[0, :, 0].bool().tolist() == (step < dies).tolist()
    assert (batch.discount[0, step == dies - 1, 0] == 0).all()
    assert (batch.obs[0, step >= dies, 0] == 0).all()


@pytest.mark.parametrize("algo", ["mappo", "maddpg"])
def test_who_is_gone_is_not_taken_note_of_and_is_seen_as_zeros(algo: str, run: Callable[..., Any]) -> None:
    """Where observations are normalised: its zeros are no observations, and stay zeros."""
    train = {**LONG, "learning_delay": 1000, "normalise": {"observations": True}}
    loop = run(populations.problem(algo=algo, num_envs=2, train=train, config={"learn_step": 64}), 1)
    there = 0
    for _ in range(20):
        there += int(loop.regime.world.pool.alive.sum())
        loop.advance()
    (cohort,) = loop.cohorts
    assert cohort.normaliser.observations.count.tolist() == [there]
    assert there < 20 * 2 * 3
    if algo == "mappo":
        rollout = loop.regime.playing[0].rollout
        gone = rollout.after[0, :20, :, -2] == 0
        assert gone.any()
        assert (rollout.rows[0, :20, :, :3][gone] == 0).all()


@pytest.mark.parametrize("algo", ["ippo", "maddpg"])
def test_agents_that_take_turns_and_see_one_number_learn(algo: str, run: Callable[..., Any]) -> None:
    p = populations.problem("teams_for_tests:Turns", algo, num_envs=2, train={**LONG, "learning_delay": 4})
    assert p.spaces.observations == 1
    loop = run(p, 2)
    before = loop.members
    advance(loop, 40)
    for old, new in zip(before, loop.members, strict=True):
        assert new.healthy
        assert not equal(old.tensors["actor"], new.tensors["actor"])


# ------------------------------------------------------------------------------------------------- containment


@each_variant
@pytest.mark.thorough
def test_a_nan_of_one_agents_reward_freezes_its_member_alone(name: str, run: Callable[..., Any]) -> None:
    p = variant(name, **LONG)
    clean, ill = run(p, 3), run(p, 3)
    for loop in (clean, ill):
        advance(loop, 30)  # each rollout has 16 ticks
    if populations.is_on_policy(p.train.algo):
        memory_of(ill, 1, "after")[:, 1::3, p.observations] = torch.nan
    else:
        layout = ill.regime.replay.layout
        ill.regime.replay.rows[1, :, 2 * layout.obs + layout.action + 1] = torch.nan
    for loop in (clean, ill):
        advance(loop, 12)
    cohort, row = of_slot(ill.cohorts, 1)
    assert not cohort.healthy[row]
    for slot in (0, 2):
        assert same(ill.members[slot], clean.members[slot]), slot
        assert equal(memory_of(ill, slot), memory_of(clean, slot))
        assert float(ill.members[slot].tensors["updates"]) > 3
    assert ill.clock.env_steps == clean.clock.env_steps, "its environments go on"
    close_generation(ill)
    assert all(m.healthy and torch.isfinite(t).all() for m in ill.members for t in m.tensors.values())


@pytest.mark.parametrize("name", ["n steps and priorities", "memory"])
def test_a_step_in_which_one_agents_reward_is_none_teaches_nobody(name: str, run: Callable[..., Any]) -> None:
    loop = run(variant(name, "teams_for_tests:RelayNan", **LONG), 2)
    advance(loop, 40)
    assert loop.clock.broken > 0
    assert all(m.healthy and float(m.tensors["updates"]) > 3 for m in loop.members)
    names = ("rows", "after") if populations.is_on_policy(loop.spec.train.algo) else ("rows",)
    assert all(torch.isfinite(memory_of(loop, slot, n)).all() for slot in range(2) for n in names)


@pytest.mark.parametrize("algo", ["ippo", "mappo"])
def test_a_step_in_which_one_agent_sees_no_number_teaches_nobody(algo: str, run: Callable[..., Any]) -> None:
    """Nor does what follows it: nobody is worth anything there, and those who see all agents do not see it."""
    p = populations.problem(
        "teams_for_tests:NanObs", algo, config={"learn_step": 64}, train=LONG, kwargs={"when": 12, "length": 20}
    )
    loop = run(p, 2)
    advance(loop, 40)
    assert loop.clock.broken > 0
    assert all(m.healthy and float(m.tensors["updates"]) > 3 for m in loop.members)
    assert all(torch.isfinite(memory_of(loop, slot, n)).all() for slot in range(2) for n in ("rows", "after"))


# ---------------------------------------------------------------------------------------- neighbours, resumption


@pytest.mark.thorough
@each_variant
def test_a_member_trains_alike_alone_and_in_a_crowd(name: str, run: Callable[..., Any]) -> None:
    p = variant(name, **LONG)
    crowd, one = run(p, 4), run(p, [replace(populations.alone(p, 2), slot=0)])
    for loop in (crowd, one):
        advance(loop, 40)
    assert same(one.members[0], crowd.members[2])
    assert equal(memory_of(one, 0), memory_of(crowd, 2))
    assert float(one.members[0].tensors["updates"]) > 3


@quick("n steps and priorities", "memory")
@pytest.mark.thorough
def test_a_saved_run_continues_bit_for_bit(name: str, tmp_path: Path, run: Callable[..., Any]) -> None:
    """In the middle of a generation, of rollouts and of windows, while some agents are gone; by way of a file."""
    p = variant(name)
    whole = run(p, 2)
    advance(whole, 69)  # the second generation
    played(whole)
    if populations.is_on_policy(p.train.algo):
        whole.regime.choose()
    else:
        assert whole.regime.nstep is None or ((whole.regime.nstep._next - whole.regime.nstep._first) > 0).any()
    store = CheckpointStore(tmp_path)
    store.save(7, *whole.state())
    found = store.load()
    assert found is not None
    resumed = run(p, 2)
    advance(resumed, 3)  # whatever it held before is gone
    assert resumed.restore(found.tensors, found.meta) == 0
    for go_on in (lambda _: None, finish):
        for loop in (whole, resumed):
            go_on(loop)
        (tensors, meta), (other, other_meta) = whole.state(), resumed.state()
        assert equal_states((tensors, {}), (other, {})) == []
        assert meta == other_meta


# ------------------------------------------------------------------------------------------- evolution, storage


@pytest.mark.thorough
@quick("one network for all, masks", "memory")
@pytest.mark.parametrize("kind", ["architecture", pytest.param("rl_hp", marks=pytest.mark.slow)])
def test_a_mutated_team_learns_on(name: str, kind: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """All its networks mutate alike; what was stored of it comes back to the bit."""
    chances = dict.fromkeys(("none", "architecture", "parameters", "activation", "rl_hp"), 0.0) | {kind: 1.0}
    p = variant(name)
    algo = VARIANTS[name][0]
    p = replace(p, mutation=p.mutation.model_validate({**UNLIKE, "before_training": False, "probabilities": chances}))
    loop = run(p, 3)
    finish(loop)
    done = [child.mutation.kind for record in loop.lineage[1:] for child in record.children]
    assert {kind} <= {*done} <= {kind, "none"}
    assert all(m.healthy and float(m.tensors["updates"]) > 4 for m in loop.members)
    for member in loop.members:
        for tensor, network in (("actor", "actor"), ("actor_adam.mean", "actor")):
            assert len(member.tensors[tensor]) == member.arch.size(p.widths[network])
    assert p.widths["actor"].copies == {"none": 3, "group": 2, "all": 1}[p.algo_config.share]
    stored.write(tmp_path / "trained", loop.members, {"of": algo})
    read, _ = stored.read(tmp_path / "trained", {"of": algo}, "train it again", p.check)
    assert all(same(a, b) and a.arch == b.arch for a, b in zip(read, loop.members, strict=True))


def test_members_of_other_groups_are_refused_with_a_sentence() -> None:
    """Their tensors are of another size, which is said before anything is computed with them."""
    p = populations.problem(algo="maddpg", config={"share": "none"})
    other = populations.problem(algo="maddpg", config={"share": "group"})
    wrong = p.check(first_members(other, 1)[0])
    assert wrong is not None
    assert wrong.startswith("member 0: ")
    with pytest.raises(
        ParamsError, match=r"algos\.maddpg\.groups: there is no agent 'red_7'; the agents are red_0, bl"
    ):
        populations.problem(algo="maddpg", config={"groups": {"red": ["red_0", "red_7"], "blue": ["blue_0"]}})


# ------------------------------------------------------------------------------------------------------ fitness


@pytest.mark.parametrize("score", ["sum", "mean"])
def test_a_teams_fitness_is_the_sum_or_the_mean_of_its_agents_returns(score: str, run: Callable[..., Any]) -> None:
    p = populations.problem(algo="ippo", config={"score": score}, train={"evo_steps": 16, "max_steps": 16})
    loop = run(p, 2)
    advance(loop, 4)
    seen = loop.regime.evaluate(loop.cohorts, np.array([5, 6, 7]), lambda: False)
    assert seen.more["agents"].shape == (2, 3, 3)
    np.testing.assert_allclose(seen.returns, getattr(np, score)(seen.more["agents"], axis=2), rtol=1e-12)
    assert (seen.more["agents"] != 0).all()
    assert json.dumps(seen.returns.tolist())
