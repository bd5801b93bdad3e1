"""The mutation `architecture`: add or remove a layer, or change a width or another size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evopipe.core.member import Member
from evopipe.core.structure import Architecture
from evopipe.mutations.values import Changed, Mutation, Traits, in_random_order
from evopipe.schema.evolution import MutationConfig


def mutate(cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator) -> Changed:
    """Draw one of the changes that the member's architecture allows, and apply it.

    With probability `new_layer_prob` the change adds or removes a layer, otherwise it changes a width or another size.
    Return the changed copy of the member and the record of the mutation, or None if the architecture allows no change.

    Args:
        cfg: the settings of mutation.
        traits: the facts about the algorithm: its networks, tensors and hyper-parameters.
        member: the member, which is not changed itself.
        rng: the generator of all random draws.
    """
    options = list(member.arch.options(cfg.architecture, list(traits.widths.values())))
    layers = [option for option in options if option[0].endswith("_layer")]
    others = [option for option in options if not option[0].endswith("_layer")]
    for group in in_random_order([layers, others], [cfg.new_layer_prob, 1 - cfg.new_layer_prob], rng):
        if group:
            methods = sorted({name for name, *_ in group})
            method = methods[int(rng.integers(len(methods)))]
            chosen = [option for option in group if option[0] == method]
            _, what, before, after, arch = chosen[int(rng.integers(len(chosen)))]
            return _carry(traits, member, arch, rng), Mutation("architecture", what, before, after)
    return None


def _carry(traits: Traits, member: Member, arch: Architecture, rng: np.random.Generator) -> Member:
    seeds = {network: int(rng.integers(2**63)) for network in sorted(traits.widths)}
    tensors = {}
    for name, tensor in member.tensors.items():
        kind, network = traits.kinds[name]
        if kind != "row":  # one seed a network: online and target receive the same new weights
            fresh = np.random.Generator(np.random.Philox(seeds[network]))
            tensor = member.arch.carry(arch, traits.widths[network], kind, tensor, fresh)
        tensors[name] = tensor
    return replace(member, arch=arch, tensors=tensors)
