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
from evopipe.schema.blocks import EncoderKind
from evopipe.types import Tensor

ARCHITECTURES |= {**dict.fromkeys(get_args(EncoderKind), Arch.from_json), "module": Module.from_json}


def read_architecture(data: dict[str, Any]) -> Architecture:
    """Return the architecture whose JSON data `Architecture.to_json` returned.

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
    """One individual of a population, as plain data: architecture, hyper-parameters, tensors, health and fitness."""

    slot: int  # its place in the population
    id: int  # unique over the run
    parent: int | None  # id of the parent, None for an initial member
    key: int  # the slot's random key, never copied with a winner
    arch: Architecture  # shared by all its networks
    hyper: Mapping[str, float]
    tensors: Mapping[str, Tensor]  # without pads: `q` [n], `adam.mean` [n], `adam.steps` [], `normaliser.mean` [N] …
    healthy: bool = True  # until anything of it is non-finite
    fitness: tuple[float, ...] = ()  # its evaluations so far, its ancestors' before

    def clone(self, slot: int, id: int, key: int) -> Member:
        """Return a child of this member in another slot (place in the population).

        `id` is the child's, and `key` the random key of the slot. Tensors are copied; hyper-parameters, architecture
        and fitness are the parent's.
        """
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return replace(self, slot=slot, id=id, parent=self.id, key=key, hyper=dict(self.hyper), tensors=tensors)


def parameters(*networks: str, trainable: bool = False) -> Any:
    """Declare a field of an algorithm's state that holds the parameters of one or several networks, as a `Net`.

    The field is None if the configuration has no such network. If K networks are named, they run in one batch: the K
    rows of each of P members are adjacent, `[P · K, N]`. A configuration may use only the first networks.
    """
    return field(metadata={"kind": "parameters", "networks": networks, "trainable": trainable})


def scales(network: str, trainable: bool = False) -> Any:
    """Declare a field of an algorithm's state that holds one scale for every parameter of `network`, as a `Net`.

    A noisy network, for example, has a noise scale for each parameter.
    """
    return field(metadata={"kind": "scales", "networks": (network,), "trainable": trainable})


def moments(*networks: str) -> Any:
    """Declare a field of an algorithm's state that holds the Adam moments of one or several networks, as an `Adam`."""
    return field(metadata={"kind": "moments", "networks": networks})


def row() -> Any:
    """Declare a field of an algorithm's state that holds a tensor `[P, …]` with one row for each of P members."""
    return field(metadata={"kind": "row", "networks": ()})


def names_of(f: dataclasses.Field[Any]) -> list[str]:
    """Return the names that the tensors of a declared field have in `Member.tensors`.

    A field of one network has its own name. A field of several networks has a name for each, such as
    `critics.critic_1`.
    """
    networks = f.metadata["networks"]
    return [f.name] if len(networks) < 2 else [f"{f.name}.{network}" for network in networks]


def tensor_kinds(state_type: type[Any], networks: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return how each tensor of a member changes when its architecture does, as name → (kind, network).

    The kinds `parameters`, `scales` and `moments` are flat rows of a network. A tensor of kind `row` never changes, and
    its network is empty. Networks that are not in `networks` are not used by the configuration, and have no tensors.
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
