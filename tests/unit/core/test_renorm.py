"""Batch renormalisation: padded members compute what each would alone, by running and by a minibatch's statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from evopipe.core import optim, renorm
from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.core.net import Net, forward
from evopipe.core.stem import Conv, Stem
from evopipe.core.structure import Widths
from evopipe.schema.blocks import ArchitectureBounds
from evopipe.types import Image

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")
WIDTHS = Widths(5, 3, renorm=True)
WIDER = WIDTHS._replace(widen=2)
ARCHS = [
    Arch((Block(9),), 6, (), "Tanh", True),  # the layer normalisation is others', of networks of these members
    Arch((Block(20), Block(31, True)), 16, (Block(7),), "Tanh", True),
    Arch((Block(16), Block(3, True), Block(5)), 33, (), "Tanh", True),
]
BOUNDS = ArchitectureBounds(
    min_layers=0, max_layers=3, min_nodes=3, max_nodes=40, min_latent=3, max_latent=40, node_steps=(1, 8),
    latent_steps=(1, 8), min_channels=1, channel_steps=(1, 4),
)  # fmt: skip


def rows_of(widths: Widths, archs: list[Arch] = ARCHS, seed: int = 0) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [reference.random_row(arch, widths, rng) for arch in archs]


def net_of(widths: Widths, rows: list[torch.Tensor], archs: list[Arch] = ARCHS) -> Net:
    structure = archs[0].stack(archs, widths, CPU)
    return Net(structure, structure.pack(rows), trainable=True)


def inputs(widths: Widths = WIDTHS, members: int = 3) -> torch.Tensor:
    return 2 * torch.randn(members, 11, widths.inputs, generator=torch.Generator().manual_seed(0)) + 1


@pytest.mark.parametrize("widths", [WIDTHS, WIDER])
def test_by_running_statistics_members_of_unlike_layers_compute_as_alone(widths: Widths) -> None:
    rows, x = rows_of(widths), inputs()
    y = forward(net_of(widths, rows), x)
    for i, (arch, row) in enumerate(zip(ARCHS, rows, strict=True)):
        assert reference.known(lambda r, b, a=arch: (reference.function(a, widths, r, b),), row, x[i]).agrees(y[i])


@pytest.mark.parametrize("widths", [WIDTHS, WIDER])
@pytest.mark.parametrize("warm", [False, True])
def test_by_a_minibatch_s_statistics_gradients_and_running_ones_are_those_of_each_alone(
    widths: Widths, warm: bool
) -> None:
    """Absent inputs count for nothing; pads stay 0; who is not active keeps its statistics to the bit."""
    rows, x = rows_of(widths), inputs()
    net, present = net_of(widths, rows), torch.rand(3, 11, generator=torch.Generator().manual_seed(3)) < 0.7
    views = renorm.training(net, present, torch.tensor([warm] * 3))
    y = forward(net, x, views)
    optim.backward(torch.where(present[..., None], y, 0.0).square().sum(dim=(1, 2)), net)
    renorm.renew(net, views, 0.25, torch.tensor([True, False, True]))
    pads = net.structure.pack([torch.ones_like(row) for row in rows]) == 0
    assert not net.values[pads].any()
    assert not net.grad[pads].any()
    after, grads = net.structure.unpack(net.values), net.structure.unpack(net.grad)
    for i, (arch, row) in enumerate(zip(ARCHS, rows, strict=True)):
        own, found = row.double().requires_grad_(), {}

        def by_minibatch(
            name: str, z: torch.Tensor, norm: torch.Tensor, i: int = i, found: dict[str, torch.Tensor] = found
        ) -> torch.Tensor:
            gain, shift, mean, variance = norm.view(4, -1)
            seen = z[present[i]]
            mean_b, variance_b = seen.mean(dim=0), seen.var(dim=0, correction=0)
            found[name] = torch.stack((mean_b, variance_b)).detach()
            sigma_b, sigma = (variance_b + 1e-3).sqrt(), (variance + 1e-3).sqrt()
            r, d = (sigma_b / sigma).detach().clamp(1 / 3, 3), ((mean_b - mean) / sigma).detach().clamp(-5, 5)
            return gain * ((z - mean_b) / sigma_b * (r if warm else 1.0) + (d if warm else 0.0)) + shift

        expected = reference.function(arch, widths, own, x[i].double(), by_minibatch)
        torch.testing.assert_close(y[i].double(), expected, rtol=1e-4, atol=1e-4)
        (grad,) = torch.autograd.grad(expected[present[i]].square().sum(), own)
        torch.testing.assert_close(grads[i].double(), grad, rtol=1e-3, atol=1e-3 * float(grad.abs().max()))
        for name, before in arch.named(widths, row).items():
            now = arch.named(widths, after[i])[name]
            if i == 1 or not name.endswith("norm"):
                assert torch.equal(now, before)
                continue
            (learned, running), (learned_now, running_now) = (each.view(2, 2, -1) for each in (before, now))
            assert torch.equal(learned, learned_now)
            moved = running + 0.25 * (found[name.removesuffix(".norm")] - running)
            torch.testing.assert_close(running_now.double(), moved, rtol=1e-4, atol=1e-5)


def test_a_warm_layer_far_from_its_running_statistics_is_held_by_the_bounds() -> None:
    """r ≤ 3 and |d| ≤ 5, by hand for one input with running mean 0 and variance 1."""
    norm = torch.tensor([1.0, 0.0, 0.0, 1.0]).view(1, 4, 1)
    x = torch.tensor([900.0, 1100.0]).view(1, 2, 1)
    half, own = torch.full((1, 2, 1), 0.5), torch.ones(1, 1, 1)
    found = renorm.Minibatch(norm, half, torch.ones(1, 1, 1, dtype=torch.bool), own)(x)
    torch.testing.assert_close(found.flatten(), torch.tensor([-3.0 + 5.0, 3.0 + 5.0]))
    cold = renorm.Minibatch(norm, half, torch.zeros(1, 1, 1, dtype=torch.bool), own)(x)
    torch.testing.assert_close(cold.flatten(), torch.tensor([-1.0, 1.0]))


def test_statistics_that_are_no_numbers_make_none_of_the_results() -> None:
    norm = torch.tensor([1.0, 0.0, 0.0, torch.inf]).view(1, 4, 1)
    assert renorm.read(torch.ones(1, 2, 1), norm).isnan().all()
    huge = torch.tensor([-1e30, 1e30]).view(1, 2, 1)  # whose square is ∞
    half, warm, own = torch.full((1, 2, 1), 0.5), torch.ones(1, 1, 1, dtype=torch.bool), torch.ones(1, 1, 1)
    assert renorm.Minibatch(norm, half, warm, own)(huge).isnan().all()


@pytest.mark.parametrize("widths", [WIDTHS, WIDER])
@pytest.mark.parametrize("seed", range(2))
def test_every_addition_leaves_the_function_unchanged(widths: Widths, seed: int) -> None:
    """By running statistics; what survives keeps its own, what is new begins as a layer does."""
    rng, x = np.random.default_rng(seed), inputs()[0]
    arch = reference.random_arch(rng, "Tanh", True, narrowest=3, widest=20)
    row, tried = reference.random_row(arch, widths, rng), 0
    before_it = reference.known(lambda r, b: (reference.function(arch, widths, r, b),), row, x)
    for _, what, before, after, new in arch.options(BOUNDS, [widths]):
        grown = new_row = arch.carry(new, widths, "parameters", row, np.random.default_rng(tried))
        assert len(grown) == new.size(widths)
        old_parts, parts = arch.named(widths, row), new.named(widths, new_row)
        for name in (n for n in parts if n.endswith("norm")):
            now = parts[name].view(4, -1)
            had = min(old_parts[name].numel() // 4, now.shape[1]) if name in old_parts else 0
            if had:
                assert torch.equal(now[:, :had], old_parts[name].view(4, -1)[:, :had])
            assert torch.equal(now[:, had:], torch.tensor([[1.0], [0.0], [0.0], [1.0]]).expand(4, now.shape[1] - had))
        if after > before:
            y = reference.function(new, widths, grown.double(), x.double())
            assert before_it.agrees(y), (what, after)
            tried += 1
    assert tried


def test_channels_that_are_added_leave_the_function_and_carry_statistics_to_their_place() -> None:
    """An image's features stand behind the plain numbers, so new channels of the first image move the second's."""
    stem = Stem((Image(0, 1, 5, 5), Image(25, 1, 5, 5)), (Conv(3, 3, 2),))
    arch = Arch((Block(8),), 6, (), "Tanh", False, stem)
    widths = Widths(52, 2, renorm=True)
    (row,) = rows_of(widths, [arch])
    x = torch.rand(1, 4, 52, generator=torch.Generator().manual_seed(1))
    before, tried = forward(net_of(widths, [row], [arch]), x), 0
    for method, what, old, after, new in arch.options(BOUNDS, [widths]):
        if method != "conv.add_channel":
            continue
        grown = arch.carry(new, widths, "parameters", row, np.random.default_rng(0))
        y = forward(net_of(widths, [grown], [new]), x)
        torch.testing.assert_close(y, before, rtol=1e-4, atol=1e-5, msg=f"{what} {old} {after}")
        moments = arch.carry(new, widths, "moments", torch.ones_like(row), np.random.default_rng(0))
        norm = new.named(widths, moments)["encoder.0.norm"].view(4, -1)
        assert int(norm.sum()) == 4 * arch.layout(widths).hidden[0].weight.rows
        tried += 1
    assert tried == 2
