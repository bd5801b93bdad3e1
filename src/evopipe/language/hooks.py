"""Members in the base's forward pass: hooks on its modules add what each row's own member has learned.

Where nothing is active the base is what it was: the reference of a KL term.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from evopipe.language.base import Base
from evopipe.types import Scored, Tensor, Text

_PART = 256  # tokens that take as long as it takes to begin with another part of the rows
_MORE = 7  # parts, at most, that rows are divided into for their lengths' sake


class LowRank(NamedTuple):
    """Beside a linear layer: `W x + s · B A x`."""

    a: Tensor  # [P, in, r]
    b: Tensor  # [P, r, out]
    scale: float

    def __call__(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        members = len(self.a)
        inner = torch.bmm(x.reshape(members, -1, x.shape[-1]).to(self.a.dtype), self.a)
        plain = out.reshape(members, -1, out.shape[-1]).to(self.a.dtype)
        return torch.baddbmm(plain, inner, self.b, alpha=self.scale).view(out.shape).to(out.dtype)


class Change(NamedTuple):
    """Beside any module of `language.layers`: a change of its weight and of its bias, by kind."""

    parts: dict[str, Tensor]  # [P, rows, columns] each

    def __call__(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        members = len(next(iter(self.parts.values())))
        plain: Any = module
        found = out.reshape(members, -1, out.shape[-1])
        for kind, delta in self.parts.items():
            if kind == "embedding":
                first = torch.arange(members, device=x.device)[:, None] * delta.shape[1]
                found = found + nn.functional.embedding(x.reshape(members, -1) + first, delta.flatten(0, 1))
            elif kind == "scale":
                bias = getattr(plain, "bias", None)
                normal = (out if bias is None else out - bias) / plain.weight
                found = found + delta * normal.reshape(found.shape)
            elif kind == "bias":
                found = found + delta
            else:
                weight = delta.transpose(1, 2) if kind == "linear" else delta
                found = torch.baddbmm(found, x.reshape(members, -1, x.shape[-1]), weight)
        return found.view(out.shape)


class _Hook(NamedTuple):
    base: Base
    name: str

    def __call__(self, module: nn.Module, args: Any, out: Any) -> Any:
        add = self.base.active[-1].get(self.name) if self.base.active else None
        return None if add is None else add(module, args[0], out)


@contextmanager
def adapting(base: Base, changes: Mapping[str, Any]) -> Iterator[Any]:
    """Return the base's model with changes in it, by module's name, for batches whose rows are members', `[P · B, …]`.

    The hooks are made at first use.
    """
    if not base.hooked:
        for name, module in base.model.named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                base.hooked.append(module.register_forward_hook(_Hook(base, name)))
    base.active.append(changes)
    try:
        yield base.model
    finally:
        base.active.pop()


def score(
    base: Base,
    text: Text,
    entropy: bool = False,
    hidden: bool = False,
    active: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Tensor | None, Scored]:
    """Score rows of text by the base with what `active` makes active in it.

    Rows of like lengths pass together, each as far as its last token that counts: what stands behind it has the
    log-probability 0. With `hidden` all passes, and the states `[P, B, T, H]` that the last `T` tokens were told from
    are returned, too. For `entropy` see `core.net.score`. Where the base has `rows_at_once`, memory holds the
    activations of so many rows alone: to learn, they are computed a second time.
    """
    (members, rows, columns), width = text.ids.shape, text.mask.shape[-1]
    parts, order = _parts(base, text, whole=hidden)

    def part(ids: Tensor, real: Tensor, last: int) -> tuple[Tensor, ...]:
        with active():  # learning comes back here later
            found = _score(base, ids, real, last, entropy)
        return tuple(x.unflatten(0, ids.shape[:2]) for x in found)

    ids, real = text.ids, text.real
    if order is not None:
        ids, real = take(ids, order), take(real, order)
    each: list[list[Tensor]] = []
    for start, end, last in parts:
        if not last:
            each.append([torch.zeros(members, end - start, width, device=ids.device)] * 2)
            continue
        some = slice(None), slice(start, end), slice(columns - width + last)
        if base.rows_at_once is None or base.rows_at_once >= rows:
            states, *found = part(ids[some], real[some], last)
        else:
            states, *found = checkpoint(
                part, ids[some], real[some], last, use_reentrant=False, preserve_rng_state=False
            )
        each.append([nn.functional.pad(x, (0, width - last)) for x in found] + [states] * hidden)
    told = [torch.cat(x, dim=1) if len(parts) > 1 else x[0] for x in zip(*each, strict=True)]
    if order is not None:
        back = order.argsort(dim=1)
        told = [take(x, back) for x in told]
    return told[2] if hidden else None, Scored(told[0], told[1], None)


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Return rows `[P, b]` of each member's `[P, B]` or `[P, B, …]`."""
    return x.gather(1, rows if x.ndim == 2 else rows[..., None].expand(-1, -1, x.shape[-1]))


def _parts(base: Base, text: Text, whole: bool) -> tuple[list[tuple[int, int, int]], Tensor | None]:
    """Divide rows into parts that pass one after the other: (first, end, how many of the last columns).

    The second is the order `[P, B]` in which each member's rows stand for that, the shortest first; None: as they are.
    """
    (members, rows, columns), width = text.ids.shape, text.mask.shape[-1]
    each = base.rows_at_once or rows
    if whole or base.exact:
        return [(i, min(i + each, rows), width) for i in range(0, rows, each)], None
    counts = text.mask if text.keep is None else text.mask & text.keep[..., None]
    lengths = (counts * torch.arange(1, width + 1, device=counts.device)).amax(dim=-1)
    ordered, order = lengths.sort(dim=1, stable=True)
    longest = ordered.amax(dim=0).tolist()
    longest[-1] = max(longest[-1], 1)

    def divided(number: int) -> list[tuple[int, int, int]]:
        cuts = [rows * i // number for i in range(number + 1)]
        return [(a, b, longest[b - 1]) for a, b in itertools.pairwise(cuts)]

    def cost(parts: list[tuple[int, int, int]]) -> int:
        """In tokens."""
        return sum(_PART + members * (b - a) * (columns - width + told) for a, b, told in parts if told)

    least = -(-rows // each)
    parts = min((divided(n) for n in range(least, min(least + _MORE, rows) + 1)), key=cost)
    return parts, order if len(parts) > 1 else None


def _score(base: Base, ids: Tensor, real: Tensor, width: int, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, log-probabilities and entropies of the last tokens of rows, `[P · B, T, …]`."""
    ids, real = ids.flatten(0, 1), real.flatten(0, 1)
    seen: list[Tensor] = []
    hook = base.model.get_output_embeddings().register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        seeing = sight(real) if padded(real) else {}
        logits = base.model(input_ids=ids, use_cache=False, logits_to_keep=width + 1, **seeing).logits
    finally:
        hook.remove()
    logits = logits[:, -width - 1 : -1].float()  # [P · B, T, V]
    log_prob = logits.gather(-1, ids[:, -width:, None])[..., 0] - logits.logsumexp(dim=-1)
    spread = torch.zeros_like(log_prob)
    if entropy:
        log_probs = logits.log_softmax(dim=-1)
        spread = -(log_probs.exp() * log_probs).sum(dim=-1)
    return seen[0][:, -width - 1 : -1], log_prob, spread


@torch.no_grad()
def reference(base: Base, text: Text) -> Tensor:
    """Return the log-probabilities `[P, B, T]` of a text's last tokens by the base as it is, 0 outside the mask."""
    _, scored = score(base, text)
    return scored.log_prob.masked_fill(~text.mask, 0.0)


def padded(real: Tensor) -> bool:
    """Whether pads stand before a row's tokens. Those behind them no token sees, and the base need not be told of."""
    return not bool(real[..., 0].all())


def sight(real: Tensor) -> dict[str, Tensor]:
    """Return what a model must be told of rows `[n, L]` with pads before their tokens."""
    return {"attention_mask": real.long(), "position_ids": positions(real)}


def positions(real: Tensor) -> Tensor:
    """Return each token's place in its row, pads not counted."""
    return (real.long().cumsum(dim=-1) - 1).clamp(min=0)
