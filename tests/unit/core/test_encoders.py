"""The convolutional stem: against a plain loop, in cohorts, under mutation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import populations
import reference
from evopipe.core.arch import Arch
from evopipe.core.cohort import _group
from evopipe.core.graphs import Paths
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.morph import Change
from evopipe.core.net import Net, forward
from evopipe.core.optim import backward
from evopipe.core.padded import Padded
from evopipe.core.stem import Conv, Stem, _convolve
from evopipe.core.structure import Widths
from evopipe.errors import ParamsError
from evopipe.mutations import mutate
from evopipe.problems.env import begin
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.evolution import ArchitectureBounds, MutationConfig
from evopipe.schema.network import EncoderKind, NetworkConfig
from evopipe.types import Image
from populations import advance, finish, same, started

CPU = torch.device("cpu")
IMAGES = (Image(2, 3, 7, 6), Image(130, 1, 5, 5))  # vector columns before, between and behind them
WIDTHS = Widths(160, 3)
CONVS = (Conv(5, 3, 1), Conv(4, 2, 2))
BOUNDS = ArchitectureBounds(min_channels=2, max_channels=9, channel_steps=(1, 3), min_kernel=1, max_kernel=6)


def arch_with(convs: tuple[Conv, ...] = CONVS, activation: str = "ReLU", norm: bool = False) -> Arch:
    return Arch((Block(12), Block(9, True)), 10, (Block(8),), activation, norm, Stem(IMAGES, convs))


def inputs(batch: int = 6, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(batch, WIDTHS.inputs, generator=torch.Generator().manual_seed(0))


def reference_function(arch: Arch, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`[B, inputs]` → `[B, outputs]`, one member: plain convolutions, then the reference network."""
    parts, found, vector, at = arch.named(WIDTHS, row), [], [], 0
    for i, image in enumerate(arch.stem.images):
        vector.append(x[:, at : image.start])
        at = image.start + image.size
        z = x[:, image.start : at].reshape(-1, image.channels, image.height, image.width)
        for j, conv in enumerate(arch.stem.convs):
            kernel = parts[f"conv.{i}.{j}.weight"].T.reshape(conv.channels, z.shape[1], conv.kernel, conv.kernel)
            z = F.conv2d(F.pad(z, [conv.padding] * 4), kernel, parts[f"conv.{i}.{j}.bias"], conv.stride)
            z = reference.ACTIVATIONS[arch.activation](z)
        found.append(z.flatten(1))
    return reference.network(arch, parts, torch.cat([*vector, x[:, at:], *found], dim=1))


def alone(
    function: Callable[[Arch, torch.Tensor, torch.Tensor], torch.Tensor], arch: Arch, row: torch.Tensor, x: torch.Tensor
) -> reference.Known:
    """Outputs of one member, and the gradient of the sum of their squares."""

    def both(row: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = function(arch, row.requires_grad_(True), x)
        (grad,) = torch.autograd.grad(y.square().sum(), row)
        return y, grad

    return reference.known(both, row, x)


def together(archs: list[Arch], rows: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    structure = Padded(archs, WIDTHS, CPU)
    return forward(Net(structure, structure.pack(rows)), x.expand(len(archs), -1, -1))


@pytest.mark.numerical
@pytest.mark.parametrize("grouped", [False, True])
def test_a_convolution_by_plain_loops(grouped: bool) -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = rng.normal(size=(2, 3, 2, 5, 4)), rng.normal(size=(2, 2 * 9, 3)), rng.normal(size=(2, 1, 3))
    conv = Conv(3, 3, 2, 1)
    found = _convolve(*(torch.from_numpy(a) for a in (x, weight, bias)), conv, grouped)
    assert found.shape == (2, 3, 3, 3, 2)
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1), (1, 1)))
    for p, b, o, i, j in np.ndindex(*found.shape):
        total = bias[p, 0, o]
        for c, dy, dx in np.ndindex(2, 3, 3):
            total += padded[p, b, c, 2 * i + dy, 2 * j + dx] * weight[p, c * 9 + dy * 3 + dx, o]
        assert float(found[p, b, o, i, j]) == pytest.approx(total, abs=1e-12)


@pytest.mark.numerical
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("norm", [False, True])
def test_members_with_images_compute_what_they_compute_alone(activation: str, norm: bool) -> None:
    """Unlike widths and depths behind equal stems, padded together: values and gradients."""
    rng = np.random.default_rng(1)
    convs = (Conv(5, 3, 1, 1), Conv(4, 2, 2, -1))
    archs = [replace(arch_with(convs, activation, norm), encoder=(Block(w),), latent=n) for w, n in ((12, 10), (33, 7))]
    rows = [reference.random_row(arch, WIDTHS, rng) for arch in archs]
    x = inputs()
    structure = Padded(archs, WIDTHS, CPU)
    net = Net(structure, structure.pack(rows), trainable=True)
    out = forward(net, x.expand(2, -1, -1))
    backward(out.square().sum(dim=(1, 2)), net)
    gradients = structure.unpack(net.grad)
    for i, (arch, row) in enumerate(zip(archs, rows, strict=True)):
        assert alone(reference_function, arch, row, x).agrees(out[i], gradients[i]), arch
    outside = net.grad.clone()
    for own, index in zip(outside, structure.index, strict=True):
        own[index] = 0.0
    assert not outside.any()


def trained(arch: Arch, seed: int = 2) -> torch.Tensor:
    return reference.random_row(arch, WIDTHS, np.random.default_rng(seed))


def changes(arch: Arch) -> Iterator[tuple[str, int, int, Arch]]:
    for _, what, before, after, new in arch.options(BOUNDS, [WIDTHS]):
        if what.startswith("conv"):
            yield what, before, after, new


@pytest.mark.numerical
@pytest.mark.parametrize("activation", ["ReLU", "Sigmoid", "GELU"])
def test_more_channels_and_larger_kernels_leave_the_function_unchanged(activation: str) -> None:
    arch = arch_with((Conv(5, 3, 1, 1), Conv(4, 3, 1, -1)), activation)
    row, grew = trained(arch), 0
    before = reference.known(lambda row, x: (reference_function(arch, row, x),), row, inputs())
    for what, old, after, new in changes(arch):
        grown = Change(arch, new, WIDTHS).parameters(row, np.random.default_rng(0))
        assert len(grown) == new.layout(WIDTHS).size
        assert [s[1:] for s in new.stem.shapes(IMAGES[0])] == [s[1:] for s in arch.stem.shapes(IMAGES[0])], what
        if after > old:
            grew += 1
            assert before.agrees(reference_function(new, grown.double(), inputs().double())), what
            assert before.agrees(together([new], [grown], inputs())[0]), what
    assert grew == 6


@pytest.mark.numerical
def test_what_was_added_learns() -> None:
    arch = arch_with()
    row = trained(arch)
    for what, old, after, new in changes(arch):
        if after > old:
            grown = Change(arch, new, WIDTHS).parameters(row, np.random.default_rng(0)).requires_grad_(True)
            reference_function(new, grown, inputs()).square().sum().backward()
            assert grown.grad is not None
            places = Change(arch, new, WIDTHS).moments(torch.ones_like(row))
            assert grown.grad[places == 0].abs().sum() > 0, what


def test_shrinking_cuts_off_the_last_channels_and_the_border() -> None:
    arch = arch_with((Conv(5, 4, 1), Conv(4, 2, 2)))
    row = trained(arch)
    old = arch.named(WIDTHS, row)
    found = {}
    for what, before, after, new in changes(arch):
        if after < before:
            found[what, after] = new.named(WIDTHS, Change(arch, new, WIDTHS).parameters(row, np.random.default_rng(0)))
    fewer = found["conv.0 channels", 4]
    assert torch.equal(fewer["conv.0.0.weight"], old["conv.0.0.weight"][:, :4])
    assert torch.equal(fewer["conv.1.1.weight"], old["conv.1.1.weight"][: 4 * 4])
    smaller = found["conv.0 kernel", 2]
    inner = old["conv.0.0.weight"].view(3, 4, 4, 5)[:, 1:3, 1:3]
    assert torch.equal(smaller["conv.0.0.weight"].view(3, 2, 2, 5), inner)
    last = found["conv.1 channels", 3]  # vector columns, then four channels of 2 × 1 places, then four of 1 × 1
    vector = WIDTHS.inputs - sum(image.size for image in IMAGES)
    first, second = arch.stem.features()
    kept = [*range(vector + 3 * first[1]), *range(vector + 4 * first[1], vector + 4 * first[1] + 3 * second[1])]
    assert torch.equal(last["encoder.0.weight"], old["encoder.0.weight"][kept])


def test_survivors_keep_moments_and_scales() -> None:
    arch = arch_with()
    row = torch.arange(1.0, arch.layout(WIDTHS).size + 1)
    for what, before, after, new in changes(arch):
        change = Change(arch, new, WIDTHS)
        moments, scales = change.moments(row), change.scales(row)
        kept = moments != 0
        assert torch.equal(moments[kept], scales[kept]), what
        assert len(set(moments[kept].tolist())) == int(kept.sum()), what
        if after > before:
            assert int(kept.sum()) == len(row), what


@pytest.mark.numerical
def test_other_changes_carry_the_stem_over() -> None:
    arch = arch_with()
    row = trained(arch)
    wider = replace(arch, encoder=(Block(15), Block(9, True)))
    grown = Change(arch, wider, WIDTHS).parameters(row, np.random.default_rng(0))
    before = reference.known(lambda row, x: (reference_function(arch, row, x),), row, inputs())
    assert before.agrees(reference_function(wider, grown.double(), inputs().double()))


def test_channels_do_not_change_where_the_input_passes_the_encoder_by() -> None:
    arch = replace(arch_with(), encoder=(Block(12, True),))
    assert {what.split()[1] for what, *_ in changes(arch)} == {"kernel"}


def test_an_architecture_survives_json_and_says_what_it_is() -> None:
    arch = arch_with()
    assert Arch.from_json(json.loads(json.dumps(arch.to_json()))) == arch
    assert arch.describe() == "5k3+4k2/2|12+9~|10|8"
    plain = Arch((Block(4),), 3, (), "ReLU", False)
    assert plain.to_json().keys() == {"encoder", "latent", "head", "activation", "layer_norm"}


def test_an_image_smaller_than_a_kernel_is_refused_before_training() -> None:
    cfg = NetworkConfig.model_validate({"conv": [{"channels": 4, "kernel": 3, "stride": 2}] * 2})
    with pytest.raises(ParamsError, match=r"convolution 2 has a kernel of 3, larger than the 2 × 2 that reaches it"):
        Arch.start(cfg, (Image(0, 1, 5, 5),))
    assert Arch.start(cfg, (Image(0, 1, 7, 7),)).stem.shapes(Image(0, 1, 7, 7))[-1] == (4, 1, 1)
    assert Arch.start(cfg).stem == Stem()
    p = populations.problem("envs_for_tests:Pixels-v0", config={"network": cfg.model_dump()})
    with pytest.raises(ParamsError, match=r"^algos\.dqn\.network\.conv: convolution 2 .* image of 6 × 6"):
        first_members(p, 1)


# ------------------------------------------------------------------------------------------------- populations

SMALL = {"network": {"conv": [{"channels": 8, "kernel": 3, "stride": 1}], "encoder": [16], "latent": 16}}
MUTATION = {
    "probabilities": {"none": 0, "architecture": 1, "parameters": 0, "activation": 0, "rl_hp": 0},
    "before_training": True,
    "architecture": {"min_channels": 4, "max_channels": 24, "channel_steps": (4, 8), "min_kernel": 1, "max_kernel": 5},
}


@pytest.mark.parametrize("algo", ["dqn", pytest.param("rainbow", marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_a_population_with_images_trains_mutates_and_resumes_alike(algo: str) -> None:
    p = populations.problem("envs_for_tests:Pixels-v0", algo, config=SMALL, mutation=MUTATION, cohorts="merged")
    runs = [started(p, 4) for _ in range(2)]
    for run in runs:
        finish(run)
    assert all(same(a, b) for a, b in zip(runs[0].members, runs[1].members, strict=True))
    assert all(member.healthy for member in runs[0].members)
    for run in runs:
        run.close()


@pytest.mark.thorough
def test_a_member_with_images_trains_alike_alone_and_in_a_crowd() -> None:
    p = populations.problem(
        "envs_for_tests:Pixels-v0", config=SMALL, mutation=MUTATION, train={"evo_steps": 100_000, "max_steps": 100_000}
    )
    crowd = started(p, 4)
    one = started(p, 1)
    one.close()
    alone = begin(p, [populations.alone(p, 2)])
    advance(crowd, 60)
    advance(alone, 60)
    assert same(alone.members[0], crowd.members[2])
    crowd.close()
    alone.close()


@pytest.mark.thorough
def test_fixed_buffers_compute_the_same_with_images() -> None:
    """What a CUDA graph records, on the CPU."""
    p = populations.problem("envs_for_tests:Pixels-v0", config=SMALL, mutation=MUTATION)
    runs = [started(each, 3) for each in (p, replace(p, paths=Paths("buffers")))]
    for run in runs:
        finish(run)
    assert all(same(a, b) for a, b in zip(runs[0].members, runs[1].members, strict=True))
    assert runs[1].spec.paths.recorded
    for run in runs:
        run.close()


def test_members_with_unlike_convolutions_never_merge() -> None:
    p = populations.problem("envs_for_tests:Pixels-v0", config=SMALL)
    members = first_members(p, 3)[0]
    stem = members[0].arch.stem
    other = stem._replace(convs=(stem.convs[0]._replace(channels=9),))
    members[1] = replace(members[1], arch=replace(members[1].arch, stem=other))
    found = [[m.slot for m in each] for each in _group(members, EnvSpec.pace, "merged", "cpu")]
    assert sorted(found) == [[0, 2], [1]]
    with pytest.raises(ValueError, match="unlike convolutions"):
        Padded([m.arch for m in members], p.widths["q"], CPU)


def test_every_convolution_change_is_drawn_and_recorded() -> None:
    p = populations.problem("envs_for_tests:Pixels-v0", config=SMALL)
    cfg = MutationConfig.model_validate(MUTATION)
    member, seen = first_members(p, 1)[0][0], set()
    for seed in range(60):
        child, record = mutate(cfg, p.traits, member, np.random.default_rng(seed))
        if record.what.startswith("conv"):
            seen.add((record.what, record.before, record.after))
            assert len(child.tensors["q"]) == child.arch.layout(p.widths["q"]).size
            p.form([child])
    kernels = {after for what, _, after in seen if what == "conv.0 kernel"}
    channels = {after for what, _, after in seen if what == "conv.0 channels"}
    assert kernels >= {1, 5}
    assert channels >= {4, 12, 16}


# ------------------------------------------------------------------------------------------------- residual encoders

VECTOR = Widths(7, 3)
RESIDUAL = [(kind, activation) for kind in ("simba", "resnet") for activation in ("ReLU", "Sigmoid", "GELU")]
GROWING = ArchitectureBounds(
    min_layers=0, max_layers=3, min_nodes=3, max_nodes=60, min_latent=3, max_latent=60, node_steps=(1, 16),
    latent_steps=(1, 16),
)  # fmt: skip


def residual_arch(
    kind: EncoderKind, activation: str, head: tuple[Block, ...] = (Block(8),), norm: bool = False
) -> Arch:
    return Arch((Block(12), Block(20)), 10, head, activation, norm, Stem(), kind)


def residual_function(arch: Arch, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`[B, inputs]` → `[B, outputs]`, one member, as the papers write it; then the reference's head."""
    parts, act = arch.named(VECTOR, row), reference.ACTIVATIONS[arch.activation]

    def before(name: str, x: torch.Tensor) -> torch.Tensor:
        if arch.kind == "resnet":
            return act(x)
        return F.layer_norm(x, x.shape[-1:], parts[f"{name}.gain"], parts[f"{name}.shift"])

    x = x @ parts["latent.weight"] + parts["latent.bias"]
    for i in range(len(arch.encoder)):
        name = f"encoder.{i}"
        f = act(before(name, x) @ parts[f"{name}.weight"] + parts[f"{name}.bias"])
        x = x + f @ parts[f"{name}.back.weight"] + parts[f"{name}.back.bias"]
    x = before("latent", x)
    if not arch.head:
        return x @ parts["output.weight"] + parts["output.bias"]
    names = {
        name.replace(f"head.{len(arch.head) - 1}", "latent"): part for name, part in parts.items() if "head" in name
    }
    names |= {name.replace("head.", "encoder."): part for name, part in names.items() if name.startswith("head.")}
    names |= {name: part for name, part in parts.items() if name.startswith("output")}
    assert not arch.head[-1].blend
    rest = Arch(arch.head[:-1], arch.head[-1].width, (), arch.activation, arch.layer_norm)
    return reference.network(rest, names, x)


def vectors(batch: int = 6) -> torch.Tensor:
    return torch.randn(batch, VECTOR.inputs, generator=torch.Generator().manual_seed(0))


@pytest.mark.numerical
@pytest.mark.parametrize(("kind", "activation"), RESIDUAL)
def test_residual_encoders_of_unlike_members_compute_what_they_compute_alone(
    kind: EncoderKind, activation: str
) -> None:
    rng = np.random.default_rng(3)
    archs = [
        residual_arch(kind, activation),
        replace(residual_arch(kind, activation), encoder=(Block(33),), latent=21),
        replace(residual_arch(kind, activation), encoder=(), latent=5, head=(Block(40, True), Block(16))),
    ]
    rows = [reference.random_row(arch, VECTOR, rng) for arch in archs]
    structure = Padded(archs, VECTOR, CPU)
    net = Net(structure, structure.pack(rows), trainable=True)
    out = forward(net, vectors().expand(3, -1, -1))
    backward(out.square().sum(dim=(1, 2)), net)
    for i, (arch, row, gradient) in enumerate(zip(archs, rows, structure.unpack(net.grad), strict=True)):
        assert alone(residual_function, arch, row, vectors()).agrees(out[i], gradient), arch
    outside = net.grad.clone()
    for own, index in zip(outside, structure.index, strict=True):
        own[index] = 0.0
    assert not outside.any()


@pytest.mark.thorough
@pytest.mark.numerical
@pytest.mark.parametrize(("kind", "activation"), RESIDUAL)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("head", [(), (Block(8),), (Block(30, True), Block(9))])
def test_every_addition_to_a_residual_network_leaves_its_function_unchanged(
    kind: EncoderKind, activation: str, norm: bool, head: tuple[Block, ...]
) -> None:
    arch = residual_arch(kind, activation, head, norm)
    row = reference.random_row(arch, VECTOR, np.random.default_rng(4))

    def outputs(arch: Arch, row: torch.Tensor) -> torch.Tensor:
        structure = Padded([arch], VECTOR, CPU)
        return forward(Net(structure, structure.pack([row])), vectors()[None])[0]

    before = reference.known(lambda row, x: (residual_function(arch, row, x),), row, vectors())
    methods = set()
    for method, what, old, after, new in arch.options(GROWING, [VECTOR]):
        change = Change(arch, new, VECTOR)
        resized = change.parameters(row, np.random.default_rng(0))
        moments = change.moments(torch.ones_like(row))
        assert len(resized) == len(moments) == new.layout(VECTOR).size
        if after > old:
            methods.add(method)
            assert before.agrees(outputs(new, resized)), what
            assert int(moments.sum()) == len(row), what
    assert {"encoder.add_layer", "encoder.add_node", "head.add_layer"} <= methods
    assert ("latent.add_node" in methods) == (kind == "resnet" and len(head) < 2)


@pytest.mark.parametrize("kind", ["simba", "resnet"])
@pytest.mark.thorough
def test_a_population_of_residual_networks_trains_and_mutates(kind: EncoderKind) -> None:
    config = {"network": {"encoder_kind": kind, "encoder": [32, 32], "latent": 16}}
    mutation = {"before_training": True, "probabilities": {"none": 0, "architecture": 1}}
    p = populations.problem(config=config, mutation=mutation, cohorts="merged")
    run = started(p, 4)
    finish(run)
    assert all(member.healthy and member.arch.kind == kind for member in run.members)
    arch = run.members[0].arch
    assert arch.describe().startswith(f"{kind} ")
    assert Arch.from_json(json.loads(json.dumps(arch.to_json()))) == arch
    run.close()


@pytest.mark.parametrize(
    ("height", "width", "convs", "at"),
    [
        (9, 3, [Conv(2, 4, 1)], 1), (3, 9, [Conv(2, 4, 1)], 1), (9, 4, [Conv(2, 4, 1)], 0),
        (9, 2, [Conv(2, 4, 1, 1)], 0), (9, 1, [Conv(2, 4, 1, 1)], 1), (9, 4, [Conv(2, 3, 2), Conv(2, 2, 1)], 2),
        (9, 5, [Conv(2, 3, 2), Conv(2, 2, 1)], 0),
    ],
)  # fmt: skip
def test_a_kernel_fits_if_it_is_no_larger_than_either_side_with_its_padding(
    height: int, width: int, convs: list[Conv], at: int
) -> None:
    found = Stem((Image(0, 1, 9, 9), Image(81, 1, height, width)), tuple(convs)).misfit()
    assert (found is None) == (not at)
    if found is not None:
        assert found.startswith(f"convolution {at} has a kernel of {convs[at - 1].kernel}, larger than the ")
        assert f"an image of {height} × {width};" in found


def test_the_work_of_convolutions_is_what_they_multiply() -> None:
    """Of 1 × 9 × 9 by 6 kernels of 3 and 4 of 5, which leave 7 × 7 and 3 × 3, twice; of 2 × 5 × 5 by a stride of 2."""
    convs = (Conv(6, 3, 1), Conv(4, 5, 1))
    assert Stem((Image(0, 1, 9, 9),) * 2, convs).work() == 2 * (9 * 6 * 49 + 6 * 25 * 4 * 9)
    assert Stem((Image(0, 2, 5, 5),), (Conv(3, 3, 2),)).work() == 2 * 9 * 3 * 4
