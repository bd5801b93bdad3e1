"""Group relative policy optimisation: completions are compared with others of the same prompt, and no value is learned.

Shao et al., "DeepSeekMath: pushing the limits of mathematical reasoning in open language models", 2024.

Let ρ = π(token) / π_old(token), A = (R − mean) / (std + 10⁻⁴) over the rewards of a prompt's completions, and π_ref the
base. A member's loss is the mean over tokens of

    −min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)  +  β (π_ref/π − log π_ref/π − 1)  −  c_h H(π).

Groups whose rewards are all equal carry no information, and are left out, of the mean too. Changes of later papers are
options:

- `dr` omits the division by the deviation (Liu et al., "Understanding R1-Zero-like training", 2025, eq. 3); their mean
  over all tokens of a constant length is `mean: token`, up to a factor that Adam removes.
- `level: sequence` is GSPO (Zheng et al., 2025, eq. 7).
- Different ends of the clip are DAPO's (Yu et al., 2025, eq. 10), and so is `redraws`, its dynamic sampling (eq. 11):
  completions of a prompt whose rewards are all equal are replaced by those of another prompt, which is drawn up to so
  many times. `reports/language.csv` counts replaced groups (`redrawn`), and those that stay without spread.
- `clip_most` puts min(ρ, most) in the place of the first ρ (Prime Intellect, "INTELLECT-2", 2025, § 3.4).
- `cispo` clips the weight of a token instead of its gradient (MiniMax, "MiniMax-M1", 2025, eq. 4).
- `unbiased_kl` multiplies the last but one term by ρ (DeepSeek-AI, "DeepSeek-V3.2", 2025, § 3.1); TRL calls it
  `use_bias_correction_kl`.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import model_validator

from evopipe.algos import _hyper, _language
from evopipe.algos._language import given
from evopipe.ops import language as ops
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Hyper, Tensor, Text, TokenScores

PAPER = "https://arxiv.org/abs/2402.03300"
REGIME = "dialogue"
POLICY = "policy"


class Config(AlgoConfig):
    """Hyper-parameters of group relative policy optimisation (GRPO; Shao et al., 2024).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    rows: _language.Rows = 64
    group_size: _language.GroupSize = 8
    batch_size: _language.RowsAnUpdate = 64
    epochs: _language.Epochs = 1
    temperature: _language.Temperature = 1.0
    top_k: _language.TopK = 0
    top_p: _language.TopP = 1.0
    clip_low: _language.ClipLow = 0.2
    clip_high: _language.ClipHigh = 0.28
    clip_most: float | None = hyper(None,
        doc="upper bound of the probability ratio if the advantage is negative; null: none",
        raising="learns more from failures that became likelier", ge=1)  # fmt: skip
    cispo: bool = hyper(False, doc="whether to clip the weight of a token, which keeps its gradient (CISPO)")
    beta: _language.Kl = 0.001
    unbiased_kl: _language.UnbiasedKl = False
    ent_coef: _language.EntropyWeight = 0.0
    correction: _language.Correction = "sequence_mask"
    correction_low: _language.CorrectionLow = 0.0
    correction_high: _language.CorrectionHigh = 3.0
    grad_clip: _hyper.GradientClip = 1.0
    level: _language.RatioLevel = "token"
    mean: _language.MeanOver = "token"
    dr: bool = hyper(False, doc="whether advantages are not divided by the group's standard deviation")
    redraws: int = hyper(0, doc="times that a group of equal rewards is replaced by one of another prompt",
        raising="more groups teach, slower rounds", ge=0, le=100)  # fmt: skip
    evolve: _hyper.Evolving = _hyper.ranges(
        lr=(1e-5, 1e-2), beta=(1e-4, 0.1), clip_high=(0.1, 0.5), temperature=(0.5, 1.5), group_size=(4, 16)
    )

    @model_validator(mode="after")
    def _fits(self) -> Config:
        _language.check_groups(self, least=2)
        if self.clip_most is not None and self.clip_most < 1.0 + self.clip_high:
            raise ValueError(
                f"clip_most ({self.clip_most:g}) must be at least 1 + clip_high ({1.0 + self.clip_high:g})"
            )
        return self


State = _language.State
networks, init, asks = _language.networks, _language.init, _language.asks


def estimate(cfg: Config, hp: Hyper, done: Text, group: int) -> Text:
    """Return the completions of a round with their advantages, relative to the other completions of the same prompt.

    If all rewards of a prompt are equal, members do not learn from its completions: `keep` of the result is False for
    them.

    Args:
        cfg: the algorithm's configuration.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        done: the completions, with rewards.
        group: the number of adjacent completions of one prompt.
    """
    reward = given(done.reward)
    found = ops.group_advantages(
        reward, _language.groups_of(reward, group), _language.present(done), "mean" if cfg.dr else "standardised"
    )
    return replace(done, advantage=found.value[..., None].expand(done.mask.shape), keep=found.counts)


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    mask = _language.counted(batch)
    each = _language.surrogate(cfg, hp, now, batch, mask, cfg.cispo, cfg.clip_most)
    return ops.total(ops.token_weights(mask, cfg.mean), each)


update = _language.learner(loss, completions=True)
