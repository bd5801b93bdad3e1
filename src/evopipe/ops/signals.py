"""Signals of learning: training metrics of a minibatch beside the losses, by the names that trackers show.

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
    """Return the weighted means `[P, k]` of k quantities of P members.

    A number of weight 0 is left out, even if it is not finite. The mean is NaN for a member whose weights are all 0.

    Args:
        weight: `[P, …]`, the weights, whose sum may be any number.
        x: the quantities, `[P, …]` each.
    """
    share = weight.detach().double().flatten(1)[:, None]  # [P, 1, n]
    each = torch.stack([one.detach().double().flatten(1) for one in x], dim=1)  # [P, k, n]
    return (share * each.masked_fill(share == 0, 0.0)).sum(dim=2) / share.sum(dim=2)


def mean(weight: Tensor, x: Tensor) -> Tensor:
    """Return the weighted mean `[P]` of one quantity x `[P, …]` of P members, with a weight `[P, …]` for each number.

    A number of weight 0 is left out, even if it is not finite.
    """
    share, each = (one.detach().double().flatten(1) for one in (weight, x))
    return (share * each.masked_fill(share == 0, 0.0)).sum(dim=1) / share.sum(dim=1)


def largest(weight: Tensor, x: Tensor) -> Tensor:
    """Return each member's largest number, `[P]`, of the numbers x `[P, …]` whose weight is not 0.

    `weight` has the shape of x.
    """
    return x.detach().double().flatten(1).masked_fill(weight.flatten(1) == 0, -float("inf")).amax(dim=1)


def deviations(weight: Tensor, *x: Tensor) -> Tensor:
    """Return the weighted standard deviations `[P, k]` of k quantities of P members.

    A number of weight 0 is left out, even if it is not finite. The result is NaN for a member whose weights are all 0.

    Args:
        weight: `[P, …]`, the weights, whose sum may be any number.
        x: the quantities, `[P, …]` each.
    """
    flat = [one.detach().double().flatten(1) for one in x]
    middle = means(weight, *flat)
    return means(weight, *((one - middle[:, i, None]).square() for i, one in enumerate(flat))).sqrt()


def of_rollout(weight: Tensor, value: Tensor, target: Tensor, advantage: Tensor) -> dict[str, Tensor]:
    """Return metrics `[P]` of a rollout by name: the explained variance of the values, and the advantages' standard
    deviation.

    The explained variance is 1 − Var(target − value) / Var(target). It is 1 for perfect values, 0 for a constant, below
    0 for values worse than a constant, and NaN where all targets are equal. All arguments are `[P, n]`, for n steps of
    P members; steps of weight 0 are left out.
    """
    apart, total, spread = deviations(weight, target.double() - value.double(), target, advantage).unbind(dim=1)
    explained = 1.0 - (apart / total.masked_fill(total == 0, float("nan"))).square()
    return {"losses/explained_variance": explained, "losses/advantage_std": spread}


def dormant(activity: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    """Return the share `[P]` of each member's hidden units that are dormant.

    A unit is dormant if its mean absolute output is at most 0.025 of its layer's mean (Sokar et al., "The dormant
    neuron phenomenon in deep reinforcement learning", 2023).

    `activity` holds a pair for each L layers: the mean absolute output of every unit, `[P, L, H]`, and a mask
    `[P, L, H]` of the units that each member has. The mask is None if all members have all L · H units.
    """
    idle, count = [], []
    for size, mask in activity:
        there = torch.ones_like(size, dtype=torch.bool) if mask is None else mask > 0
        units = there.sum(dim=2, keepdim=True)
        usual = (size * there).sum(dim=2, keepdim=True, dtype=torch.float64) / units.clamp(min=1)
        idle.append((there & (size <= _DORMANT * usual)).sum(dim=(1, 2)))
        count.append(units.sum(dim=(1, 2)))
    return sum(idle[1:], idle[0]).double() / sum(count[1:], count[0])


def of_values(weight: Tensor, q: Tensor, q_minus: Tensor | None) -> dict[str, Tensor]:
    """Return metrics `[P]` of the actions' values by name: the mean value, the largest value, and the target gap.

    The target gap is the mean distance of `q` from `q_minus`; it is left out if there is no target network.

    Args:
        weight: `[P, B]`, the weights of B transitions of P members.
        q: `[P, B]`, the values of the actions taken.
        q_minus: `[P, B]`, the target network's values of these actions; None if there is no target network.
    """
    own = {"losses/q_values_max": largest(weight, q)}
    if q_minus is None:
        return own | {"losses/q_values": mean(weight, q)}
    value, gap = means(weight, q, (q - q_minus).abs()).unbind(dim=1)
    return own | {"losses/q_values": value, "losses/target_gap": gap}


def agent_names(agents: Sequence[str]) -> list[str]:
    """Return agents' names in the form that metrics use: every character but letters, digits, `_`, `.` and `-` becomes
    `_`.

    Trackers accept only these characters. If two names become equal, each name gets its position appended.
    """
    found = [re.sub(r"[^A-Za-z0-9_.-]", "_", agent) for agent in agents]
    return found if len({*found}) == len(found) else [f"{name}_{place}" for place, name in enumerate(found)]


def of_agents(agents: Sequence[str], weight: Tensor, quantities: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weighted mean `[P]` of each quantity for every agent of a team, by name: `agents/<agent>/<quantity>`.

    The mean is NaN for an agent whose weights are all 0.

    Args:
        agents: the agents' names.
        weight: `[P, K, …]`, for K agents of P members.
        quantities: the quantities by name, `[P, K, …]` each.
    """
    return {
        f"agents/{agent}/{name}": mean(weight[:, place], x[:, place])
        for name, x in quantities.items()
        for place, agent in enumerate(agent_names(agents))
    }


def of_policy(
    weight: Tensor, log_ratio: Tensor, advantage: Tensor, clip: Tensor, entropy: Tensor, error: Tensor
) -> dict[str, Tensor]:  # fmt: skip
    """Return metrics `[P]` of a clipped policy gradient by name: losses, entropy, divergence and clipped share.

    The divergence from the old policy is estimated by ρ − 1 − log ρ (Schulman, "Approximating KL divergence", 2020).
    The clipped share is that of steps whose ratio ρ is outside [1 − ε, 1 + ε] (Schulman et al., 2017).

    Args:
        weight: `[P, n]`, weights of n steps of P members.
        log_ratio: `[P, n]`, log ρ = log π − log π_old, where π_old collected the rollout.
        advantage: `[P, n]`, as the loss uses it.
        clip: `[P]`, ε.
        entropy: `[P, n]`, the entropy of the policy.
        error: `[P, n]`, the squared error of values, as the loss uses it.
    """
    log_ratio = log_ratio.detach().double()
    ratio, limit = log_ratio.exp(), clip.double()[:, None]
    gain = (ratio * advantage).minimum(ratio.clamp(1.0 - limit, 1.0 + limit) * advantage)
    names = ("losses/policy_loss", "losses/entropy", "losses/approx_kl", "losses/clipfrac", "losses/value_loss")
    each = -gain, entropy, ratio - 1.0 - log_ratio, (ratio - 1.0).abs() > limit, 0.5 * error
    return dict(zip(names, means(weight, *each).unbind(dim=1), strict=True))
