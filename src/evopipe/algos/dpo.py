"""Direct preference optimisation: the language model learns to prefer, of two completions, the one that people
preferred.

Rafailov et al., "Direct preference optimization: your language model is secretly a reward model", 2023.

Let m = β [log π/π_ref (chosen) − log π/π_ref (rejected)] be the margin, and π_ref the frozen base. A member's loss is
the mean over pairs of

    −log σ(m)  −  α log π(chosen) / its tokens.

Without the second term (Pang et al., "Iterative reasoning preference optimization", 2024), the probability of the
chosen completion often falls too, if less than the rejected one's.
"""

from __future__ import annotations

import torch

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
    """Hyper-parameters of DPO."""

    lr: _hyper.Rate = 1e-3
    batch_size: _language.PairsAnUpdate = 32
    grad_clip: _hyper.GradientClip = 1.0
    beta: float = hyper(0.1, doc="β, how much a difference from the base counts", raising="stays nearer to it",
        evolvable=True, gt=0)  # fmt: skip
    nll_alpha: float = hyper(1.0, doc="α, weight of the chosen completion's own probability",
        raising="imitates it more", evolvable=True, ge=0)  # fmt: skip
    evolve: _hyper.Evolving = _hyper.ranges(lr=(1e-5, 1e-2), beta=(0.01, 1.0))


State = _language.State
networks, init = _language.networks, _language.init


asks = _language.always("reference")


def preference(now: TokenScores, batch: Text, beta: Tensor, nll: Tensor) -> ops.Preference:
    """Return each pair's loss and margin, `[P, n]`. In the batch, the n chosen completions come before the n rejected
    ones. β and α are `[P]`."""
    chosen, rejected = now.log_prob.masked_fill(~batch.mask, 0.0).sum(dim=-1).chunk(2, dim=1)
    reference = given(batch.reference).masked_fill(~batch.mask, 0.0).sum(dim=-1).chunk(2, dim=1)
    tokens = batch.mask.sum(dim=-1)[:, : chosen.shape[1]]
    return ops.preference(chosen, rejected, (reference[0], reference[1]), tokens, beta, nll)


def fitness(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    """Return the negative loss of each pair, `[P, n]`, with β and α of `params.yaml`: members' own would not be
    comparable."""
    own = torch.ones_like(hp["beta"])
    return -preference(now, batch, cfg.beta * own, cfg.nll_alpha * own).loss


def figures(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> dict[str, Tensor]:
    """Return statistics of each pair `[P, n]` for reports: whether the chosen completion is preferred, and both
    probabilities."""
    chosen, rejected = now.log_prob.masked_fill(~batch.mask, 0.0).sum(dim=-1).exp().chunk(2, dim=1)
    margin = preference(now, batch, hp["beta"], hp["nll_alpha"]).margin
    return {"accuracy": (margin > 0).float(), "chosen": chosen, "rejected": rejected}


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    return ops.total(_language.pair_weights(batch), preference(now, batch, hp["beta"], hp["nll_alpha"]).loss)


update = _language.learner(loss)
