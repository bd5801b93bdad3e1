"""Draws from a replay buffer by the native kernels; `memory.replay` and `memory.priorities` have them in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from evopipe.native import header
from evopipe.native.build import kernels
from evopipe.native.header import at
from evopipe.rng import Stream, salt
from evopipe.types import Batch, Tensor


class _Tree:
    """The levels of a sum tree, as the kernels read them."""

    def __init__(self, levels: Sequence[Tensor]) -> None:
        depth = len(levels)
        self.places = 1 << levels[-1].shape[1].bit_length()
        self._levels = torch.tensor([at(level) for level in levels])
        self._widths = torch.tensor([level.shape[1] for level in levels])
        self._of = header.of("tree")(depth, at(self._levels), at(self._widths))
        self._held = levels
        self.address = header.address(self._of)  # as long as this is kept


def _ends(of: _Tree, n: int) -> Tensor:
    """Room for what drawing n rows needs."""
    return torch.empty(of.places + n, dtype=torch.float64)


class Batches:
    """Sampler of minibatches for some members, by the C kernels.

    Each draw overwrites the tensors of the previous minibatch.

    Args:
        layout: the `RowLayout`, which says where a row holds each part of a transition.
        rows: `[n, size]`, the rows (transitions) of all replay buffers, one buffer after the other.
        levels: the sum trees of priorities; empty for uniform sampling.
        draw: the stream of random numbers.
        given: five tensors for P members: the random keys `[P]`, the slots (places in the population) `[P]`, the index
            of the first row of each member's buffer `[P]`, the loss weights `[P, B]`, and the discount factors γ `[P]`.
            A minibatch has B places. The weight of a place is 0 if the member's batch size is smaller.
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

        self.index, self.slots = torch.zeros(members, n, dtype=torch.int64), slots
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
        kind = header.of("sample")
        self._job = kind.pointer(kind.packed(
            sums=self._tree.address if self._tree else 0, rows=at(rows), width=rows.stride(0), gamma=at(gamma),
            counts=at(weight), keys=at(keys), slots=at(slots), first=at(first), index=at(self.index), chance=at(chance),
            u=at(u), ends=at(ends), salt=salt(draw.purpose), members=members, n=n, wide=layout.obs, acts=layout.action,
            continuous=layout.continuous, steps=layout.steps, each=k, masks=layout.actions,
            places=self._tree.places if self._tree else 0, **{name: at(getattr(self.batch, name)) for name in names},
        ))  # fmt: skip

    @property
    def address(self) -> int:
        """The address of the C struct that describes the minibatches."""
        return header.address(self._job)

    def serve(self, rows: Tensor, *given: Tensor) -> bool:
        """Return whether this sampler was made from the same tensors, and so can be used again.

        Args:
            rows: the transitions of all replay buffers. They are the same if they are at the same memory address.
            given: the five tensors that the constructor takes. Each must be the same object as before.
        """
        return all(a is b for a, b in zip(self.given, given, strict=True)) and at(rows) == at(self._rows)

    def draw(self, step: Tensor, size: Tensor, beta: Tensor) -> tuple[Batch, Tensor]:
        """Draw a minibatch of B rows for each of P members. See also `Replay.batch`.

        Return the minibatch, and the indices `[P, B]` of its rows in the replay buffers.

        Args:
            step: `[1]`, the number of the step, on which the random numbers depend, see `Stream`.
            size: `[P]` int64, the number of rows in each member's buffer.
            beta: a tensor of one number, the exponent of importance sampling; without effect in uniform sampling.
        """
        size = size.contiguous()
        now = header.of("sample_call")(at(step), at(size), float(beta) if self._tree else 0.0)
        kernels().draw_batch(self._job, now)
        return self.batch, self.index


class Priority(NamedTuple):
    """The priorities of all members for the C kernels, see `memory.priorities`.

    Attributes:
        levels: the levels of all members' sum trees, from the priorities of single rows upwards.
        largest: `[members]`, the largest priority so far of every member of the population.
        alpha: the exponent α. The priority of a row with the error δ is (|δ| + `least`)^α, but at most `most`.
        least: the number that is added to |δ|.
        most: the largest possible priority.
    """

    levels: Sequence[Tensor]
    largest: Tensor
    alpha: float
    least: float
    most: float

    def of(
        self, slots: Tensor | None = None, index: Tensor | None = None, errors: Tensor | None = None
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return a pointer to a C struct that describes the priorities, and a tuple of the objects that must be kept
        alive as long as the pointer is used.

        With the arguments, the struct tells the kernels which priorities to set: those of the buffer rows `index`
        `[P, B]`, from the rows' `errors` `[P, B]`, for the members in the `slots` `[P]` (places in the population). If
        the arguments are None, the struct describes only the sum trees, which hold the priorities.
        """
        tree, kind, (members, n) = _Tree(self.levels), header.of("tree_call"), (0, 0) if index is None else index.shape
        fresh = torch.empty(n + 16)
        made = kind.pointer(kind.packed(
            of=tree.address, members=members, n=n, slots=at(slots), index=at(index), errors=at(errors),
            alpha=self.alpha, least=self.least, most=self.most, largest=at(self.largest), fresh=at(fresh),
        ))  # fmt: skip
        return made, (tree, fresh, slots, index, errors, self)


def store(to: Tensor, rows: np.ndarray, keep: np.ndarray, position: np.ndarray, filled: np.ndarray) -> Tensor:
    """Append rows to ring buffers, as `Replay.add` does, but by the C kernels. Return the places of the appended rows.

    A place is a number, int64: that of row i in buffer m is m · capacity + i.

    Args:
        to: the M buffers, `[M, capacity, size]`; written in place.
        rows: `[M, n, size]`, the rows to append.
        keep: `[M, n]` bool, which rows are appended.
        position: `[M]` int64, the index at which each buffer's next row is written; advanced in place.
        filled: `[M]` int64, the number of rows in each buffer; raised in place.
    """
    given = [np.ascontiguousarray(x) for x in (rows, keep)]
    numbers, wanted, *counts = (torch.from_numpy(x) for x in (*given, position, filled))
    places = torch.empty(keep.size, dtype=torch.int64)
    count = kernels().store_rows(header.of("store_call")(
        *rows.shape, to.shape[1], at(numbers), at(wanted), at(to), *map(at, counts), at(places)
    ))  # fmt: skip
    return places[:count]


def add_up(levels: Sequence[Tensor], slots: Tensor, index: Tensor) -> None:
    """Update the sum trees after the priorities of n rows have changed: the C kernels recompute every sum that depends
    on these rows.

    Args:
        levels: the levels of all members' sum trees, from the priorities of single rows upwards; changed in place.
        slots: `[n]`, for each of these rows the slot (place in the population) of its member.
        index: `[n]`, for each of these rows its index.
    """
    slots, index = slots.contiguous(), index.contiguous()
    _of_tree("tree_add_up", _Tree(levels), n=len(index), slots=at(slots), index=at(index))


def add_up_all(levels: Sequence[Tensor]) -> None:
    """Recompute all sums in the sum trees of all members. The C kernels change the trees in place.

    `levels` are the levels of all members' sum trees, from the priorities of single rows upwards.
    """
    _of_tree("tree_add_up_all", _Tree(levels), members=len(levels[0]))


def draw(levels: Sequence[Tensor], slots: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draw rows with probability proportional to their priorities, by the C kernels; see `Priorities.draw`.

    Return the row indices and their probabilities, `[P, B]` each: B rows for each of P members.

    Args:
        levels: the levels of all members' sum trees, from the priorities of single rows upwards.
        slots: `[P]` int64, the members' slots (places in the population).
        u: `[P, B]` float64, uniform numbers in [0, 1), one for each row to draw.
    """
    of, u, slots = _Tree(levels), u.contiguous(), slots.contiguous()
    index, chance = torch.empty_like(u, dtype=torch.int64), torch.empty_like(u, dtype=torch.float32)
    (members, n), ends = u.shape, _ends(of, u.shape[1])
    _of_tree("tree_draw", of, members=members, n=n, slots=at(slots), u=at(u), index=at(index), chance=at(chance),
             ends=at(ends), places=of.places)  # fmt: skip
    return index, chance


def importances(filled: Tensor, chance: Tensor, weight: Tensor, beta: Tensor) -> Tensor:
    """Return `weight` times the importance weights (N · p)^−β, `[P, B]`, by the C kernels.

    A member's importance weights are divided by the largest of them.

    Args:
        filled: `[P]`, N, the number of rows in each member's buffer.
        chance: `[P, B]`, p, the probability with which each row was drawn.
        weight: `[P, B]`, the weight of each place in the minibatch.
        beta: `[]`, β.
    """
    filled, weight, found = filled.contiguous(), weight.contiguous(), torch.empty_like(chance)
    call = header.of("importance_call")(
        *chance.shape, at(filled), at(chance), float(beta), at(weight), at(found)
    )  # fmt: skip
    kernels().importances(call)
    return found


def update(
    levels: Sequence[Tensor], slots: Tensor, index: Tensor, errors: Tensor, alpha: float, least: float, most: float,
    largest: Tensor,
) -> None:  # fmt: skip
    """Set the priorities of rows from their errors, by the C kernels; see `Priorities.update`.

    Args:
        levels: the sum trees of all members, in which every node is the sum of the nodes below it. There is one tensor
            for each level, from the priorities of single rows upwards. They are changed in place.
        slots: `[P]` int64, the members' slots (places in the population).
        index: `[P, B]` int64, the indices of B rows for each of these P members.
        errors: `[P, B]`, the errors of these rows.
        alpha: the power to which an error's size plus `least` is raised.
        least: a number that is added to the size of every error.
        most: the largest possible priority.
        largest: `[members]`, the largest priority so far of every member of the population, raised in place.
    """
    slots, index, errors = slots.contiguous(), index.contiguous(), errors.float().contiguous()
    (members, n), fresh = index.shape, torch.empty(index.shape[1] + 16)
    _of_tree("tree_update", _Tree(levels), members=members, n=n, slots=at(slots), index=at(index), errors=at(errors),
             alpha=alpha, least=least, most=most, largest=at(largest), fresh=at(fresh))  # fmt: skip


def _of_tree(name: str, of: _Tree, **numbers: float) -> None:
    kind = header.of("tree_call")
    getattr(kernels(), name)(kind.pointer(kind.packed(of=of.address, **numbers)))
