"""Distributions of actions."""

from __future__ import annotations

import math

import torch

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


def squashed_gaussian(
    mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a = tanh(u), u = mean + exp(log_std) · noise, and return its log-density (Haarnoja et al., 2018, app. C).

    log π(a) = log N(u) − Σ log(1 − tanh²u), the latter as 2 (log 2 − u − softplus(−2u)), which cannot overflow.

    Args:
        mean: `[…, A]`.
        log_std: `[…, A]`.
        noise: `[…, A]`, standard normal.

    Returns:
        Actions `[…, A]` in (−1, 1) and log-densities `[…]`.
    """
    u = mean + log_std.exp() * noise
    normal = -0.5 * noise * noise - log_std - 0.5 * math.log(2.0 * math.pi)
    jacobian = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
    return torch.tanh(u), (normal - jacobian).sum(dim=-1)


def masked_log_softmax(logits: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Return log-probabilities `[…, A]`, the lowest number there is where `legal` (bool, or None) says no."""
    if legal is not None:
        logits = logits.masked_fill(~legal, torch.finfo(logits.dtype).min)
    return logits.log_softmax(dim=-1)
