"""What regimes pick, draw and tell, where members are unlike or a generation is not the first: each against numbers by
hand."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
import rota
from evopipe import rng
from evopipe.data.transitions import Transitions
from evopipe.ops import signals
from evopipe.problems.env import begin
from evopipe.regimes.learn import discount_rate
from evopipe.regimes.probe import Probe, probe
from evopipe.regimes.rollouts import learn_from_rollout, probe_rollout
from evopipe.rng import Purpose, Stream
from evopipe.run.clock import Clock
from evopipe.run.diagnostics import rounded
from evopipe.run.spec import first_members
from evopipe.types import ACTS, CUT, GONE
from populations import LONG, advance, finish, rollout_for

UNCHANGED = {"probabilities": {"none": 1.0, "architecture": 0.0, "parameters": 0.0, "activation": 0.0, "rl_hp": 0.0}}


@pytest.mark.parametrize(("sharing", "emptied"), [("own", [1]), (1, [1]), (2, []), ("shared", [])])
def test_a_new_trial_empties_a_memory_that_is_its_own_alone(
    sharing: str | int, emptied: list[int], run: Callable[..., Any]
) -> None:
    replay = {"capacity": 99, "sharing": sharing}
    loop = run(populations.problem("envs_for_tests:Endless-v0", train={**LONG, "replay": replay}), 4)
    advance(loop, 3)
    before = loop.regime.replay.size.tolist()
    assert min(before) > 0
    loop.regime.renew([1])
    assert loop.regime.replay.size.tolist() == [0 if m in emptied else n for m, n in enumerate(before)]


@pytest.mark.thorough
def test_a_probe_reads_what_an_update_of_this_tick_would_read(run: Callable[..., Any]) -> None:
    """In the second generation: rows by priority, weights of now, as the normaliser has observations."""
    train = {
        "evo_steps": 40, "max_steps": 400, "learning_delay": 0, "eval_steps": 5, "normalise": {"observations": True},
        "replay": {"capacity": 50, "sharing": "own", "prioritised": True, "beta": 0.25},
    }  # fmt: skip
    p = populations.problem("CartPole-v1", train=train, mutation=UNCHANGED)
    loop = run(p, 2)
    advance(loop, 14)
    assert (loop.clock.tick, loop.clock.here) == (14, 4)
    (cohort,) = loop.cohorts
    replay, recorder = loop.regime.replay, Probe(p, loop.clock)
    recorder.due = lambda *_: True  # type: ignore[method-assign]
    loop.regime.learning.probe(recorder)
    draw = Stream(cohort.keys, Purpose.PROBE, torch.tensor([14]))
    given = torch.tensor([50, 50]), cohort.weight, torch.tensor(0.25 + 0.75 * 56 / 400), discount_rate(cohort)
    batch, index = replay.batch(draw, *replay.places(tuple(cohort.slots)), *given)
    assert len(batch.weight.unique()) > 2
    age = (torch.from_numpy(replay.position)[:, None] - 1 - index) % 50
    batch = replace(batch, obs=cohort.normalised(batch.obs), next_obs=cohort.normalised(batch.next_obs))
    expected = {**probe(p, cohort, batch, draw, cohort.hyper), "replay/age": signals.mean(cohort.weight, age)}
    for slot, told in enumerate(recorder.diagnostics.told([0, 1])):
        assert told == {name: (rounded(float(x[slot])),) * 2 for name, x in sorted(expected.items())}


@pytest.mark.thorough
def test_a_learning_rate_that_decays_is_told_as_it_is_by_now(run: Callable[..., Any]) -> None:
    """By the steps of the whole run: a quarter of its way down after each generation."""
    config = {"lr": 1e-3, "lr_end": 0.0, "decay_steps": 400, "learn_step": 52, "batch_size": 52}
    train = {"evo_steps": 100, "max_steps": 300, "eval_steps": 5}
    loop = run(populations.problem("CartPole-v1", "ppo", config=config, train=train, mutation=UNCHANGED), 2)
    finish(loop)
    at = 2 + 2 * loop.signal_names.index("charts/learning_rate")
    assert [row[at] for row in loop.signals] == pytest.approx([7.5e-4] * 2 + [5e-4] * 2 + [2.5e-4] * 2)


@pytest.mark.thorough
@pytest.mark.parametrize("chosen", [False, True])
def test_only_the_episodes_that_are_lost_are_cut(chosen: bool, run: Callable[..., Any]) -> None:
    """Of three unlike members two lose one each; what was chosen is chosen again, on what was remembered before."""
    p = populations.problem(
        "envs_for_tests:Endless-v0", "ppo", mutation=populations.UNLIKE,
        config={"network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}, "learn_step": 300},
        train={**LONG, "normalise": {"rewards": True}},
    )  # fmt: skip
    whole, resumed = run(p, 3), run(p, 3)
    assert len(whole.cohorts) > 1
    advance(whole, 5)
    memories = [each.memory.clone() for each in whole.regime.playing]
    returns = torch.arange(1.0, 13.0, dtype=torch.float64).view(3, 4)
    whole.regime.returns.copy_(returns)
    if chosen:
        whole.regime.choose()
    tensors, meta = whole.state()
    tensors = {name: x.clone() for name, x in tensors.items()}
    tensors["pool.obs"][[1, 10]] += 1.0  # no episode of these seeds and actions leads there
    assert resumed.restore(tensors, json.loads(json.dumps(meta))) == 2
    returns[0, 1] = returns[2, 2] = 0.0
    assert torch.equal(resumed.regime.returns, returns)
    assert resumed.regime.world.pending is None
    for each, memory in zip(resumed.regime.playing, memories, strict=True):
        assert torch.equal(each.memory, memory)
        assert memory.any()
        for row, slot in enumerate(each.cohort.slots):
            cut = [[t == 4 and (slot, env) in ((0, 1), (2, 2)) for env in range(4)] for t in range(5)]
            assert each.rollout.after[row, :5, :, p.observations + 2].tolist() == cut


def test_a_member_tells_of_its_own_part_of_a_rollout_whoever_is_beside_it() -> None:
    """Of a minibatch of its own size, and of the ticks that were taken since it last learned."""
    p = populations.problem(algo="ppo", cohorts="merged", config={"normalise_advantage": True})
    sizes = (40, 16)
    members = [
        replace(m, hyper={**m.hyper, "batch_size": b}) for m, b in zip(first_members(p, 2)[0], sizes, strict=True)
    ]
    (cohort,) = p.form(members)
    rollout, at = rollout_for(p, cohort), p.observations + 1
    rollout.rows[..., at + 3 : at + 6] = torch.randn(2, 16, 4, 3, generator=torch.Generator().manual_seed(1))
    rollout.rows[..., at + 5] = rollout.after[..., -1]
    told = []
    for later in (0.0, 77.0):
        rollout.rows[:, 12:], rollout.after[:, 12:] = later, later
        recorder = Probe(p, Clock(2, 4, 16, 16))
        probe_rollout(p, cohort, copy.deepcopy(rollout), 12, 3, recorder)
        told.append(recorder.diagnostics.told([0, 1]))
    assert told[0] == told[1]
    assert {"losses/explained_variance", "losses/policy_loss", "charts/terminated"} <= told[0][0].keys()
    for slot, member in enumerate(members):
        (one,), recorder = p.form([replace(member, slot=0)]), Probe(p, Clock(1, 4, 16, 16))
        probe_rollout(p, one, rollout.part(slot, slot + 1), 12, 3, recorder)
        (alone,) = recorder.diagnostics.told([0])
        for name in alone.keys() - {"charts/dormant", "charts/observation_size"}:  # of pads, too, which are steps
            assert alone[name][0] == pytest.approx(told[0][slot][name][0], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("algo", ["ippo", "maddpg"])
def test_who_terminates_as_it_is_cut_is_gone(algo: str, run: Callable[..., Any]) -> None:
    """Of three teams of two: one ends in both ways, one is cut, one goes on."""
    p = populations.problem("simple_speaker_listener_v4", algo, num_envs=3, train=LONG)
    loop = run(replace(p, env=p.env.model_copy(update={"backend": "torch"})), 1)
    world = loop.regime.world
    if algo == "ippo":
        loop.regime.choose()
    else:
        world.decide(loop.cohorts, 1.0)
    (obs, *_), actions = world.observed(), world.pending
    taken = world.take(actions)
    ends = torch.tensor([[True], [False], [False]]), torch.tensor([[True], [True], [False]])
    step = taken._replace(terminated=ends[0].expand(3, 2), truncated=ends[1].expand(3, 2))
    left = [GONE, GONE, CUT, CUT, ACTS, ACTS]
    if algo == "ippo":
        assert world.gave(step)[-1].tolist() == [left]
        return
    layout = loop.regime.replay.layout
    batch = layout.unpack(world.packed(layout, obs, actions, step)[None], torch.ones(1, 3), torch.ones(1))
    assert batch.next_alive is not None
    assert batch.next_alive.flatten().tolist() == left
    assert batch.discount.flatten().tolist() == [0.0] * 2 + [1.0] * 4


@pytest.mark.parametrize(("algo", "backend"), [("dqn", "sync"), ("ppo", "sync"), ("ppo", "torch"), ("dqn", "torch")])
def test_what_was_chosen_before_a_state_is_restored_is_not_taken(
    algo: str, backend: str, run: Callable[..., Any]
) -> None:
    p = populations.problem("CartPole-v1", algo, train=LONG, config={"learn_step": 64})
    whole, resumed = (run(replace(p, env=p.env.model_copy(update={"backend": backend}))) for _ in range(2))
    if algo == "ppo":
        resumed.regime.choose()
    else:
        resumed.regime.world.decide(resumed.cohorts, 1.0)
    assert resumed.regime.world.pending is not None
    assert resumed.restore(*whole.state()) == 0
    assert resumed.regime.world.pending is None


def test_how_often_a_generation_is_probed_goes_by_the_updates_of_a_member(run: Callable[..., Any]) -> None:
    """8,192 updates, for all four environments of a member: a probe in each quarter of 2,048 ticks."""
    train = {"evo_steps": 8192, "max_steps": 8192}
    loop = run(populations.problem("CartPole-v1", config={"learn_step": 1}, train=train), 1)
    assert loop.regime.learning.ahead(Probe(loop.spec, loop.clock)) == 512


def test_the_next_probe_is_the_earliest_of_any_cohorts(run: Callable[..., Any]) -> None:
    """Of two members one makes 8,192 updates in a generation of 2,048 ticks, and the other one 8."""
    p = populations.problem("CartPole-v1", train={"evo_steps": 8192, "max_steps": 8192})
    members = first_members(p, 2)[0]
    loop = run(p, 2)
    loop._form([replace(m, hyper={**m.hyper, "learn_step": s}) for m, s in zip(members, (1024, 1), strict=True)])
    assert len(loop.cohorts) == 2
    assert loop.regime.learning.ahead(Probe(p, loop.clock)) == 512


def test_a_rollout_is_probed_with_the_clip_of_its_tick() -> None:
    """Half of its way down to a tenth, after 3 ticks of 4 environments."""
    config = {"clip": 0.2, "clip_end": 0.1, "decay_steps": 24}
    decays, constant = (populations.problem(algo="ppo", config=each) for each in (config, {"clip": 0.11}))
    told = []
    for p in (decays, constant):
        (cohort,) = p.form(first_members(p, 1)[0])
        rollout, at = rollout_for(p, cohort), p.observations + 1
        noise = torch.randn(2, 1, 16, 4, generator=torch.Generator().manual_seed(1))
        rollout.rows[..., at] += 0.15 * noise[0]
        rollout.rows[..., at + 3], rollout.rows[..., at + 5] = noise[1], 1.0
        recorder = Probe(p, Clock(1, 4, 16, 16))
        probe_rollout(p, cohort, rollout, 16, 3, recorder)
        told.append(recorder.diagnostics.told([0])[0])
    for name, (mean, _) in told[0].items():
        assert told[1][name][0] == pytest.approx(mean, rel=1e-4, abs=1e-7, nan_ok=True), name
    assert 0.2 < told[0]["losses/clipfrac"][0] < 0.8


def test_a_rollout_teaches_with_the_rates_of_its_members_steps() -> None:
    """Half of their way down to a tenth, after 3 ticks of 4 environments, which are 12 of 24 steps."""
    ends = {"lr_end": 0.1, "clip_end": 0.1, "decay_steps": 24}
    learned = []
    for config, share in ((ends, 1.0), ({}, 0.55)):
        p = populations.problem(algo="ppo", config={**config, "epochs": 3})
        members = first_members(p, 1)[0]
        hyper = {name: value * (share if name in ("lr", "clip") else 1) for name, value in members[0].hyper.items()}
        (cohort,) = p.form([replace(members[0], hyper=hyper)])
        rollout, at = rollout_for(p, cohort), p.observations + 1
        rollout.rows[..., at] += 0.1 * torch.randn(1, 16, 4, generator=torch.Generator().manual_seed(1))
        before = cohort.state.actor.values.clone()
        learn_from_rollout(p, cohort, rollout, 16, 3)
        learned.append(cohort.state.actor.values)
    torch.testing.assert_close(learned[0], learned[1], rtol=1e-5, atol=1e-7)
    assert not torch.equal(learned[0], before)


def test_the_return_of_a_broken_episode_is_gone(run: Callable[..., Any]) -> None:
    """By which rewards are normalised; the others' go on."""
    loop = run(populations.problem("envs_for_tests:Endless-v0", "ppo", train={**LONG, "normalise": {"rewards": True}}))
    loop.regime.returns.fill_(3.0)
    taken = loop.regime.world.pool.step(loop.regime.choose())
    loop.regime.record(replace(taken, broken=torch.arange(8).numpy() == 5))
    going_on = 3.0 * float(loop.members[0].hyper["gamma"]) + 1.0
    expected = [[going_on] * 4, [going_on, 0.0, going_on, going_on]]
    torch.testing.assert_close(loop.regime.returns, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("sharing", ["shared", "own"])
def test_a_child_has_its_parents_priorities_where_both_read_the_same_rows(
    sharing: str, run: Callable[..., Any]
) -> None:
    """Others begin with equal ones, and who stays keeps its own."""
    replay = {"capacity": 9, "sharing": sharing, "prioritised": True}
    loop = run(populations.problem("envs_for_tests:Endless-v0", num_envs=3, train={**LONG, "replay": replay}), 4)
    advance(loop, 1)
    trees, n = loop.regime.replay.priorities, 12 if sharing == "shared" else 3
    n = min(n, 9)
    own = torch.zeros(4, 9)
    own[:, :n] = torch.arange(1.0, 4 * n + 1).view(4, n)
    trees.restore({"priorities": own, "largest": own.amax(dim=1)})
    loop.regime.inherit([1, 1, 0, -1])
    found = trees.state(n)["priorities"]
    assert torch.equal(found[1], own[1, :n])
    if sharing == "shared":
        assert torch.equal(found[[0, 2]], own[[1, 0], :n]), "as its parent's were"
    else:
        assert len(found[0].unique()) == len(found[2].unique()) == 1
    assert len(found[3].unique()) == 1


def test_each_generation_is_planned_and_decided_by_draws_of_its_own(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draws of a plan are those of the decision at its generation's end."""
    drawn: list[tuple[str, int]] = []

    class Noted(rota.Search):
        def plan(self, history: Any, draw: Any) -> Any:
            drawn.append(("plan", int(draw().integers(1 << 60))))
            return super().plan(history, draw)

        def step(self, history: Any, draw: Any) -> Any:
            drawn.append(("step", int(draw().integers(1 << 60))))
            return super().step(history, draw)

    rota.offer(monkeypatch)
    monkeypatch.setattr(rota, "Search", Noted)
    train = {"evo_steps": 8, "max_steps": 24, "learning_delay": 10**6, "eval_steps": 5}
    loop = run(populations.problem(train=train, search={"strategy": "rota"}), 2)
    finish(loop)
    key = rng.run_key(loop.spec.seed)
    numbers = [int(rng.host(key, Purpose.SELECT, g).integers(1 << 60)) for g in (1, 2, 3)]
    assert drawn == [(what, numbers[g]) for g in range(3) for what in ("plan", "step")][:-1]


@pytest.mark.thorough
def test_the_chance_to_explore_that_is_told_is_that_of_the_runs_step(run: Callable[..., Any]) -> None:
    """A quarter of its way down after each generation."""
    config = {"eps_start": 1.0, "eps_end": 0.0, "eps_steps": 400}
    train = {"evo_steps": 100, "max_steps": 300, "eval_steps": 5, "learning_delay": 10**6}
    loop = run(populations.problem("CartPole-v1", config=config, train=train, mutation=UNCHANGED), 2)
    finish(loop)
    told = [dict(zip(loop.signal_names, row[2::2], strict=False)) for row in loop.signals]
    assert [each["charts/epsilon"] for each in told] == pytest.approx([0.75] * 2 + [0.5] * 2 + [0.25] * 2)
    assert [each["replay/size"] for each in told] == [100.0] * 2 + [200.0] * 2 + [300.0] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("replaced", [False, True])
def test_who_waited_remembers_and_who_was_born_in_its_place_does_not(
    replaced: bool, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rota.offer(monkeypatch)
    births = ((2, 1, 0),) if replaced else ()
    p = populations.problem(
        "envs_for_tests:Endless-v0", "ppo", mutation=UNCHANGED,
        config={"network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}, "learn_step": 12},
        train={"evo_steps": 12, "max_steps": 99, "eval_steps": 3},
        search={"strategy": "rota", "rota": {"order": ((0, 1), (0,), (1,)), "births": births}},
    )  # fmt: skip
    loop, other = run(p, 2), run(p, 2)
    while not loop.clock.generation_over:
        loop.advance()
    ((playing,),) = [loop.regime.playing]
    before = playing.memory[1].clone()
    assert before.any()
    while loop.clock.generation < 1:
        populations.go_on(loop)
    for each in (loop, other):  # a state is saved while it waits
        if each is other:
            other.restore(*loop.state())
    for each in (loop, other):
        while each.clock.generation < 2:
            populations.go_on(each)
        ((playing,),) = [each.regime.playing]
        assert playing.cohort.slots == [1]
        assert torch.equal(playing.memory[0], torch.zeros_like(before) if replaced else before)
        assert not [name for name in each.state()[0] if name.startswith("waits.1")]


def test_an_offline_run_goes_on_with_the_priorities_and_signals_that_it_had() -> None:
    g = torch.Generator().manual_seed(1)
    obs, flags = torch.rand(40, 4, generator=g).numpy(), np.zeros(40, bool)
    reward = torch.rand(40, generator=g).numpy()
    data = Transitions(obs, np.arange(40) % 2, reward, flags, flags, obs[::-1].copy(), np.zeros(40, int))
    train = {"mode": "offline", "evo_steps": 40, "max_steps": 80, "eval_steps": 5, "replay": {"prioritised": True}}
    p = populations.problem("envs_for_tests:Chain-v0", "cqn", train=train, mutation=UNCHANGED)
    whole, resumed = (begin(p, first_members(p, 2)[0], data) for _ in range(2))
    advance(whole, 14)
    tensors, meta = whole.state()
    assert "replay.priorities" in tensors
    advance(resumed, 3)  # whatever it held before is gone
    assert resumed.restore({name: x.clone() for name, x in tensors.items()}, json.loads(json.dumps(meta))) == 0
    for loop in (whole, resumed):
        finish(loop)
    assert populations.equal_states(whole.state(), resumed.state()) == []
    told = [dict(zip(whole.signal_names, row[2::2], strict=False)) for row in whole.signals]
    assert [each["replay/size"] for each in told] == [40.0] * 4
    assert "replay/age" not in told[0]
    for loop in (whole, resumed):
        loop.close()
