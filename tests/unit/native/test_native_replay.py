"""Batches by the CPU's own kernels are those of torch: the same rows, drawn by the same counters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from evopipe.memory.priorities import Priorities
from evopipe.memory.replay import Replay, RowLayout
from evopipe.native import build
from evopipe.native.replay import importances
from evopipe.rng import Purpose, Stream
from evopipe.types import Batch, Tensor

CPU, MEMBERS, CAPACITY, ROWS = torch.device("cpu"), 3, 3000, 70
FILLED = torch.tensor([3000, 1, 1234])
LAYOUTS = [
    RowLayout(obs=6, actions=4, masked=masked, continuous=continuous, steps=steps, legal=masked, agents=agents)
    for masked, continuous, steps, agents in itertools.product((False, True), (False, True), (1, 3), (0, 2))
    if not (masked and continuous)
]


@pytest.fixture(autouse=True)
def torch_again() -> Iterator[None]:
    yield
    build.use(None)


def memory(layout: RowLayout, prioritised: bool = False) -> Replay:
    draw = torch.Generator().manual_seed(4)
    trees = Priorities(MEMBERS, CAPACITY, 0.6, CPU) if prioritised else None
    replay = Replay(layout, MEMBERS, CAPACITY, CPU, trees)
    replay.rows.copy_(torch.randint(0, 2, replay.rows.shape, generator=draw))
    replay.rows[..., : 2 * layout.obs].normal_(generator=draw)
    replay.rows[..., layout._reward : layout._reward + layout.steps * layout.each].normal_(generator=draw)
    if layout.steps > 1:
        taken = replay.rows[..., layout._mask - layout.each : layout._mask]
        taken.copy_(torch.randint(1, layout.steps + 1, taken.shape, generator=draw))
    if trees is not None:
        found = torch.rand(MEMBERS, CAPACITY, generator=draw) * (torch.arange(CAPACITY) < FILLED[:, None])
        trees.restore({"priorities": found, "largest": found.amax(dim=1)})
    return replay


def batch(replay: Replay, kernels: Any) -> tuple[Batch, Tensor]:
    build.use(kernels)
    draw = Stream(torch.tensor([5, -9, 2**60]), Purpose.REPLAY, torch.tensor([77]))
    slots, weight = [2, 0, 1], torch.zeros(MEMBERS, ROWS)  # no member's place is its slot
    weight[0], weight[1, :20], weight[2, :1] = 1 / ROWS, 1 / 20, 1.0
    gamma = torch.tensor([0.99, 0.0, 1.0])
    return replay.batch(
        draw, torch.tensor(slots), replay.first(slots), FILLED[slots], weight, torch.tensor(0.4), gamma
    )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_batch_is_torchs(layout: RowLayout) -> None:
    replay = memory(layout)
    (ours, drawn), (theirs, expected) = batch(replay, build.load()), batch(replay, None)
    counts = theirs.weight > 0
    assert not counts.all()
    assert torch.equal(drawn[counts], expected[counts])
    for name in Batch.__dataclass_fields__:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None) == (other is None)
        if one is not None:
            tolerance = 1e-6 if name == "reward" else 0.0
            torch.testing.assert_close(one[counts], other[counts], rtol=1e-6, atol=tolerance)
            assert one[~counts].isfinite().all()
    assert not ours.weight[~counts].any()


@pytest.mark.parametrize("first", [Purpose.REPLAY, Purpose.PROBE])
def test_two_purposes_that_share_all_tensors_draw_each_its_own(first: Purpose) -> None:
    """Whichever drew first: the minibatch of a probe is not the one that members learn from."""
    slots, weight, gamma = torch.tensor([2, 0, 1]), torch.full((MEMBERS, ROWS), 1 / ROWS), torch.ones(MEMBERS)
    keys, when, replay = torch.tensor([5, -9, 2**60]), torch.tensor([77]), memory(LAYOUTS[0])
    given = slots, replay.first([2, 0, 1]), FILLED[[2, 0, 1]], weight, torch.tensor(0.4), gamma
    other = Purpose.PROBE if first == Purpose.REPLAY else Purpose.REPLAY
    for purpose in (first, other, first):
        found = []
        for kernels in (build.load(), None):
            build.use(kernels)
            found.append(replay.batch(Stream(keys, purpose, when), *given)[1].clone())
        assert torch.equal(*found), purpose


def test_draws_by_priority_are_torchs() -> None:
    """The same rows: a share that lies within a rounding of two rows' border is not among these."""
    replay = memory(LAYOUTS[0], prioritised=True)
    (ours, drawn), (theirs, expected) = batch(replay, build.load()), batch(replay, None)
    counts = theirs.weight > 0
    assert torch.equal(drawn[counts], expected[counts])
    assert torch.equal(ours.obs[counts], theirs.obs[counts])
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=0.0)


def test_priorities_follow_errors_as_torchs_do() -> None:
    """NaN leaves a priority, an infinite error gives the most, and the sums are those of a tree made anew."""
    found = []
    for kernels in (True, False):
        build.use(build.load() if kernels else None)
        trees = memory(LAYOUTS[0], prioritised=True).priorities
        assert trees is not None
        index = torch.tensor([[7, 2999, 7, 31, 0], [0, 0, 0, 0, 0], [3, 4, 5, 6, 33]])
        errors = torch.tensor([[1.0, torch.nan, 2.0, torch.inf, 0.0], [1.0, 5.0, torch.nan, 2.0, 0.0], [1e-3] * 5])
        trees.update(torch.tensor([1, 2, 0]), index, errors)
        trees.admit(torch.tensor([0, 2]), torch.tensor([11, 2998]))
        found.append(trees)
        again = Priorities(MEMBERS, CAPACITY, 0.6, CPU)
        again.restore(trees.state(CAPACITY))
        assert all(torch.equal(a, b) for a, b in zip(trees.tensors(), again.tensors(), strict=True))
    for ours, theirs in zip(found[0].tensors(), found[1].tensors(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0.0)


def test_weights_are_shares_of_the_largest_that_counts() -> None:
    """However rare a row is that does not count."""
    build.use(build.load())
    chance, weight = torch.tensor([[0.5, 0.125, 1e-6], [0.25, 0.25, 0.5]]), torch.tensor([[0.5, 0.5, 0.0], [1.0] * 3])
    found = importances(torch.tensor([8, 4]), chance, weight, torch.tensor(0.5))
    # (8 · 0.5)^-½ is ½, (8 · 0.125)^-½ is 1; (4 · 0.25)^-½ is 1
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.5, 0.0], [1.0, 1.0, 0.5**0.5]]), rtol=1e-6, atol=0.0)
