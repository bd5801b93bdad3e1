"""The mathematics, against values computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evopipe.ops.policy import epsilon_greedy, random_legal
from evopipe.ops.statistics import mean_of_finite, standard_error, summary
from evopipe.ops.value import masked_argmax, pick, q_target, regression_loss
from evopipe.rng import Purpose, Stream

pytestmark = pytest.mark.numerical

Q_TARGET = torch.tensor([[1.0, 5.0, 3.0], [2.0, 0.0, -1.0]])
Q_ONLINE = torch.tensor([[9.0, 0.0, 4.0], [0.0, 7.0, 1.0]])
REWARD = torch.tensor([1.0, -2.0])


def test_plain_q_learning_bootstraps_from_the_targets_own_maximum() -> None:
    y = q_target(REWARD, torch.tensor([0.5, 0.5]), Q_TARGET, Q_TARGET)
    assert y.tolist() == [1 + 0.5 * 5, -2 + 0.5 * 2]


def test_double_q_learning_bootstraps_from_the_online_networks_choice() -> None:
    y = q_target(REWARD, torch.tensor([0.5, 0.5]), Q_TARGET, Q_ONLINE)
    assert y.tolist() == [1 + 0.5 * 1, -2 + 0.5 * 0]


def test_a_terminated_transition_does_not_bootstrap() -> None:
    terminated = torch.tensor([1.0, 0.0])
    assert q_target(REWARD, 0.5 * (1 - terminated), Q_TARGET, Q_TARGET).tolist() == [1.0, -1.0]


@pytest.mark.parametrize(("selector", "expected"), [(Q_TARGET, [2.5, -3 + 0.5]), (Q_ONLINE, [2.5, -3 + 0.5])])
def test_illegal_actions_are_never_bootstrapped_from(selector: torch.Tensor, expected: list[float]) -> None:
    legal = torch.tensor([[False, False, True], [False, False, True]])
    y = q_target(REWARD, torch.tensor([0.5, 0.5]), Q_TARGET, selector, legal)
    assert y.tolist() == [1 + 0.5 * 3, -2 + 0.5 * -1]
    assert expected == y.tolist()


def test_where_no_action_is_legal_the_target_stays_finite() -> None:
    y = q_target(REWARD, torch.zeros(2), Q_TARGET, Q_ONLINE, torch.zeros(2, 3, dtype=torch.bool))
    assert y.tolist() == REWARD.tolist()


@pytest.mark.parametrize(
    ("error", "huber", "mse"),
    [(0.0, 0.0, 0.0), (0.5, 0.125, 0.125), (-1.0, 0.5, 0.5), (3.0, 2.5, 4.5), (-3.0, 2.5, 4.5)],
)
def test_losses_by_hand(error: float, huber: float, mse: float) -> None:
    assert float(regression_loss(torch.tensor(error + 2), torch.tensor(2.0), huber=True)) == huber
    assert float(regression_loss(torch.tensor(error + 2), torch.tensor(2.0), huber=False)) == mse


def test_losses_pull_towards_zero_error() -> None:
    for huber, slope in ((True, 1.0), (False, 3.0)):
        error = torch.tensor(3.0, requires_grad=True)
        regression_loss(error, torch.tensor(0.0), huber).backward()
        assert error.grad is not None
        assert float(error.grad) == slope


def test_pick_and_masked_argmax() -> None:
    assert pick(Q_TARGET, torch.tensor([2, 0])).tolist() == [3.0, 2.0]
    assert masked_argmax(Q_TARGET).tolist() == [1, 0]
    legal = torch.tensor([[True, False, True], [False, True, True]])
    assert masked_argmax(Q_TARGET, legal).tolist() == [2, 1]
    assert masked_argmax(torch.full((2, 3), -3.4e38), legal).tolist() == [0, 1]


def test_random_actions_are_legal_and_uniform() -> None:
    n = 60_000
    legal = torch.tensor([[True, False, True, False, True]])
    u = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(random_legal(u, legal.expand(n, -1)), minlength=5)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert ((counts[[0, 2, 4]] - n / 3).abs() < 5 * (n * 2 / 9) ** 0.5).all()


def test_the_ends_of_the_unit_interval_give_the_first_and_the_last_legal_action() -> None:
    legal = torch.tensor([False, True, True, False])
    assert random_legal(torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64), legal.expand(2, -1)).tolist() == [1, 2]


def test_epsilon_greedy_explores_as_often_as_epsilon_says() -> None:
    members, envs = 4, 40_000
    epsilon = torch.tensor([0.0, 0.1, 0.5, 1.0])
    q = torch.tensor([0.0, 2.0, 9.0, 1.0]).expand(members, envs, -1)
    legal = torch.tensor([True, True, False, True]).expand(members, envs, -1)
    actions = epsilon_greedy(q, legal, epsilon, Stream(torch.arange(members), Purpose.ACT, torch.tensor([1])))
    assert not actions.eq(2).any()
    greedy = actions.eq(1).double().mean(dim=1)
    expected = 1 - epsilon.double() * 2 / 3
    assert greedy[0] == 1.0
    assert ((greedy - expected).abs() < 0.015).all()


def summarised(x: np.ndarray, resamples: int, rng: np.random.Generator | None = None) -> dict[str, Any]:
    return summary(x, np.ones(len(x), np.int64), resamples, rng or np.random.default_rng(0))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3, 4], 2.5),
        ([100, 2, 3, -50], 2.5),
        ([1, 2, 3, 4, 5, 6, 7, 80], 4.5),
        ([1, 2, 3, 4, 5], (0.75 * 2 + 3 + 0.75 * 4) / 2.5),  # what is inside [1.25, 3.75] of 5
        ([0, 10, 11], (0.25 * 0 + 10 + 0.25 * 11) / 1.5),
        ([7], 7.0),
    ],
)
def test_the_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert summarised(np.array(values, np.float64), 1)["iqm"] == pytest.approx(expected)


def test_the_interquartile_mean_is_the_trimmed_mean_where_quarters_are_whole() -> None:
    x = np.random.default_rng(0).normal(size=400)
    assert summarised(x, 1)["iqm"] == pytest.approx(np.sort(x)[100:300].mean())


def test_the_bootstrap_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        low, high = summarised(rng.normal(3.0, 2.0, 40), 300, rng)["interval"]
        assert low < high
        hits += low <= 3.0 <= high
    assert 0.90 <= hits / 400 <= 0.98


def test_the_bootstrap_interval_is_about_two_standard_errors_wide_each_side() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=100)
    low, high = summarised(x, 4000, rng)["interval"]
    assert (high - low) / (2 * standard_error(x)) == pytest.approx(1.96, rel=0.1)


def test_the_mean_of_what_is_finite_by_hand() -> None:
    assert mean_of_finite(np.array([np.nan, 1.0, 2.0, np.inf, 9.0, -np.inf])) == 4.0
    assert np.isnan(mean_of_finite(np.array([np.inf, np.nan])))


def test_the_standard_error_by_hand() -> None:
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1.0)
    assert standard_error(np.array([5.0])) == 0.0
