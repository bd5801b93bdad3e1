"""Mutation: what changes in a child. Pure functions: (member, generator) → (member, what changed).

Of the kinds drawn by their relative probabilities, one that would change nothing (a bound is reached) is passed over
for another, and never recorded as a mutation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from evopipe.core.arch import Arch, Block, named
from evopipe.core.morph import Change, preserves_function, resize_moments, resize_parameters, resize_scales
from evopipe.core.population import Member, Widths, least_head
from evopipe.core.stem import Conv
from evopipe.schema.blocks import ArchitectureBounds, MutationConfig
from evopipe.schema.declare import Evolve

POSITIONS = 0.1  # share of a weight matrix that a parameter mutation touches
RESET = 0.05  # share of those drawn anew
LARGEST = 1e6


@dataclass(frozen=True)
class Traits:
    """What mutation must know of the algorithm.

    Attributes:
        widths: input and output width of every network.
        acting: the networks that act: parameter noise goes there.
        kinds: how each tensor resizes, see `core.population.tensor_kinds`.
        evolve: which hyper-parameters may mutate.
        whole: those of them that are whole numbers.
    """

    widths: Mapping[str, Widths]
    acting: Sequence[str]
    kinds: Mapping[str, tuple[str, str]]
    evolve: Mapping[str, Evolve]
    whole: frozenset[str]


@dataclass(frozen=True, slots=True)
class Mutation:
    """What one mutation changed: `kind`, `what` exactly, and the values before and after."""

    kind: str
    what: str = ""
    before: Any = None
    after: Any = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"kind": self.kind, "what": self.what, "before": self.before, "after": self.after}

    def describe(self) -> str:
        """Return a short text for people; an empty one if nothing changed."""
        if self.before is None:
            return self.what
        values = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in (self.before, self.after))
        return f"{self.what} {' → '.join(values)}"


NONE = Mutation("none")
Operator = Callable[[MutationConfig, Traits, Member, Any], tuple[Member, Mutation] | None]


def mutate(
    cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator, allow_none: bool = True
) -> tuple[Member, Mutation]:
    """Mutate one child.

    Args:
        cfg: probabilities and bounds.
        traits: the algorithm's side.
        member: the child; it is not changed.
        rng: the generator of this slot's mutation in this generation.
        allow_none: whether the kind `none` takes part (not before training).

    Returns:
        The mutated member, and what changed; `NONE` where nothing did.
    """
    weights = cfg.probabilities.model_dump()
    if not allow_none:
        weights["none"] = 0.0
    for kind in _in_random_order(list(weights), list(weights.values()), rng):
        if kind == "none":
            break
        found = OPERATORS[kind](cfg, traits, member, rng)
        if found is not None:
            return found
    return member, NONE


def _in_random_order(items: Sequence[Any], weights: Sequence[float], rng: np.random.Generator) -> Iterator[Any]:
    """Draw items one after another without replacement, by weight; items of weight 0 never come."""
    left = [(item, weight) for item, weight in zip(items, weights, strict=True) if weight > 0]
    while left:
        total = np.cumsum([weight for _, weight in left])
        i = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
        yield left.pop(min(i, len(left) - 1))[0]


# ---------------------------------------------------------------------------------------------- architecture


def mutate_architecture(
    cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator
) -> tuple[Member, Mutation] | None:
    """Add or remove a layer, nodes, latent width or channels, or change a kernel; None where no change is possible."""
    bounds, arch = cfg.architecture, member.arch
    layers = list(_layer_changes(bounds, arch, least_head(traits.widths.values())))
    widths = [*_node_changes(bounds, arch, list(traits.widths.values())), *_stem_changes(bounds, arch)]
    groups = _in_random_order([layers, widths], [cfg.new_layer_prob, 1 - cfg.new_layer_prob], rng)
    for group in groups:
        if group:
            methods = sorted({name for name, *_ in group})
            method = methods[int(rng.integers(len(methods)))]
            options = [change for change in group if change[0] == method]
            _, what, before, after, changed = options[int(rng.integers(len(options)))]
            return _rebuild(traits, member, changed, rng), Mutation("architecture", what, before, after)
    return None


def _layer_changes(
    bounds: ArchitectureBounds, arch: Arch, least_head: int = 0
) -> Iterator[tuple[str, str, int, int, Arch]]:
    """(method, what, layers before, layers after, architecture) of every possible layer change."""
    for part in ("encoder", "head"):
        blocks: tuple[Block, ...] = getattr(arch, part)
        if len(blocks) < bounds.max_layers:
            last = _effective(arch, part)
            blend = part == "head" or not arch.residual  # a residual block begins as an identity by itself
            grown = _with_blocks(arch, part, (*blocks, Block(last, blend)))
            yield f"{part}.add_layer", f"{part} layers", len(blocks), len(blocks) + 1, grown
        if len(blocks) > (bounds.min_layers if part == "encoder" else least_head):
            shrunk = _with_blocks(arch, part, blocks[:-1])
            yield f"{part}.remove_layer", f"{part} layers", len(blocks), len(blocks) - 1, shrunk


def _effective(arch: Arch, part: str) -> int:
    """Width of a new last layer of this part: that of the part's last layer, of the latent where it has none."""
    blocks: tuple[Block, ...] = getattr(arch, part)
    return blocks[-1].width if blocks else arch.latent


def _node_changes(
    bounds: ArchitectureBounds, arch: Arch, widths: Sequence[Widths]
) -> Iterator[tuple[str, str, int, int, Arch]]:
    """(method, what, width before, width after, architecture) of every possible width change."""
    for i, (name, block) in enumerate(zip(arch.names, arch.hidden, strict=True)):
        latent = name == "latent"
        low, high = (bounds.min_latent, bounds.max_latent) if latent else (bounds.min_nodes, bounds.max_nodes)
        part = name.partition(".")[0]
        what = f"{name} width"
        may_grow = all(preserves_function(arch, w, i) for w in widths)
        for n in bounds.latent_steps if latent else bounds.node_steps:
            if block.width + n <= high and may_grow:
                yield f"{part}.add_node", what, block.width, block.width + n, _with_width(arch, name, block.width + n)
            if block.width - n >= low and not (latent and arch.kind == "simba"):
                yield (
                    f"{part}.remove_node",
                    what,
                    block.width,
                    block.width - n,
                    _with_width(arch, name, block.width - n),
                )


def _stem_changes(bounds: ArchitectureBounds, arch: Arch) -> Iterator[tuple[str, str, int, int, Arch]]:
    """(method, what, before, after, architecture) of every possible change of a convolution."""
    first = arch.hidden[0]
    for i, conv in enumerate(arch.stem.convs):
        for n in bounds.channel_steps:
            # Where the input passes the first layer by, new channels would be read already.
            if conv.channels + n <= bounds.max_channels and not first.blend:
                yield _with_conv("conv.add_channel", arch, i, conv._replace(channels=conv.channels + n))
            if conv.channels - n >= bounds.min_channels and not first.blend:
                yield _with_conv("conv.remove_channel", arch, i, conv._replace(channels=conv.channels - n))
        for n in (2, -2):
            if bounds.min_kernel <= conv.kernel + n <= bounds.max_kernel:
                changed = conv._replace(kernel=conv.kernel + n, padding=conv.padding + n // 2)
                yield _with_conv("conv.change_kernel", arch, i, changed)


def _with_conv(method: str, arch: Arch, i: int, conv: Conv) -> tuple[str, str, int, int, Arch]:
    old, convs = arch.stem.convs[i], list(arch.stem.convs)
    convs[i] = conv
    changed = replace(arch, stem=arch.stem._replace(convs=tuple(convs)))
    if conv.kernel != old.kernel:
        return method, f"conv.{i} kernel", old.kernel, conv.kernel, changed
    return method, f"conv.{i} channels", old.channels, conv.channels, changed


def _with_width(arch: Arch, name: str, width: int) -> Arch:
    part, _, index = name.partition(".")
    if part == "latent":
        return replace(arch, latent=width)
    blocks = list(getattr(arch, part))
    blocks[int(index)] = blocks[int(index)]._replace(width=width)
    return _with_blocks(arch, part, tuple(blocks))


def _with_blocks(arch: Arch, part: str, blocks: tuple[Block, ...]) -> Arch:
    return replace(arch, encoder=blocks) if part == "encoder" else replace(arch, head=blocks)


def _rebuild(traits: Traits, member: Member, arch: Arch, rng: np.random.Generator) -> Member:
    """Carry every tensor of a member over to a new architecture."""
    change = Change(member.arch, arch)
    seeds = {network: int(rng.integers(2**63)) for network in sorted(traits.widths)}
    tensors = {}
    for name, tensor in member.tensors.items():
        kind, network = traits.kinds[name]
        if kind == "parameters":  # one seed a network: online and target receive the same new weights
            fresh = np.random.Generator(np.random.Philox(seeds[network]))
            tensor = resize_parameters(change, traits.widths[network], tensor, fresh)
        elif kind == "scales":
            tensor = resize_scales(change, traits.widths[network], tensor)
        elif kind == "moments":
            tensor = resize_moments(change, traits.widths[network], tensor)
        tensors[name] = tensor
    return replace(member, arch=arch, tensors=tensors)


# ------------------------------------------------------------------------------------ parameters, activation


def mutate_parameters(
    cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator
) -> tuple[Member, Mutation] | None:
    """Disturb some weights of the policy, a shared encoder's too.

    Of 1 to all weight matrices a tenth of the positions each: 95 % receive noise of standard deviation `sd · |w|`, 5 %
    are drawn anew from N(0, 1).
    """
    if cfg.sd == 0:
        return None
    values, matrices = {}, []
    for network in traits.acting:
        name = next(n for n, kind in traits.kinds.items() if kind == ("parameters", network))
        values[name] = member.tensors[name].clone()
        parts = named(member.arch, traits.widths[network], values[name])
        matrices += [tensor for part, tensor in parts.items() if part.endswith("weight")]
    chosen = rng.permutation(len(matrices))[: int(rng.integers(1, len(matrices) + 1))]
    touched = sum(_disturb(matrices[int(i)], cfg.sd, rng) for i in sorted(chosen))
    return replace(member, tensors={**member.tensors, **values}), Mutation("parameters", f"{touched} weights")


def _disturb(matrix: torch.Tensor, sd: float, rng: np.random.Generator) -> int:
    """Disturb a weight matrix in place; return how many weights."""
    flat = matrix.view(-1)
    positions = torch.from_numpy(rng.choice(len(flat), math.ceil(POSITIONS * len(flat)), replace=False))
    noise = torch.from_numpy(rng.standard_normal(len(positions))).float()
    anew = torch.from_numpy(rng.random(len(positions)) < RESET)
    old = flat[positions]
    flat[positions] = torch.where(anew, noise, old + sd * old.abs() * noise).clamp(-LARGEST, LARGEST)
    return len(positions)


def mutate_activation(
    cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator
) -> tuple[Member, Mutation] | None:
    """Choose another activation for all hidden layers; None where there is no other."""
    others = [name for name in cfg.activations if name != member.arch.activation]
    if not others:
        return None
    new = others[int(rng.integers(len(others)))]
    record = Mutation("activation", "activation", member.arch.activation, new)
    return replace(member, arch=replace(member.arch, activation=new)), record


# ----------------------------------------------------------------------------------------- hyper-parameters


def mutate_hyper(
    cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator
) -> tuple[Member, Mutation] | None:
    """Grow or shrink one RL hyper-parameter; None where none can change."""
    names = sorted(traits.evolve)
    for i in rng.permutation(len(names)):
        name = names[int(i)]
        old, whole = member.hyper[name], name in traits.whole
        grow = bool(rng.random() < 0.5)
        for up in (grow, not grow):
            new = _scaled(old, traits.evolve[name], up, whole)
            if new != old:
                return replace(member, hyper={**member.hyper, name: new}), Mutation("rl_hp", name, old, new)
    return None


def _scaled(old: float, evolve: Evolve, up: bool, whole: bool) -> float:
    """Multiply by grow or shrink and clip; a whole number moves by at least 1."""
    new, low, high = old * (evolve.grow if up else evolve.shrink), evolve.min, evolve.max
    if whole:
        new = max(round(new), old + 1) if up else min(round(new), old - 1)
        low, high = math.ceil(low), math.floor(high)
    new = min(max(new, low), high)
    # A value outside its range (set by hand) must not jump against the drawn direction.
    if (new < old) if up else (new > old):
        return old
    return int(new) if whole else float(new)


OPERATORS: dict[str, Operator] = {
    "architecture": mutate_architecture,
    "parameters": mutate_parameters,
    "activation": mutate_activation,
    "rl_hp": mutate_hyper,
}
