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

Rows = Annotated[int, hyper(doc="completions that a member collects before it updates",
    raising="steadier but fewer updates", ge=1, le=1 << 20)]  # fmt: skip
GroupSize = Annotated[int, hyper(
    doc="completions of each prompt; `rows` holds as many prompts as fit",
    raising="better comparison, fewer prompts", evolvable=True, ge=1, le=1 << 12)]  # fmt: skip
RowsAnUpdate = Annotated[int, hyper(doc="completions in a minibatch, at most `rows`", raising="fewer, steadier updates",
    ge=1, le=1 << 20)]  # fmt: skip
RowsOfText = Annotated[int, hyper(doc="texts in a minibatch", raising="steadier gradients, slower updates", ge=1,
    le=1 << 20)]  # fmt: skip
PairsAnUpdate = Annotated[int, hyper(doc="pairs in a minibatch", raising="steadier gradients, slower updates", ge=1,
    le=1 << 20)]  # fmt: skip
Epochs = Annotated[int, hyper(doc="passes over the collected completions",
    raising="learns more from each, less on-policy", ge=1, le=100)]  # fmt: skip
Temperature = Annotated[float, hyper(doc="temperature at which completions are drawn",
    raising="explores more", evolvable=True, gt=0, le=100)]  # fmt: skip
TopK = Annotated[int, hyper(doc="number of likeliest tokens to draw from; 0: all", raising="explores more", ge=0,
    le=1 << 24)]  # fmt: skip
TopP = Annotated[float, hyper(doc="total probability of the likeliest tokens to draw from",
    raising="explores more", gt=0, le=1)]  # fmt: skip
ClipLow = Annotated[float, hyper(doc="distance below 1 at which the probability ratio is clipped",
    raising="tokens fall faster", evolvable=True, gt=0, le=1)]  # fmt: skip
ClipHigh = Annotated[float, hyper(doc="distance above 1 at which the probability ratio is clipped",
    raising="tokens rise faster, entropy lasts longer", evolvable=True, gt=0)]  # fmt: skip
Kl = Annotated[float, hyper(doc="β, weight of the KL divergence from the base", raising="stays nearer to the base",
    evolvable=True, ge=0)]  # fmt: skip
UnbiasedKl = Annotated[bool, hyper(
    doc="whether the KL divergence is weighted by the probability ratio, which keeps its gradient unbiased in later "
    "updates from the same completions")]  # fmt: skip
Correction = Annotated[ops.Correction, hyper(
    doc="importance weight of tokens that another engine or older weights wrote: the probability ratio of the token or "
    "the sequence, clipped to the bounds (`..._truncate`) or 0 outside of them (`..._mask`); `none`: 1",
)]  # fmt: skip
CorrectionLow = Annotated[float, hyper(doc="lower bound of the importance weight of `correction`",
    raising="more tokens are bounded", ge=0, le=1)]  # fmt: skip
CorrectionHigh = Annotated[float, hyper(doc="upper bound of the importance weight of `correction`",
    raising="fewer tokens are bounded, more variance", ge=1)]  # fmt: skip
EntropyWeight = Annotated[float, hyper(doc="weight of the entropy term", raising="explores more", evolvable=True, ge=0)]
RatioLevel = Annotated[ops.Level, hyper(
    doc="unit of a probability ratio: each `token`, or the mean over a `turn` or a `sequence` (GSPO)")]  # fmt: skip
MeanOver = Annotated[ops.Mean, hyper(doc="mean in the loss: over each `token`, or over each `sequence`'s mean")]


@dataclass(frozen=True)
class State:
    """The state of a language algorithm.

    Attributes:
        policy: the trained language models.
        adam: the Adam moments of `policy`.
        updates: `[P]` float32, the number of updates of each of P members.
    """

    policy: Net = parameters("policy", trainable=True)
    adam: optim.Adam = moments("policy")
    updates: Tensor = row()


@dataclass(frozen=True)
class StateWithHead:
    """The state of a language algorithm with a second output, such as a value.

    Attributes:
        policy: the trained language models.
        value: the heads on the models' hidden states that compute the second output.
        adam, value_adam: the Adam moments of `policy` and of `value`.
        updates: `[P]` float32, the number of updates of each of P members.
    """

    policy: Net = parameters("policy", trainable=True)
    value: Net = parameters("value", trainable=True)
    adam: optim.Adam = moments("policy")
    value_adam: optim.Adam = moments("value")
    updates: Tensor = row()


def networks(cfg: Any, words: Words) -> Mapping[str, Widths]:
    """Return the input and output width of the only network, `policy`, the language model. `words` holds the sizes of
    the base model."""
    return {"policy": Widths(words.hidden, words.vocabulary)}


def networks_with_head(cfg: Any, words: Words) -> Mapping[str, Widths]:
    """Return the input and output width of the language model, `policy`, and of a head that reads the model's hidden
    states, `value`. `words` holds the sizes of the base model."""
    return {**networks(cfg, words), "value": Widths(words.hidden, 1, "head")}


def init(cfg: Any, nets: Nets) -> State:
    return State(nets["policy"], *optim.start(nets["policy"]))


def init_with_head(cfg: Any, nets: Nets) -> StateWithHead:
    return StateWithHead(nets["policy"], nets["value"], *optim.start(nets["policy"], nets["value"]))


def asks(cfg: Any) -> frozenset[str]:
    """Return the names of the quantities that must be computed before the advantages of completions are estimated.

    The only name is `reference`, the log-probabilities of the tokens under the base model. The name is returned if the
    weight β of the divergence from the base model is above 0, or mutation may raise it above 0.
    """
    return frozenset({"reference"} if wants_reference(cfg) else ())


def check_groups(cfg: Any, least: int) -> None:
    """Check the group sizes of a configuration, and those that mutation may give it. A group is the completions of one
    prompt.

    `least` is the smallest size with which completions can be compared.

    Raises:
        ValueError: a group is smaller than `least`, or larger than the number of completions in a round (`rows`). The
            message is a sentence for users.
    """
    sizes = {"group_size": (cfg.group_size, cfg.group_size)}
    if "group_size" in cfg.evolve:
        sizes["evolve.group_size"] = cfg.evolve["group_size"].min, cfg.evolve["group_size"].max
    for name, (low, high) in sizes.items():
        if low < least:
            raise ValueError(f"{name} ({low:g}) must be at least {least}: a completion is compared with others")
        if high > cfg.rows:
            raise ValueError(f"{name} ({high:g}) is above rows ({cfg.rows}): a prompt's completions are of one round")


def wants_reference(cfg: Any) -> bool:
    """Return whether log-probabilities under the base model are needed.

    The log-probabilities are needed if the weight β of the divergence from the base model is above 0, or mutation may
    raise it above 0.
    """
    return bool(cfg.beta > 0 or "beta" in cfg.evolve)


def counted(batch: Text) -> Tensor:
    """Return the mask `[P, B, T]` of the tokens from which members learn, for B completions of T tokens of P members.

    A token counts if it is in `batch.mask` and its completion is in `batch.keep`. If `batch.keep` is None, all
    completions count.
    """
    return batch.mask if batch.keep is None else batch.mask & batch.keep[..., None]


def completion_means(log_prob: Tensor, batch: Text) -> tuple[Tensor, Tensor]:
    """Return the mean log-probability of the tokens of each chosen and of each rejected completion, `[P, n]` each.

    Each of P members has n pairs. The n chosen completions are the first half of the batch. `log_prob` `[P, 2 n, T]`
    holds the log-probabilities of the tokens, and `batch` says which tokens count.
    """
    chosen, rejected = ops.row_means(log_prob, batch.mask).chunk(2, dim=1)
    return chosen, rejected


def completion_sums(log_prob: Tensor, batch: Text) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each completion in the first and in the second half of the batch, `[P, n]` each.

    A completion's log-probability is the sum over its tokens. There are 2 n completions for each of P members.
    `log_prob` `[P, 2 n, T]` holds the log-probabilities of the tokens, and `batch` says which tokens count.
    """
    first, second = log_prob.masked_fill(~batch.mask, 0.0).sum(dim=-1).chunk(2, dim=1)
    return first, second


def pair_weights(batch: Text) -> Tensor:
    """Return the weights `[P, n]` of the n pairs of completions in a batch, which sum to 1 for each of P members.

    A pair has weight 0 if one of its completions has no token to learn from; if all pairs have weight 0, the sum is 0.
    All other pairs have equal weights.
    """
    first, second = counted(batch).any(dim=-1).chunk(2, dim=1)
    counts = (first & second).to(torch.float32)
    return counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)


def groups_of(reward: Tensor, size: int) -> Tensor:
    """Return the group number of each completion, `[P, B]` int64 from 0, for B completions of P members.

    A group is `size` adjacent completions, which are of one prompt. Of `reward` `[P, B]`, only the shape is used.
    """
    return (torch.arange(reward.shape[1], device=reward.device) // size).expand(reward.shape)


def present(batch: Text) -> Tensor:
    """Return the mask of the completions that count, `[P, B]`: `batch.keep`, or all True if `keep` is None.

    There are B completions of P members.
    """
    return torch.ones_like(batch.mask[..., 0]) if batch.keep is None else batch.keep


def surrogate(
    cfg: Any, hp: Hyper, now: TokenScores, batch: Text, mask: Tensor, cispo: bool = False, most: float | None = None
) -> Tensor:
    """Return the policy loss of every token, `[P, B, T]`: the clipped surrogate minus the weighted entropy.

    If the batch has log-probabilities under the base model, β times the divergence from the base model is added. There
    are T tokens in B completions of P members.

    Args:
        cfg: the algorithm's configuration.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        now: the present log-probabilities and entropies of the tokens.
        batch: the completions, with advantages.
        mask: `[P, B, T]` bool, the tokens that count.
        cispo: whether the surrogate is that of `ops.cispo`.
        most: an upper bound of every probability ratio, which limits the loss where the advantage is negative; None for
            no bound.
    """
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
    """Return the function `update` of a language algorithm, which makes an update of all members in place.

    The returned function takes (cfg, state, hp, batch, healthy, draw, turn): the algorithm's configuration and state,
    hyper-parameters, a minibatch (`Text`), and the mask `[P]` of the members that learn. `draw` and `turn` have no
    effect. The function changes the networks in `state`, and returns `Learned`: the losses `[P]`, which of P members
    are still healthy, and the errors (see the argument `completions`).

    Args:
        loss: the algorithm's loss, a function (cfg, hp, now, batch) that returns `[P]`, where `now` holds the present
            log-probabilities of the tokens.
        completions: whether the algorithm learns from its own completions. If True, `update` computes entropies if the
            loss needs them, and the errors are `[P, 1]`: for each member the largest change of a token's
            log-probability since the token was generated. If False, the errors are None.
    """

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
    """Return a function `asks`, which takes an algorithm's configuration and returns the set `names`, whatever the
    configuration is.

    An algorithm's `asks` names the quantities that must be computed for rows of text before the algorithm reads them,
    such as `reference`, the log-probabilities under the base model.
    """
    return lambda cfg: frozenset(names)


def given(x: Tensor | None) -> Tensor:
    """Return x, a field of a `Text` that must have been filled; an assertion fails if it is None."""
    assert x is not None
    return x
