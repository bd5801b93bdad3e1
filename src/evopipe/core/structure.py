"""What the core asks of networks, whatever they are made of.

An `Architecture` is one member's, as data. A `Structure` is one network of several members: rows of numbers, and the
forward pass that reads them. Adam, clipping, health, cloning, evolution, checkpoints and lineage ask no more than this.
Perceptrons padded to common widths (`core.arch`, `core.padded`) are one such pair.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch

from evopipe.schema.blocks import ArchitectureBounds
from evopipe.types import Tensor


class Widths(NamedTuple):
    """Input and output width of a network, and which part of an architecture it is.

    An `encoder` ends with the latent and has no output layer: its outputs are 0. A `head` begins behind the latent; it
    reads so many inputs of its own, actions for example, then the latent.

    Of a team's network a member may have several `copies`, alike in architecture, each with parameters of its own.

    Fresh parameters are drawn with this `gain` of the output layer, and with these `biases` of the hidden layers.
    """

    inputs: int
    outputs: int
    role: Literal["whole", "encoder", "head"] = "whole"
    copies: int = 1
    gain: float = 0.1
    biases: Literal["uniform", "zeros", "auto"] = "uniform"

    @property
    def joins(self) -> bool:
        """Whether it is a head that reads inputs of its own: it needs a hidden layer. Without one Q(s, a) would be one
        term of the features and one of the action, and the best action the same everywhere."""
        return self.role == "head" and self.inputs > 0


def acting_networks(policy: str, networks: Mapping[str, Widths]) -> list[str]:
    """Return the policy's network, and before it the encoder that it reads where it is a head."""
    encoders = [name for name, widths in networks.items() if widths.role == "encoder"]
    return [*encoders, policy] if networks[policy].role == "head" else [policy]


Option: TypeAlias = tuple[str, str, Any, Any, Any]
"""(method, what changes, its value before, its value after, the architecture after) of a possible mutation."""
ViewOf: TypeAlias = "Callable[[int, int, int], Tensor]"
"""(start, rows, columns) → those numbers of every row, `[P, rows, columns]`, with gradients where a network learns."""


class Structure(Protocol):
    """One network of several members, in rows.

    Attributes:
        copies: how many like networks a row holds, one behind the other; their forward pass reads `[P · copies, B, …]`.
        size: `N`, numbers in a row: whole cache lines, so that a kernel over many rows treats each as it would alone.
        memory_widths: numbers of each piece of what it carries from step to step; none if it has no memory.
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
        """Place members' own flat rows `[n_p]` into rows `[P, N]`, zeros elsewhere."""

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """Return members' own flat rows `[n_p]` (copies)."""

    def part(self, first: int, end: int | None, every: int = 1) -> Structure:
        """Return the structure of some of the rows: what they compute stays the same to the bit."""

    def repeat(self, times: int) -> Structure:
        """Return the structure with every row so many times, one after another."""

    def views(self, of: ViewOf) -> Any:
        """Return what the forward pass reads, made of views into the rows."""

    def forward(self, views: Any, x: Tensor) -> Tensor:
        """Run every row on its own batch: `[P, B, inputs]` → `[P, B, outputs]`; one with a memory from an empty one."""

    def remember(self, views: Any, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """See `core.net.remember`; asked only if there is a memory."""

    def unroll(self, views: Any, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        """See `core.net.unroll`; asked only if there is a memory."""


class Architecture(Protocol):
    """One member's architecture, shared by all its networks: a frozen dataclass.

    Attributes:
        activation: of the hidden layers: rows of a cohort are ordered by it; empty if mutation is not to choose it.
        family: what all members of a cohort must have in common.
        signature: what they have in common if a member's arithmetic is to depend on itself alone.
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
        """Return plain JSON data, for `core.member.read_architecture`: a `kind`, and what else it needs."""

    def size(self, widths: Widths) -> int:
        """Return how many numbers a member's own flat row has."""

    def named(self, widths: Widths, row: Tensor) -> Mapping[str, Tensor]:
        """Split a member's own flat row into its tensors (views) by name; noise goes to those of two dimensions."""

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        """Draw a member's own flat row `[n]` from a `numpy.random.Generator`."""

    @staticmethod
    def work(archs: Sequence[Any]) -> int:
        """Return the multiplications for one input of a row that these share."""

    @staticmethod
    def stack(archs: Sequence[Any], widths: Widths, device: torch.device) -> Structure:
        """Return the structure of one network of members with these, ordered by activation, and all of one family."""

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        """Return every mutation that is possible, for members with these networks."""

    def carry(self, new: Any, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        """Return a flat row `[n]` as one of a mutated architecture, `[n']`.

        The kind is `parameters`, `scales` or `moments`, see `core.member`. Equal generators give online and target
        networks equal fresh weights.
        """
