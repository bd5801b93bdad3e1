"""Hooks on the modules of the base, which add what each row's member has learned to the base's forward pass.

If nothing is active, the base is unchanged: it is the reference of a KL term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from evopipe.language.base import Base
from evopipe.language.together import Together
from evopipe.types import Tensor, Text, TokenScores

_PART = 256  # tokens that take as long as it takes to begin with another part of the rows
_MORE = 7  # parts, at most, that rows are divided into for their lengths' sake


class LowRank(NamedTuple):
    """A LoRA term of `P` members that is added to the output of a linear layer of the base: `scale · x a b` for the
    layer's input `x`.

    Attributes:
        a: `[P, in, r]`, the matrices that reduce the input to rank r.
        b: `[P, r, out]`, the matrices that expand it to the output.
        scale: the factor of the term.
    """

    a: Tensor
    b: Tensor
    scale: float

    def __call__(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        members = len(self.a)
        inner = torch.bmm(x.reshape(members, -1, x.shape[-1]).to(self.a.dtype), self.a)
        plain = out.reshape(members, -1, out.shape[-1]).to(self.a.dtype)
        return torch.baddbmm(plain, inner, self.b, alpha=self.scale).view(out.shape).to(out.dtype)


class WeightDelta(NamedTuple):
    """What `P` members have learned for one module of the base model: terms added to the module's weight and bias.

    Attributes:
        parts: the terms, `[P, rows, columns]` each, by kind. The kinds `linear`, `conv`, `embedding` and `scale` are
            for the weight of a module of that kind; `scale` is for a normalisation layer. `bias` is for any bias.
    """

    parts: dict[str, Tensor]

    def __call__(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        members = len(next(iter(self.parts.values())))
        plain: Any = module
        held = next(iter(self.parts.values())).dtype  # the base's own numbers may be shorter
        found = out.reshape(members, -1, out.shape[-1]).to(held)
        for kind, delta in self.parts.items():
            if kind == "embedding":
                first = torch.arange(members, device=x.device)[:, None] * delta.shape[1]
                found = found + nn.functional.embedding(x.reshape(members, -1) + first, delta.flatten(0, 1))
            elif kind == "scale":
                bias = getattr(plain, "bias", None)
                normal = ((out if bias is None else out - bias) / plain.weight).to(held)
                found = found + delta * normal.reshape(found.shape)
            elif kind == "bias":
                found = found + delta
            else:
                weight = delta.transpose(1, 2) if kind == "linear" else delta
                found = torch.baddbmm(found, x.reshape(members, -1, x.shape[-1]).to(held), weight)
        return found.view(out.shape).to(out.dtype)


def _add(base: Base, name: str, module: nn.Module, args: Any, out: Any) -> Any:
    add = base.active[-1].get(name) if base.active else None
    return None if add is None else add(module, args[0], out)


@contextmanager
def adapting(base: Base, changes: Mapping[str, Any]) -> Iterator[Any]:
    """Return a context in which the base's model computes with members' changes, for batches `[P · B, …]`: B rows for
    each of P members.

    `changes` has the changes of modules by module name: a `LowRank` (a low-rank term) or a `WeightDelta` (terms added
    to the weights). The context yields the model. The forward hooks are registered at the first use.
    """
    if not base.hooked:
        for name, module in base.model.named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                base.hooked.append(module.register_forward_hook(partial(_add, base, name)))
    base.active.append(changes)
    try:
        yield base.model
    finally:
        base.active.pop()


def score(
    base: Base, text: Text, entropy: bool = False, hidden: bool = False,
    active: Callable[[], AbstractContextManager[Any]] = nullcontext, leaves: Sequence[Tensor] = (),
) -> tuple[Tensor | None, TokenScores]:  # fmt: skip
    """Return the log-probabilities of rows of text under the base, with the members' changes if `active` is given.

    Rows of similar length are computed together, unless `hidden` is true. If `base.rows_at_once` limits the rows, the
    activations of only that many rows are in memory at a time, and the backward pass computes them a second time. If
    `base.together` has several processes, each of them then computes a part of the rows.

    Args:
        base: the base model.
        text: the rows of tokens, `B` rows for each of `P` members. The last `T` tokens of each row are scored.
        entropy: whether the entropies of the tokens' distributions are computed too.
        hidden: whether the hidden states, of width `H`, that predict the last `T` tokens are returned too, `[P, B, T,
            H]`.
        active: a function that returns a context in which the base computes with the members' changes; the default
            leaves the base unchanged.
        leaves: the tensors that the context uses and that need gradients; only needed with `rows_at_once`.

    Returns:
        The hidden states or None, and the scores: log-probabilities and entropies, `[P, B, T]`. Tokens after the last
        one in `text.mask` have log-probability 0.
    """
    (members, rows, columns), width = text.ids.shape, text.mask.shape[-1]
    each = base.rows_at_once or rows
    parts, lengths, order = _parts(base, text, each, whole=hidden)
    ids, real = (x if order is None else take(x, order) for x in (text.ids, text.real))

    def part(here: slice) -> tuple[Tensor, ...]:
        if not (last := lengths[here.stop - 1]):
            return (torch.zeros(members, here.stop - here.start, width, device=ids.device),) * 2
        some = slice(None), here, slice(columns - width + last)
        with active():  # learning comes back here later
            found = _score(base, ids[some], real[some], last, entropy)
        states, *told = (x.unflatten(0, (members, -1)) for x in found)
        return *(nn.functional.pad(x, (0, width - last)) for x in told), *[states] * hidden

    if each >= rows:
        found = [x[0] if len(x) == 1 else torch.cat(x, dim=1) for x in zip(*map(part, parts), strict=True)]
    else:
        blank = [torch.empty(text.mask.shape, device=ids.device) for _ in range(2)]
        if hidden:
            blank.append(text.mask.new_empty(*text.mask.shape, base.words.hidden, dtype=base.model.dtype))
        apply: Any = _Parts.apply
        found = list(apply(part, parts, base.together, tuple(blank), *leaves))
    if order is not None:
        back = order.argsort(dim=1)
        found = [take(x, back) for x in found]
    return found[2] if hidden else None, TokenScores(found[0], found[1], None)


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Select `b` of the `B` rows of each of `P` members. `x` is `[P, B]`, or `[P, B, L]` for rows of L entries; `rows`
    `[P, b]` are the indices of the rows; and the result is `[P, b]` or `[P, b, L]`."""
    return x.gather(1, rows if x.ndim == 2 else rows[..., None].expand(-1, -1, x.shape[-1]))


def _parts(base: Base, text: Text, each: int, whole: bool) -> tuple[list[slice], list[int], Tensor | None]:
    """Divide rows into parts of a limited number of rows, which run one after the other.

    Returns:
        The parts, how many of the last `T` columns any member needs, and the order `[P, B]` of the rows, each member's
        shortest first; None if rows stay as they are.
    """
    (members, rows, columns), width = text.ids.shape, text.mask.shape[-1]
    if whole or base.exact:
        return [slice(i, min(i + each, rows)) for i in range(0, rows, each)], [width] * rows, None
    counts = text.mask if text.keep is None else text.mask & text.keep[..., None]
    last = (counts * torch.arange(1, width + 1, device=counts.device)).amax(dim=-1)
    ordered, order = last.sort(dim=1, stable=True)
    lengths = ordered.amax(dim=0).tolist()
    lengths[-1] = max(lengths[-1], 1)

    def divided(number: int) -> list[slice]:
        return [slice(rows * i // number, rows * (i + 1) // number) for i in range(number)]

    def cost(parts: Sequence[slice]) -> int:
        """In tokens."""
        told = [(part.stop - part.start, lengths[part.stop - 1]) for part in parts]
        return sum(_PART + members * n * (columns - width + last) for n, last in told if last)

    least = -(-rows // each)
    parts = min((divided(n) for n in range(least, min(least + _MORE, rows) + 1)), key=cost)
    return parts, lengths, order if len(parts) > 1 else None


class _Parts(torch.autograd.Function):
    """Parts of rows, computed by their processes, and a second time to learn: memory holds the activations of one."""

    @staticmethod
    def forward(ctx: Any, compute: Any, parts: Sequence[slice], together: Together, blank: Any, *leaves: Tensor) -> Any:
        ctx.compute, ctx.parts, ctx.together, ctx.leaves = compute, parts, together, leaves
        ctx.set_materialize_grads(False)
        for i, here in enumerate(parts):
            if together.mine(i):
                for whole, found in zip(blank, compute(here), strict=True):
                    whole[:, here] = found
        for i, here in enumerate(parts):
            together.tell(i, *(whole[:, here] for whole in blank))
        return blank

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Return the sum of the parts' gradients, in their order."""
        together, leaves, sums = ctx.together, ctx.leaves, [torch.zeros_like(leaf) for leaf in ctx.leaves]
        for first in range(0, len(ctx.parts), together.size):  # a part of each process
            now = range(first, min(first + together.size, len(ctx.parts)))
            mine = next((_gradients(ctx.compute, ctx.parts[i], grads, leaves) for i in now if together.mine(i)), ())
            for i in now:
                found = mine if together.mine(i) else [torch.empty_like(leaf) for leaf in leaves]
                together.tell(i, *found)
                for total, own in zip(sums, found, strict=True):
                    total += own
        return None, None, None, None, *sums


def _gradients(compute: Any, here: slice, grads: Sequence[Tensor | None], leaves: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the leaves' gradients of a part by those of what it gave."""
    with torch.enable_grad():
        outs = compute(here)
    pairs = [(x, g[:, here]) for x, g in zip(outs, grads, strict=True) if g is not None and x.requires_grad]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(
        [x for x, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True, materialize_grads=True
    )


def _score(base: Base, ids: Tensor, real: Tensor, width: int, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, log-probabilities and entropies of the last tokens of rows, `[P · B, T, …]`."""
    ids, real = ids.flatten(0, 1), real.flatten(0, 1)
    seen: list[Tensor] = []
    hook = base.model.get_output_embeddings().register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        seeing = attention_inputs(real) if padded(real) else {}
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
    """Return the log-probabilities of tokens under the unchanged base model, `[P, B, T]`.

    They are those of the last T tokens of each row, for P members with B rows each; 0 where `text.mask` is False.
    """
    _, scored = score(base, text)
    return scored.log_prob.masked_fill(~text.mask, 0.0)


def padded(real: Tensor) -> bool:
    """Return whether any row of tokens begins with pads.

    Only such pads need an attention mask, because no token attends to pads after it. `real` is `[n, L]` bool, for n
    rows of L tokens: False for pads.
    """
    return not bool(real[..., 0].all())


def attention_inputs(real: Tensor) -> dict[str, Tensor]:
    """Return the attention mask and the positions that a model of `transformers` needs for n rows of L tokens that may
    begin with pads. `real` `[n, L]` is False for pads."""
    return {"attention_mask": real.long(), "position_ids": positions(real)}


def positions(real: Tensor) -> Tensor:
    """Return the position of each token in its row of L tokens, `[…, L]` int64, not counting pads. `real` `[…, L]` is
    False for pads."""
    return (real.long().cumsum(dim=-1) - 1).clamp(min=0)
