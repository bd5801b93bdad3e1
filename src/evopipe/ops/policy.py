"""Choice of actions from values, and exploration noise for continuous actions.

Noise is a function of the random draws alone: it has no state that a checkpoint would need.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from evopipe.native import explore
from evopipe.ops.distributions import squashed
from evopipe.ops.value import clipped_value_error, masked_argmax
from evopipe.rng import Stream
from evopipe.types import Hyper, Tensor

if TYPE_CHECKING:
    from evopipe.ops.distributions import Distribution


def random_legal(u: Tensor, legal: Tensor) -> Tensor:
    """Choose uniformly among legal actions: `u` in [0, 1) `[…]`, `legal` bool `[…, A]` → int64 `[…]`."""
    rank = legal.cumsum(dim=-1)  # the k-th legal action has rank k + 1
    chosen = (u * rank[..., -1]).floor().long().unsqueeze(-1)
    return (rank > chosen).int().argmax(dim=-1)


def best_legal(q: Tensor, legal: Tensor | None) -> Tensor:
    """Return the legal action with the highest value, `[…]`. Values `[…, A]` need not be finite."""
    return masked_argmax(torch.nan_to_num(q), legal)


def likeliest(out: Tensor, legal: Tensor | None, continuous: bool) -> Tensor:
    """Return the most likely action of a policy with outputs `[…, A]`: their tanh, or the legal action with the
    largest."""
    return squashed(out) if continuous else best_legal(out, legal)


def epsilon_greedy(q: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Choose greedily, but with probability ε `[P]` uniformly among legal actions (Sutton & Barto, 2018, § 2.2).

    `q` and `legal` are `[P, E, A]`; the result is `[P, E]` int64.
    """
    if (found := explore.best_or_random(q, legal, epsilon, draw)) is not None:
        return found
    return or_random_legal(best_legal(q, legal), legal, epsilon, draw)


def or_random_legal(action: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Replace actions `[P, E]` int64, with probability ε `[P]`, by a uniform choice among legal ones `[P, E, A]`."""
    u_explore, u_action = draw.uniform(2 * action.shape[1]).view(-1, 2, action.shape[1]).unbind(dim=1)
    return torch.where(u_explore < epsilon[:, None], random_legal(u_action, legal), action)


def sampled_or_random(log_pi: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Draw actions from their log-probabilities, with probability ε `[P]` uniformly among legal ones.

    `log_pi` and `legal` are `[P, E, A]`; the result is `[P, E]` int64.
    """
    envs = log_pi.shape[1]
    u = draw.uniform(log_pi[0].numel() + 2 * envs).float()
    pick_u, choose_u, gumbel_u = u.split([envs, envs, log_pi[0].numel()], dim=1)
    gumbel = -torch.log(-torch.log(gumbel_u.view(log_pi.shape).clamp(1e-20, 1 - 1e-7)))
    chosen = masked_argmax(log_pi + gumbel, legal)
    return torch.where(pick_u < epsilon[:, None], random_legal(choose_u, legal), chosen)


def or_random(action: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Clip actions `[P, E, A]` to [−1, 1], and with probability ε `[P]` replace them by uniform draws from there.

    Actions that are not finite become 0.
    """
    if (found := explore.clipped_or_random(action, epsilon, draw)) is not None:
        return found
    members, envs, size = action.shape
    u = draw.uniform(envs * (size + 1)).float().view(members, envs, size + 1)
    known = torch.nan_to_num(action).clamp(-1.0, 1.0)
    return torch.where(u[..., :1] < epsilon[:, None, None], 2.0 * u[..., 1:] - 1.0, known)


REMEMBERED = 1e-4  # share of a shock below which an Ornstein-Uhlenbeck process forgets it here
Noise = Literal["gaussian", "ou"]


def gaussian(draw: Stream, shape: tuple[int, ...], sd: float) -> Tensor:
    """Draw independent normal noise `[P, E, A]` with standard deviation `sd`; `shape` is (E, A)."""
    return sd * draw.normal(shape[0] * shape[1]).view(-1, *shape)


def ornstein_uhlenbeck(draw: Stream, shape: tuple[int, ...], sd: float, theta: float) -> Tensor:
    """Draw correlated noise `[P, E, A]`: x ← (1 − θ) x + sd · N(0, 1) (Uhlenbeck & Ornstein, 1930; Lillicrap et al.,
    2016).

    The process is the sum of its past shocks, Σ (1 − θ)ᵏ sd · N_{t−k}. Shocks can be drawn again, so nothing is kept
    from step to step. Shocks whose factor is below `REMEMBERED` are left out. The process of an environment continues
    into its next episode. θ is in (0, 1].
    """
    steps = 1 if theta == 1.0 else math.ceil(math.log(REMEMBERED) / math.log1p(-theta))
    shocks = draw.normal_window(steps, shape[0] * shape[1])  # [P, K, E · A]
    weights = sd * (1.0 - theta) ** torch.arange(steps, dtype=torch.float32, device=shocks.device)
    return (weights[:, None] * shocks).sum(dim=1).view(-1, *shape)


def noisy(
    action: Tensor, epsilon: Tensor, draw: Stream, sd: float, kind: Noise = "gaussian", theta: float = 1.0
) -> Tensor:
    """Add exploration noise to actions `[P, E, A]` and clip them; with probability ε `[P]` draw a uniform one instead.

    `theta` is that of `ornstein_uhlenbeck`.
    """
    shape = tuple(action.shape[1:])
    noise = gaussian(draw, shape, sd) if kind == "gaussian" else ornstein_uhlenbeck(draw, shape, sd, theta)
    return or_random(action + noise, epsilon, draw.part(1))


def smoothed(action: Tensor, draw: Stream, deviation: Tensor, limit: Tensor) -> Tensor:
    """Add normal noise of a standard deviation `[P]`, clipped at a limit `[P]`, to target actions `[P, …]` in [−1, 1]
    (target policy smoothing; Fujimoto, van Hoof & Meger, 2018, eq. 14)."""
    noise = draw.normal(action[0].numel()).view(action.shape)
    deviation, limit = (x.view(-1, *(1,) * (action.ndim - 1)) for x in (deviation, limit))
    return (action + torch.minimum(torch.maximum(deviation * noise, -limit), limit)).clamp(-1.0, 1.0)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return min(ρ A, clip(ρ, 1 − low, 1 + high) A), which a policy is to raise (Schulman et al., 2017, eq. 7).

    Ratios, advantages and both ends are tensors that broadcast.
    """
    return torch.minimum(ratio * advantage, torch.clamp(ratio, 1.0 - low, 1.0 + high) * advantage)


def proximal(
    chances: Distribution, action: Tensor, log_prob: Tensor, advantage: Tensor, value: Tensor, old_value: Tensor,
    target: Tensor, hp: Hyper, clip_value: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what every step adds to PPO's loss, and its distance ρ − 1 − log ρ from the old policy, both `[P, …]`.

    The loss is −min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â) + c_v ½ (V − V̂)² − c_h H (Schulman et al., 2017, eq. 9), with `clip`,
    `vf_coef` and `ent_coef` `[P]` of `hp`. The policy and the values `[P, …]` are those of now; the actions, which may
    have one dimension more, their log-probabilities and the old values are those of the rollout.
    """
    clip, vf_coef, ent_coef = (hp[name].view(-1, *[1] * (value.ndim - 1)) for name in ("clip", "vf_coef", "ent_coef"))
    log_ratio = chances.log_prob(action) - log_prob
    ratio = log_ratio.exp()
    gain = clipped_surrogate(ratio, advantage, clip, clip)
    error = clipped_value_error(value, old_value, target, clip) if clip_value else (value - target).square()
    each = -gain + 0.5 * vf_coef * error - ent_coef * chances.entropy()
    return each, ratio - 1.0 - log_ratio
