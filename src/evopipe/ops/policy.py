"""Choosing actions from values, and exploration noise for continuous ones: a function of the draws alone, so that no
state of it could be missing in a checkpoint."""

from __future__ import annotations

import math
from typing import Literal

import torch

from evopipe.ops.value import masked_argmax
from evopipe.rng import Stream
from evopipe.types import Tensor


def random_legal(u: Tensor, legal: Tensor) -> Tensor:
    """Choose uniformly among legal actions: u in [0, 1) `[…]`, legal bool `[…, A]` → int64 `[…]`."""
    rank = legal.cumsum(dim=-1)  # the k-th legal action has rank k + 1
    chosen = (u * rank[..., -1]).floor().long().unsqueeze(-1)
    return (rank > chosen).int().argmax(dim=-1)


def best_legal(q: Tensor, legal: Tensor | None) -> Tensor:
    """Return the best legal action `[…]`, also where values `[…, A]` are not finite."""
    return masked_argmax(torch.nan_to_num(q), legal)


def likeliest(out: Tensor, legal: Tensor | None, continuous: bool) -> Tensor:
    """Return what a policy with outputs `[…, A]` does at best: tanh of them, or the legal action with the largest."""
    return torch.tanh(out) if continuous else best_legal(out, legal)


def epsilon_greedy(q: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Act greedily, with probability ε `[P]` uniformly among legal actions: q, legal `[P, E, A]` → `[P, E]` int64
    (Sutton & Barto, 2018, § 2.2)."""
    return or_random_legal(best_legal(q, legal), legal, epsilon, draw)


def or_random_legal(action: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """With chance epsilon `[P]` choose uniformly among legal actions `[P, E, A]` instead of `[P, E]` int64."""
    u_explore, u_action = draw.uniform(2 * action.shape[1]).view(-1, 2, action.shape[1]).unbind(dim=1)
    return torch.where(u_explore < epsilon[:, None], random_legal(u_action, legal), action)


def or_random(action: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Clip actions `[P, E, A]` to [−1, 1]; with chance epsilon `[P]` draw one uniformly there instead. Where actions
    are not finite they become 0s."""
    members, envs, size = action.shape
    u = draw.uniform(envs * (size + 1)).float().view(members, envs, size + 1)
    known = torch.nan_to_num(action).clamp(-1.0, 1.0)
    return torch.where(u[..., :1] < epsilon[:, None, None], 2.0 * u[..., 1:] - 1.0, known)


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
