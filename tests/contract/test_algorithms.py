"""What every algorithm of the registry promises: a new file is tested before anyone writes a test for it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import populations
from evopipe import algos
from evopipe.core.cohort import dissolve
from evopipe.errors import ParamsError
from evopipe.problems.env import begin
from evopipe.run.spec import first_members
from evopipe.schema.evolution import MutationConfig
from evopipe.searchers.apply import evolve
from evopipe.searchers.history import Record
from evopipe.types import Spaces
from populations import (
    LONG,
    UNLIKE,
    advance,
    close_generation,
    equal,
    equal_states,
    finish,
    is_on_policy,
    memory_of,
    of_slot,
    plant_weight,
    same,
    unlike,
    updated,
)  # fmt: skip

pytestmark = pytest.mark.parametrize("algo", populations.cases(teams=True))


# ------------------------------------------------------------------------------------------------- the kernels


def test_kernels_learn_only_for_an_algorithm_that_says_so(algo: str) -> None:
    """A copy of another file that keeps its `recipe` would learn by that one's update, and its own would go unread."""
    module = algos.get(algo.partition(":")[0])
    kept = [name for name in ("recipe", "learn", "play") if getattr(module, name) is not None]
    assert module.COMPILED or not kept, f"algos/{algo}.py: {kept} without COMPILED: leave them out"


# ------------------------------------------------------------------------------------------------- determinism


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(algo: str, run: Callable[..., Any]) -> None:
    states = []
    for seed, go_on in ((3, finish), (3, finish), (4, lambda loop: advance(loop, 1))):
        loop = run(populations.problem(algo=algo, seed=seed, mutation=UNLIKE), 3)
        go_on(loop)
        states.append(loop.state())
    assert equal_states(states[0], states[1]) == []
    assert "pool.obs" in equal_states(states[0], states[2])
    assert states[0][1]["clock"]["generation"] == 3
    assert states[0][1]["reason"] == "max_steps"


@pytest.mark.product
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.thorough
def test_a_member_trains_alike_in_populations_of_1_2_and_8(algo: str, norm: bool, run: Callable[..., Any]) -> None:
    """With exact cohorts and its own memory, to the bit."""
    p = unlike(algo, norm, **LONG)
    crowd = run(p, 8)
    advance(crowd, 70)
    for slots in ([3], [7], [2, 6]):
        members = [replace(populations.alone(p, slot), slot=i) for i, slot in enumerate(slots)]
        few = run(p, members)
        advance(few, 70)
        for i, slot in enumerate(slots):
            assert same(few.members[i], crowd.members[slot]), slot
            assert equal(memory_of(few, i), memory_of(crowd, slot))
    assert all(float(m.tensors["updates"]) > (10 if is_on_policy(algo) else 50) for m in crowd.members)


@pytest.mark.thorough
def test_members_of_equal_padded_but_unlike_own_widths_train_as_alone(algo: str, run: Callable[..., Any]) -> None:
    """A layer without pads must not begin to be masked because a neighbour's has some."""
    network = {"encoder": [24], "latent": 64, "layer_norm": True}
    p = populations.problem(algo=algo, config={"network": network}, train=LONG)
    other = populations.problem(algo=algo, config={"network": {**network, "encoder": [32], "latent": 60}}, train=LONG)
    members = [first_members(p, 2)[0][0], first_members(other, 2)[0][1]]
    both, one = run(p, members), run(p, members[:1])
    advance(both, 60)
    advance(one, 60)
    assert same(both.members[0], one.members[0])


# ------------------------------------------------------------------------------------------------- containment


BEFORE = {False: 40, True: 47}
"""Ticks after which a member learns in the next one: off-policy, and at the end of its third rollout of 16 ticks."""


def reward_column(loop: Any) -> int:
    """Where the reward lies in a row, of teams the second agent's; the observation's first number where the algorithm
    reads no reward."""
    if getattr(loop.spec.algo, "OFFLINE_ONLY", False):
        return 0
    layout = loop.regime.replay.layout
    return 2 * layout.obs + layout.action + (1 if layout.agents else 0)


def plant_reward(loop: Any, slot: int, value: float = math.nan) -> None:
    if is_on_policy(loop.spec.train.algo):
        agents = loop.spec.spaces.agents
        memory_of(loop, slot, "after")[..., min(1, agents - 1) :: agents, loop.spec.observations] = value
    else:
        loop.regime.replay.rows[slot, :, reward_column(loop)] = value


def plant_loss(loop: Any, slot: int) -> None:
    plant_reward(loop, slot, 3e38)
    if not is_on_policy(loop.spec.train.algo):
        loop.regime.replay.rows[slot, :, loop.regime.replay.layout.obs : 2 * loop.regime.replay.layout.obs] = 3e38


@pytest.mark.product
@pytest.mark.parametrize("cohorts", ["exact", "merged"])
@pytest.mark.parametrize("plant", [plant_weight, plant_reward, pytest.param(plant_loss, marks=pytest.mark.slow)])
def test_a_nan_leaves_the_other_members_bit_identical(
    algo: str, plant: Callable[[Any, int], None], cohorts: Literal["exact", "merged"], run: Callable[..., Any]
) -> None:
    p = unlike(algo, norm=True, cohorts=cohorts, **LONG)
    clean, ill = run(p, 5), run(p, 5)
    for loop in (clean, ill):
        advance(loop, BEFORE[is_on_policy(algo)])
    plant(ill, 2)
    cohort, row = of_slot(ill.cohorts, 2)
    before = next(m for m in dissolve([cohort]) if m.slot == 2)
    for loop in (clean, ill):
        advance(loop, 1)
    cohort, row = of_slot(ill.cohorts, 2)
    assert not cohort.healthy[row], "frozen at once"
    for loop in (clean, ill):
        advance(loop, 20)
    after = {m.slot: m for m in ill.members}
    for name, tensor in after[2].tensors.items():  # a frozen member changes no more
        assert torch.equal(tensor[tensor.isfinite()], before.tensors[name][tensor.isfinite()]), name
    for slot in (0, 1, 3, 4):
        assert same(after[slot], clean.members[slot]), slot
        assert after[slot].healthy
        assert equal(memory_of(ill, slot), memory_of(clean, slot))
    assert ill.regime.world.pool.episode_length.min() >= 0
    assert ill.clock.env_steps == clean.clock.env_steps, "its environments go on"

    close_generation(ill)
    record = ill.lineage[-1].to_json()
    assert record["members"][2]["fitness"] is None
    assert not record["members"][2]["healthy"]
    assert ill.champion is not None
    assert ill.champion.member.slot != 2
    assert all(child["parent_slot"] != 2 for child in record["children"])
    assert all(m.healthy for m in ill.members)
    assert all(torch.isfinite(t).all() for m in ill.members for t in m.tensors.values())


@pytest.mark.thorough
def test_a_nan_that_no_update_saw_is_found_by_the_evaluation(algo: str, run: Callable[..., Any]) -> None:
    loop = run(unlike(algo), 4)
    while not loop.clock.generation_over:
        loop.advance()
    plant_weight(loop, 0)
    close_generation(loop)
    assert [m.healthy for m in loop.lineage[-1].members] == [False, True, True, True]
    assert all(child.parent_slot != 0 for child in loop.lineage[-1].children)


@pytest.mark.thorough
def test_where_all_diverge_the_last_good_generation_returns(algo: str, run: Callable[..., Any]) -> None:
    loop = run(unlike(algo), 3)
    while not loop.clock.generation_over:
        loop.advance()
    good = loop.last_good
    for slot in range(3):
        plant_weight(loop, slot)
    close_generation(loop)
    assert loop.lineage[-1].restored
    assert all(same(a, b) for a, b in zip(loop.members, good, strict=True))
    assert all(m.healthy for m in loop.members)


@pytest.mark.thorough
def test_the_lineage_says_who_came_from_whom_and_what_changed(algo: str, run: Callable[..., Any]) -> None:
    loop = run(unlike(algo), 4)
    finish(loop)
    lineage = [record.to_json() for record in loop.lineage]
    assert [record["generation"] for record in lineage] == [0, 1, 2, 3]
    assert [record["step"] for record in lineage] == [0, 200, 400, 600]
    assert [(child["id"], child["parent"]) for child in lineage[0]["children"]] == [(i, None) for i in range(4)]
    del lineage[0]  # whom nobody evaluated
    for record, after in zip(lineage, [*lineage[1:], None], strict=True):
        ids = {m["id"]: m["slot"] for m in record["members"]}
        assert all(isinstance(m["fitness"], float) for m in record["members"])
        assert record["champion"]["id"] >= 0
        if after is None:
            assert record["children"] == []
            continue
        for child, grown in zip(record["children"], after["members"], strict=True):
            assert set(child) == {"slot", "id", "parent", "arch", "hyper", "parent_slot", "mutation", "why"}
            assert set(child["mutation"]) == {"kind", "what", "before", "after"}
            assert {name: grown[name] for name in ("slot", "id", "parent", "arch", "hyper")} == {
                name: child[name] for name in ("slot", "id", "parent", "arch", "hyper")
            }
            survived = child["id"] in ids
            assert ids[child["id"] if survived else child["parent"]] == child["parent_slot"]
            assert child["mutation"]["kind"] == "none" if survived else True
    assert [Record.from_json(json.loads(json.dumps(record))) for record in lineage] == loop.lineage[1:]


# ----------------------------------------------------------------------------------------------- save and load


@pytest.mark.product
@pytest.mark.parametrize(
    "ticks",
    [
        7,
        75,
        pytest.param(30, marks=pytest.mark.thorough),
        *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 50, 110)),
    ],
)
def test_a_restored_run_continues_bit_for_bit(algo: str, ticks: int, run: Callable[..., Any]) -> None:
    """In the middle of a generation and at its boundary (every 50 ticks)."""
    p = unlike(algo)
    whole = run(p, 3)
    advance(whole, ticks)
    if ticks == 50:
        close_generation(whole)
    tensors, meta = whole.state()
    tensors, meta = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))
    resumed = run(p, 3)
    advance(resumed, 3)  # whatever it held before is gone
    assert resumed.restore(tensors, meta) == 0
    assert equal_states(whole.state(), resumed.state()) == []
    for _ in range(3):
        for loop in (whole, resumed):
            if not loop.reason:
                advance(loop, 12)
        assert equal_states(whole.state(), resumed.state()) == []
    for loop in (whole, resumed):
        finish(loop)
    assert equal_states(whole.state(), resumed.state()) == []


@pytest.mark.product
@pytest.mark.parametrize("cohorts", ["exact", "merged"])
@pytest.mark.thorough
def test_forming_and_dissolving_cohorts_is_the_identity(
    algo: str, cohorts: Literal["exact", "merged"], run: Callable[..., Any]
) -> None:
    loop = run(unlike(algo, norm=True, cohorts=cohorts), 8)
    advance(loop, 70)
    members = loop.members
    assert len({m.arch for m in members}) >= 3
    again = dissolve(loop.spec.form(members))
    assert all(same(a, b) for a, b in zip(members, again, strict=True))
    assert [replace(m, tensors={}) for m in members] == [replace(m, tensors={}) for m in again]


# ----------------------------------------------------------------------------------------------------- update


@pytest.mark.thorough
def test_one_members_hyper_parameter_changes_that_member_only(algo: str) -> None:
    p = populations.problem(algo=algo)
    (cohort,) = p.form(first_members(p, 4)[0])
    base = updated(p, cohort)
    assert all(value.shape == (4,) and value.dtype == torch.float32 for value in cohort.hyper.values())
    factors = {"grad_clip": 1e-3, **dict.fromkeys(populations.rates(algo), 3.0)}
    own = {"gamma": 0.5, "tau": 9.0, "gae_lambda": 0.5, "clip": 0.01, "ent_coef": 9.0, "vf_coef": 9.0}
    factors |= {name: factor for name, factor in own.items() if is_on_policy(algo) or name in ("gamma", "tau")}
    factors = {name: factor for name, factor in factors.items() if name in p.algo.Config.model_fields}
    assert set(factors) <= set(cohort.hyper)
    for name, factor in factors.items():
        (fresh,) = p.form(first_members(p, 4)[0])
        fresh.hyper[name][2] *= factor
        changed = updated(p, fresh)
        assert [same(a, b) for a, b in zip(base, changed, strict=True)] == [True, True, False, True], name
    members = first_members(p, 4)[0]
    members[2] = replace(members[2], hyper={**members[2].hyper, "batch_size": 20})
    (fresh,) = p.form(members)
    assert [same(a, b) for a, b in zip(base, updated(p, fresh), strict=True)] == [True, True, False, True]


def test_a_frozen_members_update_changes_nothing_of_it(algo: str) -> None:
    """Nor of its targets, which by then are not what they follow."""
    p = populations.problem(algo=algo)
    (cohort,) = p.form(first_members(p, 3)[0])
    before = updated(p, cohort, 2)
    (cohort,) = p.form(before)
    cohort.healthy[1] = False
    after = updated(p, cohort)
    assert [same(a, b) for a, b in zip(before, after, strict=True)] == [False, True, False]


# --------------------------------------------------------------------------------------------------- registry


def test_an_algorithm_defines_what_it_must(algo: str) -> None:
    found = algos.get(algo.partition(":")[0])
    assert found.PAPER.startswith("https://")
    assert found.POLICY in found.networks(found.Config(), Spaces(4, 2))
    fields = found.Config.model_fields
    for name in found.Config().evolve:
        assert fields[name].json_schema_extra["evolvable"]  # type: ignore[index]
    for name, field in fields.items():
        assert field.description, name


def test_an_algorithm_that_lacks_a_name_is_refused_with_a_sentence(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, lacks = (
        (algos.REGIMES["on_policy"], "schedule") if is_on_policy(algo) else (algos.REGIMES["off_policy"], "act")
    )
    kept = "\n".join(f"{name} = None" for name in algos.REQUIRED | own if name not in (lacks, "REGIME"))
    (tmp_path / "lacking.py").write_text(f"{kept}\nREGIME = {algos.get(algo.partition(':')[0]).REGIME!r}")
    monkeypatch.setattr(algos, "__path__", [*algos.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "evopipe.algos.lacking", raising=False)  # another case's
    algos.names.cache_clear()
    algos._own.cache_clear()
    try:
        assert "lacking" in algos.names()
        with pytest.raises(ImportError) as raised:
            algos.get("lacking")
        assert str(raised.value) == (
            f"algos/lacking.py does not define {lacks!r} ({own[lacks]}): every such algorithm must"
        )
        with pytest.raises(ParamsError, match="did you mean 'lacking'"):
            algos.get("laking")
    finally:
        algos.names.cache_clear()
        algos._own.cache_clear()


ALWAYS_HYPER = {"none": 0.0, "architecture": 0.0, "parameters": 0.0, "activation": 0.0, "rl_hp": 1.0}


def test_a_mutated_elite_is_another_individual(algo: str) -> None:
    """Ids are unique over a run: only an elite that survives unchanged keeps its own."""
    p = populations.problem(algo=algo, mutation={"mutate_elite": True, "probabilities": ALWAYS_HYPER})
    members, _ = first_members(p, 3)
    born = evolve(p.tournament, p.mutation, p.traits, members, np.array([1.0, 3.0, 2.0]), p.seed, 1, 10)
    assert (born.members[0].id, born.members[0].parent) == (10, 1)
    spared = replace(p, mutation=MutationConfig.model_validate({"probabilities": ALWAYS_HYPER}))
    born = evolve(spared.tournament, spared.mutation, p.traits, members, np.array([1.0, 3.0, 2.0]), p.seed, 1, 10)
    assert (born.members[0].id, born.members[0].parent) == (1, None)


def test_mutations_before_training_are_in_the_lineage(algo: str) -> None:
    p = populations.problem(algo=algo, mutation={"before_training": True, "probabilities": ALWAYS_HYPER})
    members, births = first_members(p, 2)
    loop = begin(p, members, None, births)
    assert [child.mutation.kind for child in loop.lineage[0].children] == ["rl_hp", "rl_hp"]
    loop.close()
