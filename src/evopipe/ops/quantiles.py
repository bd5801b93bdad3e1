"""Quantile regression: distributions of returns as values that lie at even shares of the probability."""

from __future__ import annotations

import torch

from evopipe.types import Tensor


def midpoints(quantiles: int, like: Tensor) -> Tensor:
    """Return the N = `quantiles` quantile fractions τᵢ = (2 i − 1) / (2 N), `[N]`, with the type and the device of
    `like`.

    The quantiles at these fractions are the best approximation of a distribution by N equally weighted values, in the
    1-Wasserstein distance (Dabney et al., 2018, lemma 2).
    """
    return (torch.arange(quantiles, dtype=like.dtype, device=like.device) + 0.5) / quantiles


def quantile_huber_loss(theta: Tensor, target: Tensor) -> Tensor:
    """Return the quantile Huber loss `[…]` with κ = 1, of N quantiles against M target samples.

    The quantiles θ are `theta` `[…, N]`, and the samples are `target` `[…, M]`.

    Dabney et al., 2018, eq. 9 and 10 and algorithm 1: Σᵢ (1/M) Σⱼ |τᵢ − 1(uᵢⱼ < 0)| L(uᵢⱼ). Here uᵢⱼ = target_j − θᵢ, L
    is the Huber loss, and the τᵢ are the N fractions of `midpoints`. The loss is a sum over quantiles and a mean over
    targets.
    """
    low, high = torch.broadcast_tensors(theta[..., :, None], target[..., None, :])  # [..., N, M]
    huber = torch.ops.aten.huber_loss.default(low, high, 0)  # as in `value.regression_loss`
    tau = midpoints(theta.shape[-1], theta)[:, None]
    losses: Tensor = ((tau - (high < low).to(theta.dtype)).abs() * huber).mean(dim=-1).sum(dim=-1)
    return losses
