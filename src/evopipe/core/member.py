"""Members: one individual of a population as data, and the fields that make up its state."""

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
    """Build what `Architecture.to_json` returned.

    Raises:
        ValueError: it is another thing.
    """
    kind = data.get("kind", "mlp")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"kind: there is no architecture {kind!r:.40}")
    read: Architecture = ARCHITECTURES[kind](data)
    return read


@dataclass(frozen=True)
class Member:
    """One individual."""

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
        """Return a child in another slot: tensors copied, nothing shared, the slot's own key."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return replace(self, slot=slot, id=id, parent=self.id, key=key, hyper=dict(self.hyper), tensors=tensors)


def parameters(*networks: str, trainable: bool = False) -> Any:
    """Declare a field of an algorithm's state: parameters of a network, a `Net`; None where there is no such network.

    Of K like networks, that they may run in one batch: a member's K rows lie next to each other, `[P · K, N]`.
    """
    return field(metadata={"kind": "parameters", "networks": networks, "trainable": trainable})


def scales(network: str, trainable: bool = False) -> Any:
    """Declare a field of an algorithm's state: one scale for every parameter of `network`, for example of its noise."""
    return field(metadata={"kind": "scales", "networks": (network,), "trainable": trainable})


def moments(*networks: str) -> Any:
    """Declare a field of an algorithm's state: the optimiser moments of a network or of several, an `Adam`."""
    return field(metadata={"kind": "moments", "networks": networks})


def row() -> Any:
    """Declare a field of an algorithm's state: a tensor `[P, …]` with one row a member."""
    return field(metadata={"kind": "row", "networks": ()})


def names_of(f: dataclasses.Field[Any]) -> list[str]:
    """Return a member's names for a declared field: its own; of several networks one each, `critics.critic_1`."""
    networks = f.metadata["networks"]
    return [f.name] if len(networks) < 2 else [f"{f.name}.{network}" for network in networks]


def tensor_kinds(state_type: type[Any], networks: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return how each tensor of a member changes with its architecture: name → (kind, network).

    Kinds: `parameters`, `scales`, `moments` (flat rows of a network), `row` (never changes). A network that is not
    among `networks` has no tensors: the configuration has no use for it.
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
