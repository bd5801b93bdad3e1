"""Value targets and losses, for tensors of any leading shape. Time names: `_tm1` before a step, `_t` after it."""

from __future__ import annotations

import torch


def pick(values: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return the value of the action taken: `[…, A]`, int64 `[…]` → `[…]`."""
    return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def masked_argmax(q: torch.Tensor, legal: torch.Tensor | None = None) -> torch.Tensor:
    """Return the best legal action `[…]`; q `[…, A]`, legal bool `[…, A]` or None where all are."""
    return (q if legal is None else q.masked_fill(~legal, -torch.inf)).argmax(dim=-1)


def q_target(
    r_t: torch.Tensor,
    discount_t: torch.Tensor,
    q_target_t: torch.Tensor,
    q_selector_t: torch.Tensor,
    legal_t: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the one-step target r + γ Q_target(s′, argmax_a Q_selector(s′, a)).

    With the online values as selector it is double Q-learning (van Hasselt, Guez & Silver, 2016, eq. 4), with the
    target's own values plain Q-learning (Mnih et al., 2015).

    Args:
        r_t: rewards `[…]`.
        discount_t: γ (1 − terminated) `[…]`; a truncated transition bootstraps.
        q_target_t: values `[…, A]` that are bootstrapped from.
        q_selector_t: values `[…, A]` that choose the action.
        legal_t: legal actions in s′ `[…, A]`, or None where all are.
    """
    return torch.addcmul(r_t, discount_t, pick(q_target_t, masked_argmax(q_selector_t, legal_t)))


def regression_loss(value: torch.Tensor, target: torch.Tensor, huber: bool) -> torch.Tensor:
    """Return ½ e² of e = value − target (MSE), or the Huber loss with threshold 1: ½ e² where |e| ≤ 1, |e| − ½ beyond.

    Nothing is reduced: shapes are equal, and so is the result's.
    """
    if huber:  # as an operator: the function in `torch.nn` spends longer on broadcasting than on the loss
        loss: torch.Tensor = torch.ops.aten.huber_loss.default(value, target, 0)
        return loss
    error = value - target
    return 0.5 * error * error
