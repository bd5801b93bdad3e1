"""The protocols that the core asks of networks, whatever they are made of.

An `Architecture` describes the networks of one member, as data. A `Structure` is one network of several members: rows
of numbers, and the forward pass that reads them. Adam, clipping, health, cloning, evolution, checkpoints and lineage
need no more than these. Padded perceptrons (`core.arch`, `core.padded`) are one such pair.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch

from evopipe.schema.blocks import ArchitectureBounds
from evopipe.types import Tensor


class Widths(NamedTuple):
    """The input and output width of a network, and which part of an architecture it is.

    An `encoder` ends with the latent; it has no output layer, and its `outputs` are 0. A `head` begins after the
    latent: it reads `inputs` numbers of its own, such as actions, and then the latent. `whole` is both.

    A team's member may have several `copies` of a network: equal in architecture, each with its own parameters.

    `gain` scales the initial weights of the output layer; `biases` says how those of the hidden layers are drawn.
    """

    inputs: int
    outputs: int
    role: Literal["whole", "encoder", "head"] = "whole"
    copies: int = 1
    gain: float = 0.1
    biases: Literal["uniform", "zeros", "auto"] = "uniform"

    @property
    def joins(self) -> bool:
        """Whether the network is a head with inputs of its own, which must then have a hidden layer.

        Without one, Q(s, a) would be a term of the features plus a term of the action, and the best action the same
        everywhere.
        """
        return self.role == "head" and self.inputs > 0


def acting_networks(policy: str, networks: Mapping[str, Widths]) -> list[str]:
    """Return the names of the networks that acting needs: the policy, preceded by the encoder if the policy is a
    head."""
    encoders = [name for name, widths in networks.items() if widths.role == "encoder"]
    return [*encoders, policy] if networks[policy].role == "head" else [policy]


def share_encoder(networks: Mapping[str, Widths], observations: int, share: bool = True) -> dict[str, Widths]:
    """Return the networks as heads on one shared `encoder` of the observations, which is added to them. Without
    sharing, return the networks unchanged."""
    if not share:
        return dict(networks)
    heads = {name: each._replace(inputs=each.inputs - observations, role="head") for name, each in networks.items()}
    return {"encoder": Widths(observations, 0, "encoder"), **heads}


Option: TypeAlias = tuple[str, str, Any, Any, Any]
"""(method, what changes, its value before, its value after, the architecture after) of a possible mutation."""
ViewOf: TypeAlias = "Callable[[int, int, int], Tensor]"
"""(start, rows, columns) → those numbers of every row, `[P, rows, columns]`, with gradients where a network learns."""


class Structure(Protocol):
    """One network of several members: how their rows of numbers are laid out, and the forward pass that reads them.

    Attributes:
        copies: how many equal networks a row holds, one after the other; the forward pass reads `[P · copies, B, …]`.
        size: `N`, the numbers in a row. Rows are whole cache lines, so that a kernel treats each as it would alone.
        memory_widths: the width of each part of the recurrent memory; empty if the network is not recurrent.
        memory: `M`, their sum.
    """

    @property
    def widths(self) -> Widths: ...
    @property
    def copies(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def memory_widths(self) -> Sequence[int]: ...
    @property
    def memory(self) -> int: ...

    def pack(self, rows: Sequence[Tensor]) -> Tensor:
        """Place members' own flat rows `[n_p]` into rows `[P, N]`, with zeros elsewhere."""

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """Return the members' own flat rows `[n_p]` from rows `[P, N]`, without pads. They are copies."""

    def part(self, first: int, end: int | None, every: int = 1) -> Structure:
        """Return the structure of every `every`-th row from `first` to `end`. The results of these rows keep every
        bit."""

    def repeat(self, times: int) -> Structure:
        """Return the structure with every row repeated `times` times, the repetitions adjacent."""

    def views(self, of: ViewOf) -> Any:
        """Return the views into the rows that the forward pass reads. `of` (see `ViewOf`) makes each of them."""

    def forward(self, views: Any, x: Tensor) -> Tensor:
        """Run every row on its own batch: `[P, B, inputs]` → `[P, B, outputs]`. A recurrent network starts with an
        empty memory."""

    def remember(self, views: Any, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """See `core.net.remember`. It is called only if the network is recurrent."""

    def unroll(self, views: Any, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        """See `core.net.unroll`. It is called only if the network is recurrent."""


class Architecture(Protocol):
    """The architecture of one member, shared by all its networks: a frozen dataclass.

    Attributes:
        activation: that of the hidden layers, by which the rows of a cohort are ordered; empty if it must not mutate.
        family: members share a cohort only if this is equal.
        signature: in the mode `exact`, members share a cohort only if this is equal too. A member's results then do not
            depend on the others.
    """

    @property
    def activation(self) -> str: ...
    @property
    def family(self) -> Hashable: ...
    @property
    def signature(self) -> Hashable: ...

    def describe(self) -> str:
        """Return a short text for people."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON data that `core.member.read_architecture` reads: a `kind`, and what else it needs."""

    def size(self, widths: Widths) -> int:
        """Return the length of a member's own flat row."""

    def named(self, widths: Widths, row: Tensor) -> Mapping[str, Tensor]:
        """Return the weights and biases of a member's network by name, as views of its flat row `[n]`.

        Those of two dimensions are weight matrices, to which the mutation `parameters` adds noise.
        """

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        """Draw a member's own flat row `[n]` from a `numpy.random.Generator`."""

    @staticmethod
    def work(archs: Sequence[Any]) -> int:
        """Return the multiplications for one input in a structure that these architectures share."""

    @staticmethod
    def stack(archs: Sequence[Any], widths: Widths, device: torch.device) -> Structure:
        """Return the structure of one network of several members. Their architectures are of one family, ordered by
        activation."""

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        """Return every mutation that the bounds allow, for a member with these networks."""

    def carry(self, new: Any, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        """Return a flat row `[n]` as one of a mutated architecture, `[n']`.

        `kind` is `parameters`, `scales` or `moments`, see `core.member`. Generators of equal state give online and
        target networks the same new weights.
        """
