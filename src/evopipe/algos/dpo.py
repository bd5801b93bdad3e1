"""Direct preference optimisation: a language model learns to prefer one completion to another, as people do.

Rafailov et al., "Direct preference optimization: your language model is secretly a reward model", 2023.

Let m = β [log π/π_ref (chosen) − log π/π_ref (rejected)] be the margin, and π_ref the frozen base. A member's loss is
the mean over pairs of

    −log σ(m)  −  α log π(chosen) / its tokens.

Without the second term (Pang et al., "Iterative reasoning preference optimization", 2024), the probability of the
chosen completion often falls too, if less than the rejected one's.

Two later losses need no base, and no pass of it. Both replace the first term and keep the second; with l the mean
log-probability of a completion's tokens,

- `loss: simpo` is −log σ(β [l(chosen) − l(rejected)] − γ) (Meng et al., "SimPO", 2024, eq. 6). Theirs has α = 0, β from
  2 to 10 and γ / β from .3 to 1; with α > 0 it is the mixture with CPO.
- `loss: orpo` is −β log σ(log odds(chosen) − log odds(rejected)), odds = eˡ / (1 − eˡ) (Hong et al., "ORPO", 2024, eq.
  6 and 7). Theirs has α = 1, and calls β λ.
"""

from __future__ import annotations

from typing import Literal

from evopipe.algos import _hyper, _language
from evopipe.algos._language import given
from evopipe.ops import language as ops
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Hyper, Tensor, Text, TokenScores

PAPER = "https://arxiv.org/abs/2305.18290"
REGIME = "text"
POLICY = "policy"
PAIRS = True


class Config(AlgoConfig):
    """Hyper-parameters of direct preference optimisation (DPO; Rafailov et al., 2023).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    batch_size: _language.PairsAnUpdate = 32
    grad_clip: _hyper.GradientClip = 1.0
    loss: Literal["dpo", "simpo", "orpo"] = hyper("dpo", doc="loss of a pair; only `dpo` compares with the base")
    beta: float = hyper(0.1, doc="β, scale of the log-probability differences; for `orpo`, weight of the odds ratio",
        raising="stays nearer to the base", evolvable=True, gt=0)  # fmt: skip
    margin: float = hyper(0.5, doc="γ, margin of the chosen over the rejected completion in `simpo`",
        raising="moves the two further apart", evolvable=True, ge=0)  # fmt: skip
    nll_alpha: float = hyper(1.0, doc="α, weight of the chosen completion's own log-probability",
        raising="imitates the chosen more", evolvable=True, ge=0)  # fmt: skip
    evolve: _hyper.Evolving = _hyper.ranges(lr=(1e-5, 1e-2), beta=(0.01, 1.0))


State = _language.State
networks, init = _language.networks, _language.init


def asks(cfg: Config) -> frozenset[str]:
    """Return the names of the quantities that must be computed for rows of text before `loss` reads them.

    The loss `dpo` needs the quantity `reference`: the log-probabilities under the base model. Other losses need
    nothing.
    """
    return frozenset({"reference"} if cfg.loss == "dpo" else ())


def preference(cfg: Config, now: TokenScores, batch: Text, hp: Hyper) -> ops.Preference:
    """Return each pair's loss and reward margin, `[P, n]` each: n pairs for each of P members.

    The first n completions of the batch are the chosen ones, the last n the rejected ones.

    Args:
        cfg: the algorithm's configuration, whose field `loss` says which loss is computed.
        now: the present log-probabilities of the tokens.
        batch: the completions.
        hp: the members' values of `beta`, `margin` and `nll_alpha`, by name, `[P]` each.
    """
    if cfg.loss == "dpo":
        chosen, rejected = _language.completion_sums(now.log_prob, batch)
        tokens = batch.mask.sum(dim=-1)[:, : chosen.shape[1]]
        reference = _language.completion_sums(given(batch.reference), batch)
        return ops.preference(chosen, rejected, reference, tokens, hp["beta"], hp["nll_alpha"])
    chosen, rejected = _language.completion_means(now.log_prob, batch)
    if cfg.loss == "simpo":
        found = ops.length_free(chosen, rejected, hp["beta"], hp["margin"])
    else:
        found = ops.odds_ratio(chosen, rejected, hp["beta"])
    return found._replace(loss=found.loss - hp["nll_alpha"][:, None] * chosen)


def fitness(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    """Return the score of each held-out pair, `[P, n]`: n pairs for each of P members. The score is the negative loss.

    The loss is computed with `beta`, `margin` and `nll_alpha` of `cfg` for all members. With each member's own values,
    the losses could not be compared.

    Args:
        cfg: the algorithm's configuration, with the values in `params.yaml`.
        hp: the members' own values of the hyper-parameters, `[P]` each. Only their shape has an effect.
        now: the present log-probabilities of the tokens.
        batch: 2 n rows: the n chosen completions, then the n rejected ones.
    """
    own = {name: getattr(cfg, name) + 0.0 * hp[name] for name in ("beta", "margin", "nll_alpha")}
    return -preference(cfg, now, batch, own).loss


def figures(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> dict[str, Tensor]:
    """Return statistics of each held-out pair for reports, by name, `[P, n]` each: n pairs for each of P members.

    `accuracy` is 1 if the policy prefers the chosen completion, else 0. `chosen` and `rejected` are the policy's
    probabilities of the two completions.

    Args:
        cfg: the algorithm's configuration.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        now: the present log-probabilities of the tokens.
        batch: 2 n rows: the n chosen completions, then the n rejected ones.
    """
    chosen, rejected = (x.exp() for x in _language.completion_sums(now.log_prob, batch))
    return {"accuracy": (preference(cfg, now, batch, hp).margin > 0).float(), "chosen": chosen, "rejected": rejected}


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    return ops.total(_language.pair_weights(batch), preference(cfg, now, batch, hp).loss)


update = _language.learner(loss)
