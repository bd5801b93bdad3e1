"""Networks of several members: their parameters lie in one flat tensor `[P, N]`, in which padding stays exactly 0."""

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
    """One network of each of several members.

    If the network is trainable, the parameter tensors in `views` are leaves of autograd, and the `.grad` of each is a
    view of the flat tensor `grad`. (With the whole flat tensor as the leaf, updates are 1.8 to 2.7 times slower.)

    Attributes:
        structure: the layout of the rows, and the forward pass that reads them.
        values: `[P, N]`, the parameters as flat rows of N numbers, which the optimiser changes in place.
        trainable: whether the parameters get gradients.
    """

    structure: Structure
    values: Tensor
    trainable: bool = field(default=False)

    @classmethod
    def interleave(cls, *nets: Net) -> Net:
        """Combine K networks of each of P members into one `Net` with the values `[P · K, N]`.

        The K rows of a member are adjacent.
        """
        values = torch.stack([net.values for net in nets], dim=1).flatten(0, 1)
        return cls(nets[0].structure.repeat(len(nets)), values, nets[0].trainable)

    @cached_property
    def grad(self) -> Tensor:
        """The gradients `[P, N]`, which `core.optim.backward` writes."""
        return torch.zeros_like(self.values)

    @cached_property
    def views(self) -> Any:
        """The parameter tensors as views of the flat rows, in the form that the structure's forward pass reads.

        If the network is trainable, the views are leaves of autograd whose `.grad` is allocated already.
        """
        return self.structure.views(self._view)

    @cached_property
    def frozen(self) -> Net:
        """A network with the same parameters, in the same memory, as constants: they get no gradient."""
        return replace(self, trainable=False)

    @cached_property
    def pair(self) -> tuple[Net, Net]:
        """The two networks of each member, as two `Net`s without gradients.

        The first `Net` has the first network of all members, the second `Net` their second network. This net must hold
        two networks for each member, such as twin critics.
        """
        first, second = (self.frozen.part(i, None, 2) for i in range(2))
        return first, second

    @cached_property
    def firsts(self) -> Net:
        """The first network of every pair, as a `Net` without gradients that has one row for each pair.

        Each of the P rows of this net must hold an even number of networks, such as two critics for each group of
        agents. Networks 2 i and 2 i + 1 of a row are a pair.
        """
        shape = self.structure
        assert isinstance(shape, Copies)
        rows = self.values.view(len(self.values) * shape.copies, -1)
        return Net(shape.inner.part(0, None, 2), rows[::2])

    def separated(self) -> Net:
        """Return a copy of the network without gradients whose parameter views are separate tensors; `torch.export`
        needs this."""
        apart = replace(self, trainable=False)
        views = apart.structure.views(lambda *at: apart._view(*at).clone(memory_format=torch.contiguous_format))
        apart.__dict__["views"] = views  # where `cached_property` keeps them
        return apart

    @property
    def finite(self) -> Tensor:
        """Whether all parameters of each row are finite, `[P]` bool.

        Only the row's sum is tested, which is NaN or infinite if one parameter is.
        """
        return torch.isfinite(self.values.sum(dim=1))

    def part(self, first: int, end: int | None, every: int = 1) -> Net:
        """Return the network of the rows in the slice `first:end:every`, which shares memory with this network.

        If `end` is None, the slice goes to the last row.
        """
        return Net(self.structure.part(first, end, every), self.values[first:end:every], self.trainable)

    def _view(self, start: int, rows: int, columns: int) -> Tensor:
        copies = self.structure.copies

        def cut(rows_of: Tensor) -> Tensor:  # one operator: slices and views take three times as long
            each = rows_of if copies == 1 else rows_of.view(rows_of.shape[0] * copies, -1)
            apart, step = each.stride()
            first = each.storage_offset() + start * step
            return each.as_strided((each.shape[0], rows, columns), (apart, columns * step, step), first)

        view = cut(self.values)
        if self.trainable:
            view = view.detach().requires_grad_(True)
            view.grad = cut(self.grad)
        return view

    def copy(self, trainable: bool = False) -> Net:
        """Return a network with a copy of the parameters, and gradients of its own if `trainable` is True."""
        return replace(self, values=self.values.clone(), trainable=trainable)


def forward(net: Net | None, x: Tensor, views: Any = None) -> Tensor:
    """Run each member's network on the member's own batch: `[P, B, inputs]` → `[P, B, outputs]`.

    P is the number of members, B the batch size. An encoder returns features `[P, B, latent]`. A recurrent network
    takes one step from a zero state.

    A member may have several networks. If `net` has K rows for each member (see `Net.interleave`), all K networks read
    the member's batch, and the result is `[P, K, B, outputs]`. If each row holds several networks (see `core.copies`),
    every network has a batch of its own: x and the result are `[P · copies, B, …]`, if each row holds `copies`.

    Args:
        net: the network; None returns x, for algorithms whose shared encoder is optional.
        x: the inputs.
        views: parameter tensors to use instead of those of `net`, in the form of `Net.views`, for example noisy ones;
            None for those of `net`.
    """
    if net is None:
        return x
    views, each = net.views if views is None else views, len(net.values) * net.structure.copies // len(x)
    if each == 1:
        return net.structure.forward(views, x)
    out: Tensor = net.structure.forward(views, x.repeat_interleave(each, dim=0)).unflatten(0, (len(x), each))
    return out


def remember(net: Net | None, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Take one step of each member's recurrent network; return the outputs and the new state.

    The outputs are `[P, B, outputs]`, and the state is `[P, B, M]`, for P members and batches of B rows.

    If the network is not recurrent, the state is returned unchanged. If `net` is None, x and the state are returned.

    Args:
        net: the network.
        x: `[P, B, inputs]`, the input of each row.
        memory: `[P, B, M]`, the M numbers of each row's recurrent state after the previous step; zeros where an episode
            begins.
    """
    if net is None or not net.structure.memory:
        return forward(net, x), memory
    return net.structure.remember(net.views, x, memory)


def memories(memory: Tensor, *nets: Net | None) -> tuple[Tensor, ...]:
    """Split recurrent states `[…, M]` into one part for each of the networks `nets`, in this order.

    If a network has no recurrent state, or is None, its part has width 0.
    """
    return tuple(memory.split([0 if net is None else net.structure.memory for net in nets], dim=-1))


def unroll(net: Net | None, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
    """Take `L` steps of each member's recurrent network; return the outputs `[P, B, L, outputs]`.

    Args:
        net: the network. If it is None, x is returned. If it is not recurrent, it computes each step by itself.
        x: `[P, B, L, inputs]`: for each of P members B sequences of L steps. `inputs` is the width of an input.
        memory: `[P, B, M]`, the recurrent state, of M numbers, before the first step.
        begins: `[P, B, L]` bool, True at the first step of an episode. The state is reset to 0 before that step, and no
            gradient passes.
    """
    if net is None:
        return x
    if net.structure.memory:
        return net.structure.unroll(net.views, x, memory, begins)
    out: Tensor = forward(net, x.flatten(1, 2)).unflatten(1, x.shape[1:3])
    return out


def score(policy: Net, text: Text, value: Net | None = None, entropy: bool = False) -> TokenScores:
    """Run each member's language model on its own rows of text, and return the scores of the tokens, such as their
    log-probabilities.

    Args:
        policy: the language models.
        text: `[P, B, …]`, the B rows of text of each of P members.
        value: the value heads, which add the state value before each token to the scores; None for no values.
        entropy: whether entropies are computed, which takes as much memory as the logits. If not, they are 0.
    """
    structure: Any = policy.structure
    scored: TokenScores
    hidden, scored = structure.score(policy.views, text, entropy, value is not None)
    if value is None:
        return scored
    return scored._replace(value=forward(value, hidden.flatten(1, 2)).view(scored.log_prob.shape))
