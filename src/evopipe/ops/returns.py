"""Returns and advantages over stretches of time."""

from __future__ import annotations

import torch

from evopipe.types import Tensor


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, cut: Tensor, gamma: Tensor, lam: Tensor
) -> Tensor:
    """Return generalised advantage estimates (Schulman et al., 2016, eq. 16), `[P, T, E]`.

    δ_t = r_t + γ (1 − terminated_t) V(s_{t+1}) − V(s_t), Â_t = δ_t + γ λ (1 − cut_t) Â_{t+1}. `next_value` is V of the
    true observation after the step, also where the episode ended there; `cut` says whether what comes after belongs to
    another episode, terminated or truncated. Gamma and λ are `[P]`.
    """
    gamma = gamma[:, None, None]
    delta = reward + gamma * ~terminated * next_value - value
    decay = gamma * lam[:, None, None] * ~cut
    out, later = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
    for t in range(delta.shape[1] - 1, -1, -1):
        later = torch.add(delta[:, t], decay[:, t] * later, out=out[:, t])  # fused, bits would depend on the processor
    return out
