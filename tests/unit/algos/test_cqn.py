"""Conservative Q-learning: its term by hand, and what it is for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.algos import cqn, dqn
from evopipe.core.cohort import Cohort
from evopipe.core.net import Net
from evopipe.data.transitions import Transitions
from evopipe.ops.value import conservative_gap
from evopipe.problems.env import begin
from evopipe.run.spec import first_members
from evopipe.types import Batch

pytestmark = pytest.mark.numerical

MEMBERS, BATCH = 3, 32


def doubled(net: Net) -> Net:
    """The same network in float64, moved a little away from its start so that targets and values differ."""
    return replace(net, values=net.values.double() * 1.5, trainable=False)


def example(algo: str = "cqn", **config: Any) -> tuple[Any, Cohort, Batch]:
    """A problem, its cohort with networks in float64, and random transitions, some terminal."""
    p = populations.problem(algo=algo, config=config)
    (cohort,) = p.form(first_members(p, MEMBERS)[0])
    g = torch.Generator().manual_seed(7)
    q, target = cohort.state.q, cohort.state.target
    state = replace(cohort.state, q=doubled(q), target=replace(target, values=target.values.double() * 0.7))
    shape = (MEMBERS, BATCH)
    batch = Batch(
        obs=torch.randn(*shape, p.observations, generator=g).double(),
        action=torch.randint(p.actions, shape, generator=g),
        reward=torch.randn(*shape, generator=g).double(),
        discount=(0.9 * (torch.rand(*shape, generator=g) > 0.3)).double(),
        next_obs=torch.randn(*shape, p.observations, generator=g).double(),
        next_legal=None,
        weight=(torch.rand(*shape, generator=g) / BATCH).double(),
    )
    return p, replace(cohort, state=state), batch


def test_the_gap_of_a_hand_computed_example() -> None:
    q = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    whole = math.log(math.e + math.e**2 + math.e**3)
    for action in range(3):
        assert float(conservative_gap(q, torch.tensor(action))) == pytest.approx(whole - (action + 1.0), abs=1e-12)


def test_the_gap_sums_over_legal_actions_and_leaves_the_others_alone() -> None:
    q = torch.tensor([1.0, 200.0, 3.0], dtype=torch.float64, requires_grad=True)
    gap = conservative_gap(q, torch.tensor(0), torch.tensor([True, False, True]))
    assert float(gap.detach()) == pytest.approx(math.log(math.e + math.e**3) - 1.0, abs=1e-12)
    gap.backward()
    other = math.e**3 / (math.e + math.e**3)
    torch.testing.assert_close(q.grad, torch.tensor([-other, 0.0, other], dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_gap_pushes_up_the_datasets_action_alone() -> None:
    q = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    conservative_gap(q, torch.tensor([1])).sum().backward()
    expected = torch.softmax(q.detach(), dim=-1) - torch.tensor([[0.0, 1.0, 0.0]])
    torch.testing.assert_close(q.grad, expected, rtol=0, atol=1e-12)


def test_without_the_term_it_is_deep_q_learning() -> None:
    p, cohort, batch = example()
    other = populations.problem(algo="dqn")
    mine, _ = cqn.loss(p.algo_config, cohort.state, {"alpha": torch.zeros(MEMBERS)}, batch)
    theirs, _ = dqn.loss(other.algo_config, dqn.State(*vars(cohort.state).values()), {}, batch)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(("alpha", "believed"), [(0.0, True), (1.0, False)])
def test_an_action_that_the_data_does_not_know_is_not_believed_to_be_good(alpha: float, believed: bool) -> None:
    """A thousand transitions of action 0, all with reward −1: without the term the unseen action looks better."""
    g = np.random.default_rng(0)
    n = 1000
    obs = g.normal(size=(n, 4)).astype(np.float32)
    ends = np.ones(n, bool)
    data = Transitions(
        obs, np.zeros(n, np.int64), np.full(n, -1.0, np.float32), ends, ~ends, obs, np.arange(n, dtype=np.int64)
    )
    config = {"alpha": alpha, "learn_step": 1, "lr": 3e-3}
    p = populations.problem(
        algo="cqn", train={"mode": "offline", "max_steps": 10**6, "evo_steps": 10**6}, config=config
    )
    loop = begin(p, first_members(p, 2)[0], data)
    for _ in range(100):
        loop.advance()
    for cohort in loop.cohorts:
        q = p.algo.values(p.algo_config, cohort.state, torch.from_numpy(obs[:200]).expand(len(cohort.slots), -1, -1))
        assert ((q[..., 1] > q[..., 0]).float().mean() > 0.9) == believed
    loop.close()
