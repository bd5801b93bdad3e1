"""Per-member Adam, clipping and Polyak averaging over flat rows."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from evopipe.core import optim
from evopipe.core.arch import Arch
from evopipe.core.net import Net
from evopipe.core.optim import Adam, ScalarAdam
from evopipe.core.padded import Padded
from evopipe.core.structure import Widths

pytestmark = pytest.mark.numerical

MEMBERS = 5
LR = torch.tensor([1e-4, 1e-3, 3e-3, 1e-2, 0.0])
ALL = torch.ones(MEMBERS, dtype=torch.bool)

both_paths = pytest.mark.parametrize("take", [optim._plain_step, optim._fused_step])


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def started(seed: int = 0) -> tuple[Net, Adam]:
    structure = Padded([Arch((), 16, (), "ReLU", False)] * MEMBERS, Widths(4, 2), torch.device("cpu"))
    net = Net(structure, random(seed, MEMBERS, structure.layout.size), trainable=True)
    return net, Adam.start(net)


def gradient(net: Net, seed: int) -> torch.Tensor:
    scale = torch.tensor([1e-3, 0.1, 1.0, 10.0, 100.0])[:, None]
    net.grad.copy_(scale * random(seed, *net.values.shape))
    return net.grad


def test_this_torch_has_the_fused_kernel() -> None:
    assert optim._fused_is_sound()


@both_paths
def test_adam_equals_torchs_own_for_each_member(take: object) -> None:
    net, adam = started()
    twins = [torch.nn.Parameter(row.clone()) for row in net.values]
    optimisers = [torch.optim.Adam([twin], lr=float(rate)) for twin, rate in zip(twins, LR, strict=True)]
    for i in range(100):
        grad = gradient(net, i)
        for twin, row, optimiser in zip(twins, grad, optimisers, strict=True):
            twin.grad = row.clone()
            optimiser.step()
        take(net, adam, LR, ALL)  # type: ignore[operator]
        expected = torch.stack([twin.detach() for twin in twins])
        assert float((net.values - expected).abs().max()) <= 1e-6
    assert adam.steps.tolist() == [100.0] * MEMBERS


def test_the_plain_and_the_fused_path_agree() -> None:
    (plain, plain_adam), (fused, fused_adam) = started(), started()
    for i in range(60):
        active = torch.arange(MEMBERS) % 3 != i % 3
        gradient(plain, i), gradient(fused, i)
        optim._plain_step(plain, plain_adam, LR, active)
        optim._fused_step(fused, fused_adam, LR, active)
    assert float((plain.values - fused.values).abs().max()) <= 2e-6
    torch.testing.assert_close(plain_adam.mean, fused_adam.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(plain_adam.square, fused_adam.square, rtol=1e-5, atol=1e-6)
    assert torch.equal(plain_adam.steps, fused_adam.steps)


@both_paths
@pytest.mark.parametrize("poison", [0.0, float("nan"), float("inf")])
def test_a_skipped_member_keeps_everything_to_the_bit(take: object, poison: float) -> None:
    net, adam = started()
    gradient(net, 0)
    take(net, adam, LR, ALL)  # type: ignore[operator]
    before = [tensor.clone() for tensor in (net.values, adam.mean, adam.square, adam.steps)]
    gradient(net, 1)[2] += poison
    active = torch.tensor([True, True, False, True, True])
    take(net, adam, LR, active)  # type: ignore[operator]
    for old, new in zip(before, (net.values, adam.mean, adam.square, adam.steps), strict=True):
        assert torch.equal(old[2], new[2])
        assert torch.isfinite(new).all()
        assert not torch.equal(old[3], new[3])


@both_paths
def test_nobody_active_changes_nothing(take: object) -> None:
    net, adam = started()
    before = net.values.clone()
    gradient(net, 0)
    take(net, adam, LR, ~ALL)  # type: ignore[operator]
    assert torch.equal(before, net.values)
    assert not adam.steps.any()


@both_paths
def test_a_members_step_does_not_depend_on_its_neighbours(take: object) -> None:
    net, adam = started()
    for i in range(5):
        gradient(net, i)
        take(net, adam, LR, ALL)  # type: ignore[operator]
    alone, alone_adam = started()
    for i in range(5):
        gradient(alone, i)
        alone.grad[torch.arange(MEMBERS) != 3] = float("nan")
        take(alone, alone_adam, LR, torch.arange(MEMBERS) == 3)  # type: ignore[operator]
    assert torch.equal(alone.values[3], net.values[3])
    assert torch.equal(alone_adam.square[3], adam.square[3])


def test_gradients_are_clipped_per_member_as_torch_clips_one() -> None:
    net, _ = started()
    limit = torch.tensor([0.5, 0.5, 100.0, 1.0, 3.0])
    gradient(net, 0)
    twins = [torch.nn.Parameter(row.clone()) for row in net.values]
    for twin, row in zip(twins, net.grad, strict=True):
        twin.grad = row.clone()
    expected = [torch.nn.utils.clip_grad_norm_([t], float(c)) for t, c in zip(twins, limit, strict=True)]
    norms = optim.clip_gradients(net, limit)
    torch.testing.assert_close(norms, torch.stack(expected))
    torch.testing.assert_close(net.grad, torch.stack([twin.grad for twin in twins if twin.grad is not None]))


def test_a_nan_gradient_is_clipped_without_touching_neighbours() -> None:
    """Peer fault: a global norm spread one diverged member to all."""
    net, _ = started()
    clean = gradient(net, 0).clone()
    net.grad[1, 7] = float("nan")
    norms = optim.clip_gradients(net, torch.full((MEMBERS,), 1e6))
    assert torch.isnan(norms).tolist() == [False, True, False, False, False]
    kept = torch.arange(MEMBERS) != 1
    assert torch.equal(net.grad[kept], clean[kept])


def test_polyak_of_0_leaves_and_of_1_copies_to_the_bit() -> None:
    online, _ = started(1)
    target = started(2)[0].copy()
    before = target.values.clone()
    optim.polyak(target, online, torch.tensor([0.0, 1.0, 0.25, 1.0, 0.0]))
    for row in (0, 4):
        assert torch.equal(target.values[row].view(torch.int32), before[row].view(torch.int32))
    for row in (1, 3):
        assert torch.equal(target.values[row].view(torch.int32), online.values[row].view(torch.int32))
    torch.testing.assert_close(target.values[2], 0.75 * before[2] + 0.25 * online.values[2])


def test_backward_fills_afresh_and_sums_once() -> None:
    net, _ = started()
    for _ in range(2):  # a second call replaces, it does not add
        weight = net.views[-1].bias  # [P, 1, 2]
        optim.backward((weight * 3.0).sum(dim=(1, 2)), net)
        part = net.structure.layout.output[0].bias
        assert net.grad[:, part.start : part.start + 2].eq(3.0).all()
        assert float(net.grad.sum()) == 3.0 * 2 * MEMBERS


def test_two_networks_a_member_are_optimised_as_each_alone() -> None:
    """Rows of a pair lie next to each other, and take their member's limit, learning rate and weight."""
    nets = [started(seed)[0] for seed in (1, 2)]
    both = Net.interleave(*nets)
    assert all(torch.equal(half.values, net.values) for half, net in zip(both.pair, nets, strict=True))
    adams, adam = [Adam.start(net) for net in nets], Adam.start(both)
    targets, target = [net.copy() for net in nets], both.copy()
    limit, weight = torch.tensor([0.1, 1.0, 5.0, 100.0, 1e3]), torch.linspace(0, 1, MEMBERS)
    for i in range(5):
        active = torch.arange(MEMBERS) != i
        for k, net in enumerate(nets):
            both.grad[k::2].copy_(gradient(net, 2 * i + k))
        norms = sum(optim.clip_gradients(net, limit) for net in nets)
        torch.testing.assert_close(optim.clip_gradients(both, limit), norms)
        for net, its_adam, its_target in zip(nets, adams, targets, strict=True):
            optim.step(net, its_adam, LR, active)
            optim.polyak(its_target, net, weight)
        optim.step(both, adam, LR, active)
        optim.polyak(target, both, weight)
    for k, net in enumerate(nets):
        assert torch.equal(both.values[k::2], net.values)
        assert torch.equal(target.values[k::2], targets[k].values)
        assert torch.equal(adam.steps[k::2], adams[k].steps)


def test_neighbours_go_together_where_rate_and_step_count_agree() -> None:
    runs = optim._equal_runs
    on, off = True, False
    assert runs([0.1, 0.1, 0.1, 0.2, 0.2], [1, 1, 2, 2, 2], [on] * 5) == [(0.1, 0, 2), (0.1, 2, 3), (0.2, 3, 5)]
    assert runs([0.1] * 4, [1] * 4, [on, off, on, on]) == [(0.1, 0, 1), (0.1, 2, 4)]
    assert runs([0.1] * 3, [1, 2, 1], [on, off, on]) == [(0.1, 0, 1), (0.1, 2, 3)]
    assert runs([0.1] * 3, [1, 2, 1], [on] * 3) == [(0.1, 0, 1), (0.1, 1, 2), (0.1, 2, 3)]
    assert runs([0.1] * 2, [1, 1], [off, off]) == []


@both_paths
def test_neighbours_of_one_rate_and_unlike_step_counts_are_corrected_by_their_own(take: object) -> None:
    """By hand from zero moments and gradients of 1: after t steps of nobody else's the next is lr · m̂ / √v̂."""
    net, adam = started()
    before = net.values.clone()
    net.grad.fill_(1.0)
    counts = torch.tensor([0.0, 0.0, 9.0, 9.0, 99.0])
    adam.steps.copy_(counts)
    take(net, adam, torch.full((MEMBERS,), 0.01), ALL)  # type: ignore[operator]
    own = net.structure.index[0]
    for row, count in enumerate(counts.tolist()):
        mean, square = 0.1 / (1 - 0.9 ** (count + 1)), 0.001 / (1 - 0.999 ** (count + 1))
        moved = (before - net.values)[row, own].double()
        torch.testing.assert_close(moved, torch.full_like(moved, 0.01 * mean / square**0.5), rtol=1e-3, atol=1e-6)
    assert adam.steps.tolist() == (counts + 1).tolist()


def test_a_step_down_is_taken_by_those_whom_every_network_and_loss_lets() -> None:
    """A gradient that is no number in any one of the networks holds its member back in all, and nobody else."""
    nets = [started(seed)[0] for seed in (1, 2, 3)]
    adams = [Adam.start(net) for net in nets]
    for net in nets:
        net.views[-1].bias.detach().fill_(1.0)
    for i, net in enumerate(nets):  # √x is 0 at 0, and its gradient infinite
        net.views[-1].bias.detach()[i] = 0.0
    losses = torch.stack([net.views[-1].bias.sqrt().sum(dim=(1, 2)) for net in nets]).sum(dim=0)
    before = [net.values.clone() for net in nets]
    healthy = torch.tensor([True, True, True, False, True])
    rates = [torch.full((MEMBERS,), rate) for rate in (0.1, 0.2, 0.3)]
    limit = torch.full((MEMBERS,), 1e9)
    kept = optim.descend(losses, healthy, limit, *zip(nets, adams, rates, strict=True), (None, None, rates[0]))
    assert kept.tolist() == [False, False, False, False, True]
    for net, old, adam, rate in zip(nets, before, adams, (0.1, 0.2, 0.3), strict=True):
        assert torch.equal(net.values[:4], old[:4])
        assert adam.steps.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
        bias = net.structure.layout.output[0].bias
        moved = (old - net.values)[4, bias.start : bias.start + 2]
        torch.testing.assert_close(moved, torch.full((2,), rate), rtol=1e-4, atol=0)  # Adam's first step


def test_a_loss_that_is_no_number_holds_its_member_back_though_its_gradient_is_finite() -> None:
    """As where a target is not: what does not depend on the parameters has no gradient."""
    net, before = started()[0], started()[0].values.clone()
    adam, rate, limit = Adam.start(net), torch.full((MEMBERS,), 0.1), torch.full((MEMBERS,), 1e9)
    poison = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 0.0])
    healthy = torch.tensor([True, True, True, True, False])
    kept = optim.descend(net.views[-1].bias.sum(dim=(1, 2)) + poison, healthy, limit, (net, adam, rate))
    assert kept.tolist() == [False, False, False, True, False]
    assert net.grad.isfinite().all()
    assert [torch.equal(*rows) for rows in zip(net.values, before, strict=True)] == [True, True, True, False, True]
    assert adam.steps.tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]


def test_a_network_is_finite_where_every_parameter_is() -> None:
    net = started()[0]
    net.values[0, 3], net.values[1, 4], net.values[2, 5] = torch.nan, torch.inf, -torch.inf
    assert net.finite.tolist() == [False, False, False, True, True]


def test_adam_of_one_number_a_member() -> None:
    """As torch's own for the members that are active; the others keep number and state to the bit."""
    value, state = torch.tensor([1.0, 2.0, 3.0]), ScalarAdam.start(torch.zeros(3))
    assert state.shape == (3, 3)
    twins = [torch.nn.Parameter(x.clone()) for x in value]
    rates = torch.tensor([0.1, 0.01, 0.001])
    optimisers = [torch.optim.Adam([twin], lr=float(rate)) for twin, rate in zip(twins, rates, strict=True)]
    for i in range(6):
        grad, active = torch.tensor([1.0, -2.0 + i, 0.5 * i]), torch.arange(3) != i % 3
        before = value.clone(), state.clone()
        ScalarAdam.step(value, state, grad, rates, active)
        for row, (twin, optimiser) in enumerate(zip(twins, optimisers, strict=True)):
            if active[row]:
                twin.grad = grad[row].clone()
                optimiser.step()
            else:
                assert value[row] == before[0][row]
                assert torch.equal(state[row], before[1][row])
    torch.testing.assert_close(value, torch.stack([twin.detach() for twin in twins]), rtol=1e-5, atol=0)
    assert state[:, 2].tolist() == [4.0] * 3


def test_who_watches_is_told_of_norms_and_of_what_is_over_its_limit() -> None:
    """Of two networks that are clipped together: 3 and 4 are 5, 0.6 and 0.8 are 1; of one alone, each of its rows."""
    first, second = torch.tensor([[3.0, 0.0], [0.6, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 0.8]])
    with optim.watched() as seen:
        norms = optim.clip_together([first, second], torch.tensor([3.0, 3.5]))
    ((told, over),) = seen
    assert torch.allclose(norms, torch.tensor([5.0, 1.0]))
    assert torch.allclose(told, torch.tensor([5.0, 1.0], dtype=torch.float64))
    assert over.tolist() == [True, False]
    assert torch.allclose(first, torch.tensor([[1.8, 0.0], [0.6, 0.0]]))
    assert torch.allclose(second, torch.tensor([[0.0, 2.4], [0.0, 0.8]]))
    with optim.watched() as seen:
        optim._watch([torch.tensor([[3.0], [4.0], [1.0], [0.0]])], torch.tensor([3.5, 1.5]))  # twins of two members
    assert [x.tolist() for x in seen[0]] == [[5.0, 1.0], [True, False]]
    optim._watch([first], torch.tensor([1.0, 1.0]))
    assert len(seen) == 1


def test_a_temperature_goes_by_how_far_the_mean_entropy_is_from_its_aim() -> None:
    """(1 - 0.5) / 4 + (2 - 0.5) · 3 / 4 is 1.25, of which Adam's mean takes a tenth at first; another rests."""

    class Learns(NamedTuple):
        log_alpha: torch.Tensor
        log_alpha_adam: torch.Tensor

    state = Learns(torch.zeros(2), torch.zeros(2, 3))
    weight, entropy = torch.tensor([[0.25, 0.75]] * 2), torch.tensor([[1.0, 2.0]] * 2)
    optim.learn_temperature(state, torch.tensor([0.01, 0.01]), weight, entropy, 0.5, torch.tensor([True, False]))
    assert torch.allclose(state.log_alpha_adam[0], torch.tensor([0.125, 0.0015625, 1.0]), rtol=1e-3)
    assert torch.allclose(state.log_alpha, torch.tensor([-0.01, 0.0]))
    assert state.log_alpha_adam[1].tolist() == [0.0, 0.0, 0.0]
