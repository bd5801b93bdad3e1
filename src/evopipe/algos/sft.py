"""Supervised fine-tuning: the language model learns to write the completions of a dataset.

Ouyang et al., "Training language models to follow instructions with human feedback", 2022, § 3.5.

A member's loss is the mean of −log π(token | all tokens before it) over the tokens of completions. Prompts are read,
but not learned.
"""

from __future__ import annotations

from evopipe.algos import _hyper, _language
from evopipe.ops import language as ops
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Hyper, Tensor, Text, TokenScores

PAPER = "https://arxiv.org/abs/2203.02155"
REGIME = "text"
POLICY = "policy"


class Config(AlgoConfig):
    """Hyper-parameters of supervised fine-tuning of language models.

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    batch_size: _language.RowsOfText = 32
    grad_clip: _hyper.GradientClip = 1.0
    mean: _language.MeanOver = "token"
    evolve: _hyper.Evolving = _hyper.ranges(lr=(1e-5, 1e-2))


State = _language.State
networks, init = _language.networks, _language.init


asks = _language.always()


def fitness(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    """Return the score of each held-out completion, `[P, B]` for B completions of P members.

    The score is the mean log-probability of the completion's tokens, in nats.

    Args:
        cfg: the algorithm's configuration.
        hp: hyper-parameters, `[P]` each.
        now: the present log-probabilities of the tokens.
        batch: the held-out completions.
    """
    return ops.row_means(now.log_prob, batch.mask)


def figures(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> dict[str, Tensor]:
    """Return statistics of each held-out completion for reports, by name, `[P, B]` each for B completions of P members.

    The only statistic is `chance`, the probability of the whole completion.

    Args:
        cfg: the algorithm's configuration.
        hp: hyper-parameters, `[P]` each.
        now: the present log-probabilities of the tokens.
        batch: the held-out completions.
    """
    return {"chance": now.log_prob.masked_fill(~batch.mask, 0.0).sum(dim=-1).exp()}


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    return ops.total(ops.token_weights(_language.counted(batch), cfg.mean), -now.log_prob)


update = _language.learner(loss)
