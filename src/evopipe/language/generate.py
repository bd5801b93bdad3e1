"""Generation of completions, in one loop over tokens for the prompts of all members.

A prompt is read once for all its completions, and finished completions leave the batch. Every token is drawn with its
member's key, so that a member's completions do not depend on its neighbours. Its log-probability is recorded, under the
model without temperature or filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from evopipe import rng
from evopipe.language.base import Base
from evopipe.language.hooks import attention_inputs, padded, positions
from evopipe.rng import Purpose
from evopipe.types import Tensor

Stops: TypeAlias = "Sequence[Sequence[str]]"
_TOKENS = 1 << 20  # more than a completion has: keeps the draws of different times apart
_WORTH = 0.75  # share of the rows that may be left for the batch to be made smaller: it is copied then


class Sampling(NamedTuple):
    """Settings by which tokens are sampled.

    A setting has one value for each of P members, `[P]`, or one for each of a member's R completions, `[P, R]`.

    Attributes:
        temperature: the divisor of the logits; 0 always takes the most likely token.
        top_k: int64, k: only the k most likely tokens can be drawn; 0 for all tokens.
        top_p: p: only the most likely tokens whose probabilities sum to p can be drawn; 1 for all tokens.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor

    @classmethod
    def greedy(cls, members: int, device: torch.device) -> Sampling:
        zero = torch.zeros(members, device=device)
        return cls(zero, zero.long(), zero + 1)

    def rows(self, each: int) -> Sampling:
        """Return the settings in the shape `[P, R]`, with one value for each of the R completions of every member.

        A setting `[P]` is repeated for all completions of the member. A setting `[P, R]` stays unchanged. `each` is R.
        """
        return Sampling(*(x[:, None].expand(-1, each) if x.ndim == 1 else x for x in self))


@dataclass(frozen=True)
class Written:
    """The completions of `P` members, `[P, R, T]`: `R` completions of at most `T` tokens each. Completions of the same
    prompt are adjacent; pads follow a completion's end.

    Attributes:
        ids: the tokens.
        mask: True for tokens that the model wrote, including the token that ends a completion.
        log_prob: the log-probability of each token that the model wrote; 0 elsewhere.
        entropy: the entropy of the distribution of each token, without temperature and filters; 0 elsewhere.
        ended: `[P, R]` bool, True if the model wrote an end token or a stop text; False if the limit of tokens cut the
            completion.
    """

    ids: Tensor
    mask: Tensor
    log_prob: Tensor
    entropy: Tensor
    ended: Tensor

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each completion, `[P, R]` int64."""
        return self.mask.sum(dim=-1)

    def cut(self, width: int) -> Written:
        """Return all completions cut to their first `width` tokens."""
        ids, mask, log_prob, entropy = (x[..., :width] for x in (self.ids, self.mask, self.log_prob, self.entropy))
        return Written(ids, mask, log_prob, entropy, self.ended)


@torch.no_grad()
def generate(
    base: Base, active: Callable[[], Any], ids: Tensor, real: Tensor, group: int, limit: int, sampling: Sampling,
    keys: Tensor, when: int, leave: bool = True, stop: Stops = (),
) -> Written:  # fmt: skip
    """Write `group` completions of at most `limit` tokens for each prompt: `P` members have `B` prompts each, padded to
    `L` tokens.

    If `base.rows_at_once` is not None, completions are generated in parts of at most so many rows of each member, but
    at least one prompt. The processes `base.together` divide the parts among themselves; each process gets all results.

    Args:
        base: the base model.
        active: a function that returns a context in which the base computes with the members' changes.
        ids: the prompts' tokens `[P, B, L]`, padded on the left.
        real: `[P, B, L]` bool, False for pads.
        group: completions of each prompt.
        limit: the most tokens of a completion.
        sampling: settings of sampling.
        keys: random keys, either `[P]`, one for each member, or `[P, R]`, one for each of a member's R = B · `group`
            completions. With `[P, R]`, a completion's draws do not depend on its place in the batch.
        when: a number, such as that of the training step, that fixes the random draws together with `keys`.
        leave: whether finished completions leave the batch, which saves time. If False, they stay, and a member's
            results have the same bits whatever other members are in the batch.
        stop: for each of the P · B prompts, the texts that end its completions; empty for none.
    """
    members, prompts, _ = ids.shape
    rows, device = prompts * group, ids.device
    whole = torch.full((members, rows, limit), base.pad, dtype=torch.int64, device=device)
    mask, zeros = torch.zeros_like(whole, dtype=torch.bool), torch.zeros(whole.shape, device=device)
    told = Written(whole, mask, zeros, zeros.clone(), mask[..., 0].clone())
    now = torch.tensor([when * _TOKENS], device=device) + torch.arange(limit, device=device)
    if keys.ndim == 1:
        draws = rng.uniform(keys, Purpose.GENERATE, now, rows)
    else:
        draws = rng.uniform(keys.flatten(), Purpose.GENERATE, now, 1).view(members, rows, limit).transpose(1, 2)
    each = prompts if base.rows_at_once is None else max(1, base.rows_at_once // group)
    parts = list(enumerate(range(0, prompts, each)))
    with active():
        for i, first in parts:
            here = slice(first, first + each)
            if base.together.mine(i):
                _complete(base, ids[:, here], real[:, here], group, first * group, sampling.rows(rows), draws, told,
                          leave, stop)  # fmt: skip
    for i, first in parts:
        here = slice(first * group, (first + each) * group)
        base.together.tell(i, *(x[:, here] for x in (told.ids, told.mask, told.log_prob, told.entropy, told.ended)))
    return told


def _complete(
    base: Base, ids: Tensor, real: Tensor, group: int, first: int, sampling: Sampling, draws: Tensor, told: Written,
    leave: bool, stop: Stops,
) -> None:  # fmt: skip
    """Write the completions of these prompts into `told`; the first prompt has the number `first`."""
    members, prompts, width = ids.shape
    rows, limit, device, model = prompts * group, told.ids.shape[-1], ids.device, base.model
    seen = torch.cat((real, torch.ones(members, prompts, limit, dtype=torch.bool, device=device)), dim=-1)
    seen = seen.repeat_interleave(group, dim=1)
    place = positions(seen)
    # Which completion each row of the batch is.
    place_of = torch.arange(first, first + rows, device=device).expand(members, -1)
    ends, how = torch.tensor(base.ends, device=device), Sampling(*(x[:, first : first + rows] for x in sampling))
    alive = torch.ones(members, rows, dtype=torch.bool, device=device)
    pads = padded(real)
    seeing = attention_inputs(real.flatten(0, 1)) if pads else {}
    out = model(input_ids=ids.flatten(0, 1), use_cache=True, logits_to_keep=1, **seeing)
    cache, logits = out.past_key_values, out.logits[:, -1].float()
    if group > 1:
        cache.batch_repeat_interleave(group)
        logits = logits.repeat_interleave(group, dim=0)
    for t in range(limit):
        log_probs = logits.view(members, -1, logits.shape[-1]).log_softmax(dim=-1)
        token = choose(log_probs, how, draws[:, t].gather(1, place_of))
        log_prob = log_probs.gather(-1, token[..., None])[..., 0]
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        for whole, part in ((told.ids, token), (told.log_prob, log_prob), (told.entropy, entropy)):
            held = whole[:, :, t].gather(1, place_of)
            whole[:, :, t] = whole[:, :, t].scatter(1, place_of, torch.where(alive, part, held))
        told.mask[:, :, t] = told.mask[:, :, t].scatter(1, place_of, alive)
        ended = alive & torch.isin(token, ends)
        if stop:
            ended |= _stopped(base, told.ids[..., : t + 1], place_of, alive, group, stop)
        told.ended.scatter_(1, place_of, told.ended.gather(1, place_of) | ended)
        alive = alive & ~ended
        left = int(alive.sum(dim=1).max())
        if not left or t + 1 == limit:
            break
        if leave and left <= _WORTH * alive.shape[1]:
            kept = (~alive).int().argsort(dim=1, stable=True)[:, :left]
            start = torch.arange(members, device=device)[:, None] * alive.shape[1]
            cache.batch_select_indices((start + kept).flatten())
            alive, token, place_of = (x.gather(1, kept) for x in (alive, token, place_of))
            how = Sampling(*(x.gather(1, kept) for x in how))
            seen, place = (x.gather(1, kept[..., None].expand(-1, -1, x.shape[-1])) for x in (seen, place))
        if pads:
            seeing = {
                "attention_mask": seen[..., : width + t + 1].flatten(0, 1).long(),
                "position_ids": place[..., width + t : width + t + 1].flatten(0, 1),
            }
        out = model(
            input_ids=token.reshape(-1, 1), past_key_values=cache, use_cache=True, logits_to_keep=1, **seeing
        )  # fmt: skip
        logits = out.logits[:, -1].float()


def _stopped(base: Base, ids: Tensor, place_of: Tensor, alive: Tensor, group: int, stop: Stops) -> Tensor:
    """Return which rows of the batch, `[P, n]` bool, hold one of their texts since their last token."""
    found, prompts = torch.zeros_like(alive), len(stop) // len(ids)
    special = set(base.tokenizer.all_special_ids)
    for p, n in alive.nonzero().tolist():
        r = int(place_of[p, n])
        if own := stop[p * prompts + r // group]:
            plain = [token for token in ids[p, r].tolist() if token not in special]
            # A token is a byte at least: a text that is new lies no further back.
            tail = base.decode(plain[-1 - max(len(text.encode()) for text in own) :])
            found[p, n] = any(text in tail for text in own)
    return found


def texts(base: Base, written: Written, stop: Stops = ()) -> list[list[str]]:
    """Return the completions of every member as texts, each cut before the stop text that ended it.

    Args:
        base: the base model, which has the tokenizer.
        written: the completions as tokens.
        stop: the stop texts, as they were passed to `generate`: for each of the P · B prompts (B prompts for each of P
            members), the texts that end its completions. Empty if there are none.
    """
    members, rows, _ = written.ids.shape
    found = []
    for p, (ids, lengths) in enumerate(zip(written.ids.tolist(), written.lengths.tolist(), strict=True)):
        own = [base.decode(row[:n]) for row, n in zip(ids, lengths, strict=True)]
        if stop:
            each = len(stop) // members
            asked = stop[p * each : (p + 1) * each]
            own = [before(text, asked[r * each // rows]) for r, text in enumerate(own)]
        found.append(own)
    return found


def before(text: str, stop: Sequence[str]) -> str:
    """Return the part of a text before the first occurrence of any of the texts `stop`; the whole text if there is
    none."""
    return text[: min((place for each in stop if (place := text.find(each)) >= 0), default=len(text))]


def choose(log_probs: Tensor, how: Sampling, u: Tensor) -> Tensor:
    """Sample a token for each of `n` rows of `P` members, `[P, n]`.

    Log-probabilities that are not finite give an arbitrary token.

    Args:
        log_probs: `[P, n, V]`, the log-probabilities of the `V` tokens of the vocabulary.
        how: the settings of sampling, `[P, n]`.
        u: `[P, n]` float64, uniform random numbers in [0, 1).
    """
    best = log_probs.argmax(dim=-1)
    if not bool((how.temperature > 0).any()):
        return best
    heap = chances(log_probs, how).cumsum(dim=-1)
    drawn = torch.searchsorted(heap, (u * heap[..., -1])[..., None], right=True)[..., 0]
    return torch.where(how.temperature > 0, drawn.clamp(max=log_probs.shape[-1] - 1), best)


def chances(log_probs: Tensor, how: Sampling) -> Tensor:
    """Return the probabilities with which `choose` samples each of V tokens, for n rows of P members: `[P, n, V]`
    float64. `log_probs` `[P, n, V]` are the model's log-probabilities, and `how` `[P, n]` the settings of sampling.

    The order is that of `transformers` and vLLM. First the temperature changes all probabilities. Then only the k most
    likely tokens stay, and tokens as likely as the k-th. They are renormalised. Of these, the most likely tokens stay
    until their probabilities sum to p. What is left is renormalised again.
    """
    found = (log_probs.double() / how.temperature.clamp(min=1e-6)[..., None].double()).softmax(dim=-1)
    if not (bool((how.top_k > 0).any()) or bool((how.top_p < 1).any())):
        return found
    most = torch.where(how.top_k > 0, how.top_k, found.shape[-1]).clamp(max=found.shape[-1])
    ordered, index = found.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(ordered < ordered.gather(-1, most[..., None] - 1), 0.0)
    ordered = ordered / ordered.sum(dim=-1, keepdim=True)
    before = ordered.cumsum(dim=-1) - ordered  # the likeliest stays, however small p is
    ordered = ordered.masked_fill(before >= how.top_p[..., None], 0.0)
    return torch.zeros_like(found).scatter(-1, index, ordered / ordered.sum(dim=-1, keepdim=True))
