"""Equations of language-model training: advantages of completions, and losses over their tokens.

Every member has `B` sequences of `T` tokens. A mask `[P, B, T]` bool says which tokens count: those that the member
wrote, or those that it is to imitate. Log-probabilities `[P, B, T]` are the current policy's (`log_prob`), the policy's
when it wrote the tokens (`old`), and the reference's (`reference`). Values where the mask is False reach neither
results nor gradients. Nothing is reduced over `P`. A loss is the `total` of per-token terms, weighted by
`token_weights`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from evopipe.ops.policy import clipped_surrogate
from evopipe.types import Games, Tensor

Level = Literal["token", "turn", "sequence"]
Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
Mean = Literal["token", "sequence"]
Baseline = Literal["standardised", "mean", "leave_one_out"]
_EPS = 1e-4


class Advantages(NamedTuple):
    """The advantages of completions within their groups."""

    value: Tensor  # [P, B], 0 where a completion does not count
    counts: Tensor  # [P, B] bool, whether the completion is there and its group's rewards differ
    groups: Tensor  # [P] int64, groups
    skipped: Tensor  # [P] int64, those of them whose rewards are all equal: they say nothing


def group_advantages(reward: Tensor, group: Tensor, present: Tensor, baseline: Baseline) -> Advantages:
    """Return the advantages of rewards `[P, B]` relative to their group.

    Args:
        reward: `[P, B]`.
        group: `[P, B]` int64, any number that identifies the group; one group for all gives a baseline over the batch.
        present: `[P, B]` bool, which rewards exist.
        baseline: `standardised` is (R − mean) / (std + 10⁻⁴) with the sample standard deviation (Shao et al.,
            "DeepSeekMath", 2024, § 4.1.2). `mean` omits the division (Liu et al., "Understanding R1-Zero-like
            training", 2025). `leave_one_out` is R − the mean of the others (Kool et al., 2019; Ahmadian et al., "Back
            to basics", 2024).

    A NaN reward makes the advantages of its group NaN, and no others.
    """
    same = (group[:, :, None] == group[:, None, :]) & present[:, :, None] & present[:, None, :]  # [P, B, B]
    size = same.sum(dim=-1).clamp(min=1)
    others = reward[:, None, :].expand(same.shape)
    # Asked of the rewards themselves: rounding can give equal ones a deviation.
    differ = (same & (others != reward[:, :, None])).any(dim=-1)
    value = reward - _within(others, same).sum(dim=-1) / size
    if baseline == "standardised":
        square = _within(value[:, None, :].square().expand(same.shape), same).sum(dim=-1)
        value = value / ((square / (size - 1).clamp(min=1)).sqrt() + _EPS)
    elif baseline == "leave_one_out":
        value = value * (size / (size - 1).clamp(min=1))
    first = present & ~same.tril(diagonal=-1).any(dim=-1)  # one of each group
    return Advantages(_within(value, differ), differ, first.sum(dim=1), (first & ~differ).sum(dim=1))


def without_spread(reward: Tensor, size: int) -> Tensor:
    """Return which groups of `size` adjacent rewards `[P, B]` are of equal ones, `[P, B / size]` bool."""
    groups = reward.unflatten(1, (-1, size))
    equal: Tensor = (groups == groups[..., :1]).all(dim=-1)
    return equal


def refill(empty: Tensor, full: Tensor) -> Tensor:
    """Return by what each of G places is filled, int64 `[P, G]`: by itself, n < G, or by the extra n − G.

    `empty` says of each place whether it is to be filled, `full` of as many extras whether they are of use, `[P, G]`
    bool each. Places in their order are filled by extras of use in theirs, as far as these go.
    """
    size, nth = empty.shape[1], empty.cumsum(dim=1)  # from 1
    first = (~full).to(torch.int8).argsort(dim=1, stable=True)  # those of use before all others
    filled = empty & (nth <= full.sum(dim=1, keepdim=True))
    own = torch.arange(size, device=empty.device).expand(empty.shape)
    return torch.where(filled, size + first.gather(1, (nth - 1).clamp(min=0)), own)


def _within(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~mask, 0.0)


def token_weights(mask: Tensor, mean: Mean) -> Tensor:
    """Return weights `[P, B, T]` that sum to 1 for each member, or to 0 if none of its tokens counts.

    `token` weights all tokens equally (Yu et al., "DAPO", 2025). `sequence` weights all sequences equally, and the
    tokens of a sequence equally, so that a token of a long sequence counts less.
    """
    counted = mask.to(torch.float32)
    if mean == "token":
        return counted / counted.sum(dim=(1, 2), keepdim=True).clamp(min=1.0)
    each = counted.sum(dim=2, keepdim=True)
    sequences = (each > 0).sum(dim=1, keepdim=True)
    return counted / (each.clamp(min=1.0) * sequences.clamp(min=1))


def total(weight: Tensor, each: Tensor) -> Tensor:
    """Return Σ weight · each `[P]` over `[P, B, T]` or `[P, B]`. Terms with weight 0 are not read."""
    return (weight * _within(each, weight != 0)).flatten(1).sum(dim=1)


def row_means(each: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens of each row that count, `[P, B, T]` → `[P, B]`; 0 if none does."""
    return _within(each, mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


def drift(log_prob: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Return the largest |log π − log π_old| over the tokens that count, `[P]`.

    At the first update from a rollout it says how far the learner's policy is from the one that wrote the text.
    """
    return _within(log_prob.detach() - old, mask).abs().flatten(1).amax(dim=1)


class Importance(NamedTuple):
    """How much tokens count that another policy wrote."""

    weight: Tensor  # [P, B, T], 0 outside the mask
    bounded: Tensor  # [P], the share of the tokens whose ratio lies beyond the ends


def importance(log_prob: Tensor, drawn: Tensor, mask: Tensor, how: Correction, low: float, high: float) -> Importance:
    """Return the weights by which a policy learns from tokens that another one wrote, everything `[P, B, T]`.

    The ratio is π(·) / π_drawn(·), of a token or, of a whole sequence, the product over its tokens. `truncate` clips it
    to [low, high] (Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025), `mask`
    makes it 0 outside (Liu et al., "When speed kills stability: demystifying RL collapse from the training-inference
    mismatch", 2025); `none` is 1.
    """
    gap = _within(log_prob.detach() - drawn, mask)
    if how.startswith("sequence"):
        gap = gap.sum(dim=-1, keepdim=True).expand(gap.shape)
    ratio = gap.exp()
    beyond = mask & ((ratio < low) | (ratio > high))
    share = beyond.flatten(1).sum(dim=1) / mask.flatten(1).sum(dim=1).clamp(min=1)
    if how == "none":
        ratio = torch.ones_like(ratio)
    else:
        ratio = ratio.clamp(low, high) if how.endswith("truncate") else ratio.masked_fill(beyond, 0.0)
    return Importance(_within(ratio, mask), share)


# --- from logits ------------------------------------------------------------------------------------------------------


def log_probs(logits: Tensor, token: Tensor) -> Tensor:
    """Return the log-probability `[…]` of each token, int64 `[…]`, under the logits `[…, V]` that predict it."""
    return logits.gather(-1, token.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy `[…]` in nats of the softmax of logits `[…, V]`. A logit of −∞ adds nothing."""
    chances = logits.log_softmax(dim=-1)
    return -(chances.exp() * chances.clamp(min=torch.finfo(chances.dtype).min)).sum(dim=-1)


# --- ratios and policy losses -----------------------------------------------------------------------------------------


def log_ratios(log_prob: Tensor, old: Tensor, mask: Tensor, level: Level, turn: Tensor | None = None) -> Tensor:
    """Return log π(·) / π_old(·), `[P, B, T]`, of each token, or its mean over the token's turn or sequence.

    It is 0 outside the mask. The mean over a sequence is the ratio of GSPO (Zheng et al., "Group sequence policy
    optimization", 2025, eq. 7). `turn` int64 `[P, B, T]` numbers the turns of a sequence from 0.
    """
    each = _within(log_prob - old, mask)
    if level == "token":
        return each
    if level == "sequence" or turn is None:
        return _mean_over(each, mask)
    out = torch.zeros_like(each)
    for number in range(int(turn.max()) + 1):
        out = out + _mean_over(each, mask & (turn == number))
    return out


def _mean_over(each: Tensor, mask: Tensor) -> Tensor:
    """Put the mean of a sequence's masked tokens at each of them, 0 elsewhere."""
    return _within(row_means(each, mask)[..., None].expand(each.shape), mask)


def clipped(log_ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor, most: float | None = None) -> Tensor:
    """Return the clipped surrogate loss −min(ρ A, clip(ρ, 1 − low, 1 + high) A), `[P, B, T]` (Schulman et al., 2017,
    eq. 7).

    `low` and `high` are `[P]`, and may differ (Yu et al., "DAPO", 2025, eq. 10). Advantages are `[P, B, T]`, or
    `[P, B, 1]` for whole sequences. With `most`, the first ρ is min(ρ, most): a negative advantage, which the clip does
    not bound, is bounded too (Prime Intellect, "INTELLECT-2", 2025, § 3.4).
    """
    ratio = log_ratio.exp()
    if most is not None:
        ratio = ratio.clamp(max=most)
    return -clipped_surrogate(ratio, advantage, low[:, None, None], high[:, None, None])


def cispo(log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the loss −clip(ρ, 1 − low, 1 + high) A log π, `[P, B, T]` (MiniMax, "MiniMax-M1", 2025, eq. 4).

    The ratio is a constant, so every token keeps its gradient. Shapes are those of `clipped`.
    """
    ratio = log_ratio.detach().exp()
    return -torch.clamp(ratio, 1.0 - low[:, None, None], 1.0 + high[:, None, None]) * advantage * log_prob


def outside(log_ratio: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return which ratios `[P, B, T]` bool lie outside [1 − low, 1 + high]; `low` and `high` are `[P]`."""
    ratio = log_ratio.exp()
    return (ratio < 1.0 - low[:, None, None]) | (ratio > 1.0 + high[:, None, None])


def k3(log_prob: Tensor, reference: Tensor, mask: Tensor, log_ratio: Tensor | None = None) -> Tensor:
    """Return the estimate π_ref/π − log π_ref/π − 1 of KL(π ‖ π_ref), `[P, B, T]` (Schulman, "Approximating KL
    divergence", 2020).

    It is never negative, and unbiased over the policy's own tokens. It is 0 outside the mask. If `log_ratio` is given,
    log π / π_old, the estimate is multiplied by π / π_old: it is unbiased over the tokens of π_old then, and so is its
    gradient (DeepSeek-AI, "DeepSeek-V3.2", 2025, § 3.1).
    """
    gap = _within(reference - log_prob, mask)
    each = torch.expm1(gap) - gap
    return each if log_ratio is None else each * log_ratio.exp()


# --- values -----------------------------------------------------------------------------------------------------------


def on_last(reward: Tensor, mask: Tensor) -> Tensor:
    """Put the reward `[P, B]` of a completion on its last token that counts: `[P, B, T]`."""
    places = torch.arange(1, mask.shape[-1] + 1, device=mask.device) * mask
    last = mask & (places == places.amax(dim=-1, keepdim=True))
    return last * reward[..., None]


def token_gae(reward: Tensor, value: Tensor, mask: Tensor, gamma: Tensor, lam: Tensor) -> Tensor:
    """Return generalised advantage estimates of tokens, `[P, B, T]` (Schulman et al., 2016, eq. 16); 0 outside the
    mask.

    Rewards and values are `[P, B, T]`, `gamma` and `lam` (λ) `[P]`. The successor of a token is the next one of its
    sequence that counts: text that an environment wrote in between is no step. The last token has no successor.
    """
    gamma, decay = gamma[:, None], (gamma * lam)[:, None]
    reward, value = _within(reward, mask), _within(value, mask)
    out = torch.zeros_like(value)
    later, following = torch.zeros_like(value[..., 0]), torch.zeros_like(value[..., 0])
    for t in range(value.shape[-1] - 1, -1, -1):
        here = mask[..., t]
        estimate = reward[..., t] + gamma * following - value[..., t] + decay * later
        out[..., t] = _within(estimate, here)
        later, following = torch.where(here, estimate, later), torch.where(here, value[..., t], following)
    return out


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """Shift and scale x `[P, B, T]` to mean 0 and variance 1 over each member's tokens that count; 0 outside the
    mask."""
    weight = token_weights(mask, "token")
    apart = _within(x, mask) - total(weight, x)[:, None, None]
    return _within(apart / (total(weight, apart.square()).sqrt()[:, None, None] + _EPS), mask)


def value_loss(value: Tensor, old: Tensor, target: Tensor, clip: Tensor) -> Tensor:
    """Return the clipped value loss ½ max((V − V̂)², (V_old + clip(V − V_old, ±clip) − V̂)²), `[P, B, T]`; `clip` is
    `[P]`."""
    limit = clip[:, None, None]
    near = old + torch.clamp(value - old, -limit, limit)
    return 0.5 * torch.maximum((value - target).square(), (near - target).square())


def after_last(value: Tensor, mask: Tensor) -> Tensor:
    """Return the entry one place after the last token that counts, `[P, B, T]` → `[P, B]`. That place must exist."""
    places = torch.arange(1, mask.shape[-1] + 1, device=mask.device) * mask
    return value.gather(-1, places.amax(dim=-1, keepdim=True)).squeeze(-1)


# --- preferences ------------------------------------------------------------------------------------------------------


class Preference(NamedTuple):
    """The loss and the margin of pairs of completions, `[P, B]` each."""

    loss: Tensor
    margin: Tensor  # implicit reward of the chosen one above the rejected one's


def preferred(margin: Tensor) -> Tensor:
    """Return log σ(m), the log-probability that a completion whose reward is higher by `margin` is preferred.

    Bradley and Terry, 1952.
    """
    return torch.nn.functional.logsigmoid(margin)


def preference(
    chosen: Tensor, rejected: Tensor, reference: tuple[Tensor, Tensor], tokens: Tensor, beta: Tensor, nll: Tensor
) -> Preference:
    """Return the DPO loss −log σ(m) − nll · log π(chosen) / tokens with m = β [log π/π_ref (chosen) − log π/π_ref
    (rejected)].

    Rafailov et al., "Direct preference optimization", 2023, eq. 7. The second term keeps the probability of the chosen
    completion from falling along with the rejected one's (Pang et al., "Iterative reasoning preference optimization",
    2024).

    Args:
        chosen, rejected: `[P, B]`, log-probabilities, summed over a completion's tokens.
        reference: the same of both under the reference.
        tokens: `[P, B]`, number of tokens of the chosen completion.
        beta, nll: `[P]`.
    """
    margin = beta[:, None] * ((chosen - reference[0]) - (rejected - reference[1]))
    imitation = nll[:, None] * chosen / tokens.clamp(min=1)
    return Preference(-preferred(margin) - imitation, margin.detach())


def length_free(chosen: Tensor, rejected: Tensor, beta: Tensor, margin: Tensor) -> Preference:
    """Return the SimPO loss −log σ(m − margin) with m = β [mean log π (chosen) − mean log π (rejected)].

    Meng et al., "SimPO: simple preference optimization with a reference-free reward", 2024, eq. 6. `chosen` and
    `rejected` are `[P, B]`, mean log-probabilities of a completion's tokens; `beta` and `margin` (γ) are `[P]`.
    """
    apart = beta[:, None] * (chosen - rejected)
    return Preference(-preferred(apart - margin[:, None]), apart.detach())


def odds_ratio(chosen: Tensor, rejected: Tensor, beta: Tensor) -> Preference:
    """Return the odds-ratio loss −β log σ(m) with m = log odds(chosen) − log odds(rejected), odds p / (1 − p).

    Hong et al., "ORPO: monolithic preference optimization without reference model", 2024, eq. 7. `chosen` and
    `rejected` are `[P, B]`, mean log-probabilities of a completion's tokens; `beta` (λ there) is `[P]`.
    """

    def log_odds(mean: Tensor) -> Tensor:
        # A completion that is certain has infinite odds: it is as certain as the next smaller number.
        return mean - torch.log(-torch.expm1(mean.clamp(max=-torch.finfo(mean.dtype).eps)))

    apart = log_odds(chosen) - log_odds(rejected)
    return Preference(-beta[:, None] * preferred(apart), apart.detach())


def desirability(
    apart: Tensor, zero: Tensor, desirable: Tensor, beta: Tensor, weights: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the KTO loss λ (1 − σ(±β (apart − zero))) of completions, `[P, B]`, + and λ_D for desirable ones.

    Ethayarajh et al., "KTO: model alignment as prospect theoretic optimization", 2024, eq. 8; the constants λ that
    their loss adds are λ_D and λ_U, so that no loss is negative.

    Args:
        apart: `[P, B]`, log π/π_ref of the completions.
        zero: `[P]`, the reference point z₀ ≥ 0, a constant.
        desirable: `[P, B]` bool.
        beta: `[P]`.
        weights: λ_D and λ_U, `[P]` each.
    """
    gain = beta[:, None] * (apart - zero[:, None])
    good, bad = weights
    return torch.where(desirable, good[:, None] * torch.sigmoid(-gain), bad[:, None] * torch.sigmoid(gain))


# --- games ------------------------------------------------------------------------------------------------------------


def games(ids: Tensor, real: Tensor, acts: Tensor, reward: Tensor, done: Tensor) -> Games:
    """Convert games `[…, L]` of tokens to decisions of the player.

    Args:
        ids: int64, tokens.
        real: bool, False in pads, which are on the right.
        acts: bool, where the player wrote the token.
        reward: the reward that came with the token.
        done: bool, True at the token after which a game is over.
    """
    width = ids.shape[-1]
    place = torch.arange(width, device=ids.device).expand(ids.shape)
    last = real.sum(dim=-1, keepdim=True) - 1
    writes = torch.where(acts[..., 1:], place[..., :-1], width)  # the columns in which the player is to write
    following = writes.flip(-1).cummin(dim=-1).values.flip(-1)[..., 1:]
    following = torch.cat((following, torch.full_like(last, width)), dim=-1)
    after = torch.where(following < width, following, last)
    gained, ended = reward.cumsum(dim=-1), done.long().cumsum(dim=-1)
    received = gained.gather(-1, after) - gained[..., :-1]
    return Games(ids, acts[..., 1:], received, after, ended.gather(-1, after) > ended[..., :-1])
