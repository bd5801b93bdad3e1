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
    """Choose uniformly among the legal actions, and return their indices, int64 `[…]`.

    `u` `[…]` holds uniform random numbers in [0, 1); `legal` is bool `[…, A]`.
    """
    rank = legal.cumsum(dim=-1)  # the k-th legal action has rank k + 1
    chosen = (u * rank[..., -1]).floor().long().unsqueeze(-1)
    return (rank > chosen).int().argmax(dim=-1)


def best_legal(q: Tensor, legal: Tensor | None) -> Tensor:
    """Return the index of the legal action with the highest value: `q` `[…, A]` → int64 `[…]`.

    Values need not be finite: NaN counts as 0. `legal` is bool `[…, A]`, or None if all actions are legal.
    """
    return masked_argmax(torch.nan_to_num(q), legal)


def likeliest(out: Tensor, legal: Tensor | None, continuous: bool) -> Tensor:
    """Return the mode (the most likely action) of a policy with outputs `out` `[…, A]`.

    For continuous actions the mode is the outputs' tanh, `[…, A]`. For discrete actions it is the index `[…]` of the
    legal action with the largest output.
    """
    return squashed(out) if continuous else best_legal(out, legal)


def epsilon_greedy(q: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Choose the legal action of highest value; with probability ε, choose a uniformly random legal action instead.

    See Sutton & Barto, 2018, § 2.2.

    `q` and `legal` are `[P, E, A]` (P members, E environments each), `epsilon` is `[P]`, `draw` the stream of random
    numbers. The result is int64 `[P, E]`.
    """
    if (found := explore.best_or_random(q, legal, epsilon, draw)) is not None:
        return found
    return or_random_legal(best_legal(q, legal), legal, epsilon, draw)


def or_random_legal(action: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return the actions `[P, E]`, each replaced with probability ε by a uniformly random legal action.

    `action` is int64 `[P, E]` (P members, E environments each), `legal` bool `[P, E, A]`, `epsilon` `[P]` holds ε, and
    `draw` is the stream of random numbers.
    """
    u_explore, u_action = draw.uniform(2 * action.shape[1]).view(-1, 2, action.shape[1]).unbind(dim=1)
    return torch.where(u_explore < epsilon[:, None], random_legal(u_action, legal), action)


def sampled_or_random(log_pi: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Sample actions from their log-probabilities; with probability ε, draw uniformly from the legal actions instead.

    `log_pi` and `legal` are `[P, E, A]` (P members, E environments each), `epsilon` is `[P]`, `draw` the stream of
    random numbers. The result is int64 `[P, E]`.
    """
    envs = log_pi.shape[1]
    u = draw.uniform(log_pi[0].numel() + 2 * envs).float()
    pick_u, choose_u, gumbel_u = u.split([envs, envs, log_pi[0].numel()], dim=1)
    gumbel = -torch.log(-torch.log(gumbel_u.view(log_pi.shape).clamp(1e-20, 1 - 1e-7)))
    chosen = masked_argmax(log_pi + gumbel, legal)
    return torch.where(pick_u < epsilon[:, None], random_legal(choose_u, legal), chosen)


def or_random(action: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return the actions `[P, E, A]` clipped to [−1, 1], each replaced with probability ε by a uniform draw from [−1,
    1].

    `action` is `[P, E, A]` (P members, E environments each), `epsilon` `[P]` holds ε, and `draw` is the stream of
    random numbers. A NaN in an action counts as 0.
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
    """Draw independent normal noise `[P, E, A]` with standard deviation `sd`; `shape` is (E, A).

    There are A numbers for each of the E environments of the P members of the stream `draw`.
    """
    return sd * draw.normal(shape[0] * shape[1]).view(-1, *shape)


def ornstein_uhlenbeck(draw: Stream, shape: tuple[int, ...], sd: float, theta: float) -> Tensor:
    """Draw time-correlated noise `[P, E, A]` of the process x ← (1 − θ) x + sd · N(0, 1); `shape` is (E, A).

    `draw` is a stream of P members. Each member has E environments, and each environment gets A numbers (Uhlenbeck &
    Ornstein, 1930; Lillicrap et al., 2016). θ (`theta`) is in (0, 1]. An environment's process is not reset between
    episodes.

    At step t, x is the sum Σₖ (1 − θ)ᵏ sd · N_{t−k}, where N_{t−k} is the normal random number of the step k steps ago.
    These numbers are drawn again from the counter-based generator at every step, so no state is stored between steps.
    Numbers whose factor (1 − θ)ᵏ is below the constant `REMEMBERED` are left out.
    """
    steps = 1 if theta == 1.0 else math.ceil(math.log(REMEMBERED) / math.log1p(-theta))
    shocks = draw.normal_window(steps, shape[0] * shape[1])  # [P, K, E · A]
    weights = sd * (1.0 - theta) ** torch.arange(steps, dtype=torch.float32, device=shocks.device)
    return (weights[:, None] * shocks).sum(dim=1).view(-1, *shape)


def noisy(
    action: Tensor, epsilon: Tensor, draw: Stream, sd: float, kind: Noise = "gaussian", theta: float = 1.0
) -> Tensor:
    """Add exploration noise to actions and clip them to [−1, 1].

    Each action is instead replaced by a uniform draw with probability ε.

    Args:
        action: `[P, E, A]`, actions of P members in E environments each.
        epsilon: `[P]`, ε.
        draw: the stream of random numbers.
        sd: the standard deviation of the noise.
        kind: `gaussian` for independent noise, `ou` for the time-correlated noise of `ornstein_uhlenbeck`.
        theta: θ of `ornstein_uhlenbeck`, unused for `gaussian`.
    """
    shape = tuple(action.shape[1:])
    noise = gaussian(draw, shape, sd) if kind == "gaussian" else ornstein_uhlenbeck(draw, shape, sd, theta)
    return or_random(action + noise, epsilon, draw.part(1))


def smoothed(action: Tensor, draw: Stream, deviation: Tensor, limit: Tensor) -> Tensor:
    """Add clipped normal noise to target actions `[P, …]` of P members, and clip the result to [−1, 1].

    This is target policy smoothing (Fujimoto, van Hoof & Meger, 2018, eq. 14). `deviation` `[P]` is the standard
    deviation of the noise, and `limit` `[P]` the absolute value to which the noise is clipped.
    """
    noise = draw.normal(action[0].numel()).view(action.shape)
    deviation, limit = (x.view(-1, *(1,) * (action.ndim - 1)) for x in (deviation, limit))
    return (action + torch.minimum(torch.maximum(deviation * noise, -limit), limit)).clamp(-1.0, 1.0)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return PPO's clipped surrogate objective min(ρ A, clip(ρ, 1 − low, 1 + high) A), to be maximised.

    Schulman et al., 2017, eq. 7. `ratio` (ρ), `advantage` (A), `low` and `high` are tensors that broadcast.
    """
    return torch.minimum(ratio * advantage, torch.clamp(ratio, 1.0 - low, 1.0 + high) * advantage)


def proximal(
    chances: Distribution, action: Tensor, log_prob: Tensor, advantage: Tensor, value: Tensor, old_value: Tensor,
    target: Tensor, hp: Hyper, clip_value: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return two numbers for each step: its term of PPO's loss, and how far the policy has moved from the old one.

    The second number is ρ − 1 − log ρ, an estimate of the Kullback-Leibler divergence. The loss is −min(ρ Â, clip(ρ, 1
    − ε, 1 + ε) Â) + c_v ½ (V − V̂)² − c_h H (Schulman et al., 2017, eq. 9). ρ is the ratio of the action's
    probabilities under the current and the old policy, and H is the current policy's entropy. The two results and all
    arguments that are tensors are `[P, …]` for P members. `action` may have one dimension more, as continuous actions
    do.

    Args:
        chances: the current policy's action distribution, for H and the numerator of ρ.
        action: the actions of the rollout.
        log_prob: the actions' log-probabilities under the old policy, for the denominator of ρ.
        advantage: Â.
        value: the current values V.
        old_value: the values when the rollout was collected, which only `clip_value` needs.
        target: V̂, the targets of the values.
        hp: hyper-parameters `[P]`: `clip` (ε), `vf_coef` (c_v) and `ent_coef` (c_h).
        clip_value: whether the squared error (V − V̂)² is replaced by that of `clipped_value_error`.
    """
    clip, vf_coef, ent_coef = (hp[name].view(-1, *[1] * (value.ndim - 1)) for name in ("clip", "vf_coef", "ent_coef"))
    log_ratio = chances.log_prob(action) - log_prob
    ratio = log_ratio.exp()
    gain = clipped_surrogate(ratio, advantage, clip, clip)
    error = clipped_value_error(value, old_value, target, clip) if clip_value else (value - target).square()
    each = -gain + 0.5 * vf_coef * error - ent_coef * chances.entropy()
    return each, ratio - 1.0 - log_ratio
