"""Choices by the CPU's own kernels: squashed numbers are torch's to the bit."""

from __future__ import annotations

import pytest
import torch

from evopipe import algos
from evopipe.native import build
from evopipe.ops.distributions import squashed, squashed_draw

EXTREME = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-30, 20.0, -20.5, 0.5, -0.5, 0.50001, 100.0]


@pytest.fixture(autouse=True)
def _torch_again() -> None:
    build.use(None)


def numbers(scale: float, seed: int) -> torch.Tensor:
    drawn = torch.randn(200_000, generator=torch.Generator().manual_seed(seed)) * scale
    return torch.cat([drawn, torch.tensor(EXTREME)])


def both(of: object, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = []
    for kernels in (None, build.load()):
        build.use(kernels)
        found.append(of(*given))  # type: ignore[operator]
    build.use(None)
    return found[0], found[1]


@pytest.mark.parametrize("scale", [0.01, 0.4, 1.0, 5.0])
def test_what_is_squashed_is_torchs(scale: float) -> None:
    theirs, ours = both(squashed, numbers(scale, 1))
    assert torch.equal(theirs.isnan(), ours.isnan())
    assert (theirs.nan_to_num() == ours.nan_to_num()).all()
    assert torch.equal(theirs.nan_to_num().signbit(), ours.nan_to_num().signbit())


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_so_is_a_draw(scale: float) -> None:
    mean, noise = numbers(scale, 2), numbers(1.0, 3).nan_to_num(posinf=3.0, neginf=-3.0)
    log_std = (numbers(3.0, 4)).clamp(-20.0, 2.0)
    theirs, ours = both(squashed_draw, mean.view(2, -1), log_std.view(2, -1), noise.view(2, -1))
    assert theirs.isnan().any()
    assert torch.equal(theirs.isnan(), ours.isnan())
    assert (theirs.nan_to_num() == ours.nan_to_num()).all()


@pytest.mark.parametrize("shape", [(1,), (3, 1, 1), (5,), (7, 1)])
def test_a_log_deviation_expands_to_the_means_shape(shape: tuple[int, ...]) -> None:
    """One deviation of a policy, of each member, of each action: no number behind the last is read."""
    mean, noise = numbers(2.0, 1)[:105].view(3, 7, 5), numbers(1.0, 2)[:105].view(3, 7, 5)
    theirs, ours = both(squashed_draw, mean, torch.full(shape, -1.0), noise)
    assert torch.equal(theirs, ours)


def test_a_log_deviation_beyond_its_bounds_is_the_bound() -> None:
    """Kernels that choose get it as a network gives it, not yet bounded."""
    mean, noise, log_std = numbers(1.0, 5)[:64], numbers(1.0, 6)[:64], torch.tensor([2.5, 19.0, 1e30, -20.5] * 16)
    build.use(build.load())
    found, bounded = (squashed_draw(mean, each, noise) for each in (log_std, log_std.clamp(-20.0, 2.0)))
    build.use(None)
    assert torch.equal(found, bounded)
    assert not torch.equal(found, squashed_draw(mean, torch.zeros(64), noise))


def test_what_has_gradients_is_left_to_torch() -> None:
    build.use(build.load())
    x = torch.zeros(3, requires_grad=True)
    squashed(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 3
    build.use(None)


@pytest.mark.parametrize("name", [name for name in algos.names() if algos.get(name).TEAM])
def test_no_algorithm_for_teams_has_members_choose_or_play_by_the_kernels(name: str) -> None:
    """They serve one agent a row, and do not ask whether there are more."""
    assert [part for part in ("choice", "play") if algos.by_kernels(algos.get(name), part)] == []
