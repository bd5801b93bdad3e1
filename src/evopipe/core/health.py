"""Health: which members may still learn, be parents, be elite."""

from __future__ import annotations

import torch

from evopipe.core.net import Net


def after_backward(healthy: torch.Tensor, losses: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
    """Return which members `[P]` may take the step: healthy before, with finite loss `[P]` and gradient norm `[P]`."""
    return healthy & ((losses + norms).abs() < torch.inf)


def of_parameters(*nets: Net) -> torch.Tensor:
    """Return which members `[P]` have only finite parameters. A sum is NaN or infinite where one number is."""
    first, *rest = (torch.isfinite(net.values.sum(dim=1)) for net in nets)
    for finite in rest:
        first = first & finite
    return first
