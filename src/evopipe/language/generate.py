"""Completions: one loop over tokens for the prompts of all members.

A prompt is read once for all its completions; what is finished leaves the batch. Every token is drawn by its member's
key, so that a member's completions do not depend on its neighbours, and its log-probability is recorded as it was, by
the model without temperature or filters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from evopipe import rng
from evopipe.language.base import Base
from evopipe.language.hooks import positions
from evopipe.rng import Purpose
from evopipe.types import Tensor

_TOKENS = 1 << 20  # more than a completion has: keeps the draws of different times apart
_WORTH = 0.75  # share of the rows that may be left for the batch to be made smaller: it is copied then


class Sampling(NamedTuple):
    """How tokens are drawn, of each member `[P]` or of each completion `[P, R]`."""

    temperature: Tensor  # float; 0: the likeliest token
    top_k: Tensor  # int64, of the likeliest so many; 0: all
    top_p: Tensor  # float, of the likeliest that have so much of the probability; 1: all

    @classmethod
    def greedy(cls, members: int, device: torch.device) -> Sampling:
        zero = torch.zeros(members, device=device)
        return cls(zero, zero.long(), zero + 1)

    def rows(self, each: int) -> Sampling:
        """Return it for so many completions of each member, `[P, R]`."""
        return Sampling(*(x[:, None].expand(-1, each) if x.ndim == 1 else x for x in self))


@dataclass(frozen=True)
class Written:
    """Completions `[P, R, T]` of prompts, those of a prompt next to each other; pads behind their ends."""

    ids: Tensor
    mask: Tensor  # bool, tokens that the model wrote, that which ends it included
    log_prob: Tensor  # of those tokens, 0 elsewhere
    entropy: Tensor  # of the distribution without temperature or filters, 0 elsewhere

    @property
    def lengths(self) -> Tensor:
        """`[P, R]` tokens."""
        return self.mask.sum(dim=-1)


@torch.no_grad()
def generate(
    base: Base,
    active: Callable[[], Any],
    ids: Tensor,
    real: Tensor,
    group: int,
    limit: int,
    sampling: Sampling,
    keys: Tensor,
    when: int,
    leave: bool = True,
) -> Written:
    """Complete prompts.

    Args:
        base: the base.
        active: returns the context in which its model is the members', see `hooks.adapting`.
        ids: prompts `[P, B, L]`, padded on the left.
        real: where they are no pads, bool.
        group: completions of each prompt.
        limit: most tokens of one.
        sampling: how tokens are drawn.
        keys: of the members, `[P]`.
        when: with the keys it fixes the draws.
        leave: whether finished completions leave the batch. If not, no bit of a member's depends on its neighbours'.
    """
    members, prompts, width = ids.shape
    rows, device, model = prompts * group, ids.device, base.model
    written = torch.full((members, rows, limit), base.pad, dtype=torch.int64, device=device)
    mask = torch.zeros(members, rows, limit, dtype=torch.bool, device=device)
    log_probs, entropies = (torch.zeros(members, rows, limit, device=device) for _ in range(2))
    seen = torch.cat((real, torch.ones(members, prompts, limit, dtype=torch.bool, device=device)), dim=-1)
    seen = seen.repeat_interleave(group, dim=1)
    place = positions(seen)
    place_of = torch.arange(rows, device=device).expand(members, -1)  # which completion each row of the batch is
    alive, how, ends = torch.ones_like(mask[:, :, 0]), sampling.rows(rows), torch.tensor(base.ends, device=device)
    with active():
        out = model(
            input_ids=ids.flatten(0, 1), attention_mask=real.flatten(0, 1).long(),
            position_ids=positions(real).flatten(0, 1), use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        cache, logits = out.past_key_values, out.logits[:, -1].float()
        if group > 1:
            cache.batch_repeat_interleave(group)
            logits = logits.repeat_interleave(group, dim=0)
        for t in range(limit):
            logits = logits.view(members, -1, logits.shape[-1])
            now = torch.tensor([when * _TOKENS + t], device=device)
            u = rng.uniform(keys, Purpose.GENERATE, now, rows)[:, 0].gather(1, place_of)
            told = logits.log_softmax(dim=-1)
            token = choose(told, how, u)
            log_prob, entropy = told.gather(-1, token[..., None])[..., 0], -(told.exp() * told).sum(dim=-1)
            for whole, part in ((written, token), (log_probs, log_prob), (entropies, entropy)):
                held = whole[:, :, t].gather(1, place_of)
                whole[:, :, t] = whole[:, :, t].scatter(1, place_of, torch.where(alive, part, held))
            mask[:, :, t] = mask[:, :, t].scatter(1, place_of, alive)
            alive = alive & ~torch.isin(token, ends)
            left = int(alive.sum(dim=1).max())
            if not left or t + 1 == limit:
                break
            if leave and left <= _WORTH * alive.shape[1]:
                kept = (~alive).int().argsort(dim=1, stable=True)[:, :left]
                first = torch.arange(members, device=device)[:, None] * alive.shape[1]
                cache.batch_select_indices((first + kept).flatten())
                alive, token, place_of = (x.gather(1, kept) for x in (alive, token, place_of))
                how = Sampling(*(x.gather(1, kept) for x in how))
                seen, place = (x.gather(1, kept[..., None].expand(-1, -1, x.shape[-1])) for x in (seen, place))
            logits = model(
                input_ids=token.reshape(-1, 1), attention_mask=seen[..., : width + t + 1].flatten(0, 1).long(),
                position_ids=place[..., width + t : width + t + 1].flatten(0, 1), past_key_values=cache, use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1].float()  # fmt: skip
    return Written(written, mask, log_probs, entropies)


def choose(log_probs: Tensor, how: Sampling, u: Tensor) -> Tensor:
    """Choose a token by log-probabilities `[P, n, V]`, `how` `[P, n]` and a draw from [0, 1), u `[P, n]` float64.

    What is not finite gives some token.
    """
    best = log_probs.argmax(dim=-1)
    if not bool((how.temperature > 0).any()):
        return best
    scaled = log_probs.double() / how.temperature.clamp(min=1e-6)[..., None].double()
    chances = scaled.softmax(dim=-1)
    if bool((how.top_k > 0).any()) or bool((how.top_p < 1).any()):
        ordered, index = chances.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(chances.shape[-1], device=chances.device)
        most = torch.where(how.top_k > 0, how.top_k, chances.shape[-1])
        before = ordered.cumsum(dim=-1) - ordered  # the likeliest stays, however small p is
        ordered = ordered.masked_fill((rank >= most[..., None]) | (before >= how.top_p[..., None]), 0.0)
        chances = torch.zeros_like(chances).scatter(-1, index, ordered)
    heap = chances.cumsum(dim=-1)
    drawn = torch.searchsorted(heap, (u * heap[..., -1])[..., None], right=True)[..., 0]
    return torch.where(how.temperature > 0, drawn.clamp(max=chances.shape[-1] - 1), best)
