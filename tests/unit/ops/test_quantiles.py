"""Quantile regression, against the equations of Dabney et al. (2018), one pair of numbers at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evopipe.ops.quantiles import midpoints, quantile_huber_loss

pytestmark = pytest.mark.numerical


def of_a_pair(tau: float, u: float) -> tuple[float, float]:
    """ρ(u) of eq. 10 with κ = 1, and what it changes by as u grows."""
    share = abs(tau - (u < 0))
    return (share * 0.5 * u * u, share * u) if abs(u) <= 1 else (share * (abs(u) - 0.5), share * np.sign(u))


def by_the_paper(theta: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss of one distribution, algorithm 1, and its gradient `[N]`."""
    n, m, loss, gradient = len(theta), len(target), 0.0, np.zeros(len(theta))
    for i in range(1, n + 1):
        for j in range(m):
            rho, slope = of_a_pair((2 * i - 1) / (2 * n), target[j] - theta[i - 1])
            loss += rho / m
            gradient[i - 1] -= slope / m
    return loss, gradient


@pytest.mark.parametrize("seed", range(20))
def test_loss_and_gradient_are_the_papers_pair_by_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, n, m = (int(each) for each in rng.integers(1, (7, 40, 40)))
    theta, target = (rng.normal(0, 10.0 ** rng.uniform(-2, 2), (2, rows, size)) for size in (n, m))
    given = torch.from_numpy(theta).requires_grad_()
    losses = quantile_huber_loss(given, torch.from_numpy(target))
    assert losses.shape == (2, rows)
    losses.sum().backward()
    assert given.grad is not None
    for at in np.ndindex(2, rows):
        loss, gradient = by_the_paper(theta[at], target[at])
        np.testing.assert_allclose(float(losses[at].detach()), loss, rtol=1e-10)
        np.testing.assert_allclose(given.grad[at].numpy(), gradient, rtol=1e-10, atol=1e-12)


def test_midpoints_halve_even_shares() -> None:
    assert midpoints(1, torch.zeros(1)).tolist() == [0.5]
    assert midpoints(4, torch.zeros(1)).tolist() == [0.125, 0.375, 0.625, 0.875]
    assert midpoints(4, torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


def test_one_quantile_is_half_the_huber_loss() -> None:
    theta, target = torch.tensor([[0.0], [0.0], [0.0]]), torch.tensor([[0.5], [-1.0], [-3.0]])
    assert quantile_huber_loss(theta, target).tolist() == [0.0625, 0.25, 1.25]


@pytest.mark.thorough
def test_descent_finds_the_quantiles_of_what_is_seen() -> None:
    """Of numbers far apart, so that the Huber loss is all but its limit |u|: then the best θ are sample quantiles."""
    seen = 1000.0 * torch.from_numpy(np.random.default_rng(0).gamma(2.0, size=4001))
    theta = torch.full((5,), 1000.0, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([theta], lr=20.0)
    for step in range(2000):
        adam.param_groups[0]["lr"] = 20.0 * (1 - step / 2000)
        adam.zero_grad()
        quantile_huber_loss(theta, seen).backward()
        adam.step()
    expected = torch.quantile(seen, midpoints(5, seen))
    torch.testing.assert_close(theta.detach(), expected, rtol=1e-2, atol=5.0)


def test_a_target_that_is_no_number_stays_with_its_row() -> None:
    target = torch.tensor([[0.0, torch.nan], [1.0, 2.0]])
    losses = quantile_huber_loss(torch.zeros(2, 3), target)
    assert losses[0].isnan()
    assert losses[1].isfinite()
