"""What every algorithm of the registry promises that learns from what its members have just done."""

from __future__ import annotations

import copy
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import populations
from evopipe import rng
from evopipe.core import optim
from evopipe.core.cohort import COSTS, dissolve
from evopipe.core.graphs import Paths
from evopipe.core.member import Member
from evopipe.data.transitions import Transitions
from evopipe.envs import mixed
from evopipe.errors import ParamsError, UsageError
from evopipe.native import build
from evopipe.policies import policy
from evopipe.problems.env import begin
from evopipe.regimes import learners
from evopipe.regimes.learn import UPDATES_PER_TICK
from evopipe.regimes.on_policy import OnPolicy, _rollout_ends
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.rng import Purpose
from evopipe.run.run import Run
from evopipe.run.spec import EnvSpec, first_members
from evopipe.types import Learned
from populations import (
    LONG,
    TICKS,
    UNLIKE,
    advance,
    close_generation,
    equal,
    equal_states,
    finish,
    memory_of,
    of_slot,
    plant_weight,
    rollout_for,
    same,
    shown,
    started,
    updated,
)

pytestmark = pytest.mark.numerical

each_algorithm = pytest.mark.parametrize("algo", populations.cases(on_policy=True))

LSTM = {"network": {"encoder": [16], "latent": 16, "encoder_kind": "lstm"}, "max_seq_len": 4}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "memory": ("ppo", LSTM),
    "memory in one network": ("ppo:continuous", {**LSTM, "share_encoder": True, "sequences": "overlapping"}),
    "one network": ("ppo", {"share_encoder": True, "clip_value": True, "target_kl": 1e-3}),
    "squashed": ("ppo:continuous", {"squash": True, "normalise_advantage": False, "decay_steps": 500}),
}
QUICK = "memory"
each_variant = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in VARIANTS]
)


def variant(
    name: str, cohorts: Literal["exact", "merged"] = "exact", mutation: Mapping[str, Any] = UNLIKE, **train: Any
) -> EnvSpec:
    """Unlike members of one of the `VARIANTS`."""
    algo, config = VARIANTS[name]
    evolve = {"batch_size": {"min": 16, "max": 64}, "lr": {"min": 1e-4, "max": 1e-2}, "epochs": {"min": 1, "max": 4}}
    return populations.problem(
        algo=algo, mutation=mutation, cohorts=cohorts, config={**config, "evolve": evolve}, train=train
    )


def given(p: EnvSpec, **hyper: tuple[float, ...]) -> list[Member]:
    """First members that have these hyper-parameters, one each."""
    each = [dict(zip(hyper, values, strict=True)) for values in zip(*hyper.values(), strict=True)]
    return [replace(m, hyper={**m.hyper, **own}) for m, own in zip(first_members(p, len(each))[0], each, strict=True)]


def copied(loop: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A run's state as a file would hold it."""
    tensors, meta = loop.state()
    return {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))


# ------------------------------------------------------------------------------------------------- every variant


@each_variant
@pytest.mark.thorough
def test_a_member_trains_alike_alone_and_in_a_crowd(name: str, run: Callable[..., Any]) -> None:
    p = variant(name, **LONG)
    crowd = run(p, 6)
    advance(crowd, 66)
    for slots in ([5], [1, 3]):
        few = run(p, [replace(populations.alone(p, slot), slot=i) for i, slot in enumerate(slots)])
        advance(few, 66)
        for i, slot in enumerate(slots):
            assert same(few.members[i], crowd.members[slot]), slot
            assert all(equal(memory_of(few, i, x), memory_of(crowd, slot, x)) for x in ("rows", "after", "memory"))
    assert all(float(m.tensors["updates"]) > 5 for m in crowd.members)


@each_variant
@pytest.mark.parametrize("chosen", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_restored_run_continues_bit_for_bit(name: str, chosen: bool, run: Callable[..., Any]) -> None:
    """In the middle of a rollout and of episodes, also where actions are chosen and not yet taken."""
    p = variant(name)
    straight = run(p, 3)
    for ticks in (7, 41, 70):
        whole = run(p, 3)
        advance(whole, ticks)
        if chosen:
            whole.regime.choose()
        state = copied(whole)
        assert ("pending" in state[0]) == chosen
        assert any(len(t[0]) for n, t in state[0].items() if n.startswith("rollout") and n.endswith("rows"))
        resumed = run(p, 3)
        advance(resumed, 5)  # whatever it held before is gone
        assert resumed.restore(*state) == 0
        assert equal_states(whole.state(), resumed.state()) == []
        finish(resumed)
        if not straight.reason:
            finish(straight)
        assert equal_states(straight.state(), resumed.state()) == []


def test_so_does_one_in_its_last_generation_which_is_shorter(run: Callable[..., Any]) -> None:
    p = variant("one network", evo_steps=160, max_steps=220)
    straight, whole, resumed = (run(p, 2) for _ in range(3))
    advance(whole, 49)
    assert (whole.clock.generation, whole.clock.here, whole.clock.generation_ticks) == (1, 9, 15)
    assert resumed.restore(*copied(whole)) == 0
    finish(straight)
    finish(resumed)
    assert equal_states(straight.state(), resumed.state()) == []


@each_variant
@pytest.mark.parametrize("cohorts", [pytest.param("exact", marks=pytest.mark.slow), "merged"])
@pytest.mark.thorough
def test_no_bit_depends_on_how_many_processes_learn(
    name: str, cohorts: Literal["exact", "merged"], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "LEAST_WORK", 0.0)
    p = variant(name, cohorts, max_steps=400)
    alone, divided = run(p, 4, 1), run(p, 4, 2)
    while not alone.reason:
        for loop in (alone, divided):
            while not loop.clock.generation_over:
                loop.advance()
        assert p.compiled or len(divided.regime.learners._helpers) == 1, "the work was divided"
        assert equal_states(alone.state(), divided.state()) == []
        for loop in (alone, divided):
            close_generation(loop)
    assert equal_states(alone.state(), divided.state()) == []


@each_variant
@pytest.mark.thorough
def test_a_run_on_fixed_buffers_is_the_eager_run(name: str, run: Callable[..., Any]) -> None:
    p, paths = variant(name, "merged"), Paths("buffers")
    eager, fixed = run(p, 3), run(replace(p, paths=paths), 3)
    for _ in range(3):
        for loop in (eager, fixed):
            advance(loop, 33)
        assert equal_states(eager.state(), fixed.state()) == []
    assert paths.recorded > 3
    assert not paths.given_up


@each_variant
def test_a_diverged_member_harms_nobody(name: str, run: Callable[..., Any]) -> None:
    """Nor its own environments: its actions stay numbers, though its weights and its memory are none."""
    p = variant(name, "merged", **LONG)
    clean, ill = run(p, 4), run(p, 4)
    for loop in (clean, ill):
        advance(loop, 30)
    plant_weight(ill, 1)
    for loop in (clean, ill):
        advance(loop, 20)
    cohort, row = of_slot(ill.cohorts, 1)
    assert not cohort.healthy[row]
    for slot in (0, 2, 3):
        assert same(clean.members[slot], ill.members[slot]), slot
    assert np.isfinite(ill.regime.world.pool.obs).all()
    close_generation(ill)
    advance(ill, 20)
    assert all(m.healthy and torch.isfinite(t).all() for m in ill.members for t in m.tensors.values())


@each_variant
@pytest.mark.parametrize("kind", ["architecture", "parameters", "activation", "rl_hp"])
@pytest.mark.thorough
def test_every_kind_of_mutation_learns_on(name: str, kind: str, run: Callable[..., Any]) -> None:
    chances = dict.fromkeys(("none", "architecture", "parameters", "activation", "rl_hp"), 0.0) | {kind: 1.0}
    loop = run(variant(name, mutation={**UNLIKE, "before_training": False, "probabilities": chances}), 3)
    finish(loop)
    done = [child.mutation.kind for record in loop.lineage[1:] for child in record.children]
    assert {kind} <= {*done} <= {kind, "none"}
    assert all(m.healthy for m in loop.members)
    assert all(float(m.tensors["updates"]) > 10 for m in loop.members)


# ------------------------------------------------------------------------------------------------- broken steps


@each_algorithm
@pytest.mark.parametrize("env", ["NanReward", "NanObs", "HugeObs"])
def test_broken_steps_harm_nobody(algo: str, env: str, run: Callable[..., Any]) -> None:
    """Neither their own member nor a neighbour, which trains as alone, to the bit."""
    p = populations.problem(f"envs_for_tests:{env}-v0", algo, train=LONG, kwargs={"when": 5})
    crowd = run(p, 5)
    advance(crowd, 35)
    assert crowd.clock.broken > 0
    for slot in range(5):
        assert all(torch.isfinite(memory_of(crowd, slot, name)).all() for name in ("rows", "after"))
    assert all(m.healthy and float(m.tensors["updates"]) > 5 for m in crowd.members)
    one = run(p, [populations.alone(p, 3)])
    advance(one, 35)
    assert same(one.members[0], crowd.members[3])


def test_a_rollout_of_broken_steps_alone_teaches_nothing() -> None:
    p = populations.problem(algo="ppo")
    (cohort,) = p.form(first_members(p, 2)[0])
    before = dissolve([cohort])
    rollout = rollout_for(p, cohort, broken=1.0)
    learn_from_rollout(p, cohort, rollout, TICKS, 3)
    assert all(same(a, b) for a, b in zip(before, dissolve([cohort]), strict=True))


@pytest.mark.parametrize("cohorts", ["exact", "merged"])
@pytest.mark.parametrize("share", [False, True])
def test_who_goes_on_with_its_networks_goes_on_with_its_memory(
    share: bool, cohorts: Any, run: Callable[..., Any]
) -> None:
    """Episodes run on beyond a generation: only who has other networks, or another's, begins to remember anew."""

    def member(slot: int, *encoder: int) -> Member:
        config = {"network": {**LSTM["network"], "encoder": list(encoder)}, "share_encoder": share}
        p = populations.problem("envs_for_tests:Random-v0", "ppo", config=config, train=LONG, cohorts=cohorts)
        return first_members(p, 3)[0][slot]

    p = populations.problem(
        "envs_for_tests:Random-v0", "ppo", config={**LSTM, "share_encoder": share}, train=LONG, cohorts=cohorts
    )
    loop = run(p, [member(0, 8), member(1, 24, 12), member(2, 8)])
    advance(loop, 9)
    before = remembered(loop)
    assert all(own.any() for own in before)
    heir, mutated, _ = loop.members
    stranger = heir.clone(2, 102, loop.members[2].key)
    loop._form([heir.clone(0, 100, heir.key), replace(member(1, 8), id=101, parent=mutated.id), stranger])
    after = remembered(loop)
    assert torch.equal(after[0], before[0])
    assert not after[1].any()
    assert not after[2].any()
    advance(loop, 9)
    assert all(m.healthy for m in loop.members)


def test_a_memory_that_is_no_number_is_not_inherited(run: Callable[..., Any]) -> None:
    """A member that diverged leaves it to its slot's next one of the same kind."""
    p = populations.problem("envs_for_tests:Random-v0", "ppo", config=LSTM, train=LONG)
    loop = run(p, 2)
    advance(loop, 9)
    before = remembered(loop)
    loop.regime.playing[0].memory[1, 0, 0] = torch.nan
    loop._form(loop.members)
    after = remembered(loop)
    assert torch.equal(after[0], before[0])
    assert not after[1].any()


def collect(regime: OnPolicy, ticks: int) -> None:
    """Take so many steps in every environment, as a run does by itself."""
    for _ in range(ticks):
        regime.pool.send(regime.choose())
        regime.record(regime.pool.receive())


def remembered(loop: OnPolicy) -> list[torch.Tensor]:
    """What every member remembers, without pads."""
    found = {}
    for each in loop.regime.playing:
        for member, own in zip(each.cohort.members, each.memory, strict=True):
            widths = [layer.width for layer in member.arch.encoder for _ in range(2)]
            held = [piece[:, : widths[i]] for (_, i), piece in each.cohort.pieces(own).items() if i < len(widths)]
            found[member.slot] = torch.cat(held, dim=1).clone()
    return [found[slot] for slot in sorted(found)]


@pytest.mark.parametrize("chosen", [False, True])
def test_an_episode_that_cannot_be_brought_back_is_cut(chosen: bool, run: Callable[..., Any]) -> None:
    """What was done there counts to its last step; the next one begins an episode, with actions for its first sight."""
    p = populations.problem(
        "envs_for_tests:Random-v0", "ppo", config=LSTM, train={**LONG, "normalise": {"rewards": True}}
    )
    whole, resumed = run(p, 2), run(p, 2)
    advance(whole, 5)
    if chosen:
        whole.regime.choose()
    whole.regime.returns.fill_(3.0)  # of the rewards so far
    lost = resumed.restore(*copied(whole))
    assert not resumed.regime.returns.any()
    assert lost == whole.regime.world.pool.rows, "noise that no seed governs"
    rollout = resumed.regime.playing[0].rollout
    assert (rollout.after[:, 4, :, -2] == 1).all(), "cut"
    advance(resumed, 1)
    at = rollout.layout.log_prob
    assert (rollout.rows[:, 5, :, at + 2] == 1).all(), "an episode begins"
    assert (resumed.regime.world.pool.episode_length <= 1).all()
    again = p.algo.step(
        p.algo_config, resumed.cohorts[0].state, rollout.rows[:, 5, :, : p.observations], None,
        torch.zeros_like(rollout.memory[:, 5]), None,
    )  # fmt: skip
    torch.testing.assert_close(again.value, rollout.rows[:, 5, :, at + 1])
    advance(resumed, 30)
    assert all(m.healthy for m in resumed.members)


# ------------------------------------------------------------------------------------------------------- acting


@pytest.mark.parametrize(
    ("algo", "env", "kwargs"),
    [
        ("ppo", "envs_for_tests:Masked-v0", {}),
        ("ppo:continuous", "envs_for_tests:Chain-v0", {}),
        ("ppo:multidiscrete", "action_envs:Locks-v0", {"masks": "tuple"}),
        ("ppo:multibinary", "action_envs:Switches-v0", {"masks": "flat"}),
        ("ppo:mixed", "action_envs:Desk-v0", {"masks": True, "form": "nested"}),
    ],
)
def test_frozen_and_diverged_members_act_legally(
    algo: str, env: str, kwargs: dict[str, Any], run: Callable[..., Any]
) -> None:
    """In rollouts and evaluation; the environments of several choices raise where an action is illegal."""
    loop = run(populations.problem(env, algo, kwargs=kwargs, train={**LONG, "eval_episodes": 8}), 4)
    plant_weight(loop, 1)
    plant_weight(loop, 2)
    cohort, row = of_slot(loop.cohorts, 2)
    cohort.healthy[row] = False
    for _ in range(40):
        actions = loop.regime.choose()
        if env.endswith("Masked-v0"):
            assert np.take_along_axis(loop.regime.world.pool.mask, actions[:, None], 1).all()
        assert loop.spec.spaces.real or (actions >= 0).all()
        loop.advance()
    assert loop.regime.world.pool.masked == (not loop.spec.spaces.continuous)
    close_generation(loop)
    assert [m.healthy for m in loop.lineage[-1].members] == [True, False, False, True]


def test_a_diverged_spread_of_continuous_actions_stays_with_its_member(run: Callable[..., Any]) -> None:
    p = populations.problem(algo="ppo:continuous", train=LONG)
    clean, ill = run(p, 3), run(p, 3)
    ill.cohorts[0].state.log_std[1] = torch.nan
    for loop in (clean, ill):
        advance(loop, 20)
    assert ill.cohorts[0].healthy.tolist() == [True, False, True]
    assert [same(a, b) for a, b in zip(clean.members, ill.members, strict=True)] == [True, False, True]
    assert np.isfinite(ill.regime.world.pool.obs).all()


@each_algorithm
def test_an_exported_member_acts_as_it_was_evaluated(algo: str, tmp_path: Path, run: Callable[..., Any]) -> None:
    p = populations.problem(algo=algo, mutation=UNLIKE, config={"share_encoder": algo == "ppo"}, train=LONG)
    loop = run(p, 2)
    advance(loop, 35)
    about = {**loop.regime.world.pool.actions.to_json(), **loop.regime.world.pool.observations.to_json(),
             "config": p.algo_config.model_dump(mode="json")}  # fmt: skip
    for member in loop.members:
        policy.save(tmp_path / "elite", "ppo", member, about, program=False, card="# card\n")
        loaded = policy.load(tmp_path / "elite")
        cohort, row = of_slot(loop.cohorts, member.slot)
        obs, legal, _ = (torch.from_numpy(x).view(2, 4, *x.shape[1:]) for x in shown(loop.regime.world.pool))
        greedy = p.algo.greedy(p.algo_config, cohort.state, obs[cohort.slots], legal[cohort.slots])[row]
        actions = loop.regime.world.pool.actions
        acts, own = loaded.act(obs[member.slot].numpy()), actions.own(greedy.numpy())
        for part in actions.parts or [mixed.ActionPart((), actions)]:
            np.testing.assert_allclose(mixed.find(acts, part), mixed.find(own, part), atol=1e-5)


# ----------------------------------------------------------------------------------------------- who learns when


@pytest.mark.parametrize("envs", [1, 4, 16])
@pytest.mark.parametrize("learn_step", [1, 3, 16, 64, 100, 2048])
def test_a_generation_is_rollouts_of_nearly_equal_length(learn_step: int, envs: int) -> None:
    each = -(-learn_step // envs)
    for ticks in (1, 2, 7, 50, 313):
        ends = _rollout_ends(learn_step, envs, ticks)
        lengths = np.diff([0, *ends])
        assert ends[-1] == ticks
        assert (lengths > 0).all()
        assert (lengths[:-1] == each).all()
        assert lengths[-1] <= 1.5 * each
        assert lengths[-1] >= 0.5 * each or len(ends) == 1


@each_algorithm
def test_members_of_unlike_learn_steps_learn_each_at_their_own(algo: str, run: Callable[..., Any]) -> None:
    p = populations.problem(algo=algo, cohorts="merged", train=LONG, config={"epochs": 1})
    steps = (32, 64, 160)
    loop = run(p, given(p, learn_step=steps, batch_size=steps))
    for tick in range(1, 90):
        advance(loop, 1)
        assert [float(m.tensors["updates"]) for m in loop.members] == [tick * 4 // s for s in steps]


@each_algorithm
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.thorough
def test_members_of_unlike_batch_sizes_and_epochs_learn_as_each_would_alone(algo: str, kind: str) -> None:
    config = {"network": {"encoder": [16], "latent": 16, "encoder_kind": kind}, "max_seq_len": 5, "batch_size": 15}
    p = populations.problem(algo=algo, cohorts="merged", config=config)
    members = given(p, batch_size=(15, 30, 7), epochs=(2, 1, 3), gamma=(0.9, 0.99, 0.5), gae_lambda=(0.9, 0.5, 0.99))
    (cohort,) = p.form(members)
    rollout = rollout_for(p, cohort)
    losses = learn_from_rollout(p, cohort, copy.deepcopy(rollout), TICKS, 3)
    for member in dissolve([cohort]):
        (one,), row = p.form([replace(members[member.slot], slot=0)]), cohort.slots.index(member.slot)
        loss = learn_from_rollout(p, one, copy.deepcopy(rollout.part(row, row + 1)), TICKS, 3)
        torch.testing.assert_close(loss[0], losses[row], rtol=1e-4, atol=1e-5)
        (alone,) = dissolve([one])
        assert alone.tensors["updates"] == member.tensors["updates"] > 0
        for name, tensor in alone.tensors.items():
            torch.testing.assert_close(member.tensors[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_a_neighbours_batch_size_changes_no_bit(kind: str) -> None:
    """Of those that exact cohorts keep together, and that divide a rollout unlike."""
    network = {"encoder": [16], "latent": 16, "encoder_kind": kind, "activation": "SiLU"}
    p = populations.problem(algo="ppo", config={"network": network, "max_seq_len": 2})
    for ticks in (16, 17, 19):
        members = given(p, batch_size=(40, 64, 33), epochs=(2, 1, 3))
        (cohort,) = p.form(members)
        rollout = rollout_for(p, cohort, ticks=ticks)
        learn_from_rollout(p, cohort, copy.deepcopy(rollout), ticks, 3)
        for i, member in enumerate(dissolve([cohort])):
            (one,) = p.form([replace(members[i], slot=0)])
            learn_from_rollout(p, one, copy.deepcopy(rollout.part(i, i + 1)), ticks, 3)
            assert same(dissolve([one])[0], member), (ticks, i)


Seen = list[tuple[torch.Tensor, torch.Tensor]]


def minibatches(p: EnvSpec, cohort: Any, ticks: int, tick: int = 3) -> Seen:
    """Numbers of the steps in every minibatch `[P, B, L]`, and their weights, where steps are numbered from 1."""
    taken: Seen = []

    def update(cfg: Any, state: Any, hp: Any, batch: Any, healthy: torch.Tensor, *_: Any) -> Learned:
        taken.append((batch.obs[..., 0].long(), batch.weight))
        return Learned(torch.zeros_like(healthy, dtype=torch.float32), healthy)

    names = ("networks", "value", "schedule")
    watched = replace(
        p, algo=types.SimpleNamespace(**{n: getattr(p.algo, n) for n in names}, update=update, learn=None)
    )  # type: ignore[arg-type]
    rollout = rollout_for(p, cohort, ticks=ticks, broken=0.0)
    rollout.rows[..., 0] = torch.arange(1, ticks * 4 + 1).view(ticks, 4)
    learn_from_rollout(watched, cohort, rollout, ticks, tick)
    return taken


@pytest.mark.parametrize("longest", [1, 3, 16])
@pytest.mark.parametrize("cut", ["chunked", "whole", "overlapping"])
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_each_step_is_learned_from_once_an_epoch(kind: str, cut: str, longest: int) -> None:
    """Overlapping sequences count what lies in both twice; pads, and minibatches that a member lacks, weigh nothing."""
    network = {"encoder": [16], "latent": 16, "encoder_kind": kind}
    p = populations.problem(algo="ppo", config={"network": network, "sequences": cut, "max_seq_len": longest})
    (cohort,) = p.form(given(p, batch_size=(32, 21)))
    ticks = 16
    taken = minibatches(p, cohort, ticks)
    epochs = [taken[: len(taken) // 2], taken[len(taken) // 2 :]]
    for member in range(2):
        orders = []
        for epoch in epochs:
            steps = torch.cat([s[member][w[member] > 0] for s, w in epoch])
            counts = torch.bincount(steps, minlength=ticks * 4 + 1)[1:]
            twice = kind == "lstm" and cut == "overlapping" and 1 < longest < ticks
            assert (counts >= 1).all()
            assert (counts.max() == 2 and counts.float().mean() > 1.3) if twice else (counts == 1).all()
            for _, weight in epoch:
                total = float(weight[member].sum())
                assert total == pytest.approx(1.0, abs=1e-6) or total == 0.0
                assert len(weight[member][weight[member] > 0].unique()) <= 1, "all steps of a minibatch weigh the same"
            orders.append(steps)
        if kind == "mlp":
            for epoch, order in enumerate(orders):
                when = torch.tensor([3 * UPDATES_PER_TICK + epoch])
                drawn = rng.uniform(cohort.keys[member : member + 1], Purpose.REPLAY, when, ticks * 4)[0, 0]
                assert (order - 1).tolist() == drawn.argsort().tolist(), "each epoch has its own order"
    other = minibatches(p, cohort, ticks, tick=4)
    if kind == "mlp":
        assert not torch.equal(other[0][0], taken[0][0]), "and so has each rollout"


@each_algorithm
@pytest.mark.thorough
def test_learning_never_asks_the_host(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device there are no numbers: `.item()`, `if tensor` and boolean indexing all raise."""
    monkeypatch.setitem(COSTS, "meta", COSTS["cuda"])
    p = replace(populations.unlike(algo, norm=True, cohorts="merged"), device=torch.device("meta"))
    for cohort in p.form(first_members(p, 6)[0]):
        for masked in (False, not p.spaces.continuous):
            rollout = rollout_for(p, cohort, masked=masked)
            losses = learn_from_rollout(p, cohort, rollout, TICKS, 3)
            assert losses.shape == cohort.healthy.shape == (len(cohort.members),)


def test_pads_stay_zero() -> None:
    """Of weights and moments, where members of unlike widths learn together."""
    p = populations.unlike("ppo:continuous", norm=True, cohorts="merged")
    members = [replace(m, hyper={**m.hyper, "batch_size": 32}) for m in first_members(p, 6)[0]]
    for cohort in p.form(members):
        updated(p, cohort, 2)  # networks are updated in place
        state = cohort.state
        for net, adam in ((state.actor, state.actor_adam), (state.critic, state.critic_adam)):
            for tensor in (net.values, adam.mean, adam.square):
                own = net.structure.pack(net.structure.unpack(tensor))
                assert equal(own, tensor)


def test_resting_members_wait_for_their_next_rollout_while_others_go_on() -> None:
    p = populations.problem(algo="ppo", config={"epochs": 6, "lr": 3e-3})
    (cohort,) = p.form(given(p, target_kl=(0.0, 1e-9, 1e9)))  # never, at once, never
    for i in (1, 2):
        learn_from_rollout(p, cohort, rollout_for(p, cohort, i, broken=0.0), TICKS, i)
        # The first minibatch meets the policy that played: only the second can be too far from it.
        assert cohort.state.updates.tolist() == [i * 12, i * 1, i * 12]
        assert cohort.state.resting.tolist() == [0.0, 1.0, 0.0]
    assert cohort.state.actor_adam.steps.tolist() == cohort.state.updates.tolist()
    assert cohort.state.critic_adam.steps.tolist() == cohort.state.updates.tolist()


def test_rates_and_clips_follow_their_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"decay_steps": 1000, "lr_end": 0.0, "clip_end": 0.5}
    p = populations.problem(algo="ppo", config=config)
    found = [p.algo.schedule(p.algo_config, step) for step in (0, 250, 1000, 10**9)]
    assert [each["lr"] for each in found] == pytest.approx([1.0, 0.75, 0.0, 0.0])
    assert [each["clip"] for each in found] == pytest.approx([1.0, 0.875, 0.5, 0.5])
    still = populations.problem(algo="ppo")
    assert still.algo.schedule(still.algo_config, 10**9) == {"lr": 1.0, "clip": 1.0}
    rates: list[list[float]] = []
    real, kernels = optim.step, build.chosen()
    monkeypatch.setattr(optim, "step", lambda net, adam, lr, on: (rates.append(lr.tolist()), real(net, adam, lr, on)))
    for tick, factor in ((0, 1.0), (125, 0.5), (500, 0.0)):  # of 4 environments
        for use in {None, kernels}:
            build.use(use)
            (cohort,) = p.form(given(p, lr=(1e-3, 4e-3)))
            before = cohort.state.actor.values.clone()
            rates.clear()
            learn_from_rollout(p, cohort, rollout_for(p, cohort), TICKS, tick)
            assert use or rates, "our own kernels take their steps themselves"
            assert all(rate == pytest.approx([factor * 1e-3, factor * 4e-3]) for rate in rates)
            assert torch.equal(before, cohort.state.actor.values) == (factor == 0.0)


# ---------------------------------------------------------------------------------------------------- bad input


@each_algorithm
def test_transitions_to_begin_with_are_refused(algo: str) -> None:
    p = populations.problem(algo=algo)
    row, flag = np.zeros((1, p.observations), np.float32), np.zeros(1, bool)
    warm = Transitions(row, np.zeros(1, np.int64), np.zeros(1, np.float32), flag, flag, row, np.zeros(1, np.int64))
    with pytest.raises(ParamsError, match=r"train\.warm_start: ppo learns from its own steps alone; set it to 0"):
        begin(p, first_members(p, 2)[0], warm)


@pytest.mark.parametrize(
    ("learn_step", "remark"),
    [
        (64, []),
        (66, ["algos.ppo.learn_step: 66 steps are no whole number of ticks of 4 environments: members learn every 68 "
              "steps"]),
        (300, ["algos.ppo.learn_step: 300 steps are more than a generation has: members learn once in each, every 200 "
               "steps"]),
    ],
)  # fmt: skip
def test_a_learn_step_that_cannot_be_kept_is_remarked_upon(learn_step: int, remark: list[str]) -> None:
    loop = started(populations.problem(algo="ppo", config={"learn_step": learn_step}), 2)
    assert loop.regime.remarks == remark
    loop.close()


def test_a_batch_larger_than_what_a_generation_leaves_of_a_rollout_is_remarked_upon() -> None:
    loop = started(populations.problem(algo="ppo", config={"learn_step": 300, "batch_size": 256}), 2)
    assert loop.regime.remarks[1:] == [
        "algos.ppo.batch_size: 256 steps are more than a rollout has: a minibatch is all its 200"
    ]
    loop.close()


@pytest.mark.parametrize(
    ("train", "remark"),
    [
        ({"warm_start": 1}, ["train.warm_start: not used, ppo learns from its own last steps alone"]),
        (
            {"warm_start": 9, "replay": {"n_step": 3, "prioritised": True}},
            [
                "train.warm_start and train.replay.n_step and train.replay.prioritised: not used, ppo learns from its "
                "own last steps alone"
            ],
        ),
        ({"replay": {"n_step": 2}}, ["train.replay.n_step: not used, ppo learns from its own last steps alone"]),
        ({"replay": {"capacity": 50, "sharing": "own"}}, []),
    ],
)
def test_what_is_set_and_not_used_is_remarked_upon(train: dict[str, Any], remark: list[str]) -> None:
    loop = started(populations.problem(algo="ppo", config={"learn_step": 64}, train=train), 2)
    assert loop.regime.remarks == remark
    loop.close()


# ------------------------------------------------------------------------------------------------- collecting oneself


def collecting(collect_rollouts: Any, algo: str = "ppo") -> Run:
    p = populations.problem(algo=algo)
    return begin(p, first_members(p, 2)[0], collect_rollouts=collect_rollouts)


@pytest.mark.thorough
def test_a_function_that_does_what_the_loop_does_gives_the_same_bits() -> None:
    own, plain = collecting(collect), started(populations.problem(algo="ppo"), 2)
    for loop in (own, plain):
        finish(loop)
    assert equal_states(own.state(), plain.state()) == []
    own.close()
    plain.close()


def test_a_function_of_ones_own_is_asked_for_whole_rollouts_and_may_shape_rewards() -> None:
    asked = []

    def shaped(loop: OnPolicy, ticks: int) -> None:
        asked.append(ticks)
        for _ in range(ticks):
            step = loop.pool.step(loop.choose())
            loop.record(replace(step, reward=step.reward + 100.0))

    loop = collecting(shaped)
    while not loop.clock.generation_over:
        loop.advance()
    assert asked == [16, 16, 18], "50 ticks, rollouts of 64 steps in 4 environments"
    assert float(loop.regime.playing[0].rollout.after[..., -4].min()) > 100.0  # what members learn from,
    close_generation(loop)
    assert max(m.fitness[-1] for m in loop.members) < 100.0  # and what they are judged by
    loop.close()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ({"reward": np.zeros(3)}, r"step\.reward has shape \(3,\); expected \(8,\), one row for each environment"),
        ({"obs": np.zeros((8, 5))}, r"step\.obs has shape \(8, 5\); expected \(8, 4\)"),
        ({"terminated": np.zeros((8, 1), bool)}, r"step\.terminated has shape \(8, 1\); expected \(8,\)"),
    ],
)
def test_a_function_that_records_wrong_shapes_is_told_so(spoil: dict[str, Any], sentence: str) -> None:
    def wrong(loop: OnPolicy, ticks: int) -> None:
        loop.record(replace(loop.pool.step(loop.choose()), **spoil))

    loop = collecting(wrong)
    with pytest.raises(UsageError, match=sentence):
        loop.advance()
    loop.close()


@pytest.mark.parametrize(
    ("name", "value"), [("reward", np.nan), ("reward", -np.inf), ("reward", 1e300), ("obs", np.inf), ("obs", np.nan)]
)
def test_what_a_function_records_that_is_not_finite_is_broken(name: str, value: float) -> None:
    """Nothing is learned from it, and its environment begins anew."""
    rows = [1, 6]  # one of each member

    def spoiled(loop: OnPolicy, ticks: int) -> None:
        for tick in range(ticks):
            step = loop.pool.step(loop.choose())
            given = getattr(step, name).astype(np.float64)
            given[rows] = value if tick == 3 else given[rows]
            loop.record(replace(step, **{name: given}))
            if tick == 3:
                assert loop.pool.episode_length[rows].tolist() == [0, 0]

    loop = collecting(spoiled)
    loop.advance()
    assert loop.clock.broken == 2
    after = loop.regime.playing[0].rollout.after
    assert after[..., :-1].isfinite().all()
    assert (after[:, 3, :, -1] == torch.tensor([[1.0, 0, 1, 1], [1, 1, 0, 1]])).all(), "may be learned from"
    assert all(m.healthy and float(m.tensors["updates"]) > 0 for m in loop.members)
    assert all(m.tensors["actor"].isfinite().all() for m in loop.members)
    loop.close()


@pytest.mark.parametrize("kind", [np.ndarray.tolist, torch.from_numpy, lambda x: x.astype(np.float64)[::-1][::-1]])
def test_a_function_may_record_any_arrays(kind: Callable[[np.ndarray], Any]) -> None:
    def other(loop: OnPolicy, ticks: int) -> None:
        for _ in range(ticks):
            step = loop.pool.step(loop.choose())
            names = ("obs", "reward", "terminated", "truncated", "broken")
            loop.record(replace(step, **{name: kind(getattr(step, name)) for name in names}))

    own, plain = collecting(other), collecting(collect)
    for loop in (own, plain):
        loop.advance()
    assert equal_states(own.state(), plain.state()) == []
    own.close()
    plain.close()


@pytest.mark.parametrize("value", [["a"] * 8, [[1.0]] * 7 + [[1.0, 2.0]], torch.zeros(8, requires_grad=True)])
def test_a_function_that_records_no_numbers_is_told_so(value: Any) -> None:
    def wrong(loop: OnPolicy, ticks: int) -> None:
        loop.record(replace(loop.pool.step(loop.choose()), reward=value))

    loop = collecting(wrong)
    with pytest.raises(UsageError, match=r"^step\.reward is no array of numbers \(.*; record NumPy arrays$"):
        loop.advance()
    loop.close()


def test_a_function_that_records_too_little_too_much_or_without_choosing_is_told_so() -> None:
    loop = collecting(lambda loop, ticks: collect(loop, ticks - 1))
    with pytest.raises(UsageError, match="recorded 15 steps of every environment where it was asked for 16"):
        loop.advance()
    loop.close()
    loop = collecting(lambda loop, ticks: collect(loop, ticks + 3))
    with pytest.raises(UsageError, match="recorded more steps of every environment than it was asked for"):
        loop.advance()
    loop.close()
    loop = collecting(lambda loop, ticks: loop.record(loop.pool.step(np.zeros(8, np.int64))))
    with pytest.raises(UsageError, match=r"no action was chosen: call choose\(\) before record\(step\)"):
        loop.advance()
    loop.close()


def test_a_loop_on_the_device_refuses_a_function_that_it_would_not_call() -> None:
    p = populations.problem("CartPole-v1", "ppo", train=LONG)
    p = replace(p, env=p.env.model_copy(update={"backend": "torch"}))
    with pytest.raises(UsageError, match="collect_rollouts: environments as tensors step by themselves"):
        begin(p, first_members(p, 2)[0], collect_rollouts=collect)


def test_a_regime_without_rollouts_refuses_a_function_that_it_would_not_call() -> None:
    p = populations.problem(algo="dqn")
    with pytest.raises(UsageError, match="collect_rollouts: dqn collects no rollouts"):
        begin(p, first_members(p, 2)[0], collect_rollouts=collect)


def test_a_run_on_tensors_that_has_chosen_goes_on_with_its_choice(run: Callable[..., Any]) -> None:
    """Saved between choosing and stepping, it does not choose a second time."""
    p = populations.problem("CartPole-v1", "ppo", train=LONG)
    p = replace(p, env=p.env.model_copy(update={"backend": "torch"}))
    whole, resumed = run(p, 2), run(p, 2)
    advance(whole, 5)
    whole.regime.choose()
    resumed.restore(*copied(whole))
    for loop in (whole, resumed):
        advance(loop, 5)
    assert equal_states(whole.state(), resumed.state()) == []
