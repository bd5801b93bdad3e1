"""Several like networks of a member in one row compute what each of them computes by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evopipe.core import optim
from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.core.net import Net, forward
from evopipe.core.optim import Adam
from evopipe.core.structure import Widths

WIDTHS = Widths(5, 3, copies=3)
ONE = WIDTHS._replace(copies=1)
ARCHS = [Arch((Block(8),), 8, (Block(16),), "ReLU", True), Arch((Block(12),), 20, (Block(5),), "Tanh", True)]
ROWS = [arch.initialise(WIDTHS, np.random.default_rng(i)) for i, arch in enumerate(ARCHS)]


def _net(archs: list[Arch], widths: Widths, rows: list[torch.Tensor]) -> Net:
    structure = archs[0].stack(archs, widths, torch.device("cpu"))
    return Net(structure, structure.pack(rows), trainable=True)


def test_each_copy_reads_a_batch_of_its_own() -> None:
    x = torch.randn(6, 7, 5, generator=torch.Generator().manual_seed(0))
    together = forward(_net(ARCHS, WIDTHS, ROWS), x)
    for p, arch in enumerate(ARCHS):
        for c, row in enumerate(ROWS[p].chunk(3)):
            alone = forward(_net([arch], ONE, [row]), x[None, 3 * p + c])[0]
            torch.testing.assert_close(together[3 * p + c], alone, atol=1e-5, rtol=1e-5)


def test_copies_begin_unlike_and_are_unpacked_as_they_were_packed() -> None:
    net = _net(ARCHS, WIDTHS, ROWS)
    assert all(torch.equal(a, b) for a, b in zip(net.structure.unpack(net.values), ROWS, strict=True))
    first, second, third = ROWS[0].chunk(3)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_an_update_of_some_members_is_that_of_all() -> None:
    x = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(1))
    both, last = _net(ARCHS, WIDTHS, ROWS), _net(ARCHS, WIDTHS, ROWS).part(1, 2)
    for net, of in ((both, x), (last, x[3:])):
        members = len(net.values)
        losses = forward(net, of).square().flatten(1).sum(dim=1).view(members, 3).sum(dim=1)
        full = torch.ones(members)
        optim.descend(losses, full > 0, full, (net, Adam.start(net), 0.01 * full))
    assert torch.equal(both.values[1], last.values[0])
    assert not torch.equal(last.structure.unpack(last.values)[0], ROWS[1])


def test_an_addition_leaves_every_copys_function() -> None:
    arch, row = ARCHS[0], ROWS[0]
    wider = Arch((Block(24),), 8, (Block(16),), "ReLU", True)
    grown = arch.carry(wider, WIDTHS, "parameters", row, np.random.default_rng(5))
    assert len(grown) == wider.size(WIDTHS)
    x = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(2))
    before, after = forward(_net([arch], WIDTHS, [row]), x), forward(_net([wider], WIDTHS, [grown]), x)
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-4)


def test_names_of_parameters_say_which_copy() -> None:
    named = ARCHS[0].named(WIDTHS, ROWS[0])
    assert torch.equal(named["1.output.weight"], ARCHS[0].named(ONE, ROWS[0].chunk(3)[1])["output.weight"])


def test_twins_of_copies_are_networks_of_their_own() -> None:
    net = _net(ARCHS, WIDTHS, ROWS)
    with pytest.raises(ValueError, match="network of its own"):
        Net.interleave(net, net).part(0, None, 2)
