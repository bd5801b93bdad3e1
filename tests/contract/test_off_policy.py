"""What every algorithm of the registry promises that learns from a replay memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe import algos, rng
from evopipe.core.cohort import COSTS, dissolve
from evopipe.data.transitions import Transitions
from evopipe.errors import ParamsError
from evopipe.problems.env import begin
from evopipe.regimes.learn import discount_rate, learn, updates_due
from evopipe.rng import Purpose
from evopipe.run.act import act
from evopipe.run.spec import first_members
from evopipe.types import Batch
from populations import LONG, advance, batch_for, draw_at, equal, of_slot, plant_weight, same, unlike, update, updated

pytestmark = pytest.mark.parametrize("algo", populations.cases(on_policy=False))


def test_non_finite_rows_never_enter_a_shared_replay(algo: str, run: Callable[..., Any]) -> None:
    for env in ("NanReward", "NanObs", "HugeObs"):
        p = populations.problem(
            f"envs_for_tests:{env}-v0", algo, train={**LONG, "replay": {"capacity": 500, "sharing": "shared"}}
        )
        loop = run(p, 3)
        advance(loop, 30)
        assert loop.clock.broken > 0
        assert torch.isfinite(loop.regime.replay.rows).all()
        assert all(m.healthy and torch.isfinite(m.tensors[p.algo.POLICY]).all() for m in loop.members)
        assert loop.clock.env_steps == 30 * loop.regime.world.pool.rows


@pytest.mark.thorough
def test_a_neighbours_broken_transitions_delay_nobody(algo: str, run: Callable[..., Any]) -> None:
    """Members lose unlike numbers of transitions: each still begins to learn at the same step as alone."""
    train = {**LONG, "learning_delay": 0}
    config: dict[str, Any] = {"batch_size": 64}
    if "epsilon" in algos.get(algo.partition(":")[0]).Config.model_fields:  # so that members act unlike
        config["epsilon"] = 0.5
    p = populations.problem("envs_for_tests:NanReward-v0", algo, config=config, train=train, seed=2)
    crowd = run(p, 6)
    advance(crowd, 25)
    assert len(set(crowd.regime.replay.size.tolist())) > 1
    for slot in (0, 4):
        one = run(p, [populations.alone(p, slot)])
        advance(one, 25)
        assert same(one.members[0], crowd.members[slot])


def test_a_memory_smaller_than_a_batch_still_teaches(algo: str, run: Callable[..., Any]) -> None:
    p = populations.problem(algo=algo, train={**LONG, "replay": {"capacity": 20, "sharing": "own"}})
    loop = run(p, 2)
    advance(loop, 30)
    assert all(float(m.tensors["updates"]) > 10 for m in loop.members)


def test_frozen_and_diverged_members_act_legally(algo: str, run: Callable[..., Any]) -> None:
    env = "Chain" if populations.env_for(algo) == "Pendulum-v1" else "Masked"  # only discrete actions are masked
    loop = run(populations.problem(f"envs_for_tests:{env}-v0", algo, train=LONG), 4)
    plant_weight(loop, 1)
    plant_weight(loop, 2)
    cohort, row = of_slot(loop.cohorts, 2)
    cohort.healthy[row] = False
    for tick in range(30):
        for epsilon in (0.0, 0.5, 1.0):
            actions = act(
                loop.spec, loop.cohorts, loop.regime.world.pool.obs, loop.regime.world.pool.mask, epsilon, tick
            )
            if env == "Masked":
                assert np.take_along_axis(loop.regime.world.pool.mask, actions[:, None], 1).all()
            assert (np.abs(actions) <= 1).all()
        loop.advance()
    assert loop.regime.world.pool.mask.all() == (env == "Chain")


def test_a_frozen_member_explores_at_random(algo: str, run: Callable[..., Any]) -> None:
    quiet = {"rainbow": {"noisy": False}, "neural_ts": {"exploration": 0.0}}.get(algo, {})
    loop = run(populations.problem(algo=algo, train=LONG, config=quiet), 2)
    cohort, row = of_slot(loop.cohorts, 1)
    cohort.healthy[row] = False
    taken = [
        act(loop.spec, loop.cohorts, loop.regime.world.pool.obs, loop.regime.world.pool.mask, 0.0, t).reshape(2, -1)
        for t in range(50)
    ]
    actions = np.stack(taken)  # [T, P, E]
    if loop.spec.algo.values is not None:  # without exploration it acts by these alone
        assert len(np.unique(actions[:, 0], axis=0)) == 1
    middle = 0.0 if loop.spec.spaces.continuous else 0.5
    assert abs(actions[:, 1].mean() - middle) < 0.2
    assert (actions[:, 1].std(axis=0) > 0.3).all(), "in every environment, over time"


@pytest.fixture
def precise(algo: str) -> Iterator[None]:
    """In double precision where batches are normalised. There the gradient of a bias whose unit's activation is linear
    over a minibatch is 0, and Adam makes a step of what rounding leaves of it."""
    renormalised = any(widths.renorm for widths in populations.problem(algo=algo).widths.values())
    torch.set_default_dtype(torch.float64 if renormalised else torch.float32)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("precise")
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
        for j in range(5):
            full = batch_for(p, cohort, j)
            own = Batch(
                full.obs[i : i + 1, :size], full.action[i : i + 1, :size], full.reward[i : i + 1, :size],
                full.discount[i : i + 1, :size] * discount_rate(alone), full.next_obs[i : i + 1, :size], None,
                torch.full((1, size), 1.0 / size),
            )  # fmt: skip
            update(p, alone, own, j)
        (member,) = dissolve([alone])
        for name, tensor in member.tensors.items():
            # Adam takes a gradient near its ε for a step of any size: a hundredth of a step is left to rounding.
            torch.testing.assert_close(together[i].tensors[name], tensor, rtol=1e-4, atol=1e-5)


def test_update_never_asks_the_host(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device there are no numbers: `.item()`, `.tolist()`, `if tensor` and boolean indexing all raise, as
    they would break the capture of a CUDA graph."""
    monkeypatch.setitem(COSTS, "meta", COSTS["cuda"])
    p = replace(unlike(algo, norm=True, cohorts="merged"), device=torch.device("meta"))
    for cohort in p.form(first_members(p, 6)[0]):
        batch = batch_for(p, cohort)
        names = ("obs", "action", "reward", "discount", "next_obs", "weight")
        batch = replace(batch, **{name: getattr(batch, name).to("meta") for name in names})
        legal = torch.ones(len(cohort.members), cohort.batch, p.actions, dtype=torch.bool, device="meta")
        for given in (batch, replace(batch, next_legal=legal, legal=legal)):
            draw = draw_at(cohort)
            learned = p.algo.update(p.algo_config, cohort.state, cohort.hyper, given, cohort.healthy, draw, 0)
            assert learned.losses.shape == learned.healthy.shape == (len(cohort.members),)
        n = len(cohort.members)
        obs, epsilon = torch.zeros(n, 4, p.observations, device="meta"), torch.zeros(n, device="meta")
        shape = (n, 4, *([p.actions] if p.spaces.continuous else []))
        assert p.algo.act(p.algo_config, cohort.state, obs, legal[:, :4], epsilon, draw).shape == shape
        assert p.algo.greedy(p.algo_config, cohort.state, obs, legal[:, :4]).shape == shape


@pytest.mark.parametrize(("every", "envs"), [(1, 4), (2, 4), (3, 4), (5, 16), (7, 1), (64, 16), (16, 16)])
def test_the_learn_step_is_exact_over_a_generation(algo: str, every: int, envs: int) -> None:
    p = populations.problem(algo=algo, config={"learn_step": every})
    (cohort,) = p.form(first_members(p, 2)[0])
    due = [updates_due(cohort, tick, envs) for tick in range(1000)]
    assert sum(due) == 1000 * envs // every
    for tick in range(1000):
        assert sum(due[: tick + 1]) == (tick + 1) * envs // every
    assert max(due) - min(due) <= 1


@pytest.mark.thorough
def test_members_of_unlike_learn_steps_learn_each_at_their_own(algo: str, run: Callable[..., Any]) -> None:
    train = {**LONG, "learning_delay": 0, "warm_start": 0, "replay": {"updates": 2}}
    p = populations.problem(algo=algo, cohorts="merged", train=train)
    members = first_members(p, 3)[0]
    steps = (1, 3, 8)
    members = [
        replace(m, hyper={**m.hyper, "learn_step": s, "batch_size": 4}) for m, s in zip(members, steps, strict=True)
    ]
    loop = run(p, members)
    advance(loop, 8)  # 32 rows a member: the padded batch
    first = [float(m.tensors["updates"]) for m in loop.members]
    advance(loop, 30)
    done = [float(m.tensors["updates"]) - n for m, n in zip(loop.members, first, strict=True)]
    assert done == [2 * (38 * 4 // s - 8 * 4 // s) for s in steps]


@pytest.mark.parametrize("each", [2, 5])
def test_the_pattern_of_unlike_updates_goes_on_however_many_come_at_once(
    algo: str, each: int, run: Callable[..., Any]
) -> None:
    p = populations.problem(algo=algo, config={"learn_step": 3}, train={**LONG, "replay": {"updates": each}})
    loop, before = run(p, 2), 0
    for loop.clock.here in range(20):
        ((updates, turn, *_),) = loop.regime.learning.due()
        assert turn == before % p.period
        before += updates
    assert before == 20 * 4 // 3 * each


def test_every_update_draws_its_own_batch(algo: str, run: Callable[..., Any]) -> None:
    """Two updates in one tick, and the same update in two ticks, must not learn from equal rows."""
    loop = run(populations.problem(algo=algo, train=LONG), 2)
    advance(loop, 20)
    cohort = loop.cohorts[0]
    when = torch.tensor([5 << 13, (5 << 13) + 1, 6 << 13])
    u = rng.uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch)
    rows = loop.regime.replay.sample(cohort.slots, u)
    assert not any(equal(rows[:, i], rows[:, j]) for i, j in ((0, 1), (1, 2), (0, 2)))
    before = cohort.state.updates.clone()
    losses = learn(loop.spec, cohort, loop.regime.replay, 5, 2)
    assert torch.isfinite(losses).all()
    assert cohort.state.updates.tolist() == (before + 2).tolist()


def test_masks_and_a_warm_start_without_them_do_not_go_together(algo: str) -> None:
    if populations.env_for(algo) == "Pendulum-v1":
        pytest.skip("continuous actions are never masked")
    p = populations.problem("envs_for_tests:Masked-v0", algo=algo)
    row, flag = np.zeros((1, p.observations), np.float32), np.zeros(1, bool)
    warm = Transitions(row, np.zeros(1, np.int64), np.zeros(1, np.float32), flag, flag, row, np.zeros(1, np.int64))
    with pytest.raises(ParamsError, match=r"train\.warm_start: the environment masks actions"):
        begin(p, first_members(p, 2)[0], warm)
