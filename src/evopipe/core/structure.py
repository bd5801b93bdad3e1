"""Protocols of networks and architectures, by which evopipe uses perceptrons, GPTs and users' own modules.

An `Architecture` describes the networks of one member, as data. A `Structure` is one network of several members: rows
of numbers, and the forward pass that reads them. Adam, clipping, health, cloning, evolution, checkpoints and lineage
need no more than these. Padded perceptrons (`core.arch`, `core.padded`) are one such pair.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch

from evopipe.schema.evolution import ArchitectureBounds
from evopipe.types import Tensor


class Widths(NamedTuple):
    """The input and output width of a network, and the part of the member's architecture that the network is.

    Attributes:
        inputs: the number of inputs. The inputs of a head are only those that it reads in addition to the latent, such
            as actions; see `role`.
        outputs: the number of outputs; 0 for an encoder, which has no output layer.
        role: the part of the architecture. `encoder` is the layers up to the latent, `head` the layers after the
            latent, and `whole` is encoder and head together. The latent is the layer between encoder and head.
        copies: the number of such networks of each member, with parameters of their own, as for the agents of a team.
        gain: the scale of the initial weights of the output layer.
        biases: how the biases of hidden layers are initialised: `uniform` draws, `zeros`, or `auto`, which chooses one
            of the two by the activation.
        widen: how many times as wide the hidden layers are as the member's architecture says.
        renorm: whether every dense layer reads its inputs normalised by batch renormalisation (`core.renorm`), in place
            of the architecture's layer normalisation.
    """

    inputs: int
    outputs: int
    role: Literal["whole", "encoder", "head"] = "whole"
    copies: int = 1
    gain: float = 0.1
    biases: Literal["uniform", "zeros", "auto"] = "uniform"
    widen: int = 1
    renorm: bool = False

    @property
    def joins(self) -> bool:
        """Whether the network is a head that reads other inputs, such as actions, in addition to the encoder's output.

        Such a head must have a hidden layer. Without one, Q(s, a) would be the sum of a term of s and a term of a, and
        the best action would be the same in every state.
        """
        return self.role == "head" and self.inputs > 0


def acting_networks(policy: str, networks: Mapping[str, Widths]) -> list[str]:
    """Return the names of the networks that are needed to act: the policy, and before it the encoder, if the policy is
    a head.

    Args:
        policy: the name of the policy network.
        networks: the widths of all networks by name.
    """
    encoders = [name for name, widths in networks.items() if widths.role == "encoder"]
    return [*encoders, policy] if networks[policy].role == "head" else [policy]


def share_encoder(networks: Mapping[str, Widths], observations: int, share: bool = True) -> dict[str, Widths]:
    """Return the networks as heads on one shared encoder of the observations, which is added under the name `encoder`.

    Args:
        networks: the widths of the networks by name.
        observations: the width of an observation.
        share: if False, the networks are returned unchanged.
    """
    if not share:
        return dict(networks)
    heads = {name: each._replace(inputs=each.inputs - observations, role="head") for name, each in networks.items()}
    return {"encoder": Widths(observations, 0, "encoder"), **heads}


Option: TypeAlias = tuple[str, str, Any, Any, Any]
"""(method, what changes, its value before, its value after, the architecture after) of a possible mutation."""
ViewOf: TypeAlias = "Callable[[int, int, int], Tensor]"
"""(start, rows, columns) → those numbers of every row, `[P, rows, columns]`, with gradients where a network learns."""


class Structure(Protocol):
    """Protocol of one network of P members: the layout of its parameters in flat rows, and the forward pass.

    Attributes:
        widths: the input and output width of the network.
        copies: the number of networks that one row holds. They have the same architecture, and their parameters lie one
            after the other. The forward pass reads B inputs for each network, `[P · copies, B, …]`.
        size: `N`, the length of a row. A row is a whole number of cache lines, so that a kernel's result for the row
            does not depend on other rows.
        memory_widths: the width of each part of the recurrent state; empty if the network is not recurrent.
        memory: `M`, the numbers in a recurrent state, which is the sum of `memory_widths`.
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
        """Return the members' parameters as rows `[P, N]` of this structure, padded with zeros.

        `rows` has the flat row of each member without padding: for member p the `[n_p]` numbers of its parameters.
        """

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """Return the flat row of each member without padding: for member p the `[n_p]` numbers of its parameters.

        `packed` `[P, N]` are rows of this structure, with padding. The result holds copies.
        """

    def part(self, first: int, end: int | None, every: int = 1) -> Structure:
        """Return the structure of the rows in the slice `first:end:every`; if `end` is None, the slice goes to the last
        row.

        Computing with the part gives the same bits as computing with the whole.
        """

    def repeat(self, times: int) -> Structure:
        """Return the structure with every row repeated `times` times; the repetitions of a row are adjacent."""

    def views(self, of: ViewOf) -> Any:
        """Return the parameter tensors that the forward pass reads.

        The function `of` takes (start, rows, columns), and returns a view `[P, rows, columns]`: one matrix for each
        member, whose numbers begin at index `start` of the member's flat row.
        """

    def forward(self, views: Any, x: Tensor) -> Tensor:
        """Compute the outputs of every row's network: x `[P, B, inputs]` → `[P, B, outputs]`.

        The network of row p reads the B inputs in `x[p]`.

        `views` are the parameter tensors, as the method `views` returns them. A recurrent network takes one step from a
        zero state.
        """

    def remember(self, views: Any, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of a recurrent network; return the outputs `[P, B, outputs]` and the new state `[P, B, M]`.

        The method is called only if the network is recurrent.

        Args:
            views: the parameter tensors, as the method `views` returns them.
            x: `[P, B, inputs]`, B inputs of P members.
            memory: `[P, B, M]`, the recurrent state (M numbers) after the previous step; zeros where an episode begins.
        """

    def unroll(self, views: Any, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        """Take `L` steps of a recurrent network; return the outputs `[P, B, L, outputs]`.

        The method is called only if the network is recurrent.

        Args:
            views: the parameter tensors, as the method `views` returns them.
            x: `[P, B, L, inputs]`: B sequences of L inputs for each of P members.
            memory: `[P, B, M]`, the recurrent state (M numbers) before the first step.
            begins: `[P, B, L]` bool, True at the first step of an episode. The state is reset to 0 before that step,
                and no gradient passes.
        """


class Architecture(Protocol):
    """Protocol of the architecture of one member, which all its networks share. Implementations are frozen dataclasses.

    A cohort, in the attributes, is a batch of members that train together.

    Attributes:
        activation: the name of the hidden layers' activation function; empty if mutations must not change it. The
            members of a cohort are sorted by this name.
        family: a value, such as the convolutions. Only members with equal values can share a cohort.
        signature: a value, such as the padded widths. In the mode `exact`, only members with equal values share a
            cohort, so that a member's results do not depend on other members.
    """

    @property
    def activation(self) -> str: ...
    @property
    def family(self) -> Hashable: ...
    @property
    def signature(self) -> Hashable: ...

    def describe(self) -> str:
        """Return a short text that describes the architecture to people."""

    def to_json(self) -> dict[str, Any]:
        """Return the architecture as JSON data with a field `kind`, which `core.member.read_architecture` reads."""

    def size(self, widths: Widths) -> int:
        """Return the number of parameters of a member's network with these widths, which is the length of its flat
        row."""

    def named(self, widths: Widths, row: Tensor) -> Mapping[str, Tensor]:
        """Return the weights and biases of a member's network with these widths by name, as views of its flat row
        `[n]`.

        Tensors with two dimensions are weight matrices, to which the mutation `parameters` adds noise.
        """

    def initialise(self, widths: Widths, rng: Any) -> Tensor:
        """Draw the initial parameters of a member's network with these widths, as a flat row `[n]`. `rng` is a
        `numpy.random.Generator`."""

    @staticmethod
    def work(archs: Sequence[Any]) -> int:
        """Return the number of multiplications for one input in the padded network that these architectures share."""

    @staticmethod
    def stack(archs: Sequence[Any], widths: Widths, device: torch.device) -> Structure:
        """Return the structure of one network of several members with these architectures.

        All architectures must have the same `family`, and they must be sorted by their attribute `activation`.
        """

    def options(self, bounds: ArchitectureBounds, networks: Sequence[Widths]) -> Iterator[Option]:
        """Yield every mutation of the architecture that the bounds allow, as an `Option`.

        An `Option` is a tuple (mutation method, what changes, value before, value after, architecture after).

        Args:
            bounds: the limits and step sizes of mutated architectures, such as the fewest and most layers.
            networks: the input and output width of each of the member's networks.
        """

    def carry(self, new: Any, widths: Widths, kind: str, row: Tensor, rng: Any) -> Tensor:
        """Return the flat row `[n']` of the mutated architecture `new`, made from a flat row `[n]` of this
        architecture.

        Args:
            new: the mutated architecture.
            widths: the input and output width of the network.
            kind: what the row holds: `parameters`, `scales` or `moments`, see `core.member`.
            row: `[n]`, the row of this architecture.
            rng: a `numpy.random.Generator`, which draws new weights. Pass generators of equal state for the online and
                for the target network: both then get the same new weights.
        """
