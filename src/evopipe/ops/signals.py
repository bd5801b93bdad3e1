"""Signals of learning: what a minibatch tells of members beside their losses, by the names that trackers show.

All results are `[P]` float64. Sums are in double precision, so that pads of a minibatch, whose weight is 0, and a
member's neighbours change no digit that is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from evopipe.types import Tensor

_DORMANT = 0.025  # of a layer's mean activity, from where on a unit counts


def means(weight: Tensor, *x: Tensor) -> Tensor:
    """Return the weighted means `[P, k]` of several quantities `[P, …]`, with weights `[P, …]` of any sum.

    Numbers of weight 0 do not count, whatever they are; the mean is NaN where nothing counts.
    """
    share = weight.detach().double().flatten(1)[:, None]  # [P, 1, n]
    each = torch.stack([one.detach().double().flatten(1) for one in x], dim=1)  # [P, k, n]
    return (share * each.masked_fill(share == 0, 0.0)).sum(dim=2) / share.sum(dim=2)


def mean(weight: Tensor, x: Tensor) -> Tensor:
    """Return the weighted mean of one quantity, see `means`."""
    return means(weight, x)[:, 0]


def largest(weight: Tensor, x: Tensor) -> Tensor:
    """Return the largest of x `[P, …]` that counts."""
    return x.detach().double().flatten(1).masked_fill(weight.flatten(1) == 0, -float("inf")).amax(dim=1)


def deviations(weight: Tensor, *x: Tensor) -> Tensor:
    """Return the weighted standard deviations of several quantities `[P, …]`: `[P, k]`."""
    flat = [one.detach().double().flatten(1) for one in x]
    middle = means(weight, *flat)
    return means(weight, *((one - middle[:, i, None]).square() for i, one in enumerate(flat))).sqrt()


def of_rollout(weight: Tensor, value: Tensor, target: Tensor, advantage: Tensor) -> dict[str, Tensor]:
    """Return signals of a rollout's steps `[P, n]`: the deviation of advantages, and the explained variance of values,
    1 − Var(target − value) / Var(target): 1 for perfect values, 0 for a constant, below 0 for worse than a constant,
    NaN where all targets are equal."""
    apart, total, spread = deviations(weight, target.double() - value.double(), target, advantage).unbind(dim=1)
    explained = 1.0 - (apart / total.masked_fill(total == 0, float("nan"))).square()
    return {"losses/explained_variance": explained, "losses/advantage_std": spread}


def dormant(activity: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    """Return the share of dormant units among those that members have: units whose mean size is at most 0.025 of their
    layer's mean (Sokar et al., "The dormant neuron phenomenon in deep reinforcement learning", 2023).

    Given are, of each layer, the mean size of every unit `[P, H]`, and which units a member has, `[P, 1, H]`, or None.
    """
    idle, count = [], []
    for size, mask in activity:
        there = torch.ones_like(size, dtype=torch.bool) if mask is None else (mask[:, 0] > 0).expand_as(size)
        units = there.sum(dim=1, keepdim=True)
        usual = (size * there).double().sum(dim=1, keepdim=True) / units.clamp(min=1)
        idle.append((there & (size <= _DORMANT * usual)).sum(dim=1))
        count.append(units[:, 0])
    return torch.stack(idle, dim=1).sum(dim=1).double() / torch.stack(count, dim=1).sum(dim=1)


def of_values(weight: Tensor, q: Tensor, q_minus: Tensor) -> dict[str, Tensor]:
    """Return signals of the values of the actions taken, `[P, B]`, and of the target network's."""
    value, gap = means(weight, q, (q - q_minus).abs()).unbind(dim=1)
    return {"losses/q_values": value, "losses/q_values_max": largest(weight, q), "losses/target_gap": gap}


def agent_names(agents: Sequence[str]) -> list[str]:
    """Return agents' names as signals have them: with letters, digits, `_`, `.` and `-` alone, as trackers demand."""
    found = [re.sub(r"[^A-Za-z0-9_.-]", "_", agent) for agent in agents]
    return found if len({*found}) == len(found) else [f"{name}_{place}" for place, name in enumerate(found)]


def of_agents(agents: Sequence[str], weight: Tensor, quantities: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weighted mean of each quantity `[P, K, …]` of every agent of a team, with weights `[P, K, …]`, by the
    names `agents/<agent>/<quantity>`; NaN of an agent that does not count."""
    return {
        f"agents/{agent}/{name}": mean(weight[:, place], x[:, place])
        for name, x in quantities.items()
        for place, agent in enumerate(agent_names(agents))
    }


def of_policy(
    weight: Tensor, log_ratio: Tensor, advantage: Tensor, clip: Tensor, entropy: Tensor, error: Tensor
) -> dict[str, Tensor]:  # fmt: skip
    """Return signals of a clipped policy gradient (Schulman et al., 2017).

    The divergence from the old policy is estimated by ρ − 1 − log ρ (Schulman, "Approximating KL divergence", 2020).

    Args:
        weight: `[P, n]`.
        log_ratio: `[P, n]`, log ρ, of the policy to the one that acted.
        advantage: `[P, n]`, as the loss has it.
        clip: `[P]`, ε.
        entropy: `[P, n]`.
        error: `[P, n]`, the squared error of values, as the loss has it.
    """
    log_ratio = log_ratio.detach().double()
    ratio, limit = log_ratio.exp(), clip.double()[:, None]
    gain = (ratio * advantage).minimum(ratio.clamp(1.0 - limit, 1.0 + limit) * advantage)
    names = ("losses/policy_loss", "losses/entropy", "losses/approx_kl", "losses/clipfrac", "losses/value_loss")
    each = -gain, entropy, ratio - 1.0 - log_ratio, (ratio - 1.0).abs() > limit, 0.5 * error
    return dict(zip(names, means(weight, *each).unbind(dim=1), strict=True))
