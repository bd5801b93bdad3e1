"""Members, which are the individuals of a population as plain data, and the fields of an algorithm's state."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from evopipe.core.arch import Arch
from evopipe.core.module import Module
from evopipe.core.readers import ARCHITECTURES
from evopipe.core.structure import Architecture
from evopipe.schema.network import EncoderKind
from evopipe.types import Tensor

ARCHITECTURES |= {**dict.fromkeys(get_args(EncoderKind), Arch.from_json), "module": Module.from_json}


def read_architecture(data: dict[str, Any]) -> Architecture:
    """Return the architecture that JSON data describes: the inverse of `Architecture.to_json`.

    Raises:
        ValueError: the data is not of that form.
    """
    kind = data.get("kind", "mlp")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"kind: there is no architecture {kind!r:.40}")
    read: Architecture = ARCHITECTURES[kind](data)
    return read


@dataclass(frozen=True)
class Member:
    """One individual of a population, as plain data.

    Attributes:
        slot: the member's place in the population.
        id: a number that is unique in the run.
        parent: the id of the parent; None for a member without a parent.
        key: the random key of the slot. A child has the key of its own slot, not that of its parent's slot.
        arch: the architecture of all its networks.
        hyper: the hyper-parameters by name.
        tensors: the tensors by name, without padding. For example, `q` `[n]` has the n parameters of a network, and
            `adam.mean` `[n]` the first moments of Adam for these parameters.
        healthy: False as soon as a loss, gradient, weight or score of the member is not finite.
        fitness: the scores of the ancestors' evaluations, followed by the scores of the member's own evaluations.
    """

    slot: int
    id: int
    parent: int | None
    key: int
    arch: Architecture
    hyper: Mapping[str, float]
    tensors: Mapping[str, Tensor]
    healthy: bool = True
    fitness: tuple[float, ...] = ()

    def clone(self, slot: int, id: int, key: int) -> Member:
        """Return a child of this member in another slot (place in the population).

        Tensors are copied; hyper-parameters, architecture and fitness are the parent's.

        Args:
            slot: the child's slot.
            id: the child's id.
            key: the random key of the child's slot.
        """
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return replace(self, slot=slot, id=id, parent=self.id, key=key, hyper=dict(self.hyper), tensors=tensors)


def parameters(*networks: str, trainable: bool = False) -> Any:
    """Declare a field of an algorithm's state that holds the parameters of one or several networks, as a `Net`.

    The field is None if the configuration has no such network.

    Args:
        networks: the names of the networks. K networks are computed as one batch. For P members, the `Net` then has the
            values `[P · K, N]`: a row of N numbers for each network, with the K rows of a member next to each other. A
            configuration may use fewer networks, the first ones.
        trainable: whether gradients train the parameters.
    """
    return field(metadata={"kind": "parameters", "networks": networks, "trainable": trainable})


def scales(network: str, trainable: bool = False) -> Any:
    """Declare a field of an algorithm's state that holds one scale for every parameter of a network.

    The field's value is a `Net` with the same shape as that network. A noisy network, for example, has a noise scale
    for each parameter.

    Args:
        network: the name of the network.
        trainable: whether gradients train the scales.
    """
    return field(metadata={"kind": "scales", "networks": (network,), "trainable": trainable})


def moments(*networks: str) -> Any:
    """Declare a field of an algorithm's state that holds the Adam moments of the networks with these names, as an
    `Adam`."""
    return field(metadata={"kind": "moments", "networks": networks})


def row() -> Any:
    """Declare a field of an algorithm's state that holds a tensor `[P, …]` with one row for each of P members."""
    return field(metadata={"kind": "row", "networks": ()})


def names_of(f: dataclasses.Field[Any]) -> list[str]:
    """Return the names that the tensors of the field `f` of an algorithm's state have in `Member.tensors`.

    For a field of one network, the only name is the field's own. A field of several networks has a name for each, such
    as `critics.critic_1`.
    """
    networks = f.metadata["networks"]
    return [f.name] if len(networks) < 2 else [f"{f.name}.{network}" for network in networks]


def tensor_kinds(state_type: type[Any], networks: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the kind of each of a member's tensors, and the network that it belongs to: name → (kind, network).

    The kind says what happens to the tensor if the member's architecture mutates. Tensors of the kinds `parameters`,
    `scales` and `moments` are flat rows of a network, and are converted to its new architecture. A tensor of the kind
    `row` is kept as it is, and its network is the empty string.

    Args:
        state_type: the algorithm's class `State`.
        networks: the names of the networks that the configuration uses. Other networks have no tensors.
    """
    kinds: dict[str, tuple[str, str]] = {}
    for f in dataclasses.fields(state_type):
        kind = f.metadata["kind"]
        for name, network in zip(names_of(f), f.metadata["networks"] or ("",), strict=True):
            if network and network not in networks:
                continue
            if kind == "moments":
                kinds |= {f"{name}.mean": (kind, network), f"{name}.square": (kind, network)}
                kinds[f"{name}.steps"] = ("row", "")
            else:
                kinds[name] = (kind, network)
    return kinds
