"""Proximal policy optimisation of language models: every token is an action, and a value head predicts its return.

Schulman et al., "Proximal policy optimization algorithms", 2017; for language models Ouyang et al., "Training language
models to follow instructions with human feedback", 2022.

The reward of a completion comes with its last token. The advantages Â of its tokens are generalised estimates, from the
values of a head on the policy's own hidden states. With ρ = π / π_old and the base π_ref, a member's loss is the mean
over tokens of

    −min(ρ Â, clip(ρ, 1 − ε_low, 1 + ε_high) Â)  +  c_v ½ max((V − V̂)², (V_old + clip(V − V_old, ±ε_v) − V̂)²)
        +  β (π_ref/π − log π_ref/π − 1)  −  c_h H(π),   V̂ = Â + V_old,

where Â is standardised over all of a member's tokens. `unbiased_kl` multiplies the third term by ρ (DeepSeek-AI,
"DeepSeek-V3.2", 2025, § 3.1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import model_validator

from evopipe.algos import _hyper, _language
from evopipe.algos._language import given
from evopipe.ops import language as ops
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Hyper, Tensor, Text, TokenScores

PAPER = "https://arxiv.org/abs/2203.02155"
REGIME = "dialogue"
POLICY = "policy"


class Config(AlgoConfig):
    """Hyper-parameters of PPO for language models, in which each token is an action (Schulman et al., 2017).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: Annotated[float, _hyper.rate("Adam for the actor")] = 1e-3
    lr_value: Annotated[float, _hyper.rate("Adam for the value head")] = 1e-3
    rows: _language.Rows = 64
    group_size: _language.GroupSize = 1
    batch_size: _language.RowsAnUpdate = 64
    epochs: _language.Epochs = 2
    temperature: _language.Temperature = 1.0
    top_k: _language.TopK = 0
    top_p: _language.TopP = 1.0
    gamma: _hyper.Discount = 1.0
    gae_lambda: float = hyper(0.95, doc="λ of generalised advantage estimation", raising="less bias, more variance",
        evolvable=True, ge=0, le=1)  # fmt: skip
    clip_low: _language.ClipLow = 0.2
    clip_high: _language.ClipHigh = 0.2
    clip_value: float = hyper(0.2, doc="ε; values are clipped to the old values ± ε", raising="larger steps of values",
        evolvable=True, gt=0)  # fmt: skip
    vf_coef: float = hyper(0.5, doc="weight of the value loss", raising="values learn faster", evolvable=True, ge=0)
    beta: _language.Kl = 0.001
    unbiased_kl: _language.UnbiasedKl = False
    ent_coef: _language.EntropyWeight = 0.0
    correction: _language.Correction = "sequence_mask"
    correction_low: _language.CorrectionLow = 0.0
    correction_high: _language.CorrectionHigh = 3.0
    grad_clip: _hyper.GradientClip = 1.0
    level: _language.RatioLevel = "token"
    mean: _language.MeanOver = "token"
    evolve: _hyper.Evolving = _hyper.ranges(
        lr=(1e-5, 1e-2), lr_value=(1e-4, 1e-2), beta=(1e-4, 0.1), temperature=(0.5, 1.5)
    )

    @model_validator(mode="after")
    def _fits(self) -> Config:
        _language.check_groups(self, least=1)
        return self


State = _language.StateWithHead
networks, init = _language.networks_with_head, _language.init_with_head


def asks(cfg: Config) -> frozenset[str]:
    """Return the names of the quantities that must be computed before the advantages of completions are estimated.

    The name `value` stands for the values of the tokens. The name `reference` stands for their log-probabilities under
    the base model. It is returned only if the weight β of the divergence from the base model is above 0, or mutation
    may raise it above 0.
    """
    return frozenset({"value", "reference"} if _language.wants_reference(cfg) else {"value"})


def estimate(cfg: Config, hp: Hyper, done: Text, group: int) -> Text:
    """Return the completions of a round with the advantages (GAE) and value targets of their tokens.

    Args:
        cfg: the algorithm's configuration.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        done: the completions, with rewards and values.
        group: has no effect, because completions of one prompt are not compared.
    """
    mask, value = _language.counted(done), given(done.value)
    advantage = ops.token_gae(ops.on_last(given(done.reward), mask), value, mask, hp["gamma"], hp["gae_lambda"])
    return replace(done, advantage=ops.whiten(advantage, mask), target=advantage + value)


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    mask = _language.counted(batch)
    error = ops.value_loss(given(now.value), given(batch.value), given(batch.target), hp["clip_value"])
    each = _language.surrogate(cfg, hp, now, batch, mask) + hp["vf_coef"][:, None, None] * error
    return ops.total(ops.token_weights(mask, cfg.mean), each)


update = _language.learner(loss, completions=True)
