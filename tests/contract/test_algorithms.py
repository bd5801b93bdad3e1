"""What every algorithm of the registry promises: a new file is tested before anyone writes a test for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import populations
from evopipe import algos, rng
from evopipe.core import population
from evopipe.core.population import Cohort, Member
from evopipe.errors import ParamsError
from evopipe.evolve.mutate import MutationConfig
from evopipe.evolve.step import evolve
from evopipe.loops.online import Online
from evopipe.loops.problem import Problem, first_members
from evopipe.loops.steps import act, discount_rate, learn, updates_due
from evopipe.rng import Purpose, Stream
from evopipe.storage.dataset import Transitions
from evopipe.types import Batch, Spaces
from populations import advance, close_generation, equal, equal_states, finish, of_slot, same, started

pytestmark = pytest.mark.parametrize("algo", populations.cases())

UNLIKE = {
    "before_training": True,
    "architecture": {"min_nodes": 8, "max_nodes": 64, "min_latent": 8, "node_steps": (1, 8, 16), "latent_steps": (8,)},
    "activations": ("ReLU", "GELU", "Sigmoid"),
}
"""Members of unlike architectures, activations and hyper-parameters, widths that are no multiple of 16."""

LONG: dict[str, Any] = {"evo_steps": 100_000, "max_steps": 100_000}


def unlike(algo: str, norm: bool = False, cohorts: Literal["merged", "exact"] = "exact", **train: Any) -> Problem:
    network = {"encoder": [16], "latent": 16, "layer_norm": norm}
    faster = {rate: {"min": 1e-4, "max": 1e-2} for rate in populations.rates(algo)}
    config = {"network": network, "evolve": {"batch_size": {"min": 16, "max": 64}, **faster}}
    return populations.problem(algo=algo, mutation=UNLIKE, cohorts=cohorts, config=config, train=train)


@pytest.fixture
def run() -> Iterator[Callable[..., Online]]:
    """Makes runs, and closes them."""
    made: list[Online] = []

    def make(p: Problem, members: int | list[Member]) -> Online:
        made.append(started(p, members) if isinstance(members, int) else Online(p, members))
        return made[-1]

    yield make
    for each in made:
        each.close()


def batch_for(p: Problem, cohort: Cohort, seed: int = 0) -> Batch:
    """Random transitions of the right shapes for a cohort."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(cohort.members), cohort.batch)
    return Batch(
        obs=torch.randn(*shape, p.observations, generator=g),
        action=torch.rand(*shape, p.actions, generator=g) * 2 - 1
        if p.spaces.continuous
        else torch.randint(p.actions, shape, generator=g),
        reward=torch.randn(*shape, generator=g),
        discount=(torch.rand(*shape, generator=g) > 0.2).float(),
        next_obs=torch.randn(*shape, p.observations, generator=g),
        next_legal=None,
        weight=cohort.weight,
    )


def draw_at(cohort: Cohort, step: int = 0) -> Stream:
    """The draws of an update."""
    return Stream(cohort.keys, Purpose.UPDATE, torch.tensor([step], device=cohort.keys.device))


def updated(p: Problem, cohort: Cohort, times: int = 5) -> list[Member]:
    """Members after some updates on random transitions."""
    state, healthy = cohort.state, cohort.healthy
    for i in range(times):
        batch = batch_for(p, cohort, i)
        batch = replace(batch, discount=batch.discount * discount_rate(cohort)[:, None])
        state, _, healthy, _ = p.algo.update(
            p.algo_config, state, cohort.hyper, batch, healthy, draw_at(cohort, i), i % p.period
        )
    return population.dissolve([replace(cohort, state=state, healthy=healthy)])


# ------------------------------------------------------------------------------------------------- determinism


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(algo: str, run: Callable[..., Online]) -> None:
    states = []
    for seed in (3, 3, 4):
        loop = run(populations.problem(algo=algo, seed=seed, mutation=UNLIKE), 3)
        finish(loop)
        states.append(loop.state())
    assert equal_states(states[0], states[1]) == []
    assert "replay.rows" in equal_states(states[0], states[2])
    assert states[0][1]["generation"] == 3
    assert states[0][1]["reason"] == "max_steps"


@pytest.mark.parametrize("norm", [False, True])
def test_a_member_trains_alike_in_populations_of_1_2_and_8(algo: str, norm: bool, run: Callable[..., Online]) -> None:
    """With exact cohorts and its own replay, to the bit."""
    p = unlike(algo, norm, **LONG)
    crowd = run(p, 8)
    advance(crowd, 70)
    for slots in ([3], [7], [2, 6]):
        members = [replace(populations.alone(p, slot), slot=i) for i, slot in enumerate(slots)]
        few = run(p, members)
        advance(few, 70)
        for i, slot in enumerate(slots):
            assert same(few.members[i], crowd.members[slot]), slot
            assert equal(few.replay.rows[i], crowd.replay.rows[slot])
    assert all(float(m.tensors["updates"]) > 50 for m in crowd.members)


def test_members_of_equal_padded_but_unlike_own_widths_train_as_alone(algo: str, run: Callable[..., Online]) -> None:
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


def plant_weight(loop: Online, slot: int) -> None:
    cohort, row = of_slot(loop.cohorts, slot)
    acting = getattr(cohort.state, loop.problem.algo.POLICY)
    acting.values[row, acting.structure.index[row][0]] = math.nan


def reward_column(loop: Online) -> int:
    """Where the reward lies in a row; the observation's first number where the algorithm reads no reward."""
    spaces = loop.problem.spaces
    if getattr(loop.problem.algo, "OFFLINE_ONLY", False):
        return 0
    return 2 * spaces.observations + (spaces.actions if spaces.continuous else 1)


def plant_reward(loop: Online, slot: int) -> None:
    loop.replay.rows[slot, :, reward_column(loop)] = math.nan


def plant_loss(loop: Online, slot: int) -> None:
    loop.replay.rows[slot, :, reward_column(loop)] = 3e38
    loop.replay.rows[slot, :, loop.replay.layout.obs : 2 * loop.replay.layout.obs] = 3e38


@pytest.mark.parametrize("cohorts", ["exact", "merged"])
@pytest.mark.parametrize("plant", [plant_weight, plant_reward, plant_loss])
def test_a_nan_leaves_the_other_members_bit_identical(
    algo: str, plant: Callable[[Online, int], None], cohorts: Literal["exact", "merged"], run: Callable[..., Online]
) -> None:
    p = unlike(algo, norm=True, cohorts=cohorts, **LONG)
    clean, ill = run(p, 5), run(p, 5)
    for loop in (clean, ill):
        advance(loop, 40)
    plant(ill, 2)
    cohort, row = of_slot(ill.cohorts, 2)
    before = next(m for m in population.dissolve([cohort]) if m.slot == 2)
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
        assert equal(ill.replay.rows[slot], clean.replay.rows[slot])
    assert ill.pool.episode_length.min() >= 0
    assert (ill.replay.size == clean.replay.size).all(), "its environments go on"

    close_generation(ill)
    record = ill.lineage[-1]
    assert record["members"][2]["fitness"] is None
    assert not record["members"][2]["healthy"]
    assert ill.champion is not None
    assert ill.champion.member.slot != 2
    assert all(child["parent_slot"] != 2 for child in record["children"])
    assert all(m.healthy for m in ill.members)
    assert all(torch.isfinite(t).all() for m in ill.members for t in m.tensors.values())


def test_a_nan_that_no_update_saw_is_found_by_the_evaluation(algo: str, run: Callable[..., Online]) -> None:
    loop = run(unlike(algo), 4)
    while not loop.generation_over:
        loop.advance()
    plant_weight(loop, 0)
    close_generation(loop)
    assert [m["healthy"] for m in loop.lineage[-1]["members"]] == [False, True, True, True]
    assert all(child["parent_slot"] != 0 for child in loop.lineage[-1]["children"])


def test_where_all_diverge_the_last_good_generation_returns(algo: str, run: Callable[..., Online]) -> None:
    loop = run(unlike(algo), 3)
    while not loop.generation_over:
        loop.advance()
    good = loop.last_good
    for slot in range(3):
        plant_weight(loop, slot)
    close_generation(loop)
    assert loop.lineage[-1]["restored"]
    assert all(same(a, b) for a, b in zip(loop.members, good, strict=True))
    assert all(m.healthy for m in loop.members)


def test_non_finite_rows_never_enter_a_shared_replay(algo: str, run: Callable[..., Online]) -> None:
    for env in ("NanReward", "NanObs", "HugeObs"):
        p = populations.problem(
            f"envs_for_tests:{env}-v0", algo, train={**LONG, "replay": {"capacity": 500, "sharing": "shared"}}
        )
        loop = run(p, 3)
        advance(loop, 30)
        assert loop.broken_rows > 0
        assert torch.isfinite(loop.replay.rows).all()
        assert all(m.healthy and torch.isfinite(m.tensors[p.algo.POLICY]).all() for m in loop.members)
        assert loop.env_steps == 30 * loop.pool.rows


def test_a_neighbours_broken_transitions_delay_nobody(algo: str, run: Callable[..., Online]) -> None:
    """Members lose unlike numbers of transitions: each still begins to learn at the same step as alone."""
    train = {**LONG, "learning_delay": 0}
    config: dict[str, Any] = {"batch_size": 64}
    if "epsilon" in algos.get(algo.partition(":")[0]).Config.model_fields:  # so that members act unlike
        config["epsilon"] = 0.5
    p = populations.problem("envs_for_tests:NanReward-v0", algo, config=config, train=train)
    crowd = run(p, 6)
    advance(crowd, 25)
    assert len(set(crowd.replay.size.tolist())) > 1
    for slot in (0, 4):
        one = run(p, [populations.alone(p, slot)])
        advance(one, 25)
        assert same(one.members[0], crowd.members[slot])


def test_a_memory_smaller_than_a_batch_still_teaches(algo: str, run: Callable[..., Online]) -> None:
    p = populations.problem(algo=algo, train={**LONG, "replay": {"capacity": 20, "sharing": "own"}})
    loop = run(p, 2)
    advance(loop, 30)
    assert all(float(m.tensors["updates"]) > 10 for m in loop.members)


def test_frozen_and_diverged_members_act_legally(algo: str, run: Callable[..., Online]) -> None:
    env = "Chain" if populations.env_for(algo) == "Pendulum-v1" else "Masked"  # only discrete actions are masked
    loop = run(populations.problem(f"envs_for_tests:{env}-v0", algo, train=LONG), 4)
    plant_weight(loop, 1)
    plant_weight(loop, 2)
    cohort, row = of_slot(loop.cohorts, 2)
    cohort.healthy[row] = False
    for tick in range(30):
        for epsilon in (0.0, 0.5, 1.0):
            actions = act(loop.problem, loop.cohorts, loop.pool.obs, loop.pool.mask, epsilon, tick)
            if env == "Masked":
                assert np.take_along_axis(loop.pool.mask, actions[:, None], 1).all()
            assert (np.abs(actions) <= 1).all()
        loop.advance()
    assert loop.pool.mask.all() == (env == "Chain")


def test_a_frozen_member_explores_at_random(algo: str, run: Callable[..., Online]) -> None:
    quiet = {"noisy": False} if algo == "rainbow" else {}
    loop = run(populations.problem(algo=algo, train=LONG, config=quiet), 2)
    cohort, row = of_slot(loop.cohorts, 1)
    cohort.healthy[row] = False
    taken = [act(loop.problem, loop.cohorts, loop.pool.obs, loop.pool.mask, 0.0, t).reshape(2, -1) for t in range(50)]
    actions = np.stack(taken)  # [T, P, E]
    if hasattr(loop.problem.algo, "values"):  # without exploration it acts by these alone
        assert len(np.unique(actions[:, 0], axis=0)) == 1
    middle = 0.0 if loop.problem.spaces.continuous else 0.5
    assert abs(actions[:, 1].mean() - middle) < 0.2
    assert actions[:, 1].std() > 0.4


def test_the_lineage_says_who_came_from_whom_and_what_changed(algo: str, run: Callable[..., Online]) -> None:
    loop = run(unlike(algo), 4)
    finish(loop)
    assert [record["generation"] for record in loop.lineage] == [0, 1, 2, 3]
    assert [record["step"] for record in loop.lineage] == [0, 200, 400, 600]
    assert [(child["id"], child["parent"]) for child in loop.lineage[0]["children"]] == [(i, None) for i in range(4)]
    del loop.lineage[0]  # whom nobody evaluated
    for record, after in zip(loop.lineage, [*loop.lineage[1:], None], strict=True):
        ids = {m["id"]: m["slot"] for m in record["members"]}
        assert all(isinstance(m["fitness"], float) for m in record["members"])
        assert record["champion"]["id"] >= 0
        if after is None:
            assert record["children"] == []
            continue
        for child, grown in zip(record["children"], after["members"], strict=True):
            assert set(child) == {"slot", "id", "parent", "arch", "hyper", "parent_slot", "mutation"}
            assert set(child["mutation"]) == {"kind", "what", "before", "after"}
            assert {name: grown[name] for name in ("slot", "id", "parent", "arch", "hyper")} == {
                name: child[name] for name in ("slot", "id", "parent", "arch", "hyper")
            }
            survived = child["id"] in ids
            assert ids[child["id"] if survived else child["parent"]] == child["parent_slot"]
            assert child["mutation"]["kind"] == "none" if survived else True
    assert json.loads(json.dumps(loop.lineage)) == loop.lineage


# ----------------------------------------------------------------------------------------------- save and load


@pytest.mark.parametrize("ticks", [0, 7, 30, 50, 75, 110])
def test_a_restored_run_continues_bit_for_bit(algo: str, ticks: int, run: Callable[..., Online]) -> None:
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


@pytest.mark.parametrize("cohorts", ["exact", "merged"])
def test_forming_and_dissolving_cohorts_is_the_identity(
    algo: str, cohorts: Literal["exact", "merged"], run: Callable[..., Online]
) -> None:
    loop = run(unlike(algo, norm=True, cohorts=cohorts), 8)
    advance(loop, 70)
    members = loop.members
    assert len({m.arch for m in members}) >= 3
    again = population.dissolve(loop.problem.form(members))
    assert all(same(a, b) for a, b in zip(members, again, strict=True))
    assert [replace(m, tensors={}) for m in members] == [replace(m, tensors={}) for m in again]


# ----------------------------------------------------------------------------------------------------- update


def test_one_members_hyper_parameter_changes_that_member_only(algo: str) -> None:
    p = populations.problem(algo=algo)
    (cohort,) = p.form(first_members(p, 4)[0])
    base = updated(p, cohort)
    assert all(value.shape == (4,) and value.dtype == torch.float32 for value in cohort.hyper.values())
    factors = {"grad_clip": 1e-3, **dict.fromkeys(populations.rates(algo), 3.0)}
    factors |= {name: factor for name, factor in (("gamma", 0.5), ("tau", 9.0)) if name in p.algo.Config.model_fields}
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


def test_a_batch_size_by_weights_is_training_on_the_smaller_batch(algo: str) -> None:
    """Brute force: the member's first b transitions alone, in a batch of just that size."""
    p = populations.problem(algo=algo)
    members = first_members(p, 3)[0]
    sizes = [32, 5, 17]
    members = [replace(m, hyper={**m.hyper, "batch_size": b}) for m, b in zip(members, sizes, strict=True)]
    (cohort,) = p.form(members)
    assert cohort.weight.sum(dim=1).tolist() == pytest.approx([1.0] * 3)
    together = updated(p, cohort)
    for i, size in enumerate(sizes):
        (alone,) = p.form([replace(members[i], slot=0)])
        state, healthy = alone.state, alone.healthy
        for j in range(5):
            full = batch_for(p, cohort, j)
            own = Batch(
                full.obs[i : i + 1, :size], full.action[i : i + 1, :size], full.reward[i : i + 1, :size],
                full.discount[i : i + 1, :size] * discount_rate(alone), full.next_obs[i : i + 1, :size], None,
                torch.full((1, size), 1.0 / size),
            )  # fmt: skip
            state, _, healthy, _ = p.algo.update(
                p.algo_config, state, alone.hyper, own, healthy, draw_at(alone, j), j % p.period
            )
        (member,) = population.dissolve([replace(alone, state=state)])
        for name, tensor in member.tensors.items():
            torch.testing.assert_close(together[i].tensors[name], tensor, rtol=1e-4, atol=2e-6)


def test_update_never_asks_the_host(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device there are no numbers: `.item()`, `.tolist()`, `if tensor` and boolean indexing all raise, as
    they would break the capture of a CUDA graph."""
    monkeypatch.setitem(population.COSTS, "meta", population.COSTS["cuda"])
    p = replace(unlike(algo, norm=True, cohorts="merged"), device=torch.device("meta"))
    for cohort in p.form(first_members(p, 6)[0]):
        batch = batch_for(p, cohort)
        names = ("obs", "action", "reward", "discount", "next_obs", "weight")
        batch = replace(batch, **{name: getattr(batch, name).to("meta") for name in names})
        legal = torch.ones(len(cohort.members), cohort.batch, p.actions, dtype=torch.bool, device="meta")
        for given in (batch, replace(batch, next_legal=legal)):
            draw = draw_at(cohort)
            state, losses, healthy, _ = p.algo.update(
                p.algo_config, cohort.state, cohort.hyper, given, cohort.healthy, draw, 0
            )
            assert losses.shape == healthy.shape == (len(cohort.members),)
            assert type(state) is p.algo.State
        n = len(cohort.members)
        obs, epsilon = torch.zeros(n, 4, p.observations, device="meta"), torch.zeros(n, device="meta")
        shape = (n, 4, *([p.actions] if p.spaces.continuous else []))
        assert p.algo.act(p.algo_config, state, obs, legal[:, :4], epsilon, draw).shape == shape
        assert p.algo.greedy(p.algo_config, state, obs, legal[:, :4]).shape == shape


def test_a_frozen_members_update_changes_nothing_of_it(algo: str) -> None:
    p = populations.problem(algo=algo)
    (cohort,) = p.form(first_members(p, 3)[0])
    before = population.dissolve([cohort])
    cohort.healthy[1] = False
    after = updated(p, cohort)
    assert [same(a, b) for a, b in zip(before, after, strict=True)] == [False, True, False]


@pytest.mark.parametrize(("every", "envs"), [(1, 4), (2, 4), (3, 4), (5, 16), (7, 1), (64, 16), (16, 16)])
def test_the_learn_step_is_exact_over_a_generation(algo: str, every: int, envs: int) -> None:
    p = populations.problem(algo=algo, config={"learn_step": every})
    (cohort,) = p.form(first_members(p, 2)[0])
    due = [updates_due(cohort, tick, envs) for tick in range(1000)]
    assert sum(due) == 1000 * envs // every
    for tick in range(1000):
        assert sum(due[: tick + 1]) == (tick + 1) * envs // every
    assert max(due) - min(due) <= 1


def test_members_of_unlike_learn_steps_learn_each_at_their_own(algo: str, run: Callable[..., Online]) -> None:
    p = populations.problem(algo=algo, cohorts="merged", train={**LONG, "learning_delay": 0, "warm_start": 0})
    members = first_members(p, 3)[0]
    steps = (1, 3, 8)
    members = [
        replace(m, hyper={**m.hyper, "learn_step": s, "batch_size": 4}) for m, s in zip(members, steps, strict=True)
    ]
    loop = run(p, members)
    advance(loop, 8)  # 32 rows a member: the padded batch
    first = [float(m.tensors["updates"]) for m in loop.members]
    advance(loop, 60)
    done = [float(m.tensors["updates"]) - n for m, n in zip(loop.members, first, strict=True)]
    assert done == [68 * 4 // s - 8 * 4 // s for s in steps]


def test_every_update_draws_its_own_batch(algo: str, run: Callable[..., Online]) -> None:
    """Two updates in one tick, and the same update in two ticks, must not learn from equal rows."""
    loop = run(populations.problem(algo=algo, train=LONG), 2)
    advance(loop, 20)
    cohort = loop.cohorts[0]
    when = torch.tensor([5 << 13, (5 << 13) + 1, 6 << 13])
    u = rng.uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch)
    rows = loop.replay.sample(cohort.slots, u)
    assert not any(equal(rows[:, i], rows[:, j]) for i, j in ((0, 1), (1, 2), (0, 2)))
    learned, losses = learn(loop.problem, cohort, loop.replay, 5, 2)
    assert torch.isfinite(losses).all()
    assert learned.state.updates.tolist() == (cohort.state.updates + 2).tolist()


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


def test_exploration_goes_from_its_start_to_its_end_and_stays(algo: str) -> None:
    found = algos.get(algo.partition(":")[0])
    if "random_steps" in found.Config.model_fields:  # uniform actions first, then those of the policy
        cfg = found.Config(random_steps=500)
        assert [found.explore(cfg, step) for step in (0, 499, 500, 10**9)] == [1.0, 1.0, 0.0, 0.0]
        return
    if "eps_start" not in found.Config.model_fields:  # made for datasets: as much at every step
        assert len({found.explore(found.Config(), step) for step in (0, 1000, 10**9)}) == 1
        return
    quiet = {"noisy": False} if "noisy" in found.Config.model_fields else {}
    schedules = ("linear", "exponential") if "eps_schedule" in found.Config.model_fields else (None,)
    for schedule in schedules:
        chosen = quiet | ({"eps_schedule": schedule} if schedule else {})
        cfg = found.Config(eps_start=0.8, eps_end=0.1, eps_steps=1000, **chosen)
        rates = [found.explore(cfg, step) for step in (0, 250, 500, 999, 1000, 10**9)]
        assert rates == sorted(rates, reverse=True)
        assert rates[0] == pytest.approx(0.8)
        assert rates[-2:] == pytest.approx([0.1, 0.1])
    assert found.explore(found.Config(eps_start=1.0, eps_end=0.0, eps_steps=100, **quiet), 50) == pytest.approx(0.5)


def test_an_algorithm_that_lacks_a_name_is_refused_with_a_sentence(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = "\n".join(f"{name} = None" for name in algos.REQUIRED if name != "act")
    (tmp_path / "lacking.py").write_text(kept)
    monkeypatch.setattr(algos, "__path__", [*algos.__path__, str(tmp_path)])
    algos.names.cache_clear()
    try:
        assert "lacking" in algos.names()
        with pytest.raises(ImportError) as raised:
            algos.get("lacking")
        assert str(raised.value) == (
            "algos/lacking.py does not define 'act' (actions while training, exploring): every algorithm must"
        )
        with pytest.raises(ParamsError, match="did you mean 'lacking'"):
            algos.get("laking")
    finally:
        algos.names.cache_clear()


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


def test_masks_and_a_warm_start_without_them_do_not_go_together(algo: str) -> None:
    if populations.env_for(algo) == "Pendulum-v1":
        pytest.skip("continuous actions are never masked")
    p = populations.problem("envs_for_tests:Masked-v0", algo=algo)
    row, flag = np.zeros((1, p.observations), np.float32), np.zeros(1, bool)
    warm = Transitions(row, np.zeros(1, np.int64), np.zeros(1, np.float32), flag, flag, row, np.zeros(1, np.int64))
    with pytest.raises(ParamsError, match=r"train\.warm_start: the environment masks actions"):
        Online(p, first_members(p, 2)[0], warm)


def test_mutations_before_training_are_in_the_lineage(algo: str) -> None:
    p = populations.problem(algo=algo, mutation={"before_training": True, "probabilities": ALWAYS_HYPER})
    members, births = first_members(p, 2)
    loop = Online(p, members, None, births)
    assert [child["mutation"]["kind"] for child in loop.lineage[0]["children"]] == ["rl_hp", "rl_hp"]
    loop.close()
