"""What language models learn from, against values computed by hand and against loops over members and tokens."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from evopipe.ops import language as ops

pytestmark = pytest.mark.numerical

P, B, T = 3, 6, 5


def tensor(*rows: object, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One member's rows, `[1, …]`."""
    return torch.tensor([list(rows)], dtype=dtype)


def ones(value: float) -> torch.Tensor:
    return torch.tensor([value])


def drawn(seed: int = 0) -> tuple[np.random.Generator, torch.Tensor]:
    """Numbers to draw from, and a mask of P members, B sequences and T tokens, in which one sequence has no token."""
    g = np.random.default_rng(seed)
    mask = g.random((P, B, T)) < 0.6
    mask[:, 0], mask[:, 1] = False, True
    return g, torch.from_numpy(mask)


def normal(g: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(g.standard_normal(shape or (P, B, T)))


# --- advantages -------------------------------------------------------------------------------------------------------


def test_advantages_of_a_group_by_hand() -> None:
    """Rewards 0, 1, 2, 1: mean 1, sample variance 2/3."""
    reward, group, there = tensor(0, 1, 2, 1), tensor(7, 7, 7, 7, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool)
    std = math.sqrt(2 / 3)
    found = ops.group_advantages(reward, group, there, "standardised").value[0].tolist()
    assert found == pytest.approx([-1 / (std + 1e-4), 0, 1 / (std + 1e-4), 0])
    assert ops.group_advantages(reward, group, there, "mean").value[0].tolist() == [-1, 0, 1, 0]
    alone = ops.group_advantages(reward, group, there, "leave_one_out").value[0].tolist()
    assert alone == pytest.approx([0 - 4 / 3, 1 - 3 / 3, 2 - 2 / 3, 1 - 3 / 3])


def test_groups_without_spread_are_skipped_and_counted() -> None:
    """Of four groups one has three equal rewards whose mean in float32 is another number, and one is a group of one."""
    reward = tensor(0.1, 0.1, 0.1, 0, 1, 5, 2, 2)
    group = tensor(0, 0, 0, 1, 1, 2, 3, 3, dtype=torch.int64)
    there = torch.tensor([[True] * 7 + [False]])
    for baseline in ("standardised", "mean", "leave_one_out"):
        found = ops.group_advantages(reward, group, there, baseline)
        assert found.counts[0].tolist() == [False] * 3 + [True] * 2 + [False] * 3
        assert found.value[0, :3].tolist() == [0, 0, 0]
        assert (int(found.groups), int(found.skipped)) == (4, 3)


def test_groups_of_unlike_sizes_against_a_loop() -> None:
    """In any order, with completions that are not there, other ones in every member."""
    g = np.random.default_rng(1)
    reward, group = (
        torch.from_numpy(g.integers(0, 3, (4, 24)).astype(np.float64)),
        torch.from_numpy(g.integers(0, 7, (4, 24))),
    )
    there = torch.from_numpy(g.random((4, 24)) < 0.8)
    for baseline in ("standardised", "mean", "leave_one_out"):
        found = ops.group_advantages(reward, group, there, baseline)
        for p in range(4):
            expected, skipped, numbers = np.zeros(24), 0, set(group[p][there[p]].tolist())
            for number in numbers:
                rows = [i for i in range(24) if there[p, i] and group[p, i] == number]
                r = reward[p, rows].numpy()
                skipped += len(set(r)) == 1
                if len(set(r)) > 1:
                    others = np.array([(r.sum() - x) / (len(r) - 1) for x in r])
                    apart = r - (others if baseline == "leave_one_out" else r.mean())
                    expected[rows] = apart / (r.std(ddof=1) + 1e-4) if baseline == "standardised" else apart
            np.testing.assert_allclose(found.value[p].numpy(), expected, atol=1e-12)
            assert (int(found.groups[p]), int(found.skipped[p])) == (len(numbers), skipped)


def test_a_reward_that_is_no_number_stays_in_its_group() -> None:
    reward, group = tensor(math.nan, 1, 0, 1), tensor(0, 0, 1, 1, dtype=torch.int64)
    found = ops.group_advantages(reward, group, torch.ones(1, 4, dtype=torch.bool), "mean").value[0]
    assert found[:2].isnan().all()
    assert found[2:].tolist() == [-0.5, 0.5]


# --- weights ----------------------------------------------------------------------------------------------------------


def test_weights_of_tokens_and_of_sequences_by_hand() -> None:
    """Three tokens in one sequence, one in another, none in the last."""
    mask = tensor([1, 1, 1], [0, 1, 0], [0, 0, 0], dtype=torch.bool)
    assert ops.token_weights(mask, "token")[0].tolist() == [[0.25] * 3, [0, 0.25, 0], [0] * 3]
    found = ops.token_weights(mask, "sequence")[0]
    assert found.flatten().tolist() == pytest.approx([1 / 6] * 3 + [0, 0.5, 0] + [0] * 3)
    assert ops.token_weights(torch.zeros(1, 2, 3, dtype=torch.bool), "sequence").sum() == 0


def test_what_weighs_nothing_is_not_read() -> None:
    weight, each = tensor([0.5, 0.0], [0.5, 0.0]), tensor([1.0, math.nan], [3.0, math.inf])
    assert ops.total(weight, each).tolist() == [2.0]


# --- from logits ------------------------------------------------------------------------------------------------------


def test_log_probabilities_and_entropy_of_a_known_softmax() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).log() + 3.0  # the last token is impossible
    assert ops.log_probs(logits.expand(3, 4), torch.tensor([0, 2, 3])).exp().tolist() == pytest.approx([0.5, 0.25, 0.0])
    assert ops.entropy(logits).tolist() == pytest.approx([1.5 * math.log(2)])


# --- ratios -----------------------------------------------------------------------------------------------------------


def test_ratios_of_tokens_turns_and_sequences_against_a_loop() -> None:
    g, mask = drawn()
    log_prob, old, turn = normal(g), normal(g), torch.from_numpy(np.sort(g.integers(0, 3, (P, B, T)), axis=-1))
    log_prob[~mask] = math.nan
    for level in ("token", "turn", "sequence"):
        found = ops.log_ratios(log_prob, old, mask, level, turn)
        for p, b, t in itertools.product(range(P), range(B), range(T)):
            if not mask[p, b, t]:
                assert found[p, b, t] == 0
                continue
            alike = {
                "token": [t],
                "turn": [u for u in range(T) if mask[p, b, u] and turn[p, b, u] == turn[p, b, t]],
                "sequence": [u for u in range(T) if mask[p, b, u]],
            }[level]
            expected = np.mean([float(log_prob[p, b, u] - old[p, b, u]) for u in alike])
            assert float(found[p, b, t]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.8),  # above 1 + 0.4 nothing more is to be gained
        (0.5, 2.0, -1.0),  # a likelihood that fell too far is pulled back
        (1.5, -2.0, 3.0),
        (0.5, -2.0, 1.6),  # below 1 − 0.2
    ],
)
def test_the_clipped_loss_by_hand(ratio: float, advantage: float, expected: float) -> None:
    log_ratio = tensor([math.log(ratio)])
    assert ops.clipped(log_ratio, tensor([advantage]), ones(0.2), ones(0.4)).item() == pytest.approx(expected)
    assert ops.outside(log_ratio, ones(0.2), ones(0.4)).item() is (ratio != 1.0)


def test_tokens_outside_of_the_clip_have_a_gradient_in_cispo_alone() -> None:
    old, advantage = tensor([-1.0, -1.0]), tensor([2.0, 2.0])
    mask = torch.ones(1, 1, 2, dtype=torch.bool)
    found = []
    for cispo in (False, True):
        log_prob = (old + torch.tensor([math.log(3.0), math.log(1.1)])).requires_grad_(True)
        log_ratio = ops.log_ratios(log_prob, old, mask, "token")
        low, high = ones(0.2), ones(0.4)
        each = (
            ops.cispo(log_prob, log_ratio, advantage, low, high)
            if cispo
            else ops.clipped(log_ratio, advantage, low, high)
        )
        each.sum().backward()
        found.append(log_prob.grad.flatten().tolist())
    assert found[0] == pytest.approx([0.0, -1.1 * 2])
    assert found[1] == pytest.approx([-1.4 * 2, -1.1 * 2])


def test_on_the_policys_own_tokens_all_losses_have_the_gradient_of_reinforce() -> None:
    """Where π is π_old the ratio is 1: −A ∂ log π; over a sequence's mean ratio, a token's share of it."""
    _, mask = drawn()
    advantage = torch.arange(1.0, B + 1).expand(P, B)[..., None]
    low = high = torch.full((P,), 0.2)
    weight = ops.token_weights(mask, "sequence")
    for level, cispo in (("token", False), ("token", True), ("sequence", False)):
        log_prob = torch.full((P, B, T), -1.0, requires_grad=True)
        log_ratio = ops.log_ratios(log_prob, log_prob.detach(), mask, level)
        each = (
            ops.cispo(log_prob, log_ratio, advantage, low, high)
            if cispo
            else ops.clipped(log_ratio, advantage, low, high)
        )
        ops.total(weight, each).sum().backward()
        torch.testing.assert_close(log_prob.grad, -weight * advantage)


def test_the_drift_is_the_largest_difference_of_a_token_that_counts() -> None:
    log_prob, mask = tensor([-1.0, -2.0, 9.0]), tensor([True, True, False], dtype=torch.bool)
    assert ops.drift(log_prob, tensor([-1.5, -1.25, 0.0]), mask).tolist() == [0.75]
    assert ops.drift(log_prob, log_prob, ~mask & mask).tolist() == [0.0]


def test_k3_is_in_the_mean_over_the_policys_tokens_the_kl_divergence_from_the_reference() -> None:
    """Of all tokens, weighted by their probabilities. In the other direction it is another number."""
    g = np.random.default_rng(2)
    log_prob, reference = (torch.from_numpy(g.standard_normal((1, 1, 7))).log_softmax(dim=-1) for _ in range(2))
    everywhere = torch.ones(1, 1, 7, dtype=torch.bool)
    exact = float((log_prob.exp() * (log_prob - reference)).sum())
    found = ops.k3(log_prob, reference, everywhere)
    assert float((log_prob.exp() * found).sum()) == pytest.approx(exact)
    assert float((log_prob.exp() * ops.k3(reference, log_prob, everywhere)).sum()) != pytest.approx(exact, rel=0.05)
    assert (found >= 0).all()


def test_k3_by_hand() -> None:
    log_prob, reference = tensor([math.log(0.5), math.nan]), tensor([math.log(0.25), 0.0])
    found = ops.k3(log_prob, reference, tensor([True, False], dtype=torch.bool))
    assert found.flatten().tolist() == pytest.approx([0.5 - math.log(0.5) - 1, 0.0])


# --- values -----------------------------------------------------------------------------------------------------------


def test_the_reward_is_on_the_last_token_alone() -> None:
    mask = tensor([True, True, False], [False, True, True], [False] * 3, dtype=torch.bool)
    assert ops.on_last(tensor(2.0, 3.0, 4.0), mask)[0].tolist() == [[0, 2, 0], [0, 0, 3], [0, 0, 0]]


def test_advantages_of_tokens_by_hand() -> None:
    """γ ½, λ ½, values 1 and 2, reward 4 on the last: δ = (½·2 − 1, 4 − 2) = (0, 2), Â = (0 + ¼·2, 2)."""
    mask = tensor([True, False, True], dtype=torch.bool)
    reward, value = tensor([0.0, math.nan, 4.0]), tensor([1.0, math.nan, 2.0])
    assert ops.token_gae(reward, value, mask, ones(0.5), ones(0.5)).flatten().tolist() == [0.5, 0.0, 2.0]


def test_advantages_of_tokens_against_the_sum_of_their_definition() -> None:
    g, mask = drawn(3)
    reward, value = normal(g), normal(g)
    gamma, lam = torch.tensor([1.0, 0.9, 0.5]).double(), torch.tensor([1.0, 0.8, 0.0]).double()
    found = ops.token_gae(reward, value, mask, gamma, lam)
    for p, b in itertools.product(range(P), range(B)):
        steps = [t for t in range(T) if mask[p, b, t]]
        expected = np.zeros(T)
        for i, t in enumerate(steps):
            for k, u in enumerate(steps[i:]):
                after = float(value[p, b, steps[i + k + 1]]) if i + k + 1 < len(steps) else 0.0
                delta = float(reward[p, b, u]) + float(gamma[p]) * after - float(value[p, b, u])
                expected[t] += float(gamma[p] * lam[p]) ** k * delta
        np.testing.assert_allclose(found[p, b].numpy(), expected, atol=1e-12)


def test_whitened_numbers_have_mean_0_and_variance_1_over_what_counts() -> None:
    g, mask = drawn(4)
    x = (7.0 + 3.0 * normal(g)).float()
    found = ops.whiten(x.masked_fill(~mask, math.nan), mask)
    for p in range(P):
        kept = found[p][mask[p]].double().numpy()
        assert kept.mean() == pytest.approx(0.0, abs=1e-6)
        assert kept.std() == pytest.approx(1.0, abs=1e-3)
    assert (found[~mask] == 0).all()
    assert ops.whiten(torch.full((1, 1, 3), 0.1), torch.ones(1, 1, 3, dtype=torch.bool)).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.1, 0.5 * 0.9**2), (1.9, 0.5 * 0.8**2), (0.5, 0.5 * 1.5**2)],  # from 1 towards 2: the clip, 0.2, ends at 1.2
)
def test_the_value_loss_by_hand(value: float, expected: float) -> None:
    found = ops.value_loss(tensor([value]), tensor([1.0]), tensor([2.0]), ones(0.2))
    assert found.item() == pytest.approx(expected)


# --- preferences ------------------------------------------------------------------------------------------------------


def test_the_loss_of_a_preference_by_hand() -> None:
    """The chosen one went up by 1 over its reference, the rejected one down by 2: margin 3 β; −6 nats over 3 tokens."""
    found = ops.preference(tensor(-6.0), tensor(-8.0), (tensor(-7.0), tensor(-6.0)), tensor(3), ones(0.1), ones(0.5))
    assert found.margin.item() == pytest.approx(0.3)
    assert found.loss.item() == pytest.approx(math.log(1 + math.exp(-0.3)) + 0.5 * 6 / 3)


def test_a_policy_that_is_its_reference_prefers_nothing() -> None:
    chosen, rejected = tensor(-3.0, -4.0), tensor(-5.0, -1.0)
    found = ops.preference(chosen, rejected, (chosen, rejected), tensor(1, 1), ones(0.1), ones(0.0))
    assert found.loss.flatten().tolist() == pytest.approx([math.log(2)] * 2)
    assert found.margin.flatten().tolist() == [0, 0]


def test_a_preference_pushes_both_probabilities_apart_by_the_same() -> None:
    """∂L/∂ log π(chosen) = −β σ(−m) without imitation; imitation adds −nll / tokens to the chosen one's alone."""
    chosen, rejected = (torch.tensor([[x]], requires_grad=True) for x in (-2.0, -3.0))
    reference = tensor(-2.5), tensor(-3.5)  # both went up by ½: m = 0
    ops.preference(chosen, rejected, reference, tensor(4), ones(0.2), ones(0.0)).loss.sum().backward()
    assert (chosen.grad.item(), rejected.grad.item()) == pytest.approx((-0.1, 0.1))
    ops.preference(chosen, rejected, reference, tensor(4), ones(0.2), ones(1.0)).loss.sum().backward()
    assert (chosen.grad.item(), rejected.grad.item()) == pytest.approx((-0.1 - 0.1 - 0.25, 0.1 + 0.1))


# --- members ----------------------------------------------------------------------------------------------------------


def everything(first: int, end: int, poison: bool = False) -> list[torch.Tensor]:
    """What all functions give for some of three members; where `poison`, the first one's log-probabilities are NaN."""
    g, mask = drawn(5)
    log_prob, old, reference, value, entropy = (normal(g).float() for _ in range(5))
    if poison:
        log_prob[0] = math.nan
    reward = torch.from_numpy(g.integers(0, 2, (P, B))).float()
    group = torch.from_numpy(g.integers(0, 2, (P, B)))
    low, high, gamma = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1.0, 0.9, 0.8])
    log_prob, old, reference, value, entropy, reward, group, mask, low, high, gamma = (
        x[first:end] for x in (log_prob, old, reference, value, entropy, reward, group, mask, low, high, gamma)
    )
    log_prob = log_prob.clone().requires_grad_(True)
    advantages = ops.group_advantages(reward, group, mask.any(dim=-1), "standardised")
    weight = ops.token_weights(mask & advantages.counts[..., None], "sequence")
    log_ratio = ops.log_ratios(log_prob, old, mask, "sequence")
    each = ops.clipped(log_ratio, advantages.value[..., None], low, high)
    each = each + ops.cispo(log_prob, log_ratio, advantages.value[..., None], low, high)
    each = each + ops.k3(log_prob, reference, mask) - entropy + ops.value_loss(log_prob, old, value, low)
    losses = ops.total(weight, each)
    sums = [(x * mask).sum(dim=-1) for x in (log_prob, old, reference, value)]
    pairs = ops.preference(sums[0], sums[1], (sums[2], sums[3]), mask.sum(dim=-1), low, high)
    losses = losses + pairs.loss.mean(dim=1)
    losses.sum().backward()
    gae = ops.token_gae(ops.on_last(reward, mask), value, mask, gamma, gamma)
    return [
        losses.detach(),
        log_prob.grad,
        advantages.value,
        ops.whiten(gae, mask),
        pairs.margin,
        ops.outside(log_ratio, low, high),
    ]


def test_a_members_numbers_do_not_depend_on_its_neighbours() -> None:
    """To the bit: alone, beside others, and beside one whose log-probabilities are NaN."""
    together, beside_nan = everything(0, 3), everything(0, 3, poison=True)
    for p in range(P):
        for alone, whole, poisoned in zip(everything(p, p + 1), together, beside_nan, strict=True):
            assert torch.equal(alone[0], whole[p])
            assert p == 0 or torch.equal(alone[0], poisoned[p])
    assert beside_nan[0][0].isnan()
    assert together[0].isfinite().all()
