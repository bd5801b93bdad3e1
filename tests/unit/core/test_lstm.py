"""LSTM encoders: against torch's own layer, in cohorts of unlike members, over time, and under mutation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import populations
import reference
from evopipe.core import lstm, optim
from evopipe.core.arch import Arch
from evopipe.core.cohort import cost
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.core.morph import Change
from evopipe.core.net import Net, forward, remember, unroll
from evopipe.core.padded import Padded
from evopipe.core.stem import Conv, Stem
from evopipe.core.structure import Widths
from evopipe.errors import ParamsError
from evopipe.mutations import Traits, mutate
from evopipe.run.spec import EnvSpec
from evopipe.schema.evolution import ArchitectureBounds, MutationConfig
from evopipe.schema.network import EncoderKind, NetworkConfig
from evopipe.types import Image

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")
WIDTHS = Widths(5, 3)
BATCH, STEPS = 6, 9
BOUNDS = ArchitectureBounds(
    min_layers=0, max_layers=3, min_nodes=3, max_nodes=40, min_latent=3, max_latent=40, node_steps=(1, 16),
    latent_steps=(1, 16),
)  # fmt: skip


def recurrent(
    encoder: Sequence[tuple[int, bool]], latent: int = 10, head: Sequence[tuple[int, bool]] = (),
    activation: str = "Tanh", norm: bool = False,
) -> Arch:  # fmt: skip
    blocks, last = (tuple(Block(*block) for block in part) for part in (encoder, head))
    return Arch(blocks, latent, last, activation, norm, kind="lstm")


def unlike(activation: str = "Tanh", norm: bool = False) -> list[Arch]:
    """Depths 0 to 3, widths that are multiples of 16 and none, blends: every way in which neighbours may differ."""
    return [
        recurrent([(21, False), (12, True), (30, True)], 17, [(9, True)], activation, norm),
        recurrent([(40, False)], 8, [], activation, norm),
        recurrent([], 5, [(20, False)], activation, norm),
        recurrent([(3, True), (33, False)], 16, [], activation, norm),
        recurrent([(16, False), (16, False)], 16, [], activation, norm),
    ]


def trained(arch: Arch, seed: int = 0, widths: Widths = WIDTHS) -> torch.Tensor:
    return reference.random_row(arch, widths, np.random.default_rng(seed))


def net_of(archs: Sequence[Arch], rows: Sequence[torch.Tensor], widths: Widths = WIDTHS) -> Net:
    structure = Padded(archs, widths, CPU)
    structure.masks = [None if mask is None else mask.to(rows[0].dtype) for mask in structure.masks]
    return Net(structure, structure.pack([row.float() for row in rows]).to(rows[0].dtype), trainable=True)


def sequences(members: int = 1, seed: int = 0, inputs: int = WIDTHS.inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Observations `[P, B, L, O]` in double precision; episodes that begin here and there, the first step included."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(members, BATCH, STEPS, inputs, generator=g, dtype=torch.float64)
    begins = torch.rand(members, BATCH, STEPS, generator=g) < 0.2
    begins[:, 0], begins[:, 1, 0], begins[:, 2] = False, True, True
    return x, begins


def layer_of_torch(
    weights: dict[str, torch.Tensor], name: str, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """torch's own layer with the weights of one of ours, whose last two groups are the other way round:
    x `[B, L, inputs]`, h and c `[B, H]` → `[B, L, H]`. Gradients reach our weights."""
    width = h.shape[1]

    def ordered(columns: torch.Tensor) -> torch.Tensor:
        into, forget, output, candidate = columns.reshape(-1, lstm.GATES, width).unbind(1)
        return torch.cat((into, forget, candidate, output), dim=1)

    parameters = {
        "weight_ih_l0": ordered(weights[f"{name}.weight"]).T,
        "weight_hh_l0": ordered(weights[f"{name}.recurrent.weight"]).T,
        "bias_ih_l0": ordered(weights[f"{name}.bias"])[0],
        "bias_hh_l0": torch.zeros(lstm.GATES * width).to(x),
    }
    theirs = torch.nn.LSTM(x.shape[2], width, batch_first=True).to(x)
    result = torch.func.functional_call(theirs, parameters, (x, (h[None], c[None])))
    outputs: torch.Tensor = result[0]
    return outputs


def one_episode(
    arch: Arch, parts: dict[str, torch.Tensor], x: torch.Tensor, memory: list[torch.Tensor]
) -> torch.Tensor:
    """One member, one environment, one episode: `[L, inputs]` → `[L, outputs]`, by torch's own layers."""
    for i, block in enumerate(arch.encoder):
        h, c = memory[2 * i : 2 * i + 2]
        f = layer_of_torch(parts, f"encoder.{i}", x[None], h[None], c[None])[0]
        if block.blend:
            width = max(x.shape[1], f.shape[1])
            x, f = (F.pad(t, (0, width - t.shape[1])) for t in (x, f))
            f = x + parts[f"encoder.{i}.alpha"] * (f - x)
        x = f
    return reference.network(replace(arch, encoder=(), kind="mlp"), parts, x)


def function(
    arch: Arch, parts: dict[str, torch.Tensor], x: torch.Tensor, begins: torch.Tensor, memory: torch.Tensor
) -> torch.Tensor:
    """One member: x `[B, L, inputs]`, begins `[B, L]`, memory `[B, M]` without pads → `[B, L, outputs]`.

    An episode that begins is another sequence, with an empty memory.
    """
    widths, found = [block.width for block in arch.encoder for _ in range(2)], []
    for b in range(len(x)):
        kept = list(memory[b].split(widths))
        borders = [0, *(t for t in range(1, x.shape[1]) if begins[b, t]), x.shape[1]]
        pieces = []
        for start, end in itertools.pairwise(borders):
            empty = [torch.zeros_like(each) for each in kept]
            pieces.append(one_episode(arch, parts, x[b, start:end], empty if start or begins[b, 0] else kept))
        found.append(torch.cat(pieces))
    return torch.stack(found)


def alone(
    arch: Arch, row: torch.Tensor, x: torch.Tensor, begins: torch.Tensor, memory: torch.Tensor
) -> reference.Known:
    """Outputs of one member, and the gradient of the sum of their squares."""

    def both(row: torch.Tensor, x: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row = row.clone().requires_grad_(True)
        y = function(arch, arch.named(WIDTHS, row), x, begins, memory)
        (grad,) = torch.autograd.grad(y.square().sum(), row)
        return y, grad

    return reference.known(both, row, x, memory)


def memories(structure: Padded, seed: int = 5) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A random memory `[P, B, M]` with pads of 0, and every member's own part of it."""
    g = torch.Generator().manual_seed(seed)
    padded, own = [], []
    for arch in structure.archs:
        widths = [block.width for block in arch.encoder for _ in range(2)]
        mine = [torch.rand(BATCH, width, generator=g, dtype=torch.float64) - 0.5 for width in widths]
        lacks = [mine[0].new_zeros(BATCH, 0) if mine else torch.zeros(BATCH, 0, dtype=torch.float64)]
        filled = [*mine, *lacks * (len(structure.memory_widths) - len(mine))]
        pairs = zip(filled, structure.memory_widths, strict=True)
        padded.append(torch.cat([F.pad(piece, (0, width - piece.shape[1])) for piece, width in pairs], dim=1))
        own.append(torch.cat([*mine, *lacks], dim=1))
    return torch.stack(padded), own


# ----------------------------------------------------------------------------------------------------- the function


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.thorough
def test_layers_compute_what_torchs_own_layers_compute(depth: int) -> None:
    """Values and gradients, with a memory from before and episodes that begin inside the sequence."""
    arch = recurrent([(16 + 7 * i, False) for i in range(depth)], head=[(6, False)])
    row = trained(arch).double()
    x, begins = sequences()
    net = net_of([arch], [row])
    memory, (own,) = memories(net.structure)
    y = unroll(net, x, memory, begins)
    assert y.shape == (1, BATCH, STEPS, WIDTHS.outputs)
    optim.backward(y.square().sum(dim=(1, 2, 3)), net)
    assert alone(arch, row, x[0], begins[0], own).agrees(y[0], net.structure.unpack(net.grad)[0])


def test_one_step_is_what_torchs_own_layers_compute() -> None:
    arch = recurrent([(20, False), (16, False)])
    row = trained(arch).double()
    net = net_of([arch], [row])
    memory, (own,) = memories(net.structure)
    x, _ = sequences()
    out, after = remember(net, x[:, :, 0], memory)
    nothing_begins = torch.zeros(BATCH, 1, dtype=torch.bool)
    expected = function(arch, arch.named(WIDTHS, row), x[0, :, :1], nothing_begins, own)
    torch.testing.assert_close(out[0], expected[:, 0], atol=1e-6, rtol=0)
    assert after.shape == memory.shape == (1, BATCH, net.structure.memory) == (1, BATCH, 2 * (32 + 16))
    h = layer_of_torch(arch.named(WIDTHS, row), "encoder.0", x[0, :, :1], own[:, :20], own[:, 20:40])
    torch.testing.assert_close(after[0, :, :20], h[:, 0], atol=1e-6, rtol=0)


def test_one_cell_by_hand() -> None:
    """Gates of 1/2, a candidate of tanh 1: c′ = c / 2 + tanh 1 / 2."""
    sums = torch.tensor([[[0.0, 0.0, 0.0, 1.0]]], dtype=torch.float64)
    h, c = lstm.cell(sums, torch.tensor([[[0.6]]], dtype=torch.float64))
    assert float(c) == pytest.approx(0.3 + 0.5 * np.tanh(1.0), abs=1e-12)
    assert float(h) == pytest.approx(0.5 * np.tanh(float(c)), abs=1e-12)


@pytest.mark.product
@pytest.mark.parametrize(("activation", "norm"), [("Tanh", False), ("ReLU", True), ("Sigmoid", False), ("GELU", True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.thorough
def test_members_of_an_unlike_cohort_compute_what_they_compute_alone(
    activation: str, norm: bool, dtype: torch.dtype
) -> None:
    archs = unlike(activation, norm)
    rows = [trained(arch, i).to(dtype) for i, arch in enumerate(archs)]
    net = net_of(archs, rows)
    x, begins = sequences(len(archs))
    memory, own = memories(net.structure)
    x, memory, own = x.to(dtype), memory.to(dtype), [each.to(dtype) for each in own]
    y = unroll(net, x, memory, begins)
    optim.backward(y.square().sum(dim=(1, 2, 3)), net)
    gradients = net.structure.unpack(net.grad)
    for i, (arch, row) in enumerate(zip(archs, rows, strict=True)):
        assert alone(arch, row, x[i], begins[i], own[i]).agrees(y[i], gradients[i]), arch


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("activation", "norm"), [("ReLU", False), ("Sigmoid", True)])
@pytest.mark.thorough
def test_pads_stay_exactly_zero_in_weights_moments_and_memory(
    activation: str, norm: bool, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optim, "_fused_is_sound", lambda: fused)
    archs = unlike(activation, norm)
    net = net_of(archs, [trained(arch, i) for i, arch in enumerate(archs)])
    adam, members = optim.Adam.start(net), len(archs)
    pads = torch.ones_like(net.values, dtype=torch.bool)
    for pad, index in zip(pads, net.structure.index, strict=True):
        pad[index] = False
    ones, every = memories(net.structure)[0] != 0, torch.ones(members, dtype=torch.bool)
    memory = torch.zeros(members, BATCH, net.structure.memory)
    for i in range(20):
        x, begins = sequences(members, i)
        with torch.no_grad():
            _, memory = remember(net, x[:, :, 0].float(), memory)
        optim.backward(unroll(net, x.float(), memory, begins).square().sum(dim=(1, 2, 3)), net)
        assert not net.grad[pads].any()
        optim.step(net, adam, torch.full((members,), 1e-2), every)
    for tensor in (net.values, adam.mean, adam.square):
        assert torch.isfinite(tensor).all()
        assert tensor[~pads].any()
        assert not tensor[pads].any()
    assert memory[ones].all()
    assert not memory[~ones].any()


def test_steps_one_by_one_are_a_sequence() -> None:
    archs = unlike()
    net = net_of(archs, [trained(arch, i).double() for i, arch in enumerate(archs)])
    x, begins = sequences(len(archs))
    memory, _ = memories(net.structure)
    expected = unroll(net, x, memory, begins)
    for t in range(STEPS):
        memory = memory.masked_fill(begins[:, :, t, None], 0.0)
        out, memory = remember(net, x[:, :, t], memory)
        torch.testing.assert_close(out, expected[:, :, t], atol=1e-6, rtol=0)


def test_without_a_memory_at_hand_it_takes_one_step_from_an_empty_one() -> None:
    archs = unlike()
    net = net_of(archs, [trained(arch, i).double() for i, arch in enumerate(archs)])
    x, _ = sequences(len(archs))
    empty = torch.zeros(len(archs), BATCH, net.structure.memory, dtype=torch.float64)
    assert torch.equal(forward(net, x[:, :, 0]), remember(net, x[:, :, 0], empty)[0])


@pytest.mark.parametrize("kind", ["mlp", "simba", "resnet"])
def test_networks_without_a_memory_take_the_same_calls(kind: EncoderKind) -> None:
    arch = Arch((Block(12),), 10, (Block(7),), "ReLU", False, kind=kind)
    net = net_of([arch], [trained(arch).double()])
    assert net.structure.memory == 0
    x, begins = sequences()
    nothing = torch.zeros(1, BATCH, 0, dtype=torch.float64)
    out, memory = remember(net, x[:, :, 3], nothing)
    assert memory is nothing
    assert torch.equal(out, forward(net, x[:, :, 3]))
    torch.testing.assert_close(unroll(net, x, nothing, begins)[:, :, 3], out, atol=1e-12, rtol=0)


def test_gradients_flow_through_time_and_stop_where_an_episode_begins() -> None:
    """The output of step 5 depends on the steps since the beginning at step 3, and on no other, nor on the memory."""
    arch = recurrent([(9, False), (20, True)])
    net = net_of([arch], [trained(arch).double()])
    x, _ = sequences()
    begins = torch.zeros(1, BATCH, STEPS, dtype=torch.bool)
    begins[:, :, 3] = True
    memory, _ = memories(net.structure)
    for leaf in (x.requires_grad_(True), memory.requires_grad_(True)):
        leaf.retain_grad()
    y = unroll(net, x, memory, begins)
    to_x, to_memory = torch.autograd.grad(y[:, :, 5].sum(), (x, memory), retain_graph=True)
    assert [bool(to_x[:, :, t].any()) for t in range(STEPS)] == [t in (3, 4, 5) for t in range(STEPS)]
    assert not to_memory.any()
    to_x, to_memory = torch.autograd.grad(y[:, :, 2].sum(), (x, memory))
    assert [bool(to_x[:, :, t].any()) for t in range(STEPS)] == [t < 3 for t in range(STEPS)]
    assert to_memory.any()


@pytest.mark.thorough
def test_the_gradient_of_a_sequence_is_the_numerical_one() -> None:
    g = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 3, 20), (2, 5, 20), (2, 3, 5), (2, 3, 5))
    tensors = [torch.randn(*s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes]
    begins = torch.rand(2, 4, 3, generator=g) < 0.3
    assert begins.any()
    assert torch.autograd.gradcheck(lambda sums, weight, h, c: lstm.sequence(sums, weight, h, c, begins), tensors)


def test_a_share_of_a_cohort_computes_the_same_bits() -> None:
    archs = [replace(arch, activation="Tanh") for arch in unlike()]
    net = net_of(archs, [trained(arch, i) for i, arch in enumerate(archs)])
    x, begins = sequences(len(archs))
    memory, _ = memories(net.structure)
    x, memory = x.float(), memory.float()
    whole, stepped = unroll(net, x, memory, begins), remember(net, x[:, :, 0], memory)
    for first, end in ((0, 2), (2, 5), (3, 4)):
        cut = slice(first, end)
        share = Net(net.structure.part(first, end), net.values[cut], trainable=True)
        assert share.structure.memory == net.structure.memory
        assert torch.equal(unroll(share, x[cut], memory[cut], begins[cut]), whole[cut])
        for mine, all_rows in zip(remember(share, x[cut, :, 0], memory[cut]), stepped, strict=True):
            assert torch.equal(mine, all_rows[cut])


def test_a_neighbours_nan_stays_with_the_neighbour() -> None:
    archs = unlike()
    rows = [trained(arch, i) for i, arch in enumerate(archs)]
    x, begins = sequences(len(archs))
    found = []
    for value in (1.0, torch.nan):
        rows[1][0] = value
        net = net_of(archs, rows)
        y = unroll(net, x.float(), memories(net.structure)[0].float(), begins)
        optim.backward(y.square().sum(dim=(1, 2, 3)), net)
        found.append((y, net.grad))
    assert not torch.isfinite(found[1][0][1]).all()
    for i in (0, 2, 3, 4):
        assert all(torch.equal(a[i], b[i]) for a, b in zip(*found, strict=True))


def test_images_go_through_convolutions_before_the_memory() -> None:
    """Every step's observation through the stem, as alone."""
    images, widths = (Image(2, 3, 6, 5),), Widths(95, 3)
    stem = Stem(images, (Conv(4, 3, 1), Conv(5, 2, 2)))
    archs = [replace(recurrent([(w, False)], activation="ReLU"), stem=stem) for w in (12, 20)]
    rows = [trained(arch, i, widths).double() for i, arch in enumerate(archs)]
    net = net_of(archs, rows, widths)
    x, begins = sequences(2, inputs=widths.inputs)
    memory, own = memories(net.structure)
    y = unroll(net, x, memory, begins)
    optim.backward(y.square().sum(dim=(1, 2, 3)), net)
    for i, (arch, row) in enumerate(zip(archs, rows, strict=True)):
        alone = row.clone().requires_grad_(True)
        parts = arch.named(widths, alone)
        z = x[i, :, :, 2:92].reshape(-1, 3, 6, 5)
        for j, conv in enumerate(stem.convs):
            kernel = parts[f"conv.0.{j}.weight"].T.reshape(conv.channels, -1, conv.kernel, conv.kernel)
            z = F.conv2d(z, kernel, parts[f"conv.0.{j}.bias"], conv.stride).relu()
        seen = torch.cat([x[i, :, :, :2], x[i, :, :, 92:], z.reshape(BATCH, STEPS, -1)], dim=-1)
        expected = function(replace(arch, stem=Stem()), parts, seen, begins[i], own[i])
        (grad,) = torch.autograd.grad(expected.square().sum(), alone)
        torch.testing.assert_close(y[i], expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(net.structure.unpack(net.grad)[i], grad, atol=1e-6, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------- beginnings


def test_weights_begin_orthogonal_and_gates_open_to_the_past() -> None:
    arch = recurrent([(16, False), (24, False)])
    parts = arch.named(WIDTHS, arch.initialise(WIDTHS, np.random.default_rng(0)))
    for i, width in enumerate((16, 24)):
        for name in (f"encoder.{i}.weight", f"encoder.{i}.recurrent.weight"):
            gram = parts[name] @ parts[name].T
            torch.testing.assert_close(gram, torch.eye(len(gram)), atol=1e-5, rtol=0)
        bias = parts[f"encoder.{i}.bias"].view(lstm.GATES, width)
        assert bias[lstm.FORGET].eq(1).all()
        others = bias[[gate for gate in range(lstm.GATES) if gate != lstm.FORGET]].abs()
        assert 0.8 * width**-0.5 < others.max() <= width**-0.5


def test_an_architecture_is_configured_described_and_stored() -> None:
    cfg = NetworkConfig.model_validate({"encoder_kind": "lstm", "encoder": [64, 32], "latent": 48})
    arch = Arch.start(cfg)
    assert arch.describe() == "lstm 64+32|48"
    assert list(arch.layers) == ["encoder.0", "encoder.1", "latent"]
    assert Arch.from_json(json.loads(json.dumps(arch.to_json()))) == arch
    assert Padded([arch], WIDTHS, CPU).memory == 2 * (64 + 32)


def test_an_lstm_layer_costs_eight_dense_ones() -> None:
    dense, gated = replace(recurrent([(64, False)] * 8, 64), kind="mlp"), recurrent([(64, False)], 64)
    members = [Member(0, 0, None, 1, arch, {}, {}) for arch in (dense, gated)]
    assert cost(members[:1], EnvSpec.pace) == cost(members[1:], EnvSpec.pace)


def test_an_algorithm_without_a_memory_refuses_it() -> None:
    message = r"^algos\.dqn\.network\.encoder_kind: dqn keeps no memory between steps; take mlp, simba or resnet"
    with pytest.raises(ParamsError, match=message):
        populations.problem(config={"network": {"encoder_kind": "lstm", "encoder": [16], "latent": 16}})


# --------------------------------------------------------------------------------------------------------- mutation


def changes(arch: Arch) -> Iterator[tuple[str, str, int, int, Arch]]:
    yield from arch.options(BOUNDS, [WIDTHS])


def outputs(archs: Sequence[Arch], rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Whole sequences from an empty memory, in double precision: what a mutation must not change."""
    net = net_of(archs, [row.double() for row in rows])
    x, begins = sequences()
    empty = torch.zeros(len(archs), BATCH, net.structure.memory, dtype=torch.float64)
    members = (len(archs), -1, -1, -1)
    with torch.no_grad():
        return unroll(net, x.expand(members), empty, begins.expand(members[:3]))


BEFORE = [
    recurrent([(16, False)]),
    recurrent([(12, False), (20, False)], 9, [(8, False)]),
    recurrent([(12, False), (30, True)], 9, [(20, True)], "GELU"),  # new units pass by onto places in use
    recurrent([(30, False), (12, True), (20, True)], 9, [], "ReLU", True),
    recurrent([(3, True)], 20, [], "Sigmoid", True),  # the observation passes by
    recurrent([], 20, [(20, False)], "ELU"),
]


@pytest.mark.parametrize("arch", BEFORE, ids=Arch.describe)
def test_every_addition_leaves_whole_sequences_unchanged(arch: Arch) -> None:
    """Alone and beside an unlike neighbour; what survives keeps its weights and its moments."""
    row, neighbour = trained(arch), replace(unlike()[0], activation=arch.activation, layer_norm=arch.layer_norm)
    other, moments = trained(neighbour, 1), torch.arange(1.0, len(row) + 1)
    before, methods = outputs([arch, neighbour], [row, other]), set()
    for method, what, old, after, new in changes(arch):
        resized = Change(arch, new, WIDTHS).parameters(row, np.random.default_rng(0))
        moved = Change(arch, new, WIDTHS).moments(moments)
        assert len(resized) == len(moved) == new.layout(WIDTHS).size
        kept = moved[moved != 0]
        assert len(kept.unique()) == len(kept), what
        if after > old:
            methods.add(method)
            assert set(kept.tolist()) == set(moments.tolist()), what
            found = outputs([new, neighbour], [resized, other])
            assert float((found[0] - before[0]).abs().max()) < 1e-5 * float(before[0].abs().max()), what
            assert float((found[1] - before[1]).abs().max()) < 1e-12
    assert (len(arch.encoder) < 3) == ("encoder.add_layer" in methods)
    assert (len(arch.encoder) > 0) == ("encoder.add_node" in methods)


def test_survivors_stay_with_their_gate() -> None:
    old, new = recurrent([(5, False)]), recurrent([(8, False)])
    row = trained(old)
    before, after = (
        old.named(WIDTHS, row),
        new.named(WIDTHS, Change(old, new, WIDTHS).parameters(row, np.random.default_rng(0))),
    )
    for name in ("encoder.0.weight", "encoder.0.recurrent.weight", "encoder.0.bias"):
        a, b = (parts[name].reshape(-1, lstm.GATES, width) for parts, width in ((before, 5), (after, 8)))
        assert torch.equal(b[: len(a), :, :5], a)
        assert b[: len(a), :, 5:].any()
    assert not after["encoder.0.recurrent.weight"].view(8, lstm.GATES, 8)[5:, :, :5].any()
    assert not after["latent.weight"][5:].any()
    assert after["encoder.0.bias"].view(lstm.GATES, 8)[lstm.FORGET, 5:].eq(1).all()


@pytest.mark.parametrize("arch", [BEFORE[0], BEFORE[2], BEFORE[3]], ids=Arch.describe)
def test_what_was_added_learns(arch: Arch) -> None:
    for method, what, old, after, new in changes(arch):
        if after <= old:
            continue
        resized = Change(arch, new, WIDTHS).parameters(trained(arch), np.random.default_rng(0))
        net = net_of([new], [resized.double()])
        x, begins = sequences()
        y = unroll(net, x, torch.zeros(1, BATCH, net.structure.memory, dtype=torch.float64), begins)
        optim.backward(y.square().sum(dim=(1, 2, 3)), net)
        survived = Change(arch, new, WIDTHS).moments(torch.ones_like(trained(arch)))
        assert net.structure.unpack(net.grad)[0][survived == 0].any(), (method, what)


@pytest.mark.thorough
def test_a_chain_of_mutations_stays_consistent() -> None:
    traits = Traits({"policy": WIDTHS}, ["policy"], {"policy": ("parameters", "policy")}, {}, frozenset())
    cfg = MutationConfig.model_validate(
        {
            "probabilities": {"none": 0, "architecture": 0.8, "parameters": 0.1, "activation": 0.1, "rl_hp": 0},
            "architecture": BOUNDS.model_dump(), "new_layer_prob": 0.4,
        }
    )  # fmt: skip
    arch, rng, seen = recurrent([(16, False)]), np.random.default_rng(0), set()
    member = Member(0, 0, None, 1, arch, {}, {"policy": trained(arch)})
    for _ in range(150):
        before = outputs([member.arch], [member.tensors["policy"]])
        child, record = mutate(cfg, traits, member, rng)
        after = outputs([child.arch], [child.tensors["policy"]])
        assert torch.isfinite(after).all()
        if record.kind == "architecture" and record.after > record.before:
            seen.add(record.what)
            assert float((after - before).abs().max()) <= 1e-5 * float(before.abs().max()), record
        moved = child.tensors["policy"] + 0.03 * torch.from_numpy(rng.standard_normal(len(child.tensors["policy"])))
        member = replace(child, tensors={"policy": moved.float()})
    assert seen >= {"encoder layers", "encoder.0 width", "encoder.1 width", "latent width", "head layers"}
