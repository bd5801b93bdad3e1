"""Networks of all rows: their parameters lie in one flat tensor `[P, N]`; pads are exactly zero and stay so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from evopipe.core.copies import Copies
from evopipe.core.structure import Structure
from evopipe.types import Tensor, Text, TokenScores

Nets: TypeAlias = "Mapping[str, Net]"


@dataclass(frozen=True)
class Net:
    """Networks of all rows: flat parameters and the structure that gives them meaning.

    Where it is trainable, every view is a leaf whose `.grad` is a view of `grad`: making the flat tensor the leaf is
    1.8 to 2.7 times slower.
    """

    structure: Structure
    values: Tensor  # [P, N], written in place by the optimiser
    trainable: bool = field(default=False)

    @classmethod
    def interleave(cls, *nets: Net) -> Net:
        """Return K like networks of every member as one whose rows are a member's next to each other: `[P · K, N]`."""
        values = torch.stack([net.values for net in nets], dim=1).flatten(0, 1)
        return cls(nets[0].structure.repeat(len(nets)), values, nets[0].trainable)

    @cached_property
    def grad(self) -> Tensor:
        """`[P, N]` gradients, filled by backward."""
        return torch.zeros_like(self.values)

    @cached_property
    def views(self) -> Any:
        """What the structure's forward pass reads: leaves with preset gradients where trainable."""
        return self.structure.views(self._view)

    @cached_property
    def frozen(self) -> Net:
        """The same parameters as constants: a loss that goes through them leaves them no gradient."""
        return replace(self, trainable=False)

    @cached_property
    def pair(self) -> tuple[Net, Net]:
        """Of two networks a member, all first ones and all second ones, as constants."""
        first, second = (self.frozen.part(i, None, 2) for i in range(2))
        return first, second

    @cached_property
    def firsts(self) -> Net:
        """Of copies in pairs, twin behind twin, all first ones, as constants: one a row, `[P · copies / 2, N]`."""
        shape = self.structure
        assert isinstance(shape, Copies)
        rows = self.values.view(len(self.values) * shape.copies, -1)
        return Net(shape.inner.part(0, None, 2), rows[::2])

    def apart(self) -> Net:
        """Return a constant network whose views are tensors of their own: a program that is saved wants them so."""
        apart = replace(self, trainable=False)
        views = apart.structure.views(lambda *at: apart._view(*at).clone(memory_format=torch.contiguous_format))
        apart.__dict__["views"] = views  # where `cached_property` keeps them
        return apart

    @property
    def finite(self) -> Tensor:
        """Which rows `[P]` have only finite parameters. A sum is NaN or infinite where one number is."""
        return torch.isfinite(self.values.sum(dim=1))

    def part(self, first: int, end: int | None, every: int = 1) -> Net:
        """Return some of the rows, on the same memory."""
        return Net(self.structure.part(first, end, every), self.values[first:end:every], self.trainable)

    def _view(self, start: int, rows: int, columns: int) -> Tensor:
        here, copies = slice(start, start + rows * columns), self.structure.copies

        def cut(rows_of: Tensor) -> Tensor:
            return rows_of.view(len(rows_of) * copies, -1)[:, here].view(-1, rows, columns)

        view = cut(self.values)
        if self.trainable:
            view = view.detach().requires_grad_(True)
            view.grad = cut(self.grad)
        return view

    def copy(self, trainable: bool = False) -> Net:
        """Return an independent copy of the parameters."""
        return replace(self, values=self.values.clone(), trainable=trainable)


def forward(net: Net | None, x: Tensor, views: Any = None) -> Tensor:
    """Run each member's network on its own batch: `[P, B, inputs]` → `[P, B, outputs]`, of an encoder `[P, B, latent]`.

    K networks a member all read its one batch: → `[P, K, B, outputs]`. Without a network, as where there is no shared
    encoder, x passes. One with a memory takes one step from an empty one. `views` stand in the place of the network's
    own parameters, for example noisy ones. Copies of a member's network read a batch each, `[P · copies, B, …]`.
    """
    if net is None:
        return x
    views, each = net.views if views is None else views, len(net.values) * net.structure.copies // len(x)
    if each == 1:
        return net.structure.forward(views, x)
    out: Tensor = net.structure.forward(views, x.repeat_interleave(each, dim=0)).unflatten(0, (len(x), each))
    return out


def remember(net: Net | None, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Take one step with a memory: x `[P, B, inputs]` → `[P, B, outputs]`; without a network x passes.

    The memory `[P, B, M]` is the step before's, zeros where an episode begins; that after the step is returned too.
    """
    if net is None or not net.structure.memory:
        return forward(net, x), memory
    return net.structure.remember(net.views, x, memory)


def unroll(net: Net | None, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
    """Take `L` steps with a memory: x `[P, B, L, inputs]` → `[P, B, L, outputs]`; without a network x passes.

    The memory `[P, B, M]` is that before the first step. No gradient passes where an episode begins, `[P, B, L]` bool.
    """
    if net is None:
        return x
    if net.structure.memory:
        return net.structure.unroll(net.views, x, memory, begins)
    out: Tensor = forward(net, x.flatten(1, 2)).unflatten(1, x.shape[1:3])
    return out


def score(policy: Net, text: Text, value: Net | None = None, entropy: bool = False) -> TokenScores:
    """Return what each member's language model, and its value head if there is one, say of its own rows of text.

    Entropies are 0 unless they are asked for: they take as much memory as the logits.
    """
    structure: Any = policy.structure
    scored: TokenScores
    hidden, scored = structure.score(policy.views, text, entropy, value is not None)
    if value is None:
        return scored
    return scored._replace(value=forward(value, hidden.flatten(1, 2)).view(scored.log_prob.shape))
