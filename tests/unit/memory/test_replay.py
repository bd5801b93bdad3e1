"""Ring memories of packed transitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evopipe.memory.replay import Replay, RowLayout
from evopipe.types import Spaces

CPU = torch.device("cpu")
LAYOUT = RowLayout(obs=2, actions=3, masked=False)


def replay(memories: int = 1, capacity: int = 8, layout: RowLayout = LAYOUT) -> Replay:
    return Replay(layout, memories, capacity, CPU)


def numbered(memories: int, first: int, n: int) -> np.ndarray:
    """Rows `[M, n, size]` whose reward is their number plus 1000 times their memory."""
    rows = np.zeros((memories, n, LAYOUT.size), np.float32)
    rows[:, :, 5] = np.arange(first, first + n) + 1000 * np.arange(memories)[:, None]
    return rows


def fill(memory: Replay, first: int, n: int) -> None:
    memory.add(numbered(memory.memories, first, n), np.ones((memory.memories, n), bool))


def held(memory: Replay, i: int = 0) -> list[float]:
    return sorted(memory.rows[i, : memory.size[i], 5].tolist())


def every_position(memory: Replay, slots: list[int]) -> torch.Tensor:
    u = (torch.arange(400, dtype=torch.float64) / 400).view(1, 1, -1).expand(len(slots), 1, -1)
    return memory.sample(slots, u)


def test_packing_and_unpacking_are_inverse() -> None:
    rng = np.random.default_rng(0)
    layout = RowLayout(obs=3, actions=4, masked=True, legal=True)
    obs, next_obs = rng.normal(size=(2, 6, 3)).astype(np.float32)
    action, reward = rng.integers(4, size=6), rng.normal(size=6).astype(np.float32)
    terminated, (legal, next_legal) = rng.random(6) < 0.5, rng.random((2, 6, 4)) < 0.5
    rows = layout.pack(obs, action, reward, terminated, next_obs, next_legal, legal=legal)
    assert rows.shape == (6, layout.size)
    weight, gamma = torch.ones(1, 6), torch.tensor([0.5])
    batch = layout.unpack(torch.from_numpy(rows)[None], weight, gamma)
    np.testing.assert_array_equal(batch.obs[0], obs)
    np.testing.assert_array_equal(batch.next_obs[0], next_obs)
    np.testing.assert_array_equal(batch.action[0], action)
    np.testing.assert_array_equal(batch.reward[0], reward)
    np.testing.assert_array_equal(batch.discount[0], 0.5 * ~terminated)
    assert batch.legal is not None
    assert batch.next_legal is not None
    np.testing.assert_array_equal(batch.legal[0], legal)
    np.testing.assert_array_equal(batch.next_legal[0], next_legal)
    assert batch.action.dtype == torch.int64
    assert batch.weight is weight


def test_a_masked_layout_takes_transitions_without_masks_as_all_legal() -> None:
    layout = RowLayout(obs=2, actions=3, masked=True, legal=True)
    one = np.zeros((1, 2), np.float32)
    batch = layout.unpack(
        torch.from_numpy(layout.pack(one, *np.zeros((3, 1)), one))[None], torch.ones(1, 1), torch.ones(1)
    )
    for mask in (batch.legal, batch.next_legal):
        assert mask is not None
        assert mask.all()
    bare = LAYOUT.unpack(torch.zeros(1, 1, LAYOUT.size), torch.ones(1, 1), torch.ones(1))
    assert bare.legal is bare.next_legal is None


def test_masks_take_room_only_where_they_are_read() -> None:
    spaces = Spaces(observations=2, actions=3)
    sizes = [RowLayout.of(spaces, masked, legal=legal).size for masked in (False, True) for legal in (False, True)]
    assert sizes == [7, 7, 10, 13]


@pytest.mark.parametrize("memories", [1, 3])
def test_the_oldest_rows_go_first(memories: int) -> None:
    memory = replay(memories)
    for first in range(0, 20, 4):
        fill(memory, first, 4)
    for i in range(memories):
        assert held(memory, i) == [1000 * i + n for n in range(12, 20)]
    assert memory.size.tolist() == [8] * memories


def test_more_rows_than_fit_leave_the_last_ones() -> None:
    memory = replay(capacity=5)
    fill(memory, 0, 13)
    assert held(memory) == [8, 9, 10, 11, 12]
    fill(memory, 13, 2)
    assert held(memory) == [10, 11, 12, 13, 14]


def test_more_rows_than_fit_leave_the_last_good_ones() -> None:
    memory = replay(capacity=3)
    keep = np.array([[True, True, True, True, False, False, True]])
    memory.add(numbered(1, 0, 7), keep)
    assert held(memory) == [2, 3, 6]


@pytest.mark.parametrize("memories", [1, 3])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_non_finite_rows_never_enter(memories: int, poison: float) -> None:
    memory = replay(memories)
    for first in range(0, 40, 4):
        rows = numbered(memories, first, 4)
        rows[memories - 1, 1, first % LAYOUT.size] = poison
        memory.add(rows, np.ones(rows.shape[:2], bool))
    assert torch.isfinite(memory.rows).all()
    assert not any(n % 4 == 1 for n in held(memory, memories - 1))
    if memories == 3:
        assert held(memory, 0) == list(range(32, 40))


def test_rows_that_are_not_to_be_kept_leave_no_gap() -> None:
    memory = replay(2, capacity=6)
    keep = np.array([[True, False, True, False], [False, False, False, True]])
    memory.add(numbered(2, 0, 4), keep)
    memory.add(numbered(2, 4, 4), ~keep)
    assert memory.size.tolist() == memory.position.tolist() == [4, 4]
    assert memory.rows[0, :4, 5].tolist() == [0, 2, 5, 7]
    assert memory.rows[1, :4, 5].tolist() == [1003, 1004, 1005, 1006]


def test_a_shared_memory_serves_all_and_an_own_one_its_member() -> None:
    shared, own = replay(1), replay(3)
    fill(shared, 0, 8)
    fill(own, 0, 8)
    assert (every_position(shared, [0, 2])[..., 5] < 1000).all()
    drawn = every_position(own, [2, 0])[..., 5]
    assert ((drawn[0] >= 2000) & (drawn[0] < 2008)).all()
    assert (drawn[1] < 8).all()


def test_sampling_reaches_filled_rows_only_and_all_of_them_equally() -> None:
    memory = replay(2, capacity=64)
    memory.add(numbered(2, 0, 8), np.array([[True] * 8, [True] * 5 + [False] * 3]))
    drawn = every_position(memory, [0, 1])[:, 0, :, 5]
    assert torch.bincount(drawn[0].long()).tolist() == [50] * 8
    assert torch.bincount(drawn[1].long() - 1000).tolist() == [80] * 5


def test_the_largest_draw_stays_inside() -> None:
    for size in (1, 3, 7, 100_000, 99_999):
        memory = Replay(RowLayout(1, 1, False), 1, size, CPU)
        memory.size[:] = size
        u = torch.full((1, 1, 1), 1 - 2.0**-53, dtype=torch.float64)
        assert memory.sample([0], u).shape == (1, 1, 1, 5)


def test_a_memory_smaller_than_a_batch_is_sampled_with_replacement() -> None:
    memory = replay(capacity=3)
    fill(memory, 0, 2)
    u = torch.rand(1, 2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = memory.sample([0], u)
    assert drawn.shape == (1, 2, 50, LAYOUT.size)
    assert set(drawn[..., 5].flatten().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("memories", [1, 2])
@pytest.mark.parametrize("added", [0, 5, 21])
def test_a_restored_memory_goes_on_exactly(memories: int, added: int) -> None:
    """Where memories are filled unlike, too, and whatever it held before is gone."""
    memory = replay(memories)
    for first in range(0, added, 3):
        keep = np.ones((memories, 3), bool)
        keep[1:, 1:] = False  # the first memory gets three rows, others one
        memory.add(numbered(memories, first, 3), keep)
    state, other = memory.state(), replay(memories)
    fill(other, 50, 5)
    other.restore(state)
    assert [held(other, i) for i in range(memories)] == [held(memory, i) for i in range(memories)]
    for each in (memory, other):
        fill(each, 100, 3)
    for ours, theirs, size in zip(memory.rows, other.rows, memory.size, strict=True):
        assert torch.equal(ours[:size], theirs[:size])
    assert memory.position.tolist() == other.position.tolist()
    assert memory.size.tolist() == other.size.tolist()


def test_a_saved_state_does_not_change_with_the_memory() -> None:
    memory = replay()
    fill(memory, 0, 4)
    state = memory.state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    fill(memory, 4, 7)
    assert all(torch.equal(before[name], state[name]) for name in state)
    other = replay()
    other.restore(state)
    fill(other, 50, 3)
    assert all(torch.equal(before[name], state[name]) for name in state)
