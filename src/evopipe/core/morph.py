"""Mutations of a perceptron's architecture: which are possible, and how weights are carried over.

Surviving weights and surviving Adam moments keep their values. What is added leaves the function unchanged:

* nodes under layer normalisation: new units get the *mean* of the layer's incoming weights and bias, so that each
  equals the mean and normalises to 0. That alone would shrink the variance by H / (H + n). All incoming weights and
  biases therefore grow by √((H + n) / H), which leaves the weight of the normalisation's ε as it was; old gains shrink
  by as much, and new shifts are 0;
* nodes without layer normalisation: fresh incoming and zero outgoing weights. If a later layer is blended, new units
  have readers already; their incoming weights are then zero;
* layers: blended in with α = 0;
* channels of a convolution: fresh incoming, zero outgoing weights;
* a larger kernel: zero weights around the old ones, and as much more padding;
* residual blocks, and nodes inside them: zero weights back into the residual stream;
* nodes of an LSTM layer: fresh incoming and zero outgoing weights, and zero weights to the layer's old units of the
  next step. If new units have readers already, the weights into their candidates are zero, so that their cells stay
  empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from evopipe.core import lstm
from evopipe.core.layers import NOT_ZERO_AT_ZERO
from evopipe.core.layout import Block, Layer, Layout
from evopipe.core.structure import Option, Widths
from evopipe.schema.evolution import ArchitectureBounds
from evopipe.types import Tensor

if TYPE_CHECKING:
    from evopipe.core.arch import Arch


@dataclass(frozen=True)
class Change:
    """One mutation of a member's architecture; its methods return the new flat rows of one of the member's networks.

    Attributes:
        old, new: the architectures before and after the mutation.
        widths: the input and output width of the network.
    """

    old: Arch
    new: Arch
    widths: Widths

    def parameters(self, row: Tensor, rng: Any) -> Tensor:
        """Return the parameters `[n']` of the mutated network, into which the old parameters `[n]` are carried over.

        `row` `[n]` holds the old parameters, and `rng`, a `numpy.random.Generator`, draws new weights. Parameters that
        the mutation adds leave the network's function unchanged at first; the module's docstring says how.
        """
        fresh = self.new.initialise(self.widths, rng)
        if self._in_stem:
            return self._carry_stem(row, fresh)
        arrive_as_zero = self._arrive_as_zero()
        stream = self.new.residual and self.old.latent != self.new.latent  # its width changed
        for i, old, new in self._survivors():
            _copy_overlap(old, new, row, fresh)
            if not arrive_as_zero or stream:
                new.weight.of(fresh)[old.weight.rows :] = 0.0
            had, has = old.weight.columns, new.weight.columns
            if has <= had or (self.new.residual and not new.weight.name.startswith("head")):
                continue
            grow = _grow_memory if new.recurrent else _grow
            grow(old, new, _in_use(self.old, self.widths, i), fresh)
            if new.shift is not None and not arrive_as_zero:  # nobody reads them yet, so they may differ
                new.shift.of(fresh)[0, had:] = torch.from_numpy(0.1 * rng.standard_normal(has - had)).float()
        return fresh

    def scales(self, row: Tensor) -> Tensor:
        """Return the scales `[n']` of learned noise on the mutated network's parameters.

        `row` `[n]` holds the scales of the old network. Parameters that both networks have keep their scale. A new
        parameter gets the scale c / √(number of inputs of its layer). Here c is the mean of |σ| √(inputs of the layer)
        over the weights of the old network, and σ is a weight's scale.
        """
        weights = [layer.weight.of(row) for layer in (*self._before.hidden, *self._before.output)]
        mean = sum(float(w.abs().sum()) * w.shape[0] ** 0.5 for w in weights) / sum(w.numel() for w in weights)
        out = torch.zeros(self._after.size)
        for layer in (*self._after.hidden, *self._after.output):
            for part in (layer.weight, layer.bias):
                part.of(out)[:] = mean * layer.weight.rows**-0.5
        return self._carry(row, out)

    def moments(self, row: Tensor) -> Tensor:
        """Return the Adam moments `[n']` of the mutated network; parameters that both networks have keep their moments.

        `row` `[n]` holds the old moments. The moments of new parameters are 0.
        """
        return self._carry(row, torch.zeros(self._after.size))

    @cached_property
    def _before(self) -> Layout:
        return self.old.layout(self.widths)

    @cached_property
    def _after(self) -> Layout:
        return self.new.layout(self.widths)

    @property
    def _in_stem(self) -> bool:
        return self.old.stem != self.new.stem and self.widths.role != "head"

    def _survivors(self) -> Iterator[tuple[int, Layer, Layer]]:
        """(index before, layer before, layer after) of every layer that is in both."""
        before, after = (list(arch.layers)[arch.own(self.widths)] for arch in (self.old, self.new))
        for name, layer in zip(after, self._after.hidden, strict=True):
            if name in before:
                i = before.index(name)
                yield i, self._before.hidden[i], layer
        ends = zip((*self._before.stem, *self._before.output), (*self._after.stem, *self._after.output), strict=True)
        yield from ((-1, old, new) for old, new in ends)  # these never grow

    def _arrive_as_zero(self) -> bool:
        """Whether new units put out 0, so that the weights that read them may be fresh."""
        gated = self.new.kind == "lstm" and self.old.encoder != self.new.encoder
        return self.new.layer_norm and self.new.activation not in NOT_ZERO_AT_ZERO and not gated

    def _carry(self, source: Tensor, target: Tensor) -> Tensor:
        if self._in_stem:
            return self._carry_stem(source, target)
        for _, old, new in self._survivors():
            _copy_overlap(old, new, source, target)
        return target

    def _carry_stem(self, source: Tensor, target: Tensor) -> Tensor:
        """Carry over the convolutions if channels or kernels changed.

        New channels have no readers. A kernel is centred in the larger one, or its border is cut off.
        """
        stems = self.old.stem, self.new.stem
        for i, (old, new) in enumerate(zip(self._before.stem, self._after.stem, strict=True)):
            a, b = (stem.convs[i % len(stem.convs)] for stem in stems)
            had = old.weight.of(source).unflatten(0, (-1, a.kernel, a.kernel))
            has = new.weight.of(target).unflatten(0, (-1, b.kernel, b.kernel))  # [channels in, k, k, channels out]
            ins, outs = min(len(had), len(has)), min(a.channels, b.channels)
            wider = (b.kernel - a.kernel) // 2
            rim, border = max(wider, 0), max(-wider, 0)
            inner, cut = slice(rim, b.kernel - rim), slice(border, a.kernel - border)
            has[len(had) :] = 0.0
            if wider > 0:
                has[..., :outs] = 0.0
            has[:ins, inner, inner, :outs] = had[:ins, cut, cut, :outs]
            new.bias.of(target)[:, :outs] = old.bias.of(source)[:, :outs]
        before, after = ((*layout.hidden, *layout.output) for layout in (self._before, self._after))
        first, norms = stems[0].vector(self.widths.inputs), (before[0].norm, after[0].norm)
        initial = None if norms[1] is None else norms[1].of(target).T[first:].clone()
        for old, new in zip(before, after, strict=True):
            _copy_overlap(old, new, source, target)
        has = after[0].weight.of(target)
        has[first:] = 0.0
        self._carry_features(before[0].weight.of(source), has, first)
        if norms[0] and norms[1] and initial is not None:
            of_inputs = norms[1].of(target).T
            of_inputs[first:] = initial
            self._carry_features(norms[0].of(source).T, of_inputs, first)
        return target

    def _carry_features(self, had: Tensor, has: Tensor, at: int) -> None:
        """Copy the rows of the first layer's inputs that the convolutions put out, which begin at row `at`."""
        old_at = new_at = at
        for (c, places), (d, _) in zip(self.old.stem.features(), self.new.stem.features(), strict=True):
            n = min(c, d) * places
            has[new_at : new_at + n] = had[old_at : old_at + n]
            old_at, new_at = old_at + c * places, new_at + d * places


def _in_use(arch: Arch, widths: Widths, layer: int) -> int:
    """Return how many places of a hidden layer's output have readers: also those that pass this layer by, and those
    that its new units would reach by passing later layers by."""
    hidden = arch.layout(widths if widths.role == "head" else widths._replace(role="whole")).hidden
    width = hidden[layer].out
    for reader in hidden[layer + 1 :]:
        if reader.alpha is None:
            break
        width = reader.out
    return width


def _copy_overlap(old: Layer, new: Layer, source: Tensor, target: Tensor) -> None:
    """Copy what both layers have: the top-left corner of every part, of every group of columns apart."""
    for a, b in zip(old.parts, new.parts, strict=True):
        if a and b:
            rows, units = min(a.rows, b.rows), min(a.units, b.units)
            b.grouped(target)[:rows, :, :units] = a.grouped(source)[:rows, :, :units]


def _grow(old: Layer, new: Layer, in_use: int, fresh: Tensor) -> None:
    """Initialise the units that a layer gained so that they contribute nothing yet."""
    had, has = old.weight.columns, new.weight.columns
    weight, bias = new.weight.of(fresh), new.bias.of(fresh)
    if new.gain is not None:
        weight[:, had:] = weight[:, :had].mean(dim=1, keepdim=True)
        bias[:, had:] = bias[:, :had].mean()
        scale = (has / had) ** 0.5
        weight *= scale
        bias *= scale
        new.gain.of(fresh)[:, :had] /= scale
    else:  # units that land on ones whose readers are in use must put out 0 themselves
        weight[:, had:in_use] = 0.0
        bias[:, had:in_use] = 0.0


def _grow_memory(old: Layer, new: Layer, in_use: int, fresh: Tensor) -> None:
    """`_grow` for an LSTM layer: old units do not read the new ones; those that land on units in use put out 0."""
    assert new.recurrent is not None
    had = old.weight.units
    new.recurrent.grouped(fresh)[had:, :, :had] = 0.0
    for part in (new.weight, new.recurrent, new.bias):
        part.grouped(fresh)[:, lstm.CANDIDATE, had:in_use] = 0.0


def _preserves_function(arch: Arch, widths: Widths, layer: int) -> bool:
    """Whether nodes can be added to a hidden layer, by its index, without changing the function, and learn from there.

    Where they would land on units in use they cannot if the activation is not 0 at 0, and would never learn if it is a
    ReLU without normalisation: their weights start at 0, where its gradient is 0. An LSTM layer's can and do.
    """
    encoder = len(arch.encoder)
    at = layer - (1 + encoder) * (widths.role == "head")
    if layer < arch.recurrent or at < 0:  # of a layer before the head its encoder knows
        return True
    if arch.residual and layer <= encoder:
        # A normalised stream cannot widen: every block that writes to it changes what the next one's mean is.
        return layer > 0 or (arch.kind != "simba" and _in_use(arch, widths, encoder) == arch.latent)
    if _in_use(arch, widths, at) == list(arch.layers.values())[layer].width:
        return True
    return arch.activation not in NOT_ZERO_AT_ZERO and (arch.layer_norm or arch.activation != "ReLU")


def options(bounds: ArchitectureBounds, arch: Arch, networks: Sequence[Widths]) -> Iterator[Option]:
    """Yield every mutation of a perceptron's architecture that the bounds allow, as an `Option`.

    An `Option` is a tuple (mutation method, what changes, value before, value after, architecture after).

    Args:
        bounds: the limits and step sizes of mutated architectures, such as the fewest and most layers.
        arch: the architecture.
        networks: the input and output width of each of the member's networks.
    """
    yield from _of_layers(bounds, arch, int(any(network.joins for network in networks)))
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
        may_grow = all(_preserves_function(arch.of(each), each._replace(widen=1), i) for each in networks)
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
