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
    """Advantages of each member's B completions, relative to the other completions of the same prompt (the group).

    Attributes:
        value: `[P, B]`, the advantages; 0 for completions that do not count.
        counts: `[P, B]` bool, whether the completion exists and the rewards of its group differ.
        groups: `[P]` int64, the number of groups.
        skipped: `[P]` int64, the number of groups whose rewards are all equal, from which nothing can be learned.
    """

    value: Tensor
    counts: Tensor
    groups: Tensor
    skipped: Tensor


def group_advantages(reward: Tensor, group: Tensor, present: Tensor, baseline: Baseline) -> Advantages:
    """Return the advantages of rewards relative to the other rewards of their group.

    A NaN reward makes the advantages of its own group NaN, and leaves other groups unchanged.

    Args:
        reward: `[P, B]`, one reward for each of the B completions of P members.
        group: `[P, B]` int64, any number that identifies the group; one group for all gives a baseline over the batch.
        present: `[P, B]` bool, which rewards exist.
        baseline: `standardised` is (R − mean) / (std + 10⁻⁴) with the sample standard deviation (Shao et al.,
            "DeepSeekMath", 2024, § 4.1.2). `mean` is R − mean (Liu et al., "Understanding R1-Zero-like training",
            2025). `leave_one_out` is R minus the mean of the other rewards of the group (Kool et al., 2019; Ahmadian et
            al., "Back to basics", 2024).
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
    """Return for every group of `size` adjacent rewards whether its rewards are all equal, `[P, B / size]` bool.

    `reward` is `[P, B]` for B completions of P members.
    """
    groups = reward.unflatten(1, (-1, size))
    equal: Tensor = (groups == groups[..., :1]).all(dim=-1)
    return equal


def refill(empty: Tensor, full: Tensor) -> Tensor:
    """Choose which groups of completions to learn from: int64 `[P, G]`, for G groups of each of P members.

    Each member has G groups, and G spare groups. A group is a prompt with its completions; if all of these have the
    same reward, it teaches nothing, and a spare group replaces it. The first group to replace gets the first usable
    spare group, the next one the next, and so on. If no usable spare group is left, a group stays.

    In the result, a number n < G means the member's group n, and G + n means its spare group n.

    Args:
        empty: `[P, G]` bool, the groups to replace.
        full: `[P, G]` bool, the usable spare groups.
    """
    size, nth = empty.shape[1], empty.cumsum(dim=1)  # from 1
    first = (~full).to(torch.int8).argsort(dim=1, stable=True)  # those of use before all others
    filled = empty & (nth <= full.sum(dim=1, keepdim=True))
    own = torch.arange(size, device=empty.device).expand(empty.shape)
    return torch.where(filled, size + first.gather(1, (nth - 1).clamp(min=0)), own)


def _within(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~mask, 0.0)


def token_weights(mask: Tensor, mean: Mean) -> Tensor:
    """Return weights `[P, B, T]` of tokens that sum to 1 for each member, or to 0 if the mask excludes all tokens of
    the member.

    Args:
        mask: `[P, B, T]` bool, the tokens that count: B sequences of T tokens of P members.
        mean: `token` weights all tokens equally (Yu et al., "DAPO", 2025). `sequence` weights all sequences equally,
            and the tokens within a sequence equally, so that a token of a long sequence has a smaller weight.
    """
    counted = mask.to(torch.float32)
    if mean == "token":
        return counted / counted.sum(dim=(1, 2), keepdim=True).clamp(min=1.0)
    each = counted.sum(dim=2, keepdim=True)
    sequences = (each > 0).sum(dim=1, keepdim=True)
    return counted / (each.clamp(min=1.0) * sequences.clamp(min=1))


def total(weight: Tensor, each: Tensor) -> Tensor:
    """Return each member's weighted sum Σ weight · each, `[P]`.

    `weight` and `each` are `[P, B, T]`, for B rows of T tokens of P members, or `[P, B]`, one number per row. Numbers
    with weight 0 do not enter the sum, even if they are not finite.
    """
    return (weight * _within(each, weight != 0)).flatten(1).sum(dim=1)


def row_means(each: Tensor, mask: Tensor) -> Tensor:
    """Return for each row the mean of `each` over the tokens inside the mask, `[P, B]`.

    The mean is 0 for a row without such tokens. `each` `[P, B, T]` has a number for each token: P members, B rows, T
    tokens. `mask` says which tokens count.
    """
    return _within(each, mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


def drift(log_prob: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Return the largest |log π − log π_old| of each member, `[P]`, over the tokens inside the mask.

    All arguments are `[P, B, T]`: P members, B sequences, T tokens. At the first update after a rollout, the result
    shows how far the learner's log-probabilities are from those recorded when the text was generated.
    """
    return _within(log_prob.detach() - old, mask).abs().flatten(1).amax(dim=1)


class Importance(NamedTuple):
    """Importance weights of tokens that another policy generated, as `importance` returns them.

    Attributes:
        weight: `[P, B, T]`, the weights of T tokens in B sequences of P members; 0 outside the mask.
        bounded: `[P]`, the share of the tokens whose ratio lay outside [`low`, `high`]. See `importance` for the ratio
            and these bounds.
    """

    weight: Tensor
    bounded: Tensor


def importance(log_prob: Tensor, drawn: Tensor, mask: Tensor, how: Correction, low: float, high: float) -> Importance:
    """Return the importance weights of tokens that one policy, π_drawn, generated, and another policy, π, learns from.

    The ratio of a token is π(·) / π_drawn(·). If the name of the correction begins with `sequence_`, it is the product
    of these ratios over the sequence. The result also has the share of the tokens whose ratio is outside [low, high].

    Args:
        log_prob, drawn: `[P, B, T]`, log π and log π_drawn: P members, B sequences, T tokens.
        mask: `[P, B, T]` bool, the tokens that count.
        how: the correction, which turns the ratio into a weight. `…_truncate` clips the ratio to [low, high] (Yao et
            al., "Your efficient RL framework secretly brings you off-policy RL training", 2025). `…_mask` sets a ratio
            outside [low, high] to 0 (Liu et al., "When speed kills stability: demystifying RL collapse from the
            training-inference mismatch", 2025). `none` sets every weight to 1.
        low, high: the bounds of the ratio.
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
    """Return the log-probability `[…]` of each token.

    Args:
        logits: `[…, V]`, the logits that predict the token, one for each of V tokens of the vocabulary.
        token: `[…]` int64.
    """
    return logits.gather(-1, token.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy `[…]` in nats of the softmax of logits `[…, V]`, over V tokens. A logit of −∞ adds 0."""
    chances = logits.log_softmax(dim=-1)
    return -(chances.exp() * chances.clamp(min=torch.finfo(chances.dtype).min)).sum(dim=-1)


# --- ratios and policy losses -----------------------------------------------------------------------------------------


def log_ratios(log_prob: Tensor, old: Tensor, mask: Tensor, level: Level, turn: Tensor | None = None) -> Tensor:
    """Return log(π(·) / π_old(·)) for each token, `[P, B, T]`: the token's own, or the mean over its turn or sequence.

    The result is 0 outside the mask. The mean over a sequence is the ratio of GSPO (Zheng et al., "Group sequence
    policy optimization", 2025, eq. 7).

    Args:
        log_prob, old: `[P, B, T]`, log-probabilities under π and π_old: P members, B sequences, T tokens.
        mask: `[P, B, T]` bool, the tokens that count.
        level: `token` for no mean; `turn` or `sequence` for the mean over the tokens of a turn or of a sequence.
        turn: `[P, B, T]` int64, the number of each token's turn from 0. If it is None, the level `turn` means the same
            as `sequence`.
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

    ρ is the ratio of probabilities under the present policy and under the policy that wrote the sequences.

    Args:
        log_ratio: `[P, B, T]`, log ρ of T tokens in B sequences of P members.
        advantage: A, `[P, B, T]`, or `[P, B, 1]` for whole sequences.
        low, high: `[P]`, the bounds of the clip, which may differ (Yu et al., "DAPO", 2025, eq. 10).
        most: an upper bound of every ρ, or None. It bounds the loss of negative advantages, which the clip leaves
            unbounded (Prime Intellect, "INTELLECT-2", 2025, § 3.4).
    """
    ratio = log_ratio.exp()
    if most is not None:
        ratio = ratio.clamp(max=most)
    return -clipped_surrogate(ratio, advantage, low[:, None, None], high[:, None, None])


def cispo(log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the CISPO loss −clip(ρ, 1 − low, 1 + high) A log π, `[P, B, T]` (MiniMax, "MiniMax-M1", 2025, eq. 4).

    ρ is the ratio of probabilities under the present policy and under the policy that wrote the sequences. No gradient
    passes through ρ, so clipping removes no token's gradient.

    Args:
        log_prob: `[P, B, T]`, log π of T tokens in B sequences of P members.
        log_ratio: `[P, B, T]`, log ρ.
        advantage: A, `[P, B, T]`, or `[P, B, 1]` for whole sequences.
        low, high: `[P]`, the bounds of the clip.
    """
    ratio = log_ratio.detach().exp()
    return -torch.clamp(ratio, 1.0 - low[:, None, None], 1.0 + high[:, None, None]) * advantage * log_prob


def outside(log_ratio: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return for each ratio exp(`log_ratio`) whether the ratio lies outside [1 − low, 1 + high], `[P, B, T]` bool.

    `log_ratio` is `[P, B, T]`: P members, B sequences, T tokens. `low` and `high` are `[P]`.
    """
    ratio = log_ratio.exp()
    return (ratio < 1.0 - low[:, None, None]) | (ratio > 1.0 + high[:, None, None])


def k3(log_prob: Tensor, reference: Tensor, mask: Tensor, log_ratio: Tensor | None = None) -> Tensor:
    """Return the estimate π_ref/π − log π_ref/π − 1 of KL(π ‖ π_ref) at each token, `[P, B, T]`; 0 outside the mask.

    The estimate is never negative, and unbiased over tokens that π generated (Schulman, "Approximating KL divergence",
    2020).

    Args:
        log_prob, reference: `[P, B, T]`, log π and log π_ref: P members, B sequences, T tokens.
        mask: `[P, B, T]` bool, the tokens that count.
        log_ratio: `[P, B, T]`, log π / π_old, or None. If given, the estimate is multiplied by π / π_old, so that it
            and its gradient are unbiased over tokens that π_old generated (DeepSeek-AI, "DeepSeek-V3.2", 2025, § 3.1).
    """
    gap = _within(reference - log_prob, mask)
    each = torch.expm1(gap) - gap
    return each if log_ratio is None else each * log_ratio.exp()


# --- values -----------------------------------------------------------------------------------------------------------


def on_last(reward: Tensor, mask: Tensor) -> Tensor:
    """Return token rewards `[P, B, T]`: each completion's reward on its last token inside the mask, and 0 on other
    tokens.

    `reward` is `[P, B]` for B completions of P members, and `mask` `[P, B, T]` says which of T tokens count.
    """
    places = torch.arange(1, mask.shape[-1] + 1, device=mask.device) * mask
    last = mask & (places == places.amax(dim=-1, keepdim=True))
    return last * reward[..., None]


def token_gae(reward: Tensor, value: Tensor, mask: Tensor, gamma: Tensor, lam: Tensor) -> Tensor:
    """Return generalised advantage estimates of tokens, `[P, B, T]`; 0 outside the mask (Schulman et al., 2016, eq.
    16).

    A step is a token inside the mask, and its successor is the next such token of the sequence. Tokens in between,
    which an environment wrote, are skipped. The last token has no successor.

    Args:
        reward, value: `[P, B, T]`: P members, B sequences, T tokens.
        mask: `[P, B, T]` bool, the tokens that the member wrote.
        gamma: `[P]`, γ.
        lam: `[P]`, λ.
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
    """Return x `[P, B, T]` shifted and scaled to mean 0 and variance 1 over each member's tokens inside the mask.

    The result is 0 outside the mask. `x` holds a number for each of T tokens in B sequences of P members.
    """
    weight = token_weights(mask, "token")
    apart = _within(x, mask) - total(weight, x)[:, None, None]
    return _within(apart / (total(weight, apart.square()).sqrt()[:, None, None] + _EPS), mask)


def value_loss(value: Tensor, old: Tensor, target: Tensor, clip: Tensor) -> Tensor:
    """Return the clipped value loss ½ max((V − V̂)², (V_old + clip(V − V_old, ±clip) − V̂)²) of each token, `[P, B,
    T]`.

    `value` (V), `old` (V_old) and `target` (V̂) are `[P, B, T]`: P members, B sequences, T tokens. `clip` `[P]` bounds
    V − V_old.
    """
    limit = clip[:, None, None]
    near = old + torch.clamp(value - old, -limit, limit)
    return 0.5 * torch.maximum((value - target).square(), (near - target).square())


def after_last(value: Tensor, mask: Tensor) -> Tensor:
    """Return the value at the token that follows each row's last token inside the mask: `[P, B, T]` → `[P, B]`.

    There are B rows of T tokens of P members. Every row must have a token after its last token inside the mask.
    """
    places = torch.arange(1, mask.shape[-1] + 1, device=mask.device) * mask
    return value.gather(-1, places.amax(dim=-1, keepdim=True)).squeeze(-1)


# --- preferences ------------------------------------------------------------------------------------------------------


class Preference(NamedTuple):
    """The result of a preference loss for B pairs of a chosen and a rejected completion of each of P members.

    Attributes:
        loss: `[P, B]`, the loss of each pair.
        margin: `[P, B]`, the implicit reward of the chosen completion minus that of the rejected one.
    """

    loss: Tensor
    margin: Tensor


def preferred(margin: Tensor) -> Tensor:
    """Return log σ(margin), the log-probability that a completion is preferred to another, in the shape of `margin`.

    `margin` is the reward of the completion minus the reward of the other. This is the model of Bradley and Terry,
    1952.
    """
    return torch.nn.functional.logsigmoid(margin)


def preference(
    chosen: Tensor, rejected: Tensor, reference: tuple[Tensor, Tensor], tokens: Tensor, beta: Tensor, nll: Tensor
) -> Preference:
    """Return the DPO loss −log σ(m) − nll · log π(chosen) / tokens with m = β [log π/π_ref (chosen) − log π/π_ref
    (rejected)].

    Rafailov et al., "Direct preference optimization", 2023, eq. 7. The second term keeps the probability of the chosen
    completion from falling along with that of the rejected one (Pang et al., "Iterative reasoning preference
    optimization", 2024).

    Args:
        chosen, rejected: `[P, B]`, log-probabilities under π, summed over a completion's tokens: B pairs of P members.
        reference: the log-probabilities `[P, B]` of the chosen and of the rejected completions under π_ref.
        tokens: `[P, B]`, number of tokens of the chosen completion.
        beta: `[P]`, β.
        nll: `[P]`, the weight of the second term.
    """
    margin = beta[:, None] * ((chosen - reference[0]) - (rejected - reference[1]))
    imitation = nll[:, None] * chosen / tokens.clamp(min=1)
    return Preference(-preferred(margin) - imitation, margin.detach())


def length_free(chosen: Tensor, rejected: Tensor, beta: Tensor, margin: Tensor) -> Preference:
    """Return the SimPO loss −log σ(m − margin) with m = β [mean log π (chosen) − mean log π (rejected)].

    Meng et al., "SimPO: simple preference optimization with a reference-free reward", 2024, eq. 6. `chosen` and
    `rejected` are `[P, B]`, mean log-probabilities of a completion's tokens (B pairs of P members); `beta` and `margin`
    (γ) are `[P]`.
    """
    apart = beta[:, None] * (chosen - rejected)
    return Preference(-preferred(apart - margin[:, None]), apart.detach())


def odds_ratio(chosen: Tensor, rejected: Tensor, beta: Tensor) -> Preference:
    """Return ORPO's odds-ratio loss −β log σ(m) with m = log odds(chosen) − log odds(rejected), odds p / (1 − p).

    Hong et al., "ORPO: monolithic preference optimization without reference model", 2024, eq. 7. `chosen` and
    `rejected` are `[P, B]`, mean log-probabilities of a completion's tokens (B pairs of P members); `beta` (λ in the
    paper) is `[P]`.
    """

    def log_odds(mean: Tensor) -> Tensor:
        # A completion that is certain has infinite odds: it is as certain as the next smaller number.
        return mean - torch.log(-torch.expm1(mean.clamp(max=-torch.finfo(mean.dtype).eps)))

    apart = log_odds(chosen) - log_odds(rejected)
    return Preference(-beta[:, None] * preferred(apart), apart.detach())


def desirability(
    apart: Tensor, zero: Tensor, desirable: Tensor, beta: Tensor, weights: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the KTO loss of single completions, `[P, B]`: λ_D (1 − σ(β (apart − zero))) for desirable completions and
    λ_U (1 − σ(β (zero − apart))) for undesirable ones.

    Ethayarajh et al., "KTO: model alignment as prospect theoretic optimization", 2024, eq. 8. The constant that the
    paper adds to the loss of a completion is λ_D or λ_U here, so that no loss is negative.

    Args:
        apart: `[P, B]`, log π/π_ref of the B completions of P members.
        zero: `[P]`, the reference point z₀ ≥ 0, which gets no gradient.
        desirable: `[P, B]` bool, which completions are desirable.
        beta: `[P]`, β.
        weights: λ_D and λ_U, `[P]` each.
    """
    gain = beta[:, None] * (apart - zero[:, None])
    good, bad = weights
    return torch.where(desirable, good[:, None] * torch.sigmoid(-gain), bad[:, None] * torch.sigmoid(gain))


# --- games ------------------------------------------------------------------------------------------------------------


def games(ids: Tensor, real: Tensor, acts: Tensor, reward: Tensor, done: Tensor) -> Games:
    """Convert games, stored as sequences of L tokens, to the player's decisions and what each of them led to.

    The results but `ids` are `[…, L − 1]`. Column j is the state after token j, and token j + 1 is the action in it.
    The results say for each state whether the player wrote that action. They also say what happened until the player
    wrote the next token: the sum of the rewards, the column of the state in which the player wrote it (that of the last
    token if the player wrote no more), and whether the game ended before.

    Args:
        ids: `[…, L]` int64, the tokens.
        real: `[…, L]` bool, False on padding, which is on the right.
        acts: `[…, L]` bool, True where the player wrote the token.
        reward: `[…, L]`, the reward that came with the token.
        done: `[…, L]` bool, True at the token after which a game is over.
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
