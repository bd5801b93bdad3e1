"""Under the CPU's own kernels a member is healthy exactly where it is under torch, however large observations are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import kernel_cases as cases
from crews import Crewed, P
from evopipe.core.arch import Arch
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.net import Net, forward
from evopipe.core.structure import Widths
from evopipe.native import build
from evopipe.types import Batch, Spaces, Tensor
from reference import ACTIVATIONS as EXACT

pytestmark = pytest.mark.numerical
SIZES = (1e6, 1e17, 1e21, 1e30)
"""Of observations. A square of the last two overflows."""
UPDATES: dict[str, dict[str, Any]] = {
    "dqn": {}, "cqn": {}, "rainbow": {"v_min": -3.0, "v_max": 3.0, "atoms": 11}, "ddpg": {"policy_delay": 1},
    "td3": {"policy_delay": 1}, "td3bc": {"policy_delay": 1}, "sac": {}, "sac:discrete": {},
    "maddpg": {"policy_delay": 1}, "matd3": {"policy_delay": 1},
}  # fmt: skip
QUICK = {"dqn", "ddpg"}


@pytest.fixture(autouse=True)
def torch_again() -> Iterator[None]:
    yield
    build.use(None)


def both(compute: Any) -> tuple[Any, Any]:
    """What the kernels make of something, and torch."""
    found = []
    for kernels in (build.load(), None):
        build.use(kernels)
        found.append(compute())
    return found[0], found[1]


def large(batch: Batch, size: float) -> Batch:
    """The second member's observations are so large."""
    obs, next_obs = batch.obs.clone(), batch.next_obs.clone()
    obs[1] *= size
    next_obs[1] *= size
    return replace(batch, obs=obs, next_obs=next_obs)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in UPDATES]
)
def test_the_same_members_are_healthy_after_an_update(name: str, norm: bool) -> None:
    algo = name.partition(":")[0]
    continuous = algo not in ("dqn", "cqn", "rainbow") and "discrete" not in name
    for turn, activation in enumerate(sorted(ACTIVATIONS)):
        d = cases.Draw(turn)
        width = d.size(3, 40)  # all members fill their layers: torch's pads have their own way to overflow
        arch = Arch((Block(width),), width, (), activation, norm)
        spaces = d.team(continuous) if algo.startswith("ma") else Spaces(5, 3, continuous=continuous)
        given = Crewed(algo, spaces, arch=arch, **UPDATES[name])
        batch = cases.transitions(spaces, turn, rows=9) if spaces.team else cases.alone(d, spaces, 9, False)
        for size in SIZES:
            grown = large(batch, size)

            def learned(given: Crewed = given, grown: Batch = grown) -> Any:
                cohort = given.cohort()
                found = given.update(cohort, grown, 0, 0)
                return found, cohort.tensors()

            (ours, held), (theirs, torchs) = both(learned)
            case = activation, size
            assert ours.healthy.tolist() == theirs.healthy.tolist(), case
            assert ours.healthy[[0, 2]].all(), case
            finite = theirs.losses.isfinite()
            torch.testing.assert_close(ours.losses[finite], theirs.losses[finite], rtol=1e-3, atol=1e-4, msg=str(case))
            for mine, other in zip(held, torchs, strict=True):
                assert torch.equal(mine.isfinite(), other.isfinite()), case


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations_are_those_of_torch_at_every_size(activation: str) -> None:
    """Relatively near, too, where they are small: ELU next to 0, softplus far below it; and at infinity."""
    sizes = 10.0 ** torch.arange(-30.0, 31.0)
    x = torch.cat((-sizes.flip(0), torch.zeros(1), sizes, torch.linspace(-30.0, 30.0, 241)))
    edges = torch.tensor([torch.inf, -torch.inf, torch.nan])
    arch, widths = Arch((), 1, (), activation, False), Widths(1, 0, "encoder")

    def out(x: Tensor) -> tuple[Tensor, Tensor]:
        structure = Arch.stack([arch], widths, cases.CPU)
        x = x.clone().view(1, -1, 1).requires_grad_(True)
        found = forward(Net(structure, structure.pack([torch.tensor([1.0, 0.0])]), trainable=True), x)
        (slope,) = torch.autograd.grad(found[..., 0].sum(), x)
        return found.detach()[0, :, 0], slope.flatten()

    (ours, slopes), _ = both(lambda: out(x))
    double = x.double().requires_grad_(True)
    right = EXACT[activation](double)
    (right_slopes,) = torch.autograd.grad(right.sum(), double)
    tails = {"GELU": 3e-7, "SiLU": 1e-7}.get(activation, 1e-35)  # of these only the distance is known far below 0
    torch.testing.assert_close(ours, right.detach().float(), rtol=1e-5, atol=tails)
    torch.testing.assert_close(slopes, right_slopes.float(), rtol=1e-4, atol=1e-6)
    (ours, _), (theirs, _) = both(lambda: out(edges))
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    torch.testing.assert_close(ours[ours.isfinite()], theirs[ours.isfinite()], rtol=1e-5, atol=1e-7)


def test_a_normalised_row_that_overflows_is_no_number() -> None:
    """Whoever computes, with pads and without: 1 / √∞ = 0 would hide it. Whatever width a layer has."""
    for width in (5, 9, 16, 33):
        for neighbour in (width, width + 20):
            archs = [Arch((Block(each),), 4, (), "Tanh", True) for each in (width, neighbour)]
            structure = Arch.stack(archs, Widths(6, 3), cases.CPU)
            rows = [torch.randn(len(index), generator=torch.Generator().manual_seed(1)) for index in structure.index]
            x = torch.randn(2, P, 6, generator=torch.Generator().manual_seed(2))
            x[:, 1] *= 1e21

            def out(structure: Any = structure, rows: Any = rows, x: Tensor = x) -> Tensor:
                return forward(Net(structure, structure.pack(rows)), x)

            for found in both(out):
                assert found.isnan().flatten(2).any(dim=2).tolist() == [[False, True, False]] * 2, (width, neighbour)
