"""Which members the cost model puts together, and how the rows of several networks of a member lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import populations
from evopipe.core.arch import Arch
from evopipe.core.cohort import COSTS, Grouping, _group, cost, dissolve
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.run.spec import EnvSpec, first_members


def member(slot: int, *widths: int, batch: int = 128, activation: str = "ReLU", learn_step: int = 1) -> Member:
    """One with hidden layers of these widths, the last its latent."""
    arch = Arch(tuple(map(Block, widths[:-1])), widths[-1], (), activation, False)
    return Member(slot, slot, None, slot, arch, {"batch_size": batch, "learn_step": learn_step}, {})


def slots(members: Sequence[Member], mode: Grouping = "merged") -> list[list[int]]:
    """Which slots the cost model of the CPU puts together."""
    return [[m.slot for m in found] for found in _group(members, EnvSpec.pace, mode, "cpu")]


def test_costs_are_dispatch_and_the_products_of_padded_widths() -> None:
    # Layers padded to 32 and 48 and 64: 32 · 32, the first one's inputs taken for its own width, + 32 · 48 + 48 · 64.
    found = cost(
        [member(0, 20, 48, 64), member(1, 32, 33, 50)],
        EnvSpec.pace,
        COSTS["cpu"]._replace(dispatch=100.0, per_unit=0.5),
    )
    assert found == pytest.approx(100 + 0.5 * 2 * 128 * (32 * 32 + 32 * 48 + 48 * 64))


def test_small_networks_share_a_batch_and_large_ones_do_not() -> None:
    small = [member(0, 64, 64, 64), member(1, 64, 80, 64), member(2, 64, 64)]
    assert slots(small) == [[0, 1, 2]]
    large = [member(0, 256, 256, 256), member(1, 512, 512, 512)]
    assert slots(large) == [[0], [1]]


def test_members_that_learn_at_unlike_times_are_never_together() -> None:
    alike = [member(slot, 64, 64, learn_step=1 + slot % 2) for slot in range(4)]
    assert slots(alike, "exact") == slots(alike, "merged") == [[0, 2], [1, 3]]


def test_an_exact_cohort_has_one_padded_batch() -> None:
    """It is what a member's sums run over: rounded up to 32 rows."""
    sizes = [20, 32, 33, 64]
    unlike = [member(slot, 64, 64, batch=batch) for slot, batch in enumerate(sizes)]
    assert slots(unlike, "exact") == [[0, 1], [2, 3]]
    assert slots(unlike) == [[0, 1, 2, 3]]


def test_a_whole_cohort_has_everyone_who_learns_when_it_does_and_who_has_most_to_do_first() -> None:
    unlike = [member(0, 64, 64), member(1, 256, 512), member(2, 512, 512, learn_step=2), member(3, 64, 64, batch=512)]
    assert slots(unlike, "whole") == [[1, 3, 0], [2]]
    assert slots([member(0, 64, 64), member(1, 512, 512, activation="Tanh")], "whole") == [[0, 1]]


def test_the_pair_that_gains_most_merges_first() -> None:
    """Six rows each: 400 µs of dispatch less 62 for padding 64 to 80, 76 for 80 to 96, 138 for 64 to 96."""
    members = [member(slot, width, width, batch=32) for slot in range(18) for width in [(96, 64, 80)[slot // 6]]]
    assert slots(members) == [[*range(6)], [*range(6, 18)]]


def test_groups_merge_up_to_the_most_rows_and_not_beyond() -> None:
    """16 rows: two groups of 8 save a dispatch, two of 9 would be cut up again as 16 and 2."""
    assert COSTS["cpu"].max_rows == 16
    for each, expected in ((8, [[*range(16)]]), (9, [[*range(9)], [*range(9, 18)]])):
        members = [member(slot, 64, 64 if slot < each else 80, 64) for slot in range(2 * each)]
        assert slots(members) == expected
    assert slots([member(slot, 64, 64) for slot in range(18)]) == [[*range(16)], [16, 17]]


def test_rows_of_a_cohort_are_ordered_by_activation_then_by_slot() -> None:
    """A slice an activation serves them all then."""
    mixed = [member(slot, 32, 32, activation="ReLU" if slot % 2 else "Tanh") for slot in (3, 0, 2, 1)]
    assert slots(mixed) == [[1, 3, 0, 2]]


def test_a_part_of_a_cohort_has_the_numbers_of_its_own_members() -> None:
    p = populations.problem("CartPole-v1", "dqn")
    born = first_members(p, 4)[0]
    members = [replace(m, hyper={**m.hyper, "lr": 2.0**-m.slot, "batch_size": 20 + m.slot}) for m in born]
    (cohort,) = p.form(members)
    for first, end in ((0, 2), (1, 2), (2, 4)):
        some = cohort.part(first, end)
        assert some.members == tuple(members[first:end])
        assert some.keys.tolist() == [m.key for m in members[first:end]]
        assert some.hyper.keys() == cohort.hyper.keys()
        for name, values in some.hyper.items():
            assert torch.equal(values, torch.tensor([float(m.hyper[name]) for m in members[first:end]])), name
        sizes = [20 + m.slot for m in members[first:end]]
        expected = [[1 / n if j < n else 0.0 for j in range(32)] for n in sizes]
        torch.testing.assert_close(some.weight, torch.tensor(expected))


def test_what_was_taken_apart_stays_when_its_cohort_goes_on() -> None:
    """A checkpoint, a champion or a child must not learn along."""
    p = populations.problem("Pendulum-v1", "ppo", train={"normalise": {"observations": True, "rewards": True}})
    (cohort,) = p.form(first_members(p, 2)[0])
    found = dissolve([cohort])
    before = [{name: tensor.clone() for name, tensor in m.tensors.items()} for m in found]
    for tensor in (*cohort.tensors(), *cohort.normaliser_tensors()):
        tensor.add_(1)
    for m, tensors in zip(found, before, strict=True):
        assert [name for name in tensors if not torch.equal(m.tensors[name], tensors[name])] == []
    for m, tensors in zip(dissolve([cohort]), before, strict=True):
        assert [name for name in tensors if torch.equal(m.tensors[name], tensors[name])] == []


def test_both_critics_of_a_member_keep_their_names_and_their_numbers() -> None:
    p = populations.problem("Pendulum-v1", "td3")
    members = first_members(p, 3)[0]
    generator = torch.Generator().manual_seed(0)
    for each in members:
        for name, tensor in each.tensors.items():
            if name != "updates":
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    (cohort,) = p.form(members)
    assert len(cohort.state.critics.values) == 6
    for k, (half, half_target) in enumerate(
        zip(cohort.state.critics.pair, cohort.state.critics_target.pair, strict=True), start=1
    ):
        for i, each in enumerate(members):
            own = half.structure.unpack(half.values)[i]
            assert torch.equal(own, each.tensors[f"critics.critic_{k}"])
            own = half_target.structure.unpack(half_target.values)[i]
            assert torch.equal(own, each.tensors[f"critics_target.critic_{k}"])
    for some in (cohort, cohort.part(1, 3)):
        for old, new in zip(some.members, dissolve([some]), strict=True):
            assert all(torch.equal(old.tensors[name], new.tensors[name]) for name in old.tensors)
            assert old.tensors.keys() == new.tensors.keys()
