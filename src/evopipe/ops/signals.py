"""Signals of learning: what a minibatch tells of members beside their losses, by the names that trackers show.

All results are `[P]` float64. Sums are in double precision, so that pads of a minibatch, whose weight is 0, and a
member's neighbours change no digit that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evopipe.types import Tensor

_DORMANT = 0.025  # of a layer's mean activity, from where on a unit counts


def mean(weight: Tensor, x: Tensor) -> Tensor:
    """Return the weighted mean of x `[P, …]` with weights `[P, …]`, which need not sum to 1. Numbers of weight 0 do not
    count, whatever they are; NaN where nothing counts."""
    total = weight.double().flatten(1)
    each = x.detach().double().flatten(1).masked_fill(total == 0, 0.0)
    return (total * each).sum(dim=1) / total.sum(dim=1)


def largest(weight: Tensor, x: Tensor) -> Tensor:
    """Return the largest of x `[P, …]` that counts."""
    return x.detach().double().flatten(1).masked_fill(weight.flatten(1) == 0, -float("inf")).amax(dim=1)


def deviation(weight: Tensor, x: Tensor) -> Tensor:
    """Return the standard deviation of x `[P, …]`, weighted."""
    middle = mean(weight, x).view(-1, *[1] * (x.ndim - 1))
    return mean(weight, (x.double() - middle).square()).sqrt()


def explained_variance(weight: Tensor, value: Tensor, target: Tensor) -> Tensor:
    """Return 1 − Var(target − value) / Var(target), weighted: 1 for perfect values, 0 for a constant, below 0 for
    values that are worse than a constant. NaN where all targets are equal."""
    unexplained = deviation(weight, target.double() - value.double()).square()
    total = deviation(weight, target).square()
    return 1.0 - unexplained / total.masked_fill(total == 0, float("nan"))


def dormant(activity: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    """Return the share of dormant units among those that members have: units whose mean size is at most 0.025 of their
    layer's mean (Sokar et al., "The dormant neuron phenomenon in deep reinforcement learning", 2023).

    Given are, of each layer, the mean size of every unit `[P, H]`, and which units a member has, `[P, 1, H]`, or None.
    """
    idle, count = 0.0, 0.0
    for size, mask in activity:
        there = torch.ones_like(size, dtype=torch.bool) if mask is None else (mask[:, 0] > 0).expand_as(size)
        units = there.sum(dim=1, keepdim=True)
        usual = (size * there).double().sum(dim=1, keepdim=True) / units.clamp(min=1)
        idle = idle + (there & (size <= _DORMANT * usual)).double().sum(dim=1)
        count = count + units[:, 0].double()
    return torch.as_tensor(idle / count)


def of_values(weight: Tensor, q: Tensor, q_minus: Tensor | None = None) -> dict[str, Tensor]:
    """Return signals of the values of the actions taken, `[P, B]`, and of the target network's."""
    found = {"losses/q_values": mean(weight, q), "losses/q_values_max": largest(weight, q)}
    return found if q_minus is None else found | {"losses/target_gap": mean(weight, (q - q_minus).abs())}


def of_policy(
    weight: Tensor, log_ratio: Tensor, advantage: Tensor, clip: Tensor, entropy: Tensor
) -> dict[str, Tensor]:  # fmt: skip
    """Return signals of a clipped policy gradient (Schulman et al., 2017).

    The divergence from the old policy is estimated by ρ − 1 − log ρ (Schulman, "Approximating KL divergence", 2020).

    Args:
        weight: `[P, n]`.
        log_ratio: `[P, n]`, log ρ, of the policy to the one that acted.
        advantage: `[P, n]`, as the loss has it.
        clip: `[P]`, ε.
        entropy: `[P, n]`.
    """
    ratio, limit = log_ratio.double().exp(), clip.double()[:, None]
    gain = (ratio * advantage).minimum(ratio.clamp(1.0 - limit, 1.0 + limit) * advantage)
    return {
        "losses/policy_loss": -mean(weight, gain),
        "losses/entropy": mean(weight, entropy),
        "losses/approx_kl": mean(weight, ratio - 1.0 - log_ratio),
        "losses/clipfrac": mean(weight, ((ratio - 1.0).abs() > limit).double()),
    }
