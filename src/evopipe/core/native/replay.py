"""Draws from a replay memory by the CPU's own kernels; `memory.replay` and `memory.priorities` have them in torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from evopipe.core.native import build
from evopipe.core.native.build import at, kernels
from evopipe.rng import Stream, salt
from evopipe.types import Batch, Tensor


def serve(x: Tensor) -> bool:
    """Whether the kernels are in use, and can read these rows."""
    return build.chosen() is not None and x.device.type == "cpu" and not torch.compiler.is_compiling()


def uniform(draw: Stream, n: int) -> Tensor:
    """Return what `draw.uniform(n)` returns, to the bit."""
    found = torch.empty(len(draw.keys), n, dtype=torch.float64)
    kernels().uniform(*found.shape, at(draw.keys), salt(draw.purpose), at(draw.step), at(found))
    return found


def batch(layout: Any, rows: Tensor, index: Tensor, first: Tensor, weight: Tensor, gamma: Tensor) -> Batch:
    """Take rows of a memory `[n, size]` apart as its `RowLayout` says; `index` `[P, B]` counts from `first` `[P]`."""
    members, n = index.shape
    lead = (members, n, layout.agents) if layout.agents else (members, n)
    k, masked, legal = layout.each, layout.masked, layout.legal
    actions = (layout.actions // k,)

    def room(*more: int, dtype: Any = torch.float32) -> Tensor:
        return torch.empty(*lead, *more, dtype=dtype)

    obs, next_obs, reward, discount = room(layout.obs // k), room(layout.obs // k), room(), room()
    action = room(*actions) if layout.continuous else room(dtype=torch.int64)
    next_legal = room(*actions, dtype=torch.bool) if masked else None
    now_legal, alive = room(*actions, dtype=torch.bool) if legal else None, room() if layout.agents else None
    gamma, index = gamma.contiguous(), index.contiguous()
    kernels().gather(
        at(rows), rows.stride(0), members, n, at(index), at(first), layout.obs, layout.action, layout.continuous,
        layout.steps, k, layout.actions, masked, legal, bool(layout.agents), at(gamma), at(obs), at(next_obs),
        at(action), at(reward), at(discount), at(next_legal), at(now_legal), at(alive),
    )  # fmt: skip
    return Batch(obs, action, reward, discount, next_obs, next_legal, weight, now_legal, alive)


class Levels:
    """The levels of a sum tree, as the kernels read them."""

    def __init__(self, levels: Sequence[Tensor]) -> None:
        self.depth, self._held = len(levels), levels
        self.places = (ctypes.c_void_p * self.depth)(*map(at, levels))
        self.widths = (ctypes.c_int64 * self.depth)(*(level.shape[1] for level in levels))


def add_up(levels: Sequence[Tensor], slots: Tensor, index: Tensor) -> None:
    """Sum anew, on every level, what is above rows `index` `[n]` of members `slots` `[n]`."""
    of, slots, index = Levels(levels), slots.contiguous(), index.contiguous()
    kernels().tree_add_up(of.depth, of.places, of.widths, len(index), at(slots), at(index))


def add_up_all(levels: Sequence[Tensor]) -> None:
    """Sum anew all levels."""
    of = Levels(levels)
    kernels().tree_add_up_all(of.depth, of.places, of.widths, len(levels[0]))


def draw(levels: Sequence[Tensor], slots: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """See `Priorities.draw`."""
    of, u, slots = Levels(levels), u.contiguous(), slots.contiguous()
    index, chance = torch.empty_like(u, dtype=torch.int64), torch.empty_like(u, dtype=torch.float32)
    places = 1 << levels[-1].shape[1].bit_length()
    ends = torch.empty(places + u.shape[1], dtype=torch.float64)
    kernels().tree_draw(
        of.depth, of.places, of.widths, *u.shape, at(slots), at(u), at(index), at(chance), at(ends), places
    )  # fmt: skip
    return index, chance


def importances(filled: Tensor, chance: Tensor, weight: Tensor, beta: Tensor) -> Tensor:
    """Return weight `[P, B]` times (N · p)^−β over the largest that counts: filled `[P]` is N, chance `[P, B]` p."""
    filled, weight, found = filled.contiguous(), weight.contiguous(), torch.empty_like(chance)
    kernels().importances(*chance.shape, at(filled), at(chance), float(beta), at(weight), at(found))
    return found


def update(
    levels: Sequence[Tensor], slots: Tensor, index: Tensor, errors: Tensor, alpha: float, least: float, most: float,
    largest: Tensor,
) -> None:  # fmt: skip
    """See `Priorities.update`."""
    of, slots, index, errors = Levels(levels), slots.contiguous(), index.contiguous(), errors.float().contiguous()
    fresh = torch.empty(index.shape[1] + 16)
    kernels().tree_update(
        of.depth, of.places, of.widths, *index.shape, at(slots), at(index), at(errors), alpha, least, most,
        at(largest), at(fresh),
    )  # fmt: skip
