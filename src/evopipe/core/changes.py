"""Which mutations of a perceptron's architecture are possible: layers, nodes, latent width, channels and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evopipe.core.layout import Block
from evopipe.core.morph import preserves_function
from evopipe.core.structure import Option, Widths, least_head
from evopipe.schema.blocks import ArchitectureBounds

if TYPE_CHECKING:
    from evopipe.core.arch import Arch


def options(bounds: ArchitectureBounds, arch: Arch, networks: Sequence[Widths]) -> Iterator[Option]:
    """Walk them: those of layers, of widths, then of convolutions.

    Args:
        bounds: how far architectures may wander.
        arch: the architecture before.
        networks: input and output width of all that the member has.
    """
    yield from _of_layers(bounds, arch, least_head(networks))
    yield from _of_widths(bounds, arch, networks)
    yield from _of_convolutions(bounds, arch)


def _of_layers(bounds: ArchitectureBounds, arch: Arch, least_head: int) -> Iterator[Option]:
    for part, least, blocks in (("encoder", bounds.min_layers, arch.encoder), ("head", least_head, arch.head)):
        what, n = f"{part} layers", len(blocks)
        if n < bounds.max_layers:
            blend = part == "head" or not arch.residual  # a residual block begins as an identity by itself
            last = Block(blocks[-1].width if blocks else arch.latent, blend)
            yield f"{part}.add_layer", what, n, n + 1, _with_blocks(arch, part, (*blocks, last))
        if n > least:
            yield f"{part}.remove_layer", what, n, n - 1, _with_blocks(arch, part, blocks[:-1])


def _of_widths(bounds: ArchitectureBounds, arch: Arch, networks: Sequence[Widths]) -> Iterator[Option]:
    for i, (name, (width, _)) in enumerate(arch.layers.items()):
        latent, part = name == "latent", name.partition(".")[0]
        low, high = (bounds.min_latent, bounds.max_latent) if latent else (bounds.min_nodes, bounds.max_nodes)
        may_grow = all(preserves_function(arch, network, i) for network in networks)
        may_shrink = not (latent and arch.kind == "simba")
        for n in bounds.latent_steps if latent else bounds.node_steps:
            if width + n <= high and may_grow:
                yield f"{part}.add_node", f"{name} width", width, width + n, _with_width(arch, name, width + n)
            if width - n >= low and may_shrink:
                yield f"{part}.remove_node", f"{name} width", width, width - n, _with_width(arch, name, width - n)


def _of_convolutions(bounds: ArchitectureBounds, arch: Arch) -> Iterator[Option]:
    # Where the input passes the first layer by, new channels would be read already.
    first = next(iter(arch.layers.values()))
    steps = () if first.blend else bounds.channel_steps
    for i, conv in enumerate(arch.stem.convs):
        what, old = f"conv.{i} channels", conv.channels
        for n in steps:
            if old + n <= bounds.max_channels:
                yield "conv.add_channel", what, old, old + n, _with_conv(arch, i, channels=old + n)
            if old - n >= bounds.min_channels:
                yield "conv.remove_channel", what, old, old - n, _with_conv(arch, i, channels=old - n)
        for n in (2, -2):
            kernel = conv.kernel + n
            if bounds.min_kernel <= kernel <= bounds.max_kernel:
                changed = _with_conv(arch, i, kernel=kernel, padding=conv.padding + n // 2)
                yield "conv.change_kernel", f"conv.{i} kernel", conv.kernel, kernel, changed


def _with_conv(arch: Arch, i: int, **changes: int) -> Arch:
    convs = list(arch.stem.convs)
    convs[i] = convs[i]._replace(**changes)
    return replace(arch, stem=arch.stem._replace(convs=tuple(convs)))


def _with_width(arch: Arch, name: str, width: int) -> Arch:
    part, _, index = name.partition(".")
    if part == "latent":
        return replace(arch, latent=width)
    blocks = list(arch.encoder if part == "encoder" else arch.head)
    blocks[int(index)] = blocks[int(index)]._replace(width=width)
    return _with_blocks(arch, part, tuple(blocks))


def _with_blocks(arch: Arch, part: str, blocks: tuple[Block, ...]) -> Arch:
    return replace(arch, encoder=blocks) if part == "encoder" else replace(arch, head=blocks)
