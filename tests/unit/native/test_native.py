"""The CPU's own kernels compute what torch does, and every bit of it depends on a member alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from evopipe import machine
from evopipe.core import optim
from evopipe.core.arch import Arch
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.net import Net, forward
from evopipe.core.optim import Adam
from evopipe.core.structure import Widths
from evopipe.errors import ParamsError
from evopipe.machine import configure, fingerprint
from evopipe.native import build, dense, optimiser
from evopipe.schema.language import TextRuntime
from evopipe.schema.runtime import RuntimeConfig
from evopipe.types import Tensor
from kernel_cases import starving
from reference import random_row
from tiny import TRAINED, digests, evopipe, prepared

pytestmark = pytest.mark.numerical
ROWS = 13


@pytest.fixture(autouse=True)
def torch_again() -> Iterator[None]:
    yield
    build.use(None)


def archs(activation: str, norm: bool) -> list[Arch]:
    """Unlike ones: odd widths, blended and missing layers."""
    return [
        Arch((Block(37), Block(20, True)), 24, (Block(50, True),), activation, norm),
        Arch((Block(64),), 33, (), activation, norm),
        Arch((Block(5), Block(40, True)), 16, (), activation, norm),
    ]


def net(archs: Sequence[Arch], widths: Widths) -> Net:
    structure = Arch.stack(archs, widths, torch.device("cpu"))
    rows = [random_row(arch, widths, np.random.default_rng(i)) for i, arch in enumerate(archs)]
    return Net(structure, structure.pack(rows), trainable=True)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def found(given: Net, x: Tensor, kernels: str | None) -> tuple[Tensor, Tensor, Tensor]:
    """What comes out, and the gradients of parameters and of x of a fixed function of it."""
    build.use(build.load(kernels) if kernels else None)
    own, x = Net(given.structure, given.values, trainable=True), x.clone().requires_grad_(True)
    out = forward(own, x)
    assert (kernels is not None) == ("_Dense" in type(out.grad_fn).__name__)
    optim.backward((out * normal(*out.shape[1:], seed=9)).sum(dim=(1, 2)), own)
    assert x.grad is not None
    return out.detach(), own.grad, x.grad


WIDTHS = [Widths(8, 4), Widths(8, 1), Widths(11, 0, "encoder"), Widths(3, 2, "head")]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_networks_are_those_of_torch(activation: str, norm: bool) -> None:
    for widths in WIDTHS:
        given = net(archs(activation, norm), widths)
        x = normal(3, ROWS, given.views[0].weight.shape[1])
        for ours, theirs in zip(found(given, x, "native"), found(given, x, None), strict=True):
            assert (ours - theirs).abs().max() <= 3e-6 * theirs.abs().max()


@pytest.mark.parametrize("activation", ["ReLU", "GELU", "Softplus"])
def test_watched_units_are_as_active_as_torchs(activation: str) -> None:
    """Of every layer that a member has, and of no other; the output layer is none of them."""
    for widths in WIDTHS[:3]:
        given, x = net(archs(activation, True), widths), normal(3, ROWS, widths.inputs)
        seen = []
        for kernels in (build.load("native"), None):
            build.use(kernels)
            with dense.watched_units() as units:
                forward(given, x)
            seen.append(units)
        ((ours, there),), theirs = seen
        assert there is not None
        assert ours.shape[1] == len(theirs)
        for i, (size, mask) in enumerate(theirs):
            width = size.shape[2]
            own = torch.ones(3, width, dtype=torch.bool) if mask is None else mask[:, 0] > 0
            assert torch.equal(there[:, i, :width], own)
            assert not there[:, i, width:].any()
            assert (ours[:, i, :width] - size[:, 0]).masked_fill(~own, 0.0).abs().max() <= 3e-6 * size.max()
    with dense.watched_units() as units:
        pass
    forward(given, x)
    assert units == []


@pytest.mark.parametrize("activation", ["ReLU", "GELU", "Softplus"])
def test_a_members_bits_are_its_own(activation: str) -> None:
    given = net(archs(activation, True), Widths(8, 4))
    x = normal(3, ROWS, 8)
    out, grad, x_grad = found(given, x, "native")
    for i in range(3):
        part = Net(given.structure.part(i, i + 1), given.values[i : i + 1].clone(), trainable=True)
        alone = found(part, x[i : i + 1], "native")
        for ours, theirs in zip(alone, (out, grad, x_grad), strict=True):
            assert torch.equal(ours[0], theirs[i])
        few = found(part, x[i : i + 1, 4:9], "native")
        assert torch.equal(few[0][0], out[i, 4:9])


def stepped(kernels: str | None) -> tuple[Tensor, Tensor]:
    """Parameters and a target after three steps down a quadratic; the second member's loss is NaN, the third rests."""
    build.use(build.load(kernels) if kernels else None)
    own = net(archs("ReLU", False), Widths(8, 4))
    adam, target = Adam.start(own), Net(own.structure, own.values.clone())
    healthy, limit, lr = (
        torch.tensor([True, True, False]),
        torch.tensor([0.5, 1e9, 1.0]),
        torch.tensor([0.1, 0.01, 1.0]),
    )
    for _ in range(3):
        out = forward(own, normal(3, ROWS, 8))
        losses = out.square().sum(dim=(1, 2)) * torch.tensor([1.0, torch.nan, 1.0])
        healthy = optim.descend(losses, healthy, limit, (own, adam, lr))
        optim.polyak(target, own, torch.tensor([0.3, 0.0, 1.0]) * healthy)
    assert healthy.tolist() == [True, False, False]
    assert adam.steps.tolist() == [3.0, 0.0, 0.0]
    return own.values, target.values


def test_learning_is_torchs_and_freezes_whoever_diverged() -> None:
    before = net(archs("ReLU", False), Widths(8, 4)).values
    (ours, target), (theirs, theirs_target) = stepped("native"), stepped(None)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(target, theirs_target, rtol=1e-5, atol=1e-6)
    assert not torch.equal(ours[0], before[0])
    assert torch.equal(ours[1:], before[1:])
    assert torch.equal(target[1:], before[1:])


def test_polyak_copies_and_leaves_to_the_bit() -> None:
    build.use(build.load())
    online = net(archs("ReLU", False), Widths(8, 4))
    shape = online.structure
    target = Net(shape, shape.pack(shape.unpack(normal(*online.values.shape))))
    was = target.values.clone()
    optim.polyak(target, online, torch.tensor([1.0, 0.0, 1.0]))
    assert torch.equal(target.values[::2], online.values[::2])
    assert torch.equal(target.values[1], was[1])


def test_spans_are_the_cache_lines_that_hold_a_members_own_numbers() -> None:
    shape = net(archs("ReLU", True), Widths(8, 4)).structure
    told = optimiser.owned(shape).tolist()
    for row, index in enumerate(shape.index):
        spans = told[told[row] : told[row + 1]]
        lines = {line for a, b in zip(spans[::2], spans[1::2], strict=True) for line in range(a, b, 16)}
        assert lines == {at // 16 * 16 for at in index.tolist()}
    assert told[len(shape.index)] == len(told)


def test_other_numbers_and_parameters_of_another_place_go_through_torch() -> None:
    build.use(build.load())
    own = net(archs("ReLU", False), Widths(8, 4))
    double = Net(own.structure, own.values.double())
    assert forward(double, normal(3, ROWS, 8).double()).dtype == torch.float64
    moved = [view._replace(weight=view.weight * 2) for view in own.views]
    torch.testing.assert_close(
        forward(own, normal(3, ROWS, 8), moved), found_with_torch(own, moved), rtol=0.0, atol=0.0
    )


def found_with_torch(own: Net, views: object) -> Tensor:
    build.use(None)
    return forward(own, normal(3, ROWS, 8), views)


def test_without_a_compiler_torch_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    build.load.cache_clear()
    machine.say_once.cache_clear()
    configure(RuntimeConfig(kernels="auto"))
    configure(RuntimeConfig(kernels="auto"))
    assert capsys.readouterr().err.count("networks are computed by torch: no C compiler was found") == 1
    assert fingerprint()["kernels"] == "torch"
    with pytest.raises(ParamsError, match=r"^runtime\.kernels: no C compiler was found; install gcc"):
        configure(RuntimeConfig(kernels="native"))


@pytest.mark.thorough
def test_they_are_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    for _ in range(2):
        build.load.cache_clear()
        build.load()
        (file,) = (tmp_path / "evopipe").glob("*.so")
        made.append(file.stat().st_mtime_ns)
    assert made[0] == made[1]
    build.load.cache_clear()


@pytest.mark.thorough
def test_a_run_has_the_same_bits_by_any_number_of_learners(tmp_path: Path) -> None:
    told = []
    for learners in (1, 2):
        given = {"runtime.kernels": "native", "runtime.learners": learners}
        folder = prepared(tmp_path / str(learners), given)
        answer = evopipe(folder, "train")
        assert answer.returncode == 0, answer.stderr
        told.append(digests(folder, TRAINED))
    assert told[0] == told[1]
    other = prepared(tmp_path / "torch", {"runtime.kernels": "torch"})
    assert evopipe(other, "train").returncode == 0
    assert digests(other, TRAINED) != told[0]


def test_a_language_model_leaves_the_kernels_as_they_are() -> None:
    build.load()  # else they cannot be asked for
    configure(RuntimeConfig(kernels="native"))
    configure(TextRuntime())
    assert fingerprint()["kernels"] == "native"


def test_an_update_without_memory_is_an_error_and_not_a_diverged_member() -> None:
    weight = torch.ones(1)  # the kernel reads it
    with pytest.raises(MemoryError, match="the kernels need more"):
        build.done(build.load().value_update(*starving(weight), 1))


def test_they_know_every_activation() -> None:
    assert sorted(dense.ACTIVATIONS) == sorted(ACTIVATIONS)
