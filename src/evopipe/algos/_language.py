"""What algorithms for language models have in common: hyper-parameters, which tokens count, and a step of learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from evopipe.core import optim
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, score
from evopipe.core.structure import Widths
from evopipe.ops import language as ops
from evopipe.rng import Stream
from evopipe.schema.declare import hyper
from evopipe.types import Hyper, Learned, Tensor, Text, TokenScores, Words

Rows = Annotated[int, hyper(doc="completions of a member between two rounds of updates",
    raising="steadier, less often", ge=1, le=1 << 20)]  # fmt: skip
GroupSize = Annotated[int, hyper(
    doc="completions of one prompt; the others of the `rows` are of as many other prompts as fit",
    raising="better compared, fewer prompts", evolvable=True, ge=1, le=1 << 12)]  # fmt: skip
RowsAnUpdate = Annotated[int, hyper(doc="completions an update, at most `rows`", raising="fewer, steadier updates",
    ge=1, le=1 << 20)]  # fmt: skip
RowsOfText = Annotated[int, hyper(doc="texts an update", raising="steadier gradients, slower updates", ge=1,
    le=1 << 20)]  # fmt: skip
PairsAnUpdate = Annotated[int, hyper(doc="pairs an update", raising="steadier gradients, slower updates", ge=1,
    le=1 << 20)]  # fmt: skip
Epochs = Annotated[int, hyper(doc="times that completions are gone through",
    raising="learns more from each, goes further from it", ge=1, le=100)]  # fmt: skip
Temperature = Annotated[float, hyper(doc="what logits are divided by when completions are drawn",
    raising="explores more", evolvable=True, gt=0, le=100)]  # fmt: skip
TopK = Annotated[int, hyper(doc="draw from so many likeliest tokens; 0: from all", raising="explores more", ge=0,
    le=1 << 24)]  # fmt: skip
TopP = Annotated[float, hyper(doc="draw from the likeliest tokens that together have this probability",
    raising="explores more", gt=0, le=1)]  # fmt: skip
ClipLow = Annotated[float, hyper(doc="how far below 1 a probability ratio may go",
    raising="tokens fall faster", evolvable=True, gt=0, le=1)]  # fmt: skip
ClipHigh = Annotated[float, hyper(doc="how far above 1 a probability ratio may go",
    raising="tokens rise faster, entropy lasts longer", evolvable=True, gt=0)]  # fmt: skip
Kl = Annotated[float, hyper(doc="β, weight of the divergence from the base", raising="stays nearer to it",
    evolvable=True, ge=0)]  # fmt: skip
UnbiasedKl = Annotated[bool, hyper(
    doc="weight the divergence by the probability ratio, so that its gradient stays unbiased in later updates from the "
    "same completions")]  # fmt: skip
Correction = Annotated[ops.Correction, hyper(
    doc="how completions count that another engine or earlier weights wrote: by the ratio of the probabilities of a "
    "token or of all tokens, which is bounded (`truncate`) or 0 beyond the bounds (`mask`); `none`: as one's own",
)]  # fmt: skip
CorrectionLow = Annotated[float, hyper(doc="least ratio of the correction", raising="more tokens are bounded", ge=0,
    le=1)]  # fmt: skip
CorrectionHigh = Annotated[float, hyper(doc="largest ratio of the correction", raising="fewer tokens are bounded, more "
    "variance", ge=1)]  # fmt: skip
EntropyWeight = Annotated[float, hyper(doc="weight of the entropy", raising="explores longer", evolvable=True, ge=0)]
RatioLevel = Annotated[ops.Level, hyper(
    doc="what has a probability ratio: each token, or in the mean each turn or sequence (GSPO)")]  # fmt: skip
MeanOver = Annotated[ops.Mean, hyper(doc="whether the loss is a mean over all tokens, or over sequences of means")]


@dataclass(frozen=True)
class State:
    """A language model that learns."""

    policy: Net = parameters("policy", trainable=True)
    adam: optim.Adam = moments("policy")
    updates: Tensor = row()  # [P] float32


@dataclass(frozen=True)
class StateWithHead:
    """A language model that learns, and a head on its hidden states."""

    policy: Net = parameters("policy", trainable=True)
    value: Net = parameters("value", trainable=True)
    adam: optim.Adam = moments("policy")
    value_adam: optim.Adam = moments("value")
    updates: Tensor = row()  # [P] float32


def networks(cfg: Any, words: Words) -> Mapping[str, Widths]:
    """Return input and output width of the only network."""
    return {"policy": Widths(words.hidden, words.vocabulary)}


def networks_with_head(cfg: Any, words: Words) -> Mapping[str, Widths]:
    """Return input and output width of every network: the head reads the policy's hidden states."""
    return {**networks(cfg, words), "value": Widths(words.hidden, 1, "head")}


def init(cfg: Any, nets: Nets) -> State:
    return State(nets["policy"], *optim.start(nets["policy"]))


def init_with_head(cfg: Any, nets: Nets) -> StateWithHead:
    return StateWithHead(nets["policy"], nets["value"], *optim.start(nets["policy"], nets["value"]))


def asks(cfg: Any) -> frozenset[str]:
    """Return what else has to be known of completions: the base's log-probabilities where β counts."""
    return frozenset({"reference"} if wants_reference(cfg) else ())


def check_groups(cfg: Any, least: int) -> None:
    """Refuse groups that do not fit into a round, or are too small to compare anything. Raises ValueError if they are;
    the text is a sentence for the file's reader."""
    sizes = {"group_size": (cfg.group_size, cfg.group_size)}
    if "group_size" in cfg.evolve:
        sizes["evolve.group_size"] = cfg.evolve["group_size"].min, cfg.evolve["group_size"].max
    for name, (low, high) in sizes.items():
        if low < least:
            raise ValueError(f"{name} ({low:g}) must be at least {least}: a completion is compared with others")
        if high > cfg.rows:
            raise ValueError(f"{name} ({high:g}) is above rows ({cfg.rows}): a prompt's completions are of one round")


def wants_reference(cfg: Any) -> bool:
    """Whether the base's log-probabilities are needed: β is above 0, or may come to be."""
    return bool(cfg.beta > 0 or "beta" in cfg.evolve)


def counted(batch: Text) -> Tensor:
    """Return which tokens count `[P, B, T]`: those of rows that do."""
    return batch.mask if batch.keep is None else batch.mask & batch.keep[..., None]


def completion_means(log_prob: Tensor, batch: Text) -> tuple[Tensor, Tensor]:
    """Return mean log-probabilities of the tokens of chosen and of rejected completions, `[P, n]` each."""
    chosen, rejected = ops.row_means(log_prob, batch.mask).chunk(2, dim=1)
    return chosen, rejected


def completion_sums(log_prob: Tensor, batch: Text) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of the first and of the second half of the completions, `[P, n]` each."""
    first, second = log_prob.masked_fill(~batch.mask, 0.0).sum(dim=-1).chunk(2, dim=1)
    return first, second


def pair_weights(batch: Text) -> Tensor:
    """Return weights of pairs `[P, n]` that sum to 1 in each member: of those of which both completions count."""
    first, second = counted(batch).any(dim=-1).chunk(2, dim=1)
    counts = (first & second).to(torch.float32)
    return counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)


def groups_of(reward: Tensor, size: int) -> Tensor:
    """Return the number of each completion's group, `[P, B]` int64 from 0, where every `size` adjacent completions are
    of one prompt. `reward` gives the shape."""
    return (torch.arange(reward.shape[1], device=reward.device) // size).expand(reward.shape)


def present(batch: Text) -> Tensor:
    """Return which rows are there, `[P, B]` bool."""
    return torch.ones_like(batch.mask[..., 0]) if batch.keep is None else batch.keep


def surrogate(
    cfg: Any, hp: Hyper, now: TokenScores, batch: Text, mask: Tensor, cispo: bool = False, most: float | None = None
) -> Tensor:
    """Return the policy's loss of every token `[P, B, T]`, with the entropy that it is to keep and, where the base's
    log-probabilities are given, its divergence from the base. `most` bounds the ratio, see `ops.clipped`."""
    ratio = ops.log_ratios(now.log_prob, given(batch.log_prob), mask, cfg.level, batch.turn)
    advantage, low, high = given(batch.advantage), hp["clip_low"], hp["clip_high"]
    if cispo:
        each = ops.cispo(now.log_prob, ratio, advantage, low, high)
    else:
        each = ops.clipped(ratio, advantage, low, high, most)
    each = each - hp["ent_coef"][:, None, None] * now.entropy
    if batch.reference is None:
        return each
    apart = ops.k3(now.log_prob, batch.reference, mask, ratio if cfg.unbiased_kl else None)
    return each + hp["beta"][:, None, None] * apart


def _descend(losses: Tensor, healthy: Tensor, hp: Hyper, batch: Text, state: State | StateWithHead) -> Tensor:
    """Take one step down each member's loss `[P]`, see `optim.descend`, and count it; return who is healthy, `[P]`. A
    member without a token that counts takes none: its moments would carry it on."""
    learning = counted(batch).flatten(1).any(dim=1)
    learners = [(state.policy, state.adam, hp["lr"])]
    if isinstance(state, StateWithHead):
        learners.append((state.value, state.value_adam, hp["lr_value"]))
    stepped = optim.descend(losses, healthy & learning, hp["grad_clip"], *learners)
    state.updates.add_(stepped)
    return torch.where(learning, stepped, healthy)


def learner(loss: Callable[..., Tensor], completions: bool = False) -> Callable[..., Learned]:
    """Return the `update` of an algorithm with such a loss; of completions it knows entropies, where they count, and
    tells how far at most a token's log-probability is from what it was when it was written, `[P, 1]`."""

    def update(cfg: Any, state: Any, hp: Hyper, batch: Text, healthy: Tensor, draw: Stream, turn: int) -> Learned:
        entropy = completions and bool(cfg.ent_coef > 0 or "ent_coef" in cfg.evolve)  # above 0, or it may come to be
        now = score(state.policy, batch, getattr(state, "value", None), entropy=entropy)
        losses = loss(cfg, hp, now, batch)
        healthy = _descend(losses, healthy, hp, batch, state)
        if not completions:
            return Learned(losses.detach(), healthy)
        return Learned(
            losses.detach(), healthy, ops.drift(now.log_prob, given(batch.log_prob), counted(batch))[:, None]
        )

    return update


def always(*names: str) -> Callable[[Any], frozenset[str]]:
    """Return the `asks` of an algorithm that asks for these whatever its configuration."""
    return lambda cfg: frozenset(names)


def given(x: Tensor | None) -> Tensor:
    """Return a tensor of a `Text` that the regime fills before it asks for a loss."""
    assert x is not None
    return x
