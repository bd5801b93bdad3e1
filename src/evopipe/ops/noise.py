"""Exploration noise for continuous actions, as a function of the draws alone: no state that a checkpoint could miss."""

from __future__ import annotations

import math
from typing import Literal

import torch

from evopipe.rng import Stream
from evopipe.types import Tensor

REMEMBERED = 1e-4  # share of a shock below which an Ornstein-Uhlenbeck process forgets it here
Noise = Literal["gaussian", "ou"]


def gaussian(draw: Stream, shape: tuple[int, ...], sd: float) -> Tensor:
    """Independent normal noise `[P, E, A]` of standard deviation `sd`; shape is (E, A)."""
    return sd * draw.normal(shape[0] * shape[1]).view(-1, *shape)


def ornstein_uhlenbeck(draw: Stream, shape: tuple[int, ...], sd: float, theta: float) -> Tensor:
    """Correlated noise `[P, E, A]` (Uhlenbeck & Ornstein, 1930; Lillicrap et al., 2016): x ← (1 − θ) x + sd · N(0, 1).

    The process is the sum of its past shocks, Σ (1 − θ)ᵏ sd · N_{t−k}, and those can be drawn again: nothing has to be
    kept from step to step. Shocks of which less than `REMEMBERED` is left are left out. The process of an environment
    goes on into its next episode. Theta is in (0, 1].
    """
    steps = 1 if theta == 1.0 else math.ceil(math.log(REMEMBERED) / math.log1p(-theta))
    shocks = draw.normal_window(steps, shape[0] * shape[1])  # [P, K, E · A]
    weights = sd * (1.0 - theta) ** torch.arange(steps, dtype=torch.float32, device=shocks.device)
    return (weights[:, None] * shocks).sum(dim=1).view(-1, *shape)
