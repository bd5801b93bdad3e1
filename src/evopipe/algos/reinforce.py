"""REINFORCE on completions: a whole completion is one action, and other completions are its baseline.

Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992; for
language models Ahmadian et al., "Back to basics: revisiting REINFORCE style optimization for learning from human
feedback in LLMs", 2024.

The return of a completion is R − β Σ log π_old/π_ref over its tokens, where π_ref is the base. Its advantage A is the
return, standardised over all of a member's completions (`baseline: batch`), or minus the mean of the prompt's others
(`rloo`). A member's loss is the mean of

    −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)  −  c_h H(π),   ρ = π / π_old.

At the first update from a rollout ρ is 1, and the gradient is −A ∂ log π, that of REINFORCE. Later updates from the
same completions, if `batch_size` or `epochs` ask for them, need the ratio.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import model_validator

from evopipe.algos import _hyper, _language
from evopipe.algos._language import given
from evopipe.ops import language as ops
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Hyper, Tensor, Text, TokenScores

PAPER = "https://arxiv.org/abs/2402.14740"
REGIME = "dialogue"
POLICY = "policy"


class Config(AlgoConfig):
    """Hyper-parameters of REINFORCE for language models, in which a completion is an action (Williams, 1992).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    rows: _language.Rows = 64
    group_size: _language.GroupSize = 4
    batch_size: _language.RowsAnUpdate = 64
    epochs: _language.Epochs = 1
    temperature: _language.Temperature = 1.0
    top_k: _language.TopK = 0
    top_p: _language.TopP = 1.0
    baseline: Literal["batch", "rloo"] = hyper("batch",
        doc="baseline: the mean return of all completions (`batch`), or of its prompt's others (`rloo`)")  # fmt: skip
    clip_low: _language.ClipLow = 0.2
    clip_high: _language.ClipHigh = 0.2
    beta: _language.Kl = 0.001
    ent_coef: _language.EntropyWeight = 0.0
    correction: _language.Correction = "sequence_mask"
    correction_low: _language.CorrectionLow = 0.0
    correction_high: _language.CorrectionHigh = 3.0
    grad_clip: _hyper.GradientClip = 1.0
    level: _language.RatioLevel = "token"
    mean: _language.MeanOver = "token"
    evolve: _hyper.Evolving = _hyper.ranges(
        lr=(1e-5, 1e-2), beta=(1e-4, 0.1), temperature=(0.5, 1.5), group_size=(2, 16)
    )

    @model_validator(mode="after")
    def _fits(self) -> Config:
        _language.check_groups(self, least=2 if self.baseline == "rloo" else 1)
        return self


State = _language.State
networks, init, asks = _language.networks, _language.init, _language.asks


def estimate(cfg: Config, hp: Hyper, done: Text, group: int) -> Text:
    """Return the completions of a round with their advantages.

    An advantage says how a completion's return compares with the returns of other completions; the module's docstring
    has the formula. If all returns that are compared are equal, members do not learn from these completions: the field
    `keep` of the result is False for them.

    Args:
        cfg: the algorithm's configuration, which says what a return is compared with.
        hp: hyper-parameters, `[P]` each.
        done: the completions, with rewards.
        group: the number of adjacent completions of one prompt.
    """
    returns = given(done.reward)
    if done.reference is not None:
        apart = (given(done.log_prob) - done.reference).masked_fill(~done.mask, 0.0).sum(dim=-1)
        returns = returns - hp["beta"][:, None] * apart
    alone = cfg.baseline == "rloo"
    groups = _language.groups_of(returns, group if alone else returns.shape[1])
    found = ops.group_advantages(returns, groups, _language.present(done), "leave_one_out" if alone else "standardised")
    return replace(done, advantage=found.value[..., None].expand(done.mask.shape), keep=found.counts)


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    mask, batch = _language.counted(batch), replace(batch, reference=None)  # the divergence is in the return
    return ops.total(ops.token_weights(mask, cfg.mean), _language.surrogate(cfg, hp, now, batch, mask))


update = _language.learner(loss, completions=True)
