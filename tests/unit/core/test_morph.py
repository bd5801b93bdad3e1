"""Architecture changes: what is added leaves the function unchanged, what survives keeps its values and moments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference
from evopipe.core.arch import Arch
from evopipe.core.layers import ACTIVATIONS, NOT_ZERO_AT_ZERO
from evopipe.core.layout import Block
from evopipe.core.morph import Change, _preserves_function
from evopipe.core.net import Net, forward
from evopipe.core.padded import Padded
from evopipe.core.stem import Conv, Stem
from evopipe.core.structure import Widths
from evopipe.schema.evolution import ArchitectureBounds
from evopipe.types import Image

pytestmark = pytest.mark.numerical

WIDTHS = Widths(5, 3)
BOUNDS = ArchitectureBounds(
    min_layers=0, max_layers=3, min_nodes=3, max_nodes=40, min_latent=3, max_latent=40, node_steps=(1, 8, 16),
    latent_steps=(1, 8, 16),
)  # fmt: skip
EVERY = [(name, norm) for name in sorted(ACTIVATIONS) for norm in (False, True)]

everywhere = pytest.mark.parametrize(("activation", "norm"), EVERY)


def inputs(scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(9, WIDTHS.inputs, generator=torch.Generator().manual_seed(0))


def changes(arch: Arch) -> Iterator[tuple[str, int, int, Arch]]:
    """(what, before, after, architecture) of every possible change."""
    for _, what, before, after, new in arch.options(BOUNDS, [WIDTHS]):
        yield what, before, after, new


def generators(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def outputs(arch: Arch, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return reference.function(arch, WIDTHS, row.double(), x.double())


def of(arch: Arch, row: torch.Tensor, x: torch.Tensor) -> reference.Known:
    """Outputs of a network, as well as they are known from parameters in float32."""
    return reference.known(lambda row, x: (outputs(arch, row, x),), row, x)


def widened(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(old, (0, new.shape[1] - old.shape[1]))


@everywhere
@pytest.mark.parametrize("seed", range(4))
def test_every_addition_leaves_the_function_unchanged(activation: str, norm: bool, seed: int) -> None:
    """On trained weights, with layers already blended, at every place and by every step."""
    rng = generators(seed)
    arch = reference.random_arch(rng, activation, norm, narrowest=3, widest=30)
    row = reference.random_row(arch, WIDTHS, rng)
    before_it, tried = of(arch, row, inputs()), 0
    for what, before, after, new in changes(arch):
        if after > before:
            grown = Change(arch, new, WIDTHS).parameters(row, generators(tried))
            assert before_it.agrees(outputs(new, grown, inputs())), (arch, what, after)
            tried += 1
    assert tried >= 1


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1e-1, 10.0, 1e3])
def test_additions_keep_the_function_for_small_and_large_observations(norm: bool, scale: float) -> None:
    """The normalisation's ε must weigh as much after as before: observations near 0 show it."""
    rng = generators(1)
    arch = Arch((Block(32), Block(24, True)), 32, (Block(16),), "ReLU", norm)
    row = reference.random_row(arch, WIDTHS, rng)
    for name, part in arch.named(WIDTHS, row).items():
        if name.endswith("bias"):
            part.zero_()
    x = inputs(scale)
    before_it = of(arch, row, x)
    for what, before, after, new in changes(arch):
        if after > before:
            grown = Change(arch, new, WIDTHS).parameters(row, generators(0))
            assert before_it.agrees(outputs(new, grown, x)), what


@pytest.mark.parametrize("norm", [False, True])
def test_nodes_before_a_wider_blended_layer(norm: bool) -> None:
    """The new units pass the blended layer by, to places that others already fill and somebody reads."""
    old, new = (Arch((Block(w), Block(30, True)), 16, (), "Tanh", norm) for w in (16, 24))
    row = reference.random_row(old, WIDTHS, generators(0))
    grown = Change(old, new, WIDTHS).parameters(row, generators(1))
    assert of(old, row, inputs()).agrees(outputs(new, grown, inputs()))


@pytest.mark.parametrize("activation", sorted(NOT_ZERO_AT_ZERO))
def test_nodes_that_cannot_arrive_unnoticed_are_not_offered(activation: str) -> None:
    def offered(arch: Arch) -> list[bool]:
        return [_preserves_function(arch, WIDTHS, i) for i in range(len(arch.layers))]

    assert offered(Arch((Block(16), Block(16)), 8, (), activation, True)) == [True, True, True]
    assert offered(Arch((Block(16), Block(8, True)), 8, (), activation, True)) == [True, False, True]
    assert offered(Arch((Block(16), Block(30, True)), 8, (), activation, False)) == [False, True, True]
    assert offered(Arch((Block(3, True),), 8, (), activation, False)) == [False, True]  # the observation passes by
    assert offered(Arch((Block(3, True),), 8, (), "Tanh", False)) == [True, True]


def test_units_that_could_never_learn_are_not_offered() -> None:
    """On places in use a unit starts with zero weights, where a ReLU's gradient is zero for ever."""
    blended = (Block(16), Block(8, True))
    assert not _preserves_function(Arch(blended, 8, (), "ReLU", False), WIDTHS, 1)
    assert _preserves_function(Arch(blended, 8, (), "ReLU", True), WIDTHS, 1)
    assert _preserves_function(Arch(blended, 8, (), "GELU", False), WIDTHS, 1)


@everywhere
def test_additions_keep_the_function_inside_a_padded_cohort(activation: str, norm: bool) -> None:
    rng = generators(5)
    arch = Arch((Block(21), Block(12, True)), 17, (), activation, norm)
    neighbour = Arch((Block(40), Block(33), Block(5, True)), 8, (Block(50),), activation, norm)
    rows = [reference.random_row(a, WIDTHS, rng) for a in (arch, neighbour)]
    before = [of(a, row, inputs()) for a, row in zip((arch, neighbour), rows, strict=True)]
    for what, old, new_width, new in changes(arch):
        if new_width > old:
            grown = Change(arch, new, WIDTHS).parameters(rows[0], generators(0))
            structure = Padded([new, neighbour], WIDTHS, torch.device("cpu"))
            after = forward(Net(structure, structure.pack([grown, rows[1]])), inputs().expand(2, -1, -1))
            assert all(known.agrees(y) for known, y in zip(before, after, strict=True)), what


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_surviving_weights_and_moments_sit_at_their_place(norm: bool, seed: int) -> None:
    rng = generators(seed)
    arch = reference.random_arch(rng, "ReLU", norm, narrowest=8, widest=30)
    row = reference.random_row(arch, WIDTHS, rng)
    moments = torch.from_numpy(rng.standard_normal(len(row))).float()
    for what, before, after, new in changes(arch):
        change = Change(arch, new, WIDTHS)
        resized = change.parameters(row, generators(0))
        moved = change.moments(moments)
        assert len(resized) == len(moved) == new.layout(WIDTHS).size
        old_parts, new_parts = arch.named(WIDTHS, row), new.named(WIDTHS, resized)
        old_moments, new_moments = arch.named(WIDTHS, moments), new.named(WIDTHS, moved)
        grown = what.split()[0] if after > before else ""
        for name, part in new_parts.items():
            if name not in old_parts:
                assert not new_moments[name].any(), (what, name)
                continue
            corner = tuple(slice(min(a, b)) for a, b in zip(part.shape, old_parts[name].shape, strict=True))
            assert torch.equal(new_moments[name][corner], old_moments[name][corner]), (what, name)
            rest = new_moments[name].clone()
            rest[corner] = 0.0
            assert not rest.any(), (what, name)
            scaled = norm and name.startswith(f"{grown}.") if grown else False
            if not scaled or name.endswith(("shift", "alpha")):
                assert torch.equal(part[corner], old_parts[name][corner]), (what, name)


def test_normalised_layers_trade_weight_scale_for_gain() -> None:
    old, new = (Arch((), w, (), "ReLU", True) for w in (16, 36))
    row = reference.random_row(old, WIDTHS, generators(0))
    before, after = (
        old.named(WIDTHS, row),
        new.named(WIDTHS, Change(old, new, WIDTHS).parameters(row, generators(1))),
    )
    scale = (36 / 16) ** 0.5
    torch.testing.assert_close(after["latent.weight"][:, :16], scale * before["latent.weight"])
    torch.testing.assert_close(after["latent.gain"][:16], before["latent.gain"] / scale)
    mean = scale * before["latent.weight"].mean(dim=1, keepdim=True)
    torch.testing.assert_close(after["latent.weight"][:, 16:], mean.expand(-1, 20))
    assert after["latent.gain"][16:].eq(1).all()
    assert not after["latent.shift"][16:].any()
    assert after["output.weight"][16:].abs().sum() > 0  # fresh: what the new units will say is learned at once


@pytest.mark.parametrize("norm", [False, True])
def test_new_units_learn(norm: bool) -> None:
    """Zero outgoing weights have a gradient, fresh ones pass it to the units they read."""
    old, new = (Arch((), w, (), "Tanh", norm) for w in (16, 24))
    row = reference.random_row(old, WIDTHS, generators(0))
    grown = Change(old, new, WIDTHS).parameters(row, generators(1)).requires_grad_(True)
    y = reference.function(new, WIDTHS, grown, inputs())
    (grad,) = torch.autograd.grad(y.square().sum(), grown)
    parts = new.named(WIDTHS, grad)
    assert parts["output.weight" if not norm else "latent.shift"][16:].abs().min() > 0


@everywhere
@pytest.mark.parametrize("last", [False, True])
def test_new_units_part_from_each_other(activation: str, norm: bool, last: bool) -> None:
    """Like units get like gradients for ever: after a few steps all that reads or feeds them differs."""
    sizes = (Arch((Block(w),), 16, (), activation, norm) for w in (16, 20))
    if last:
        sizes = (Arch((Block(16),), w, (), activation, norm) for w in (16, 20))
    old, new = sizes
    row = reference.random_row(old, WIDTHS, generators(0))
    row = Change(old, new, WIDTHS).parameters(row, generators(1)).double()
    for i in range(3):
        x = torch.randn(9, WIDTHS.inputs, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        (grad,) = torch.autograd.grad(outputs(new, row.requires_grad_(True), x).square().sum(), row)
        row = (row - 1e-3 * grad).detach()
    parts = new.named(WIDTHS, row)
    grown, reader = ("latent", "output") if last else ("encoder.0", "latent")
    units = torch.cat((parts[f"{grown}.weight"].T, parts[f"{reader}.weight"]), dim=1)[16:]
    assert torch.pdist(units).min() > 1e-6


def test_equal_generators_give_both_networks_the_same_new_weights() -> None:
    old, new = Arch((Block(16),), 16, (), "ReLU", False), Arch((Block(16), Block(16, True)), 16, (), "ReLU", False)
    online, target = (reference.random_row(old, WIDTHS, generators(s)) for s in (0, 1))
    grown = [Change(old, new, WIDTHS).parameters(row, generators(7)) for row in (online, target)]
    added = [{n: p for n, p in new.named(WIDTHS, row).items() if n.startswith("encoder.1")} for row in grown]
    assert all(torch.equal(added[0][name], added[1][name]) for name in added[0])


@pytest.mark.parametrize(
    ("activation", "norm"), [("ReLU", False), ("GELU", True), ("Sigmoid", True), ("Softplus", False)]
)
@pytest.mark.thorough
def test_a_chain_of_200_mutations_stays_consistent(activation: str, norm: bool) -> None:
    rng = generators(3)
    arch = Arch((Block(16),), 16, (), activation, norm)
    row = reference.random_row(arch, WIDTHS, rng)
    moments, x, added = torch.ones(len(row)), inputs(), 0
    for i in range(200):
        options = list(changes(arch))
        what, before, after, new = options[int(rng.integers(len(options)))]
        change = Change(arch, new, WIDTHS)
        before_it = of(arch, row, x)
        row, moments = change.parameters(row, generators(i)), change.moments(moments)
        arch = new
        y = outputs(arch, row, x)
        if after > before:
            added += 1
            assert before_it.agrees(y), (i, what, arch)
        assert torch.isfinite(y).all()
        assert len(row) == len(moments) == arch.layout(WIDTHS).size
        assert all(len(part) <= 3 for part in (arch.encoder, arch.head))
        assert all(3 <= block.width <= 40 for block in arch.layers.values())
        assert moments.ge(0).all()
        # As training would: weights move, so that no zero of an earlier addition is left.
        row = row + 0.03 * torch.from_numpy(rng.standard_normal(len(row))).float()
    assert added > 50


def test_the_order_of_layers_survives_a_removal() -> None:
    """Removing the last encoder layer keeps the first encoder layer, the latent and the head."""
    old = Arch((Block(8), Block(12)), 10, (Block(6),), "ReLU", False)
    new = replace(old, encoder=old.encoder[:1])
    row = reference.random_row(old, WIDTHS, generators(0))
    before, after = (
        old.named(WIDTHS, row),
        new.named(WIDTHS, Change(old, new, WIDTHS).parameters(row, generators(1))),
    )
    for name in ("encoder.0.weight", "latent.bias", "head.0.weight", "output.weight"):
        assert torch.equal(before[name], after[name])
    assert torch.equal(before["latent.weight"][:8], after["latent.weight"])


def test_new_parameters_noise_is_of_the_mean_strength_by_the_width_that_they_read() -> None:
    """σ = c / √inputs, as layers begin (Fortunato et al., 2018, § 3.2): the widths before and after are unlike."""
    arch = Arch((Block(4), Block(9)), 6, (Block(7),), "Tanh", False)
    for c in (0.5, 2.0):
        row = torch.zeros(arch.layout(WIDTHS).size)
        layout = arch.layout(WIDTHS)
        for layer in (*layout.hidden, *layout.output):
            layer.weight.of(row)[:] = c * layer.weight.rows**-0.5
            layer.bias.of(row)[:] = 99.0  # weights alone are counted
        for what, before, after, new in changes(arch):
            scales = Change(arch, new, WIDTHS).scales(row)
            grown = new.layout(WIDTHS)
            there = Change(arch, new, WIDTHS).moments(torch.ones_like(row)) != 0
            for layer in (*grown.hidden, *grown.output):
                for part in (layer.weight, layer.bias):
                    fresh = part.of(scales)[~part.of(there)]
                    wanted = torch.full_like(fresh, c * layer.weight.rows**-0.5)
                    torch.testing.assert_close(fresh, wanted, msg=f"{what} {before} {after}")
            assert bool((~there).any()) or after < before


def test_changes_that_are_offered_end_at_their_bounds() -> None:
    """Of everything that may grow or shrink, at, and next to, its least and its most."""
    bounds = ArchitectureBounds(
        min_layers=1, max_layers=2, min_nodes=8, max_nodes=12, min_latent=7, max_latent=9, node_steps=(1, 2, 3),
        latent_steps=(1, 2), min_channels=4, max_channels=7, channel_steps=(1, 2), min_kernel=3, max_kernel=5,
    )  # fmt: skip
    image, convs = Image(0, 1, 9, 9), (Conv(6, 3, 1), Conv(4, 5, 1))
    arch = Arch((Block(10), Block(8)), 8, (Block(11),), "Tanh", False, Stem((image,), convs))
    networks = [Widths(81, 3), Widths(10, 1, "head")]
    found = [(method, what, before, after) for method, what, before, after, _ in arch.options(bounds, networks)]
    assert found == [
        ("encoder.remove_layer", "encoder layers", 2, 1),
        ("head.add_layer", "head layers", 1, 2),
        ("encoder.add_node", "encoder.0 width", 10, 11), ("encoder.remove_node", "encoder.0 width", 10, 9),
        ("encoder.add_node", "encoder.0 width", 10, 12), ("encoder.remove_node", "encoder.0 width", 10, 8),
        ("encoder.add_node", "encoder.1 width", 8, 9), ("encoder.add_node", "encoder.1 width", 8, 10),
        ("encoder.add_node", "encoder.1 width", 8, 11),
        ("latent.add_node", "latent width", 8, 9), ("latent.remove_node", "latent width", 8, 7),
        ("head.add_node", "head.0 width", 11, 12), ("head.remove_node", "head.0 width", 11, 10),
        ("head.remove_node", "head.0 width", 11, 9), ("head.remove_node", "head.0 width", 11, 8),
        ("conv.add_channel", "conv.0 channels", 6, 7), ("conv.remove_channel", "conv.0 channels", 6, 5),
        ("conv.remove_channel", "conv.0 channels", 6, 4), ("conv.change_kernel", "conv.0 kernel", 3, 5),
        ("conv.add_channel", "conv.1 channels", 4, 5), ("conv.add_channel", "conv.1 channels", 4, 6),
        ("conv.change_kernel", "conv.1 kernel", 5, 3),
    ]  # fmt: skip
    *_, smaller = (new for *_, new in arch.options(bounds, networks))
    assert smaller.stem.convs == (convs[0], Conv(4, 3, 1, -1))
