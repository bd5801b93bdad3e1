"""Choice of actions from values, and exploration noise for continuous actions.

Noise is a function of the random draws alone: it has no state that a checkpoint would need.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from evopipe.ops.value import masked_argmax
from evopipe.rng import Stream
from evopipe.types import Tensor


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
    return torch.tanh(out) if continuous else best_legal(out, legal)


def epsilon_greedy(q: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Choose greedily, but with probability ε `[P]` uniformly among legal actions (Sutton & Barto, 2018, § 2.2).

    `q` and `legal` are `[P, E, A]`; the result is `[P, E]` int64.
    """
    return or_random_legal(best_legal(q, legal), legal, epsilon, draw)


def or_random_legal(action: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Replace actions `[P, E]` int64, with probability ε `[P]`, by a uniform choice among legal ones `[P, E, A]`."""
    u_explore, u_action = draw.uniform(2 * action.shape[1]).view(-1, 2, action.shape[1]).unbind(dim=1)
    return torch.where(u_explore < epsilon[:, None], random_legal(u_action, legal), action)


def or_random(action: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Clip actions `[P, E, A]` to [−1, 1], and with probability ε `[P]` replace them by uniform draws from there.

    Actions that are not finite become 0.
    """
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
