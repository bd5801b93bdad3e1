"""Which members the cost model puts together, and how the rows of several networks of a member lie."""

from __future__ import annotations

import pytest
import torch

import populations
from evopipe.core import population
from evopipe.core.arch import Arch, Block
from evopipe.core.population import Costs, Member, cost, group
from evopipe.run.spec import first_members


def member(slot: int, *widths: int, batch: int = 128) -> Member:
    """One with hidden layers of these widths, the last its latent."""
    arch = Arch(tuple(map(Block, widths[:-1])), widths[-1], (), "ReLU", False)
    return Member(slot, slot, None, slot, arch, {"batch_size": batch}, {})


def test_costs_are_dispatch_and_the_products_of_padded_widths() -> None:
    # Layers padded to 32 and 48 and 64: 32 · 32, the first one's inputs taken for its own width, + 32 · 48 + 48 · 64.
    found = cost([member(0, 20, 48, 64), member(1, 32, 33, 50)], Costs(100.0, 0.5, 16))
    assert found == pytest.approx(100 + 0.5 * 2 * 128 * (32 * 32 + 32 * 48 + 48 * 64))


def test_small_networks_share_a_batch_and_large_ones_do_not() -> None:
    small = [member(0, 64, 64, 64), member(1, 64, 80, 64), member(2, 64, 64)]
    assert [[m.slot for m in found] for found in group(small, "merged", "cpu")] == [[0, 1, 2]]
    large = [member(0, 256, 256, 256), member(1, 512, 512, 512)]
    assert [[m.slot for m in found] for found in group(large, "merged", "cpu")] == [[0], [1]]


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
    for part in (cohort, population.part(cohort, 1, 3)):
        for old, new in zip(part.members, population.dissolve([part]), strict=True):
            assert all(torch.equal(old.tensors[name], new.tensors[name]) for name in old.tensors)
            assert old.tensors.keys() == new.tensors.keys()
