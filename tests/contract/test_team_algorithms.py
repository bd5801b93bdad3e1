"""What every algorithm for teams promises, beside what all algorithms do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.algos import on_policy
from evopipe.core.cohort import COSTS, dissolve
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.run.act import act
from evopipe.run.spec import first_members
from evopipe.types import Batch
from populations import LONG, TICKS, batch_for, draw_at, of_slot, plant_weight, rollout_for, unlike, update, updated

CASES = [case for case in populations.cases(teams=True) if case.id not in {old.id for old in populations.cases()}]
OFF_POLICY = [case for case in CASES if not populations.is_on_policy(str(case.id))]


def of_batch(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """A batch of which every tensor was changed."""
    found = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{name: change(x) for name, x in found.items() if x is not None})


@pytest.mark.parametrize("algo", CASES)
def test_no_update_and_no_action_asks_the_host(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device there are no numbers: `.item()`, `if tensor` and boolean indexing all raise."""
    monkeypatch.setitem(COSTS, "meta", COSTS["cuda"])
    p = replace(unlike(algo, norm=True, cohorts="merged"), device=torch.device("meta"))
    for cohort in p.form(first_members(p, 4)[0]):
        members, k = len(cohort.members), p.spaces.agents
        for masked in (False, not p.spaces.continuous):
            if on_policy(p.algo):
                learn_from_rollout(p, cohort, rollout_for(p, cohort, masked=masked), TICKS, 3)
                continue
            batch = of_batch(batch_for(p, cohort), lambda x: x.to("meta"))
            legal = torch.ones(*batch.reward.shape, p.actions, dtype=torch.bool, device="meta")
            batch = replace(batch, legal=legal, next_legal=legal) if masked else batch
            for turn in range(p.period):
                learned = p.algo.update(
                    p.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy, draw_at(cohort), turn
                )
                assert learned.losses.shape == learned.healthy.shape == (members,)
            obs, epsilon = batch.obs[:, :4].flatten(1, 2), torch.zeros(members, device="meta")
            may = legal[:, :4].flatten(1, 2)
            shape = (members, 4 * k, *([p.actions] if p.spaces.continuous else []))
            assert p.algo.act(p.algo_config, cohort.state, obs, may, epsilon, draw_at(cohort)).shape == shape
            assert p.algo.greedy(p.algo_config, cohort.state, obs, may).shape == shape


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_a_batch_size_by_weights_is_training_on_the_smaller_batch(algo: str) -> None:
    """Brute force: the member's first b transitions alone, in a batch of just that size."""
    p, sizes = populations.problem(algo=algo), (32, 5, 17)
    members = first_members(p, 3)[0]
    members = [replace(m, hyper={**m.hyper, "batch_size": b}) for m, b in zip(members, sizes, strict=True)]
    for i, size in enumerate(sizes):
        (together,), (alone,) = p.form(members), p.form([replace(members[i], slot=0)])
        batch = batch_for(p, together)
        batch = replace(batch, discount=torch.zeros_like(batch.discount))  # draws of a larger batch are other ones
        own = of_batch(batch, lambda x, i=i, size=size: x[i : i + 1, :size])  # type: ignore[misc]
        own = replace(own, weight=torch.full((1, size), 1.0 / size))
        losses = [update(p, cohort, given, 0).losses for cohort, given in ((together, batch), (alone, own))]
        torch.testing.assert_close(losses[0][i], losses[1][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_frozen_and_diverged_members_act_legally_and_the_frozen_at_random(algo: str, run: Callable[..., Any]) -> None:
    loop = run(populations.problem(algo=algo, train=LONG), 3)
    plant_weight(loop, 1)
    cohort, row = of_slot(loop.cohorts, 2)
    cohort.healthy[row] = False
    pool, taken = loop.regime.world.pool, []
    for tick in range(40):
        for epsilon in (0.0, 0.5, 1.0):
            actions = act(loop.spec, loop.cohorts, pool.obs, pool.mask, epsilon, tick)
            if not loop.spec.spaces.continuous:
                assert np.take_along_axis(pool.mask, actions[..., None], -1).all()
            assert np.isfinite(actions).all()
        taken.append(act(loop.spec, loop.cohorts, pool.obs, pool.mask, 0.0, tick).reshape(3, -1)[2])
        loop.advance()
    assert len(np.unique(np.stack(taken), axis=0)) > 10


@pytest.mark.parametrize("algo", CASES)
def test_members_are_unlike_and_so_are_the_networks_of_their_agents(algo: str) -> None:
    p = populations.problem(algo=algo, config={"share": "none"})
    (cohort,) = p.form(first_members(p, 3)[0])
    for name in p.widths:
        rows = [m.tensors[name].chunk(p.widths[name].copies) for m in cohort.members]
        every = [row for own in rows for row in own]
        assert not any(torch.equal(a, b) for i, a in enumerate(every) for b in every[:i])
    assert all(float(m.tensors["updates"]) > 0 for m in updated(p, cohort, 2))
    assert not any(
        torch.equal(old.tensors["actor"], new.tensors["actor"])
        for old, new in zip(cohort.members, dissolve([cohort]), strict=True)
    )
