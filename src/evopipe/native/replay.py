"""Draws from a replay memory by the CPU's own kernels; `memory.replay` and `memory.priorities` have them in torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from evopipe.native import build
from evopipe.native.build import at, kernels
from evopipe.rng import Stream, salt
from evopipe.types import Batch, Tensor


def uniform(draw: Stream, n: int) -> Tensor:
    """Return what `draw.uniform(n)` returns, to the bit."""
    found = torch.empty(len(draw.keys), n, dtype=torch.float64)
    kernels().uniform(*found.shape, at(draw.keys), salt(draw.purpose), at(draw.step), at(found))
    return found


class _Tree:
    """The levels of a sum tree, as the kernels read them."""

    def __init__(self, levels: Sequence[Tensor]) -> None:
        depth, self._held = len(levels), levels
        self._levels = (ctypes.c_void_p * depth)(*map(at, levels))
        self._widths = (ctypes.c_int64 * depth)(*(level.shape[1] for level in levels))
        self._of = build.structure("tree")(
            depth=depth, levels=ctypes.addressof(self._levels), widths=ctypes.addressof(self._widths)
        )
        self.address = ctypes.addressof(self._of)  # as long as this is kept
        self.places = 1 << levels[-1].shape[1].bit_length()


def _ends(of: _Tree, n: int) -> Tensor:
    """Room for what drawing n rows needs."""
    return torch.empty(of.places + n, dtype=torch.float64)


class Batches:
    """Batches of some members, drawn one after the other into the same tensors.

    `given` are the members' keys, slots, where each one's rows begin, weights `[P, B]` and γ.
    """

    def __init__(self, layout: Any, rows: Tensor, levels: Sequence[Tensor], draw: Stream, *given: Tensor) -> None:
        self.given, self._rows = given, rows
        keys, slots, first, weight, gamma = self._held = [x.contiguous() for x in given]
        self._tree = _Tree(levels) if levels else None
        (members, n), k = weight.shape, layout.each
        lead = (members, n, layout.agents) if layout.agents else (members, n)
        actions = (layout.actions // k,)

        def room(*more: int, dtype: Any = torch.float32) -> Tensor:
            return torch.zeros(*lead, *more, dtype=dtype)  # what is behind a member's own batch stays as it is here

        self.index = torch.zeros(members, n, dtype=torch.int64)
        alive = room() if layout.agents else None
        self.batch = Batch(
            obs=room(layout.obs // k),
            action=room(*actions) if layout.continuous else room(dtype=torch.int64),
            reward=room(),
            discount=room(),
            next_obs=room(layout.obs // k),
            next_legal=~room(*actions, dtype=torch.bool) if layout.masked else None,
            weight=torch.zeros_like(weight) if levels else given[3],
            legal=~room(*actions, dtype=torch.bool) if layout.legal else None,
            alive=alive,
            learns=room() if layout.agents and layout.steps > 1 else alive,
            next_alive=room() if layout.agents else None,
        )
        u, chance = torch.empty(n, dtype=torch.float64), torch.empty(n)
        ends = _ends(self._tree, n) if self._tree else None
        self._held += [u, chance, *([] if ends is None else [ends])]
        names = ("obs", "next_obs", "action", "reward", "discount", "alive", "learns", "next_alive", "weight",
                 "next_legal", "legal")  # fmt: skip
        self._job = build.structure("sample")(
            sums=self._tree and self._tree.address, rows=at(rows), width=rows.stride(0), gamma=at(gamma),
            counts=at(weight), keys=at(keys), slots=at(slots), first=at(first), index=at(self.index), chance=at(chance),
            u=at(u), ends=at(ends), salt=salt(draw.purpose), members=members, n=n, wide=layout.obs, acts=layout.action,
            continuous=layout.continuous, steps=layout.steps, each=k, masks=layout.actions,
            places=self._tree.places if self._tree else 0, **{name: at(getattr(self.batch, name)) for name in names},
        )  # fmt: skip

    def serve(self, rows: Tensor, *given: Tensor) -> bool:
        """Whether they are of these rows, and of the very tensors that were given."""
        return all(a is b for a, b in zip(self.given, given, strict=True)) and at(rows) == at(self._rows)

    def draw(self, step: Tensor, size: Tensor, beta: Tensor) -> tuple[Batch, Tensor]:
        """Return a batch, and which rows it holds: step `[1]`, size `[P]` int64, beta `[]`, see `Replay.batch`."""
        job, size = self._job, size.contiguous()
        job.step, job.filled = at(step), at(size)
        if self._tree:
            job.beta = float(beta)
        kernels().draw_batch(ctypes.byref(job))
        return self.batch, self.index


def add_up(levels: Sequence[Tensor], slots: Tensor, index: Tensor) -> None:
    """Sum anew, on every level, what is above rows `index` `[n]` of members `slots` `[n]`."""
    of, slots, index = _Tree(levels), slots.contiguous(), index.contiguous()
    kernels().tree_add_up(of.address, len(index), at(slots), at(index))


def add_up_all(levels: Sequence[Tensor]) -> None:
    """Sum anew all levels."""
    of = _Tree(levels)
    kernels().tree_add_up_all(of.address, len(levels[0]))


def draw(levels: Sequence[Tensor], slots: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """See `Priorities.draw`."""
    of, u, slots = _Tree(levels), u.contiguous(), slots.contiguous()
    index, chance = torch.empty_like(u, dtype=torch.int64), torch.empty_like(u, dtype=torch.float32)
    ends = _ends(of, u.shape[1])
    kernels().tree_draw(of.address, *u.shape, at(slots), at(u), at(index), at(chance), at(ends), of.places)
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
    of, slots, index, errors = _Tree(levels), slots.contiguous(), index.contiguous(), errors.float().contiguous()
    fresh = torch.empty(index.shape[1] + 16)
    kernels().tree_update(
        of.address, *index.shape, at(slots), at(index), at(errors), alpha, least, most, at(largest), at(fresh)
    )
