"""Direct preference optimisation: of two completions the language model learns to prefer the one that people did.

Rafailov et al., "Direct preference optimization: your language model is secretly a reward model", 2023.

With the margin m = β [log π/π_ref (chosen) − log π/π_ref (rejected)], π_ref the base, which stays what it is, a
member's loss is the mean over pairs of

    −log σ(m)  −  α log π(chosen) / its tokens.

Without the second term (Pang et al., "Iterative reasoning preference optimization", 2024) the chosen completion's own
probability often falls, if less than the rejected one's.
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
    """Return each pair's loss and margin, `[P, n]`: n chosen completions stand before n rejected ones; β, α `[P]`."""
    chosen, rejected = now.log_prob.masked_fill(~batch.mask, 0.0).sum(dim=-1).chunk(2, dim=1)
    reference = given(batch.reference).masked_fill(~batch.mask, 0.0).sum(dim=-1).chunk(2, dim=1)
    tokens = batch.mask.sum(dim=-1)[:, : chosen.shape[1]]
    return ops.preference(chosen, rejected, (reference[0], reference[1]), tokens, beta, nll)


def fitness(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    """Return the loss, negative, of each pair `[P, n]`, with β and α of the file: members' own would not compare."""
    own = torch.ones_like(hp["beta"])
    return -preference(now, batch, cfg.beta * own, cfg.nll_alpha * own).loss


def figures(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> dict[str, Tensor]:
    """Return what a report tells of each pair `[P, n]`: whether the chosen completion is the preferred one, and the
    chances of both."""
    chosen, rejected = now.log_prob.masked_fill(~batch.mask, 0.0).sum(dim=-1).exp().chunk(2, dim=1)
    margin = preference(now, batch, hp["beta"], hp["nll_alpha"]).margin
    return {"accuracy": (margin > 0).float(), "chosen": chosen, "rejected": rejected}


def loss(cfg: Config, hp: Hyper, now: TokenScores, batch: Text) -> Tensor:
    return ops.total(_language.pair_weights(batch), preference(now, batch, hp["beta"], hp["nll_alpha"]).loss)


update = _language.learner(loss)
