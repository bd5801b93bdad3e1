"""Running statistics merged by the kernels: the numbers, whose they are, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch

from evopipe.core.normalise import Statistics
from evopipe.native import build
from evopipe.types import Tensor

P, N = 3, 5


@pytest.fixture(autouse=True)
def _kernels_that_are_here() -> Iterator[None]:
    build.use(build.load())
    yield
    build.use(None)


def nothing() -> Statistics:
    return Statistics(*(torch.zeros(shape, dtype=torch.float64) for shape in ((P,), (P, N), (P, N))))


def values(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """`[P, n, N]` far from 0, and which are given: of the last member none."""
    draw = torch.Generator().manual_seed(seed)
    given = torch.rand(P, n, generator=draw) < 0.7
    given[-1] = False
    return 1e3 + torch.randn(P, n, N, generator=draw), given


@pytest.mark.parametrize("cuts", [(0, 40), (0, 1, 2, 3, 40), (0, 8, 16, 24, 32, 40)])
def test_mean_and_variance_are_those_of_all_given_values(cuts: tuple[int, ...]) -> None:
    x, given = values(40)
    found = nothing()
    for first, end in pairwise(cuts):
        found.merge(x[:, first:end], given[:, first:end])
    for p in range(P - 1):
        own = x[p, given[p]].double().numpy()
        assert found.count[p] == len(own)
        np.testing.assert_allclose(found.mean[p], own.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(found.square[p] / len(own), own.var(axis=0), rtol=1e-9)
    assert not any(each[-1].any() for each in (found.count, found.mean, found.square)), "nothing was given"


def test_what_is_not_given_is_not_read_and_members_are_apart() -> None:
    (x, given), found, spoiled = values(8), nothing(), nothing()
    found.merge(x, given)
    spoiled.merge(torch.where(given[..., None], x, torch.nan), given)
    alone = Statistics(*(each[:1] for each in (nothing().count, nothing().mean, nothing().square)))
    alone.merge(x[:1], given[:1])
    for name in ("count", "mean", "square"):
        assert torch.equal(getattr(found, name), getattr(spoiled, name))
        assert torch.equal(getattr(found, name)[:1], getattr(alone, name))


def test_torch_merges_to_the_same_numbers() -> None:
    ours, theirs = nothing(), nothing()
    for seed in range(5):
        ours.merge(*values(32, seed))
    with build.by_operators():
        for seed in range(5):
            theirs.merge(*values(32, seed))
    for name in ("count", "mean", "square"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-12, atol=0.0)
    assert torch.equal(ours.scale(), theirs.scale())
