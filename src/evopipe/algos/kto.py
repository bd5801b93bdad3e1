"""Kahneman-Tversky optimisation: a language model learns from completions that people called desirable or not.

The completions come one at a time, without pairs.

Ethayarajh et al., "KTO: model alignment as prospect theoretic optimization", 2024.

Let r = log π/π_ref of a completion and π_ref the frozen base. The reference point z₀ = max(0, mean r') is a constant;
r' is that of the row's prompt with the completion of another row, so that it estimates the divergence of the policy
from the base (§ 4.1). A member's loss is the mean over completions of

    λ_D [1 − σ(β (r − z₀))]   of a desirable one,     λ_U [1 − σ(β (z₀ − r))]   of one that is not      (eq. 8).

The paper's advice: λ_D n_D / (λ_U n_U) from 1 to 1.33 if n_D desirable and n_U undesirable rows are learned from.
`loss: apo_zero` has z₀ = 0 (D'Oosterlinck et al., "Anchored preference optimization", 2024, of single completions).
TRL's names are `desirable_weight`, `undesirable_weight` and `loss_type: apo_zero_unpaired`.

The other row is fixed when rows become tokens: the next one of the same split with another prompt, where there is one.
"""

from __future__ import annotations

from typing import Literal

import torch

from evopipe.algos import _hyper, _language
from evopipe.algos._language import given
from evopipe.ops import language as ops
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Hyper, Tensor, Text, TokenScores

PAPER = "https://arxiv.org/abs/2402.01306"
REGIME = "text"
POLICY = "policy"
LABELS = True


class Config(AlgoConfig):
    """Hyper-parameters of Kahneman-Tversky optimisation (KTO; Ethayarajh et al., 2024).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    batch_size: _language.RowsOfText = 32
    grad_clip: _hyper.GradientClip = 1.0
    loss: Literal["kto", "apo_zero"] = hyper("kto",
        doc="loss, which compares log π/π_ref with the reference point z₀ (`kto`) or with 0 (`apo_zero`)")  # fmt: skip
    beta: float = hyper(0.1, doc="β, scale of the difference from the base", raising="stays nearer to the base",
        evolvable=True, gt=0)  # fmt: skip
    desirable: float = hyper(1.0, doc="λ_D, weight of desirable completions", raising="these rise faster",
        evolvable=True, ge=0)  # fmt: skip
    undesirable: float = hyper(1.0, doc="λ_U, weight of undesirable completions", raising="these fall faster",
        evolvable=True, ge=0)  # fmt: skip
    evolve: _hyper.Evolving = _hyper.ranges(lr=(1e-5, 1e-2), beta=(0.01, 1.0))


State = _language.State
networks, init = _language.networks, _language.init


asks = _language.always("reference")


def losses(cfg: Config, now: TokenScores, batch: Text, hp: Hyper) -> Tensor:
    """Return the loss of each completion, `[P, n]` for n completions of P members.

    Args:
        cfg: the algorithm's configuration.
        now: the present log-probabilities of the tokens.
        batch: 2 n rows. The first n are the completions to learn from. The last n are the same prompts with completions
            of other rows, by which the reference point is estimated.
        hp: hyper-parameters, `[P]` each: `beta`, `desirable` and `undesirable`.
    """
    own, others = _language.completion_sums(now.log_prob - given(batch.reference), batch)
    zero = torch.zeros_like(own[:, 0])
    if cfg.loss == "kto":
        zero = ops.total(_language.pair_weights(batch), others.detach()).clamp(min=0.0)
    desirable = given(batch.reward)[:, : own.shape[1]] > 0
    return ops.desirability(own, zero, desirable, hp["beta"], (hp["desirable"], hp["undesirable"]))


def fitness(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    """Return the score of each held-out completion, `[P, n]` for n completions of P members.

    The score is the negative loss, computed with `beta`, `desirable` and `undesirable` of `cfg` for all members. With
    each member's own values, the losses could not be compared.

    Args:
        cfg: the algorithm's configuration, with the values in `params.yaml`.
        hp: the members' own values of the hyper-parameters, `[P]` each. Only their shape has an effect.
        now: the present log-probabilities of the tokens.
        batch: 2 n rows, as in `losses`: the n held-out completions, then the same prompts with completions of other
            rows.
    """
    own = {name: getattr(cfg, name) + 0.0 * hp[name] for name in ("beta", "desirable", "undesirable")}
    return -losses(cfg, now, batch, own)


def figures(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> dict[str, Tensor]:
    """Return statistics of each held-out completion for reports, by name, `[P, n]` each for n completions of P members.

    The only statistic is `accuracy`: 1 if the policy makes a desirable completion more likely than the base model does,
    or an undesirable completion less likely; else 0.

    Args:
        cfg: the algorithm's configuration.
        hp: hyper-parameters, `[P]` each.
        now: the present log-probabilities of the tokens.
        batch: 2 n rows, as in `losses`: the n held-out completions, then the same prompts with completions of other
            rows.
    """
    own, _ = _language.completion_sums(now.log_prob - given(batch.reference), batch)
    desirable = given(batch.reward)[:, : own.shape[1]] > 0
    return {"accuracy": torch.where(desirable, own > 0, own < 0).float()}


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    return ops.total(_language.pair_weights(batch), losses(cfg, now, batch, hp))


update = _language.learner(loss)
