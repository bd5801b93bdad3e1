"""Reward model: it scores completions, and learns to give the higher score to the one that people preferred.

Bradley and Terry, "Rank analysis of incomplete block designs", 1952; of language models' completions Ouyang et al.,
"Training language models to follow instructions with human feedback", 2022, § 3.5.

A linear head on the hidden state after a completion's last token gives its reward r. A member's loss is the mean over
pairs of

    −log σ(r(chosen) − r(rejected)).

Rewards are determined up to a constant that all completions of a prompt share; GRPO removes it. If `language.reward` of
another pipeline names the exported folder, its members learn from this model's rewards.
"""

from __future__ import annotations

from typing import Annotated

from evopipe.algos import _hyper, _language
from evopipe.algos._language import given
from evopipe.ops import language as ops
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Hyper, Tensor, Text, TokenScores

PAPER = "https://arxiv.org/abs/2203.02155"
REGIME = "text"
POLICY = "policy"
PAIRS = True


class Config(AlgoConfig):
    """Hyper-parameters of a reward model, which learns from pairs of completions.

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    lr_value: Annotated[float, _hyper.rate("Adam for the head")] = 1e-3
    batch_size: _language.PairsAnUpdate = 32
    grad_clip: _hyper.GradientClip = 1.0
    evolve: _hyper.Evolving = _hyper.ranges(lr=(1e-5, 1e-2), lr_value=(1e-5, 1e-2))


State = _language.StateWithHead
networks, init = _language.networks_with_head, _language.init_with_head


asks = _language.always("value", "end")


def margins(now: TokenScores, batch: Text) -> Tensor:
    """Return the reward difference r(chosen) − r(rejected) of each pair, `[P, n]`: n pairs for each of P members.

    `now` holds the present outputs of the head for every token. The first n completions of the batch are the chosen
    ones, the last n the rejected ones.
    """
    chosen, rejected = ops.after_last(given(now.value), batch.mask).chunk(2, dim=1)
    return chosen - rejected


def fitness(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    """Return the score of each held-out pair of completions, `[P, n]`: n pairs for each of P members.

    The score is the log-probability, in nats, that the chosen completion is preferred.

    Args:
        cfg: the algorithm's configuration.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        now: the present outputs of the head for each of the tokens.
        batch: 2 n rows: the n chosen completions, then the n rejected ones.
    """
    return ops.preferred(margins(now, batch))


def figures(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> dict[str, Tensor]:
    """Return statistics of each held-out pair for reports, by name, `[P, n]` each: n pairs for each of P members.

    The only statistic is `accuracy`: 1 if the chosen completion has the higher reward, else 0.

    Args:
        cfg: the algorithm's configuration.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        now: the present outputs of the head for each of the tokens.
        batch: 2 n rows: the n chosen completions, then the n rejected ones.
    """
    return {"accuracy": (margins(now, batch) > 0).float()}


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    return ops.total(_language.pair_weights(batch), -ops.preferred(margins(now, batch)))


update = _language.learner(loss)
