"""Sum trees and importance weights, against cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import populations
from evopipe.core.cohort import Cohort
from evopipe.memory.priorities import FAN_OUT, LEAST, MOST, TOP, Priorities
from evopipe.memory.replay import Replay, RowLayout
from evopipe.native import build
from evopipe.problems.env import begin
from evopipe.regimes import learn as steps
from evopipe.rng import Purpose, Stream, uniform
from evopipe.run.run import Run
from evopipe.run.spec import first_members

CPU = torch.device("cpu")
CAPACITIES = (1, 5, TOP, TOP + 1, 2000, 40_000)


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> None:
    """Both kinds of kernels, one after the other; the next test begins with its own."""
    build.use(build.load() if request.param == "native" else None)


def trees(values: torch.Tensor, alpha: float = 0.6) -> Priorities:
    """Trees with these priorities `[P, n]`."""
    made = Priorities(values.shape[0], values.shape[1], alpha, CPU)
    made.restore({"priorities": values.float(), "largest": values.float().amax(dim=1)})
    return made


def whole_numbers(members: int, capacity: int, seed: int = 0) -> torch.Tensor:
    """Priorities that add up exactly, a third of them 0, the last too: rows that are not filled."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 8, (members, capacity)) * (rng.random((members, capacity)) < 0.67)
    values[:, 0] = 3
    values[:, capacity // 2 + 1 :] = 0
    return torch.from_numpy(values).float()


def assert_sound(made: Priorities, rows: torch.Tensor) -> None:
    """Every level holds the sums of the one below, the lowest these priorities `[P, n]`."""
    torch.testing.assert_close(made.levels[0][:, : rows.shape[1]], rows)
    assert not made.levels[0][:, rows.shape[1] :].any()
    for below, above in zip(made.levels, made.levels[1:], strict=False):
        sums = below.view(len(below), -1, FAN_OUT).sum(dim=2)
        torch.testing.assert_close(above[:, : sums.shape[1]], sums)
        assert not above[:, sums.shape[1] :].any()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_draws_are_those_of_a_cumulative_sum(capacity: int) -> None:
    """Every unit of the sum is drawn once: each row as often as its priority says, no empty one ever."""
    values = whole_numbers(2, capacity)
    made = trees(values)
    for member in (0, 1):
        total = int(values[member].sum())
        u = (torch.arange(total, dtype=torch.float64) + 0.5) / total
        rows, chance = made.draw(torch.tensor([member]), u[None])
        expected = np.searchsorted(values[member].double().cumsum(0).numpy(), u.numpy() * total, side="right")
        np.testing.assert_array_equal(rows[0].numpy(), expected)
        np.testing.assert_array_equal(np.bincount(rows[0], minlength=capacity), values[member].numpy())
        torch.testing.assert_close(chance[0], values[member][rows[0]] / total, rtol=1e-6, atol=0)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_draws_of_real_priorities_agree_with_a_cumulative_sum(capacity: int) -> None:
    """To rounding: what is drawn lies where a sum in double precision says, within a millionth of the total."""
    rng = np.random.default_rng(1)
    values = torch.from_numpy(rng.gamma(0.3, size=(3, capacity)) + 1e-9).float()
    u = torch.from_numpy(rng.random((3, 500)))
    rows, chance = trees(values).draw(torch.arange(3), u)
    ends = values.double().cumsum(dim=1)
    total = ends[:, -1:]
    assert (ends.gather(1, rows) / total >= u - 1e-6).all()
    assert ((ends.gather(1, rows) - values.double().gather(1, rows)) / total <= u + 1e-6).all()
    torch.testing.assert_close(chance.double(), values.double().gather(1, rows) / total, rtol=1e-5, atol=0)


def test_rows_come_as_often_as_their_priorities_say() -> None:
    values = whole_numbers(1, 3000)
    u = uniform(torch.tensor([7]), Purpose.REPLAY, torch.arange(400), 500).view(1, -1)
    rows, _ = trees(values).draw(torch.tensor([0]), u)
    seen = torch.bincount(rows[0], minlength=3000).double() / u.numel()
    expected = values[0].double() / values.sum()
    assert float((seen - expected).abs().max()) < 5 * float((expected.max() / u.numel()).sqrt())
    assert not seen[values[0] == 0].any()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_ends_of_the_unit_interval_draw_rows_that_are_filled(capacity: int) -> None:
    rng = np.random.default_rng(2)
    values = torch.from_numpy(rng.random((40, capacity)) * (rng.random((40, capacity)) < 0.3)).float()
    values[:, capacity // 3] = 1e-3
    u = torch.tensor([0.0, 1e-300, 0.5, 1 - 2.0**-53], dtype=torch.float64).expand(40, -1)
    rows, chance = trees(values).draw(torch.arange(40), u)
    assert (values.gather(1, rows) > 0).all()
    assert (chance > 0).all()
    filled = values > 0
    assert (rows[:, 0] == filled.int().argmax(dim=1)).all()
    assert (rows[:, 3] == capacity - 1 - filled.flip(1).int().argmax(dim=1)).all()


@pytest.mark.usefixtures("kernels")
def test_huge_and_tiny_priorities_stand_side_by_side() -> None:
    values = torch.full((1, 5000), LEAST**0.6)
    values[0, 4321] = 1e20
    rows, chance = trees(values).draw(torch.tensor([0]), torch.rand(1, 64, dtype=torch.float64))
    assert (rows == 4321).all()
    assert torch.isfinite(chance).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_updates_against_brute_force(capacity: int, alpha: float) -> None:
    """Rows are admitted with the largest priority so far, then get (|error| + 1e-6)^α; of equal rows the largest."""
    rng = np.random.default_rng(3)
    made = Priorities(3, capacity, alpha, CPU)
    rows, largest = np.zeros((3, capacity)), np.ones(3)
    for _ in range(30):
        index = rng.permutation(capacity)[: rng.integers(1, 20)]
        made.admit(torch.arange(3).repeat_interleave(len(index)), torch.from_numpy(index).repeat(3))
        rows[:, index] = largest[:, None]
        slots, drawn = rng.permutation(3)[:2], rng.integers(capacity, size=(2, 40))
        errors = rng.standard_normal((2, 40)) * 3
        made.update(torch.from_numpy(slots), torch.from_numpy(drawn), torch.from_numpy(errors).float())
        for slot, which, found in zip(slots, drawn, (np.abs(errors) + LEAST) ** alpha, strict=True):
            for row in set(which):
                rows[slot, row] = found[which == row].max()
            largest[slot] = max(largest[slot], found.max())
    assert_sound(made, torch.from_numpy(rows).float())
    torch.testing.assert_close(made.largest, torch.from_numpy(largest).float())


@pytest.mark.usefixtures("kernels")
def test_an_error_that_is_no_number_leaves_the_priority() -> None:
    made = trees(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), alpha=1.0)
    errors = torch.tensor([[torch.nan, 7.0], [-torch.inf, torch.nan]])
    made.update(torch.tensor([0, 1]), torch.tensor([[0, 2], [1, 0]]), errors)
    torch.testing.assert_close(made.levels[0], torch.tensor([[1.0, 2.0, 7.0], [4.0, MOST, 6.0]]))
    assert torch.isfinite(made.draw(torch.tensor([1]), torch.rand(1, 9, dtype=torch.float64))[1]).all()


def test_what_was_foreseen_exactly_keeps_a_little_priority() -> None:
    made = trees(torch.ones(1, 3), alpha=0.5)
    made.update(torch.tensor([0]), torch.tensor([[1]]), torch.zeros(1, 1))
    assert made.levels[0][0, :3].tolist() == pytest.approx([1.0, LEAST**0.5, 1.0])


@pytest.mark.usefixtures("kernels")
def test_members_do_not_see_each_others_priorities() -> None:
    values = whole_numbers(4, 3000)
    together, u = trees(values), torch.rand(4, 50, dtype=torch.float64)
    rows, chance = together.draw(torch.arange(4), u)
    for member in range(4):
        alone, its = together.draw(torch.tensor([member]), u[member : member + 1])
        assert populations.equal(alone[0], rows[member])
        assert populations.equal(its[0], chance[member])
    before = [level.clone() for level in together.levels]
    together.update(torch.tensor([2]), torch.tensor([[5, 6]]), torch.tensor([[9.0, 9.0]]))
    others = torch.tensor([0, 1, 3])
    assert all(torch.equal(a[others], b[others]) for a, b in zip(before, together.levels, strict=True))


def test_a_saved_tree_is_the_tree() -> None:
    rng = np.random.default_rng(5)
    made = Priorities(2, 3000, 0.7, CPU)
    made.admit(torch.arange(2).repeat_interleave(1200), torch.arange(1200).repeat(2))
    for _ in range(20):
        made.update(torch.arange(2), torch.from_numpy(rng.integers(1200, size=(2, 64))), torch.randn(2, 64))
    saved = made.state(1200)
    assert saved["priorities"].shape == (2, 1200)
    other = Priorities(2, 3000, 0.7, CPU)
    other.admit(torch.arange(2), torch.tensor([2999, 7]))
    other.restore(saved)
    assert all(populations.equal(a, b) for a, b in zip(made.tensors(), other.tensors(), strict=True))


def test_a_child_goes_on_with_its_parents_priorities() -> None:
    """As they were, where the parent's own slot has a new member too; in place, for other processes see the trees."""
    values = whole_numbers(4, 40_000)
    made = trees(values)
    made.largest.copy_(torch.tensor([8.0, 9.0, 10.0, 11.0]))
    places = [tensor.data_ptr() for tensor in made.tensors()]
    made.inherit(torch.tensor([1, 3, 0]), torch.tensor([3, 1, 2]))
    assert_sound(made, values[[2, 3, 2, 1]])
    assert made.largest.tolist() == [10.0, 11.0, 10.0, 9.0]
    assert [tensor.data_ptr() for tensor in made.tensors()] == places


@pytest.mark.usefixtures("kernels")
def test_who_forgets_draws_every_filled_row_alike() -> None:
    values = whole_numbers(3, 3000)
    values[1, :7] = torch.tensor([MOST, 1e-4, 0, 1, 9, 2, 3])
    made = trees(values)
    places = [tensor.data_ptr() for tensor in made.tensors()]
    made.forget(torch.tensor([1]))
    values[1] = (values[1] > 0).float()
    assert_sound(made, values)
    assert made.largest.tolist() == [7.0, 1.0, 7.0]
    assert [tensor.data_ptr() for tensor in made.tensors()] == places


def test_where_nobody_was_replaced_nothing_changes() -> None:
    made, none = trees(whole_numbers(2, 3000)), torch.empty(0, dtype=torch.int64)
    before = [tensor.clone() for tensor in made.tensors()]
    made.inherit(none, none)
    made.forget(none)
    assert all(populations.equal(a, b) for a, b in zip(before, made.tensors(), strict=True))


# ------------------------------------------------------------------------------------------ with a memory, in a run


@pytest.mark.parametrize("seed", range(6))
def test_priorities_are_inherited_from_any_parent_that_samples_the_same_memory(seed: int) -> None:
    """From a lower slot or a higher one, all at once; of another memory, or where there is none, rows are alike."""
    draws, each = np.random.default_rng(seed), 1 + seed % 3
    parents = draws.integers(-1, 6, 6).tolist() if seed else None
    rows = whole_numbers(6, 40, seed)
    rows[:, 30:] = 0.0  # not filled yet
    made = trees(rows)
    learning = object.__new__(steps.ReplayLearning)
    learning._members = 6
    learning.replay = SimpleNamespace(priorities=made, memories=6 // each, device=rows.device)  # type: ignore[assignment]
    largest = made.largest.clone()
    learning.inherit(parents)
    for slot, parent in enumerate([-1] * 6 if parents is None else parents):
        same = parent // each == slot // each
        right = rows[parent] if same else (rows[slot] > 0).float()
        assert torch.equal(made.levels[0][slot, :40], right), (slot, parent)
        assert made.largest[slot] == (largest[parent] if same else 1.0)
    found = made.levels[0][:, :40].clone()
    assert_sound(made, found)
    learning.replay = SimpleNamespace(priorities=None, memories=6, device=rows.device)  # type: ignore[assignment]
    learning.inherit(parents)


def filled(members: int, memories: int, rows: Sequence[int], capacity: int = 3000) -> Replay:
    """A prioritised memory whose reward is the number of the row, plus 10 000 times the memory's."""
    layout = RowLayout(obs=1, actions=2, masked=False)
    replay = Replay(layout, memories, capacity, CPU, Priorities(members, capacity, 0.6, CPU))
    numbers = np.zeros((memories, max(rows), layout.size), np.float32)
    numbers[:, :, 3] = np.arange(max(rows)) + 10_000 * np.arange(memories)[:, None]
    replay.add(numbers, np.arange(max(rows)) < np.array(rows)[:, None])
    return replay


@pytest.mark.parametrize("each", [1, 2])
def test_a_memory_that_was_emptied_gives_nothing_of_what_was_in_it(each: int) -> None:
    """Nor do its members hold one row for likelier than another, whatever was before; others keep what they have."""
    replay = filled(2 * each, 2, [2000, 1500], capacity=2100)
    replay.each, trees = each, replay.priorities
    assert trees is not None
    slots = torch.arange(2 * each)
    trees.update(slots, torch.arange(500).repeat(2 * each, 1), torch.full((2 * each, 500), 50.0))
    kept = [level[:each].clone() for level in trees.levels]
    replay.clear([1])
    assert replay.size.tolist() == [2000, 0]
    rows = np.full((2, 7, replay.layout.size), 3.0, np.float32)
    replay.add(rows, np.array([[False] * 7, [True] * 7]))
    index, chance = trees.draw(slots, torch.rand(2 * each, 400, dtype=torch.float64, generator=torch.manual_seed(0)))
    assert sorted(set(index[each:].flatten().tolist())) == [*range(7)]
    torch.testing.assert_close(chance[each:], torch.full_like(chance[each:], 1 / 7))
    assert all(torch.equal(level[:each], before) for level, before in zip(trees.levels, kept, strict=True))
    assert trees.largest[each:].tolist() == [1.0] * each
    assert trees.largest[0] > 1.0


@pytest.mark.parametrize("memories", [1, 3])
def test_importance_weights_by_brute_force(memories: int) -> None:
    rows = [1500, 700, 20][:memories]
    replay = filled(3, memories, rows)
    assert replay.priorities is not None
    rng, slots = np.random.default_rng(0), torch.tensor([2, 0])
    for slot in range(3):
        held = rows[slot if memories > 1 else 0]
        errors = torch.from_numpy(rng.gamma(0.5, size=(1, held))).float()
        replay.priorities.update(torch.tensor([slot]), torch.arange(held)[None], errors)
    u = torch.from_numpy(rng.random((2, 48)))
    weight = torch.zeros(2, 48)
    weight[0, :48], weight[1, :20] = 1 / 48, 1 / 20
    size = torch.from_numpy(replay.filled(slots.tolist()))
    drawn, index, given = replay.draw_by_priority(
        slots, replay.first(slots.tolist()), size, u, weight, torch.tensor(0.7)
    )
    for i, slot in enumerate(slots.tolist()):
        memory = slot if memories > 1 else 0
        priorities = replay.priorities.levels[0][slot].double().numpy()
        p = priorities / priorities.sum()
        own = (weight[i] > 0).numpy()
        raw = (rows[memory] * p[index[i].numpy()]) ** -0.7
        np.testing.assert_allclose(given[i].numpy(), weight[i].numpy() * raw / raw[own].max(), rtol=2e-5, atol=1e-9)
        np.testing.assert_array_equal(drawn[i, :, 3].numpy(), index[i].numpy() + 10_000 * memory)
        assert float((given[i] / weight[i])[own].max()) == pytest.approx(1.0)


def test_equal_priorities_weigh_as_uniform_sampling_does() -> None:
    replay, weight = filled(1, 1, [500]), torch.full((1, 16), 1 / 16)
    u = torch.rand(1, 16, dtype=torch.float64)
    _, index, given = replay.draw_by_priority(
        torch.tensor([0]), torch.tensor([0]), torch.tensor([500]), u, weight, torch.tensor(0.4)
    )
    torch.testing.assert_close(given, weight)
    assert torch.equal(index, (u * 500).long())


@pytest.mark.parametrize("memories", [1, 2])
def test_rows_that_are_overwritten_begin_anew(memories: int) -> None:
    """The ring goes round: what took the place of an old row has the largest priority, not the old row's."""
    replay = filled(2, memories, [40] * memories, capacity=50)
    trees = replay.priorities
    assert trees is not None
    trees.update(torch.tensor([0, 1]), torch.arange(40).expand(2, -1), torch.full((2, 40), 0.01))
    replay.add(np.zeros((memories, 20, replay.layout.size), np.float32), np.ones((memories, 20), bool))
    low = torch.tensor((0.01 + LEAST) ** 0.6)
    expected = torch.ones(2, 50)
    expected[:, 10:40] = low
    torch.testing.assert_close(trees.levels[0], expected)


def prioritised(batches: tuple[int, int] = (32, 32), **replay: object) -> Run:
    """Two members in one cohort that have these batch sizes."""
    train = {"replay": {"capacity": 2000, "sharing": "own", "prioritised": True, **replay}, "max_steps": 4000,
             "evo_steps": 4000}  # fmt: skip
    p = populations.problem("CartPole-v1", "dqn", train=train)
    members = [
        replace(m, hyper={**m.hyper, "batch_size": b}) for m, b in zip(first_members(p, 2)[0], batches, strict=True)
    ]
    return begin(p, members)


def test_the_correction_grows_from_beta_to_one_over_the_run() -> None:
    """Peer fault: it compounded, and counted every environment, so that it was 1 after a fiftieth of the run."""
    run = prioritised(beta=0.4)
    half = run.clock.total // 2
    given = [float(steps._beta(run.spec, tick)) for tick in (0, half, run.clock.total, 2 * run.clock.total)]
    assert given == pytest.approx([0.4, 0.7, 1.0, 1.0])
    run.close()


def errors_of(run: Run, cohort: Cohort, tick: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that the next update draws, its importance weights, and the errors it will find, by hand."""
    p, replay = run.spec, run.regime.replay
    when = torch.tensor([tick * steps.UPDATES_PER_TICK])
    u = uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch)[:, 0]
    size = torch.from_numpy(replay.filled(cohort.slots))
    slots = torch.tensor(cohort.slots)
    drawn, index, weight = replay.draw_by_priority(
        slots, replay.first(cohort.slots), size, u, cohort.weight, steps._beta(p, tick)
    )
    batch = replay.layout.unpack(drawn, weight, cohort.hyper["gamma"])
    learned = p.algo.update(
        p.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy, Stream(cohort.keys, Purpose.UPDATE, when), 0
    )
    assert learned.errors is not None
    return index, weight, learned.errors


def test_an_update_sets_the_priorities_of_what_it_saw() -> None:
    """And no others: pads of a member with a smaller batch draw rows too, which it does not learn from."""
    sizes = (32, 5)
    run, again = prioritised(sizes), prioritised(sizes)
    for each in (run, again):
        populations.advance(each, 60)
        small = zip(each.members, sizes, strict=True)
        each._form([replace(member, hyper={**member.hyper, "batch_size": size}) for member, size in small])
    (cohort,), trees = run.cohorts, run.regime.replay.priorities
    assert trees is not None
    before = trees.levels[0].clone()
    index, _, errors = errors_of(again, again.cohorts[0], 60)
    steps.learn(run.spec, cohort, run.regime.replay, 60, 1)
    expected = before.clone()
    for member, slot in enumerate(cohort.slots):
        seen = index[member, : sizes[slot]]
        assert (set(seen.tolist()) < set(index[member].tolist())) == (slot == 1)
        for row in set(seen.tolist()):
            found = errors[member, : sizes[slot]][seen == row].abs().max()
            expected[slot, row] = (found + LEAST) ** trees.alpha
    assert not torch.equal(before, trees.levels[0])
    torch.testing.assert_close(trees.levels[0], expected, rtol=1e-5, atol=1e-7)
    assert_sound(trees, trees.levels[0])
    for each in (run, again):
        each.close()


def test_a_diverged_member_leaves_its_priorities_as_they_were() -> None:
    """Though its errors are numbers, and huge; the other member's count as ever."""
    clean, ill = prioritised(), prioritised()
    for each in (clean, ill):
        populations.advance(each, 60)
    cohort, row = populations.of_slot(ill.cohorts, 1)
    getattr(cohort.state, ill.spec.algo.POLICY).values[row] *= 1e15
    trees, others = ill.regime.replay.priorities, clean.regime.replay.priorities
    assert trees is not None
    assert others is not None
    before = [tensor.clone() for tensor in trees.tensors()]
    for each in (clean, ill):
        steps.learn(each.spec, each.cohorts[0], each.regime.replay, 60, 2)
    assert ill.cohorts[0].healthy.tolist() == [True, False]
    for was, now, expected in zip(before, trees.tensors(), others.tensors(), strict=True):
        assert populations.equal(now[1], was[1])
        assert populations.equal(now[0], expected[0])
    assert not torch.equal(before[0][0], trees.levels[0][0])
    for each in (clean, ill):
        each.close()


def test_a_million_transitions_of_lunarlander_take_less_than_100_mb() -> None:
    for n, most in ((1, 80), (3, 90)):
        layout = RowLayout(obs=8, actions=4, masked=False, steps=n)
        replay = Replay(layout, 1, 1000, CPU)
        assert replay.rows.nbytes / 1000 == 4 * layout.size <= most
