"""Proportional priorities (Schaul et al., "Prioritized experience replay", ICLR 2016).

They decide how often a member samples a transition, and how much it then counts. A sum tree lies on the device: every
level holds the sums of `FAN_OUT` neighbours of the level below, up to a top that is narrow enough to be summed anew at
every draw. A whole batch descends together. Every member has its own tree, even if members share a buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from evopipe.native import build
from evopipe.native import replay as native

FAN_OUT = 32
TOP = 1024  # most sums on the highest level
LEAST = 1e-6  # added to every error: nothing is forgotten for good
BELOW = 1.0 - 2.0**-23  # times a sum: rounding must not lead past the last positive number of what was summed
MOST = 1e30  # largest priority: a million of them still have a finite sum


class Priorities:
    """Sum trees for prioritized replay: one tree for each member, over the rows of a buffer.

    A row's priority is the size of its error (such as the TD error) to the power α; α = 0 gives uniform sampling
    (Schaul et al., ICLR 2016).

    Args:
        members: the number of members of the population.
        capacity: the number of rows of a buffer.
        alpha: the exponent α.
        device: the device of the tensors.

    Attributes:
        levels: the levels of the trees, `[members, n]` each, where n is the number of entries of the level. The first
            level holds the priorities of rows. Each entry of a higher level is the sum of `FAN_OUT` entries of the
            level below; the last level has at most `TOP` entries. Rows that are not filled have priority 0, as have
            padding entries at the end of a level.
        largest: `[members]`, each member's largest priority so far, which new rows get.
    """

    def __init__(self, members: int, capacity: int, alpha: float, device: torch.device) -> None:
        top, below = capacity, 0
        while top > TOP:
            top, below = -(-top // FAN_OUT), below + 1
        self.alpha = alpha
        self.levels = [torch.zeros(members, top * FAN_OUT**level, device=device) for level in range(below, -1, -1)]
        self.largest = torch.ones(members, device=device)

    @property
    def native(self) -> native.Priority:
        """The priorities as the struct `native.Priority`, which the C kernels read."""
        return native.Priority(self.levels, self.largest, self.alpha, LEAST, MOST)

    def tensors(self) -> list[Tensor]:
        return [*self.levels, self.largest]

    def admit(self, slots: Tensor, index: Tensor) -> None:
        """Give each new row the largest priority so far of its member, and update the sums in the trees.

        There are n new rows: row `index[i]` belongs to member `slots[i]`. Both arguments are `[n]` int64, and the pairs
        are all different.
        """
        flat, at = self.levels[0].view(-1), slots * self.levels[0].shape[1] + index
        flat.index_copy_(0, at, self.largest.index_select(0, slots))
        self._add_up(slots, index)

    def draw(self, slots: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Draw B rows for each of P members, each with a probability proportional to its priority; return their indices
        and probabilities.

        Args:
            slots: `[P]` int64, the members, by their places in the population.
            u: `[P, B]` float64, uniform numbers in [0, 1), one for each of B rows.

        Returns:
            The row indices `[P, B]` int64, and the probabilities `[P, B]` float32 with which each row was drawn.
        """
        if build.serve(self.largest):
            return native.draw(self.levels, slots, u)
        top = self.levels[-1].index_select(0, slots)
        sums = top.cumsum(dim=1, dtype=torch.float64)
        total = sums[:, -1:]
        left = u * total
        place = torch.searchsorted(sums, torch.minimum(left, total * BELOW), right=True)
        chosen = top.gather(1, place).view(-1, 1)
        left = left.sub_(sums.gather(1, place)).float().view(-1, 1).add_(chosen).clamp_(min=0.0)  # of the sum there
        block = (place + slots[:, None] * top.shape[1]).view(-1, 1)
        for level in reversed(self.levels[:-1]):
            children = level.view(-1, FAN_OUT).index_select(0, block[:, 0])  # [P · B, 32]
            sums = children.cumsum(dim=1)
            before = sums.le_(torch.minimum(left, sums[:, -1:] * BELOW))  # 1 up to the child, from there on 0
            child = before.sum(dim=1, keepdim=True).long()
            chosen, block = children.gather(1, child), block * FAN_OUT + child
            if level is not self.levels[0]:
                left.sub_((children * before).sum(dim=1, keepdim=True)).clamp_(min=0.0)
        index = block.view(u.shape) - slots[:, None] * self.levels[0].shape[1]
        return index, chosen.view(u.shape) / total.float()

    def update(self, slots: Tensor, index: Tensor, errors: Tensor) -> None:
        """Set the priorities of rows from their errors, and update the sums in the trees.

        Args:
            slots: `[P]` int64, the P members, by their places in the population.
            index: `[P, B]` int64, B rows of each member's buffer. If a row occurs several times, the error with the
                largest absolute value counts.
            errors: `[P, B]`, the rows' errors, positive or negative. If an error is NaN, the row's priority does not
                change.
        """
        if build.serve(self.largest):
            native.update(self.levels, slots, index, errors, self.alpha, LEAST, MOST, self.largest)
            return
        flat, at = self.levels[0].view(-1), (slots[:, None] * self.levels[0].shape[1] + index).view(-1)
        priority = ((errors.abs() + LEAST) ** self.alpha).clamp(max=MOST).view(-1)
        priority = torch.where(torch.isnan(priority), flat.index_select(0, at), priority)
        flat.index_fill_(0, at, 0.0)
        flat.scatter_reduce_(0, at, priority, "amax")
        largest = torch.maximum(self.largest.index_select(0, slots), priority.view(index.shape).amax(dim=1))
        self.largest.index_copy_(0, slots, largest)
        self._add_up(slots[:, None].expand(index.shape).reshape(-1), index.reshape(-1))

    def inherit(self, slots: Tensor, parents: Tensor) -> None:
        """Copy priorities from parents to members. A member and its parent must sample the same buffer.

        `slots` `[n]` are the members' slots (places in the population), and `parents` `[n]` those of their parents.
        """
        for tensor in self.tensors():
            tensor.index_copy_(0, slots, tensor.index_select(0, parents))

    def forget(self, slots: Tensor) -> None:
        """Reset the priority of every filled row to 1, its initial value, for the members in `slots` `[n]`.

        This is for new members that cannot get priorities by the method `inherit`: their parent sampled another buffer,
        or they have no parent.
        """
        self.levels[0].index_copy_(0, slots, self.levels[0].index_select(0, slots).sign())
        self.largest.index_fill_(0, slots, 1.0)
        self._add_up_all()

    def clear(self, slots: Tensor) -> None:
        """Reset the priorities of the members in the slots `slots` `[n]`: all rows get the priority 0, as in an empty
        buffer."""
        self.levels[0].index_fill_(0, slots, 0.0)
        self.largest.index_fill_(0, slots, 1.0)
        self._add_up_all()

    def _add_up(self, slots: Tensor, index: Tensor) -> None:
        """Sum anew, on every level, what is above rows `index` `[n]` of members `slots` `[n]`."""
        if build.serve(self.largest):
            native.add_up(self.levels, slots, index)
            return
        for below, above in itertools.pairwise(self.levels):
            index = index // FAN_OUT
            block = slots * above.shape[1] + index
            above.view(-1).index_copy_(0, block, below.view(-1, FAN_OUT).index_select(0, block).sum(dim=1))

    def _add_up_all(self) -> None:
        if build.serve(self.largest):
            native.add_up_all(self.levels)
            return
        for below, above in itertools.pairwise(self.levels):
            above.copy_(below.view(-1, FAN_OUT).sum(dim=1).view(above.shape))

    def state(self, filled: int) -> dict[str, Tensor]:
        """Return copies on the CPU of the priorities of the first `filled` rows, and of each member's largest priority.

        The result is a dict with the keys `priorities` and `largest`.
        """
        return {
            "priorities": self.levels[0][:, :filled].to("cpu", copy=True),
            "largest": self.largest.to("cpu", copy=True),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        kept = state["priorities"]
        self.largest.copy_(state["largest"])
        self.levels[0].zero_()
        self.levels[0][:, : kept.shape[1]] = kept.to(self.largest.device)
        self._add_up_all()
