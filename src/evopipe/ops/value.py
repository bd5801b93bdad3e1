"""Value targets, losses and advantages, for tensors of any leading shape. `_tm1` is before a step, `_t` after it."""

from __future__ import annotations

import torch

from evopipe.types import Tensor


def pick(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of the actions taken: `values` `[…, A]`, `action` int64 `[…]` → `[…]`."""
    return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def masked_argmax(q: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return the index of the legal action with the highest value, int64 `[…]`.

    `q` is `[…, A]`; `legal` is bool `[…, A]`, or None if all actions are legal.
    """
    return _of_legal(q, legal).argmax(dim=-1)


def _of_legal(q: Tensor, legal: Tensor | None) -> Tensor:
    return q if legal is None else q.masked_fill(~legal, -torch.inf)


def q_target(
    r_t: Tensor, discount_t: Tensor, q_target_t: Tensor, q_selector_t: Tensor, legal_t: Tensor | None = None
) -> Tensor:
    """Return the one-step target r + γ Q_target(s′, argmax_a Q_selector(s′, a)), `[…]`.

    With the online network's values as selector, this is double Q-learning (van Hasselt, Guez & Silver, 2016, eq. 4);
    with the target network's values, plain Q-learning (Mnih et al., 2015).

    Args:
        r_t: `[…]`, the rewards r.
        discount_t: `[…]`, γ, and 0 where the episode terminated.
        q_target_t, q_selector_t: `[…, A]`, the values Q_target and Q_selector of the next state.
        legal_t: `[…, A]` bool, the legal actions in the next state; None if all actions are legal.
    """
    return torch.addcmul(r_t, discount_t, pick(q_target_t, masked_argmax(q_selector_t, legal_t)))


def regression_loss(value: Tensor, target: Tensor, huber: bool) -> Tensor:
    """Return the elementwise loss of e = value − target: ½ e², or the Huber loss with threshold 1 if `huber` is
    True."""
    if huber:  # as an operator: the function in `torch.nn` spends longer on broadcasting than on the loss
        loss: Tensor = torch.ops.aten.huber_loss.default(value, target, 0)
        return loss
    error = value - target
    return 0.5 * error * error


def least_of_some(q: Tensor, u: Tensor, count: int) -> Tensor:
    """Return the minimum over a random subset of critics, `[P, B]` (Chen et al., 2021, algorithm 1).

    Every subset is equally likely. One subset serves all of a member's minibatch.

    Args:
        q: `[P, N, B]`, the values of N critics, for B transitions of P members.
        u: `[P, N]`, uniform random numbers, by which each member's subset is drawn.
        count: the size of the subset, from 1 to N.
    """
    return q.take_along_dim(u.argsort(dim=1)[:, :count, None], dim=1).amin(dim=1)


def twin_loss(errors: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted loss of two critics, Σ w (e₁² + e₂²) `[P]`, and the mean |e| of the two errors `[P, B]`.

    The mean |e| serves as priority, and has no gradient.

    Args:
        errors: `[P, 2, B]`, the errors e₁ and e₂ of the critics, for B transitions of P members.
        weight: `[P, B]`, the weight w of each transition.
    """
    return (weight[:, None] * errors.square()).sum(dim=(1, 2)), errors.detach().abs().mean(dim=1)


def normalised(advantage: Tensor, weight: Tensor) -> Tensor:
    """Return the advantages `[P, n]`, normalised to weighted mean 0 and weighted standard deviation 1, for each of P
    members.

    The weights `[P, n]` sum to 1 over the n steps.
    """
    mean = (weight * advantage).sum(dim=1, keepdim=True)
    deviation = (weight * (advantage - mean).square()).sum(dim=1, keepdim=True).sqrt()
    return (advantage - mean) / (deviation + 1e-8)


def clipped_value_error(value: Tensor, old: Tensor, target: Tensor, clip: Tensor) -> Tensor:
    """Return max((V − V̂)², (V′ − V̂)²), where V′ is V clipped to within `clip` of the old value.

    `value` is V, `target` V̂; all tensors broadcast (Engstrom et al., "Implementation matters in deep policy
    gradients", 2020, § 3).
    """
    return torch.maximum((value - target).square(), (old + torch.clamp(value - old, -clip, clip) - target).square())


def project(z: Tensor, r_t: Tensor, discount_t: Tensor, probabilities_t: Tensor) -> Tensor:
    """Project the distribution of r + γ z onto evenly spaced atoms, and return its probabilities `[…, K]`.

    The sum of the probabilities is kept (Bellemare, Dabney & Munos, 2017, algorithm 1).

    Args:
        z: `[K]`, the atoms.
        r_t: `[…]`, the rewards r.
        discount_t: `[…]`, γ.
        probabilities_t: `[…, K]`, the probabilities of the atoms z in the next state.
    """
    low, high, atoms = z[0], z[-1], len(z)
    apart = (high - low) / (atoms - 1)
    # Where r + γ z lies, counted in atoms from the lowest: written so that γ = 1, r = 0 gives whole numbers exactly.
    place = (r_t - low * (1 - discount_t))[..., None] / apart + discount_t[..., None] * torch.arange(
        atoms, device=z.device
    )
    place = place.clamp(0, atoms - 1)
    below = torch.nan_to_num(place).floor().clamp(max=atoms - 2)  # a value that is no number stays one in the shares
    above = place - below  # in [0, 1]: the share that goes to the atom above
    index, projected = below.long(), torch.zeros_like(probabilities_t)
    projected.scatter_add_(-1, index, probabilities_t * (1 - above))
    return projected.scatter_add_(-1, index + 1, probabilities_t * above)


def conservative_gap(q: Tensor, action: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return CQL's penalty log Σ exp Q(s, ·) − Q(s, a) for the dataset's actions a, `[…]` (Kumar et al., 2020, eq. 4).

    Args:
        q: `[…, A]`, the values of all actions.
        action: `[…]` int64, the dataset's actions.
        legal: `[…, A]` bool, the legal actions, over which the sum goes; None if all actions are legal.
    """
    return torch.logsumexp(_of_legal(q, legal), dim=-1) - pick(q, action)


def expectile_loss(error: Tensor, tau: Tensor | float) -> Tensor:
    """Return the expectile loss |τ − 1(e < 0)| e², `[…]`, of errors e = target − value.

    Newey & Powell, 1987; Kostrikov et al., 2021, eq. 5. `tau` is τ. For τ = ½ the loss is half the squared error, and
    the best fit is the mean of the targets. As τ goes to 1, the best fit approaches the largest target.
    """
    return (tau - (error < 0).to(error.dtype)).abs() * error * error


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, cut: Tensor, gamma: Tensor, lam: Tensor
) -> Tensor:
    """Return generalised advantage estimates, `[P, T, E]` (Schulman et al., 2016, eq. 16).

    δ_t = r_t + γ (1 − terminated_t) V(s_{t+1}) − V(s_t), Â_t = δ_t + γ λ (1 − cut_t) Â_{t+1}. All tensors are `[P, T,
    E]` (P members, T time steps, E environments), except γ and λ.

    Args:
        reward: r.
        value: V of the observation before the step.
        next_value: V of the true observation after the step, also where the episode ended there.
        terminated: whether the step terminated the episode.
        cut: True at the last step of an episode, be it terminated or truncated.
        gamma: `[P]`, γ.
        lam: `[P]`, λ.
    """
    gamma = gamma[:, None, None]
    delta = reward + gamma * ~terminated * next_value - value
    decay = gamma * lam[:, None, None] * ~cut
    out, later = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
    for t in range(delta.shape[1] - 1, -1, -1):
        later = torch.add(delta[:, t], decay[:, t] * later, out=out[:, t])  # fused, bits would depend on the processor
    return out
