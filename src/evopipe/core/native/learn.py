"""Clipping, Adam and Polyak averaging of flat rows by the CPU's own kernels; `core.optim` has the same in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evopipe.core.native import build
from evopipe.core.native.build import at, kernels
from evopipe.types import Tensor

if TYPE_CHECKING:
    from evopipe.core.net import Net


def serve(net: Net, *tensors: Tensor) -> bool:
    """Whether the kernels are in use, and can read these rows of a network: of float32, on the CPU, and whole lines
    long. Networks of text are torch's, whatever else a process computes."""
    structure = getattr(net.structure, "inner", net.structure)
    return (
        hasattr(structure, "plans")
        and build.serve(*tensors)
        and all(x.dtype == torch.float32 and x.shape[1] % 16 == 0 and x.stride(1) == 1 for x in tensors)
    )


def clip(grads: Tensor, limit: Tensor, losses: Tensor, healthy: Tensor) -> None:
    """Scale every row's gradient `[P · K, N]` to at most its member's limit `[P]`; healthy `[P]` becomes false where a
    loss `[P]` or a norm is not finite. Both in place."""
    rows, size = grads.shape
    each = rows // len(limit)
    limit, losses = limit.float().contiguous(), losses.detach().float().contiguous()
    kernels().clip(len(limit), each, size, at(grads), grads.stride(0), at(limit), at(losses), at(healthy))


def adam(
    values: Tensor, grads: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, active: Tensor,
    betas: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    """Take one step in place: rows `[P · K, N]`, steps `[P · K]`, lr and active `[P]`."""
    rows, size = values.shape
    each, lr, active = rows // len(lr), lr.float().contiguous(), active.contiguous()
    kernels().adam(
        len(lr), each, size, at(values), values.stride(0), at(grads), grads.stride(0), at(mean),
        at(square), mean.stride(0), at(steps), at(lr), at(active), *betas, eps,
    )  # fmt: skip


def polyak(target: Tensor, online: Tensor, weight: Tensor) -> None:
    """target ← target + weight · (online − target) in place, `[P · K, N]`, weight `[P]`."""
    rows, size = target.shape
    weight = weight.float().contiguous()
    kernels().polyak(
        len(weight), rows // len(weight), size, at(target), target.stride(0), at(online),
        online.stride(0), at(weight),
    )  # fmt: skip
