"""Padded, masked, merged networks compute what each unpadded network computes: values and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import reference
from evopipe.core import optim
from evopipe.core.arch import Arch
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.net import Net, forward
from evopipe.core.padded import Padded
from evopipe.core.stem import Conv, Stem
from evopipe.core.structure import Widths
from evopipe.params.load import parse_params
from evopipe.problems.specs import make_spec
from evopipe.run.spec import first_members
from evopipe.schema.network import EncoderKind
from evopipe.types import Image

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")
WIDTHS = Widths(5, 3)
BATCH = 7


def unlike(
    norm: bool, seed: int, activations: Sequence[str] = tuple(sorted(ACTIVATIONS))
) -> tuple[list[Arch], list[torch.Tensor]]:
    """Two members of every activation, and their random parameters; rows are ordered by activation."""
    rng = np.random.default_rng(seed)
    archs = [reference.random_arch(rng, name, norm) for name in activations for _ in range(2)]
    return archs, [reference.random_row(arch, WIDTHS, rng) for arch in archs]


def net_of(archs: Sequence[Arch], rows: Sequence[torch.Tensor], dtype: torch.dtype = torch.float32) -> Net:
    structure = Padded(archs, WIDTHS, CPU)
    structure.masks = [None if mask is None else mask.to(dtype) for mask in structure.masks]
    return Net(structure, structure.pack(rows).to(dtype), trainable=True)


def gradients(net: Net, x: torch.Tensor, seeds: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs, and the gradient of the outputs times `seeds` in every member's own flat row."""
    y = forward(net, x)
    optim.backward((y * seeds).sum(dim=(1, 2)), net)
    return y.detach(), net.structure.unpack(net.grad)


def assert_own(
    arch: Arch, row: torch.Tensor, x: torch.Tensor, seeds: torch.Tensor, y: torch.Tensor, grad: torch.Tensor
) -> None:
    """Outputs and gradients of a member among others are those of its own network."""

    def own(row: torch.Tensor, x: torch.Tensor, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row = row.requires_grad_(True)
        y = reference.function(arch, WIDTHS, row, x)
        (grad,) = torch.autograd.grad((y * seeds).sum(), row)
        return y, grad

    assert reference.known(own, row.to(x.dtype), x, seeds).agrees(y, grad), arch


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_padded_member_computes_what_its_own_network_computes(norm: bool, seed: int, dtype: torch.dtype) -> None:
    archs, rows = unlike(norm, seed)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(len(archs), BATCH, WIDTHS[0], generator=g).to(dtype)
    seeds = torch.randn(len(archs), BATCH, WIDTHS[1], generator=g).to(dtype)
    net = net_of(archs, rows, dtype)
    y, grads = gradients(net, x, seeds)
    for each in zip(archs, rows, x, seeds, y, grads, strict=True):
        assert_own(*each)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.thorough
def test_unlike_members_of_one_activation(norm: bool, activation: str) -> None:
    """Where every activation is 0 at 0, fewer masks are applied: no gradient may reach a pad all the same."""
    rng = np.random.default_rng(4)
    archs = [reference.random_arch(rng, activation, norm, narrowest=4) for _ in range(6)]
    rows = [reference.random_row(arch, WIDTHS, rng) for arch in archs]
    g = torch.Generator().manual_seed(4)
    x = torch.randn(6, BATCH, WIDTHS[0], generator=g).double()
    seeds = torch.randn(6, BATCH, WIDTHS[1], generator=g).double()
    net = net_of(archs, rows, torch.float64)
    y, grads = gradients(net, x, seeds)
    own = torch.zeros_like(net.grad, dtype=torch.bool)
    for i, each in enumerate(zip(archs, rows, x, seeds, y, grads, strict=True)):
        assert_own(*each)
        own[i, net.structure.index[i]] = True
    assert not net.grad[~own].any()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("own", "neighbour"),
    [
        ((Block(50), Block(20, True)), (Block(50), Block(40, True))),  # pads of the blended layer beside passing units
        ((Block(20), Block(50, True)), (Block(40), Block(50, True))),  # pads that pass by beside the blended units
        ((Block(20), Block(50, True), Block(60, True)), (Block(40), Block(50, True))),
    ],
)
def test_pads_that_share_places_with_units_in_use_get_no_gradient(
    own: tuple[Block, ...], neighbour: tuple[Block, ...], norm: bool
) -> None:
    archs = [Arch(part, 16, (), "ELU", norm) for part in (own, neighbour)]
    net = net_of(archs, [reference.random_row(arch, WIDTHS, np.random.default_rng(0)) for arch in archs])
    gradients(net, torch.ones(2, BATCH, WIDTHS[0]), torch.ones(2, BATCH, WIDTHS[1]))
    for grad, index in zip(net.grad, net.structure.index, strict=True):
        grad[index] = 0.0
    assert not net.grad.any()


@pytest.mark.parametrize("norm", [False, True])
def test_a_member_without_a_layer_that_a_neighbour_has(norm: bool) -> None:
    """The mean over no unit at all must not be 0 / 0."""
    archs = [Arch((), 64, (), "ReLU", norm), Arch((Block(64), Block(32)), 64, (Block(16, True),), "ReLU", norm)]
    rng = np.random.default_rng(0)
    rows = [reference.random_row(arch, WIDTHS, rng) for arch in archs]
    x = torch.randn(2, BATCH, WIDTHS[0], generator=torch.Generator().manual_seed(0))
    seeds = torch.ones(2, BATCH, WIDTHS[1])
    y, grads = gradients(net_of(archs, rows), x, seeds)
    for each in zip(archs, rows, x, seeds, y, grads, strict=True):
        assert_own(*each)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("activations", [("ELU", "GELU", "Tanh"), tuple(sorted(ACTIVATIONS))])
@pytest.mark.thorough
def test_pads_stay_exactly_zero_over_fifty_updates(
    norm: bool, fused: bool, activations: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optim, "_fused_is_sound", lambda: fused)
    archs, rows = unlike(norm, 11, activations)
    net = net_of(archs, rows)
    adam = optim.Adam.start(net)
    pads = torch.ones_like(net.values, dtype=torch.bool)
    for pad, index in zip(pads, net.structure.index, strict=True):
        pad[index] = False
    assert pads.any(dim=1).all()
    members = len(archs)
    g = torch.Generator().manual_seed(0)
    lr = torch.full((members,), 1e-2)
    for _ in range(50):
        x = torch.randn(members, BATCH, WIDTHS[0], generator=g)
        losses = (forward(net, x) - torch.randn(members, BATCH, WIDTHS[1], generator=g)).square().sum(dim=(1, 2))
        optim.backward(losses, net)
        assert not net.grad[pads].any()
        optim.clip_gradients(net, torch.full((members,), 10.0))
        optim.step(net, adam, lr, torch.ones(members, dtype=torch.bool))
    for tensor in (net.values, net.grad, adam.mean, adam.square):
        assert torch.isfinite(tensor).all()
        assert tensor[~pads].any()
        assert not tensor[pads].any()


@pytest.mark.parametrize("norm", [False, True])
def test_pack_and_unpack_are_inverse_to_the_bit(norm: bool) -> None:
    archs, rows = unlike(norm, 5)
    structure = Padded(archs, WIDTHS, CPU)
    for before, after in zip(rows, structure.unpack(structure.pack(rows)), strict=True):
        assert torch.equal(before.view(torch.int32), after.view(torch.int32))
    for index, arch in zip(structure.index, archs, strict=True):
        assert len(index.unique()) == len(index) == arch.layout(WIDTHS).size


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_blends_of_0_and_1_are_exact_to_the_bit(norm: bool, activation: str) -> None:
    """α = 0 passes the input on, α = 1 is the plain layer, also beside a neighbour."""
    rng = np.random.default_rng(2)
    plain = Arch((Block(24), Block(24)), 16, (), activation, norm)
    shorter = Arch((Block(24),), 16, (), activation, norm)
    blended = Arch((Block(24), Block(24, True)), 16, (), activation, norm)
    parts = blended.named(WIDTHS, reference.random_row(blended, WIDTHS, rng))

    def row(arch: Arch, alpha: float) -> torch.Tensor:
        flat = torch.zeros(arch.layout(WIDTHS).size)
        for name, part in arch.named(WIDTHS, flat).items():
            part.copy_(torch.tensor([alpha]) if name.endswith("alpha") else parts[name])
        return flat

    x = torch.randn(1, BATCH, WIDTHS[0], generator=torch.Generator().manual_seed(0))
    archs = [plain, shorter, blended, blended]
    rows = [row(plain, 0), row(shorter, 0), row(blended, 1.0), row(blended, 0.0)]
    y = forward(net_of(archs, rows), x.expand(4, -1, -1))
    assert torch.equal(y[2], y[0])
    assert torch.equal(y[3], y[1])


def test_a_part_of_a_structure_computes_what_the_whole_computes() -> None:
    """To the bit, where rows with a plain, a blended and a missing layer lie in any order."""
    second = {"plain": (Block(24),), "blended": (Block(40, True),), "missing": ()}
    order = ["plain", "missing", "blended", "plain", "blended", "missing"]
    archs = [Arch((Block(24), *second[name]), 16, (), "Tanh", False) for name in order]
    net = net_of(archs, [reference.random_row(arch, WIDTHS, np.random.default_rng(i)) for i, arch in enumerate(archs)])
    x = torch.randn(len(archs), BATCH, WIDTHS[0], generator=torch.Generator().manual_seed(0))
    whole = forward(net, x)
    cuts: list[tuple[int, int | None, int]] = [(0, 2, 1), (1, 3, 1), (2, 5, 1), (5, 6, 1), (0, None, 2), (1, None, 2)]
    for first, end, every in cuts:
        rows = slice(first, end, every)
        part = Net(net.structure.part(first, end, every), net.values[rows])
        assert torch.equal(forward(part, x[rows]), whole[rows]), (first, end, every)


def test_a_neighbours_nan_stays_with_the_neighbour() -> None:
    archs, rows = unlike(True, 3)
    x = torch.randn(len(archs), BATCH, WIDTHS[0], generator=torch.Generator().manual_seed(0))
    seeds = torch.ones(len(archs), BATCH, WIDTHS[1])
    y, grads = gradients(net_of(archs, rows), x, seeds)
    rows[4][0] = torch.nan
    spoilt_y, spoilt_grads = gradients(net_of(archs, rows), x, seeds)
    for i in range(len(archs)):
        if i != 4:
            assert torch.equal(y[i], spoilt_y[i])
            assert torch.equal(grads[i], spoilt_grads[i])


@pytest.mark.parametrize(("rows", "columns"), [(4, 128), (128, 4), (16, 16)])
def test_initial_weights_are_orthogonal(rows: int, columns: int) -> None:
    arch = Arch((), columns, (), "ReLU", True)
    parts = arch.named(Widths(rows, 2), arch.initialise(Widths(rows, 2), np.random.default_rng(0)))
    weight = parts["latent.weight"]
    gram = weight @ weight.T if rows <= columns else weight.T @ weight
    torch.testing.assert_close(gram, 2.0 * torch.eye(min(rows, columns)), atol=1e-5, rtol=0)
    output = parts["output.weight"]
    torch.testing.assert_close(output.T @ output, 0.01 * torch.eye(2), atol=1e-6, rtol=0)
    assert parts["latent.gain"].eq(1).all()
    for name in ("latent.shift", "output.bias"):
        assert not parts[name].any()


@pytest.mark.parametrize("kind", ["mlp", "simba", "resnet"])
@pytest.mark.parametrize("inputs", [4, 100])
@pytest.mark.thorough
def test_initial_biases_are_uniform_as_torchs_are(kind: EncoderKind, inputs: int) -> None:
    """±1/√inputs of each layer's own; those that lead out of the network, or back into a stream, are 0."""
    images = (Image(0, 3, 4, 4),)
    stem = Stem(images, (Conv(400, 2, 2),))
    arch, widths = Arch((Block(500),), 600, (Block(700),), "ReLU", False, stem, kind), Widths(inputs + 48, 2)
    parts = arch.named(widths, arch.initialise(widths, np.random.default_rng(0)))
    biases = [name for name in parts if name.endswith("bias")]
    zero = {"output.bias", "encoder.0.back.bias"}
    for name in biases:
        if name in zero:
            assert not parts[name].any()
            continue
        bound = len(parts[name.replace("bias", "weight")]) ** -0.5
        assert 0.98 * bound < parts[name].abs().max() <= bound
        assert abs(float(parts[name].mean())) < 0.15 * bound
    assert len(biases) == 5 + (kind != "mlp")


def test_initial_biases_differ_between_members_and_move_no_other_draw() -> None:
    arch = Arch((Block(8),), 8, (), "ReLU", False)
    rngs = [np.random.default_rng(seed) for seed in (0, 1)]
    first, second = (arch.named(WIDTHS, arch.initialise(WIDTHS, rng)) for rng in rngs)
    for name in ("encoder.0.bias", "latent.bias"):
        assert not torch.equal(first[name], second[name])
    weights = sum(part.numel() for name, part in first.items() if name.endswith("weight"))
    untouched = np.random.default_rng(0)
    untouched.standard_normal(weights)
    assert rngs[0].random() == untouched.random()


@pytest.mark.parametrize(("rows", "columns"), [(12, 5), (5, 12)])
def test_initial_weights_are_the_orthogonalised_gaussian_numbers(rows: int, columns: int) -> None:
    """By Gram and Schmidt, whose signs no library chooses: a QR's alone are not the same in each."""
    arch, widths = Arch((), columns, (), "ReLU", False), Widths(rows, 2)
    weight = arch.named(widths, arch.initialise(widths, np.random.default_rng(0)))["latent.weight"]
    tall = np.random.default_rng(0).standard_normal((12, 5))
    expected = np.zeros((12, 5))
    for j in range(5):
        rest = tall[:, j] - sum((expected[:, i] @ tall[:, j]) * expected[:, i] for i in range(j))
        expected[:, j] = rest / np.linalg.norm(rest)
    np.testing.assert_allclose(weight, 2**0.5 * (expected if rows > columns else expected.T), atol=1e-5)


def test_an_architecture_survives_json() -> None:
    arch = Arch((Block(64), Block(32, True)), 48, (Block(8),), "GELU", True)
    assert Arch.from_json(arch.to_json()) == arch
    assert arch.describe() == "64+32~|48|8"


def test_names_cover_a_row_without_overlap() -> None:
    arch = Arch((Block(6), Block(9, True)), 4, (Block(3, True),), "ReLU", True)
    row = torch.zeros(arch.layout(WIDTHS).size)
    for part in arch.named(WIDTHS, row).values():
        part += 1
    assert row.eq(1).all()


@pytest.mark.parametrize(
    ("biases", "activation", "zeros"),
    [("zeros", "ReLU", True), ("zeros", "Tanh", True), ("auto", "ReLU", False), ("auto", "Tanh", True),
     ("auto", "ELU", True), ("uniform", "Tanh", False)],
)  # fmt: skip
def test_what_hidden_biases_begin_with_is_a_parameter(biases: Any, activation: str, zeros: bool) -> None:
    arch = Arch((Block(24), Block(40)), 16, (Block(8),), activation, False)
    widths = Widths(6, 3, biases=biases)
    parts = arch.named(widths, arch.initialise(widths, np.random.default_rng(1)))
    hidden = torch.cat([part for name, part in parts.items() if name.endswith("bias") and name != "output.bias"])
    assert bool((hidden == 0).all()) is zeros
    assert bool((hidden != 0).any()) is not zeros
    # No draw of a weight depends on it.
    plain = arch.named(Widths(6, 3), arch.initialise(Widths(6, 3), np.random.default_rng(1)))
    assert all(torch.equal(parts[name], plain[name]) for name in parts if name.endswith("weight"))


@pytest.mark.parametrize("gain", [0.01, 0.1, 1.0, 3.0])
def test_the_output_layers_gain_is_its_singular_value(gain: float) -> None:
    arch, widths = Arch((Block(32),), 16, (), "Tanh", False), Widths(6, 3, gain=gain)
    parts = arch.named(widths, arch.initialise(widths, np.random.default_rng(2)))
    assert torch.allclose(torch.linalg.svdvals(parts["output.weight"]), torch.full((3,), gain), rtol=1e-5)
    assert torch.allclose(torch.linalg.svdvals(parts["latent.weight"]), torch.full((16,), 2.0**0.5), rtol=1e-5)


def test_a_runs_first_members_begin_as_its_parameters_say() -> None:
    def outputs(algo: str, **network: Any) -> dict[str, float]:
        block = {"network": {"encoder": [16], "latent": 16, "activation": "Tanh", **network}}
        params = parse_params({"env": {"id": "CartPole-v1"}, "train": {"algo": algo}, "algos": {algo: block}})
        spec = make_spec(params)
        (member,), _ = first_members(spec, 1)
        found = {}
        for name, widths in spec.widths.items():
            weight = member.arch.named(widths, member.tensors[name])["output.weight"]
            found[name] = round(float(torch.linalg.matrix_norm(weight, 2)), 4)
        return found

    assert outputs("ppo") == {"actor": 0.01, "critic": 1.0}
    assert outputs("ppo", initialisation={"acting": 0.5, "others": 2.0}) == {"actor": 0.5, "critic": 2.0}
    assert outputs("dqn") == {"q": 0.1}
    assert outputs("dqn", initialisation={"acting": 0.5}) == {"q": 0.5}


def test_twins_begin_each_with_weights_of_its_own() -> None:
    """Drawn by a generator each, one after the other; a target of theirs begins as they do."""
    arch, twins = Arch((Block(4),), 3, (), "ReLU", False), WIDTHS._replace(copies=2)
    first, second = arch.initialise(twins, np.random.default_rng(1)).chunk(2)
    for own, by in zip((first, second), np.random.default_rng(1).spawn(2), strict=True):
        assert torch.equal(own, arch.initialise(WIDTHS, by))
    assert not torch.equal(first, second)
