"""Clipping, Adam and Polyak averaging of flat rows by the native kernels; `core.optim` has the same in torch."""

from __future__ import annotations

from typing import Any

import torch

from evopipe.native import build, header
from evopipe.native.build import kernels
from evopipe.native.header import at
from evopipe.native.networks import LINE, Net
from evopipe.types import Tensor


def serve(net: Net, *tensors: Tensor) -> bool:
    """Return whether kernels are selected and can read `tensors` `[rows, N]`, such as the parameters of the network
    `net`.

    The tensors must be float32, on the CPU, with rows of whole cache lines. For networks of language models the result
    is False.
    """
    structure = getattr(net.structure, "inner", net.structure)
    return (
        hasattr(structure, "plans")
        and build.serve(*tensors)
        and all(x.dtype == torch.float32 and x.shape[1] % 16 == 0 and x.stride(1) == 1 for x in tensors)
    )


def owned(structure: Any) -> Tensor:
    """Return which parts of a structure's R rows hold parameters; the other parts are padding.

    A part is a span: a pair (first, end) of indices within the row, in whole cache lines. The result is a flat tensor
    `[n]` int32 for the C kernels. It begins with R + 1 entries: entry r is the index, in this tensor, at which the
    spans of row r begin, and entry R is n. The spans of all rows follow, one row after the other. Two rows with one
    span each give [3, 5, 7, first₀, end₀, first₁, end₁].
    """
    inner: Any = getattr(structure, "inner", structure)
    copies = structure.copies
    key = "owned", copies
    if key not in inner.plans:
        rows = len(inner.index) // copies
        spans = [[_spans(inner.index[row * copies + i]) + i * inner.size for i in range(copies)] for row in range(rows)]
        counts = [sum(each.numel() for each in row) for row in spans]
        begins = torch.tensor([rows + 1 + sum(counts[:row]) for row in range(rows + 1)])
        flat = [each.flatten() for row in spans for each in row]
        inner.plans[key] = torch.cat([begins, *flat]).int()
    found: Tensor = inner.plans[key]
    return found


def _spans(index: Tensor) -> Tensor:
    """Return the runs of cache lines that hold numbers `index` `[n]`, which ascend: `[runs, 2]`."""
    line = index // LINE
    apart = torch.nonzero(line[1:] - line[:-1] > 1)[:, 0] + 1
    begin, end = torch.cat([apart.new_zeros(1), apart]), torch.cat([apart, apart.new_tensor([len(line)])])
    return torch.stack([line[begin] * LINE, (line[end - 1] + 1) * LINE], dim=1)


def clip(net: Net, limit: Tensor, losses: Tensor, healthy: Tensor) -> None:
    """Clip the gradient norm of every row of a network, in place, by the C kernels.

    `limit` `[P]` is the largest norm of a row, for each of P members. A member may have several rows.

    `healthy` `[P]` is set to False, in place, for members whose loss (`losses` `[P]`) or gradient norm is not finite.
    """
    grads, each, own = net.grad, len(net.grad) // len(limit), owned(net.structure)
    limit, losses = limit.float().contiguous(), losses.detach().float().contiguous()
    kernels().clip(header.of("clip_call")(
        len(limit), each, at(own), at(grads), grads.stride(0), at(limit), at(losses), at(healthy)
    ))  # fmt: skip


def adam(
    net: Net, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, active: Tensor, betas: tuple[float, float],
    eps: float,
) -> None:  # fmt: skip
    """Take one Adam step of a network along its gradients, in place, by the C kernels. Each of P members has K rows of
    N parameters.

    Args:
        net: the network.
        mean, square: `[P · K, N]`, the moments.
        steps: `[P · K]`, the number of steps that each row has taken before; updated in place.
        lr: `[P]`, the learning rates.
        active: `[P]` bool, the members that take the step.
        betas, eps: the constants β₁, β₂ and ε of Adam.
    """
    values, grads, own = net.values, net.grad, owned(net.structure)
    each, lr, active = len(values) // len(lr), lr.float().contiguous(), active.contiguous()
    kernels().adam(header.of("adam_call")(
        len(lr), each, at(own), at(values), values.stride(0), at(grads), grads.stride(0), at(mean),
        at(square), mean.stride(0), at(steps), at(lr), at(active), *betas, eps,
    ))  # fmt: skip


def polyak(target: Net, online: Net, weight: Tensor) -> None:
    """Move a target network towards the online network, in place, by the C kernels: target ← target + weight · (online
    − target).

    `weight` is `[P]` for P members.
    """
    to, of, own, weight = target.values, online.values, owned(target.structure), weight.float().contiguous()
    kernels().polyak(header.of("polyak_call")(
        len(weight), len(to) // len(weight), at(own), at(to), to.stride(0), at(of), of.stride(0), at(weight)
    ))  # fmt: skip
