"""Quantile regression: distributions of returns as values that lie at even shares of the probability."""

from __future__ import annotations

import torch

from evopipe.types import Tensor


def midpoints(quantiles: int, like: Tensor) -> Tensor:
    """Return the shares τᵢ = (2 i − 1) / (2 N), `[N]`, whose values are the best N of equal weight for a distribution
    (Dabney et al., 2018, lemma 2), with the type and the device of `like`."""
    return (torch.arange(quantiles, dtype=like.dtype, device=like.device) + 0.5) / quantiles


def quantile_huber_loss(theta: Tensor, target: Tensor) -> Tensor:
    """Return the quantile Huber loss, κ = 1, of values θ `[…, N]` at the midpoints against targets `[…, M]`: `[…]`.

    Dabney et al., 2018, eq. 9 and 10 and algorithm 1: Σᵢ (1/M) Σⱼ |τᵢ − 1(uᵢⱼ < 0)| L(uᵢⱼ), where uᵢⱼ = target_j − θᵢ,
    and L is the Huber loss: a sum over the quantiles, a mean over the targets.
    """
    low, high = torch.broadcast_tensors(theta[..., :, None], target[..., None, :])  # [..., N, M]
    huber = torch.ops.aten.huber_loss.default(low, high, 0)  # as in `value.regression_loss`
    tau = midpoints(theta.shape[-1], theta)[:, None]
    losses: Tensor = ((tau - (high < low).to(theta.dtype)).abs() * huber).mean(dim=-1).sum(dim=-1)
    return losses
