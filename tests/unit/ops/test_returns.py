"""Advantages against a reference that follows the definition, one environment and one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evopipe.ops.value import gae

pytestmark = pytest.mark.numerical


def reference(
    reward: np.ndarray, value: np.ndarray, next_value: np.ndarray, terminated: np.ndarray, cut: np.ndarray,
    gamma: float, lam: float,
) -> np.ndarray:  # fmt: skip
    """Â_t = Σ_l (γλ)^l δ_{t+l}, summed forwards from each step to the end of its episode or of the rollout: `[T]`."""
    out = np.zeros(len(reward))
    for t in range(len(reward)):
        for later in range(t, len(reward)):
            after = 0.0 if terminated[later] else next_value[later]
            out[t] += (gamma * lam) ** (later - t) * (reward[later] + gamma * after - value[later])
            if cut[later]:
                break
    return out


@pytest.mark.thorough
def test_ten_thousand_random_patterns() -> None:
    """Of terminations, truncations and both, at every place: to 1e-6 of float64, and float32 as near as it can be."""
    g = np.random.default_rng(0)
    patterns, members, ticks = 0, 10, 12
    while patterns < 10_000:
        envs = 100
        shape = (members, ticks, envs)
        reward, value, next_value = (g.standard_normal(shape) for _ in range(3))
        terminated, truncated = (g.random(shape) < g.choice([0.02, 0.2, 0.6]) for _ in range(2))
        gamma, lam = g.uniform(0, 1, members), g.uniform(0, 1, members)
        gamma[0], lam[0], gamma[1], lam[1] = 1.0, 1.0, 0.0, 0.0
        cut = terminated | truncated
        arrays = [torch.from_numpy(x) for x in (reward, value, next_value, terminated, cut, gamma, lam)]
        found = gae(*arrays).numpy()
        single = gae(*(x.float() if x.dtype == torch.float64 else x for x in arrays)).numpy()
        for p in range(members):
            for e in range(envs):
                at = (p, slice(None), e)
                ours = (reward[at], value[at], next_value[at], terminated[at], cut[at])
                expected = reference(*ours, float(gamma[p]), float(lam[p]))
                np.testing.assert_allclose(found[at], expected, atol=1e-6, rtol=0)
                np.testing.assert_allclose(single[at], expected, atol=2e-5, rtol=0)
        patterns += members * envs


def test_a_known_wrong_example_comes_out_right() -> None:
    """Two episodes of two steps. Ends that are read a step too late give the targets [0, 1.5, 0, 1]: the last reward
    never reaches the step before it, and the next episode's value leaks into the end."""
    value, following = (torch.tensor(x)[None, :, None] for x in ([10.0, 0.0, 10.0, 0.0], [0.0, 10.0, 0.0, 10.0]))
    reward, done = torch.tensor([0.0, 1.0, 0.0, 1.0])[None, :, None], torch.tensor([False, True] * 2)[None, :, None]
    found = gae(reward, value, following, done, done, torch.tensor([0.5]), torch.tensor([0.9])) + value
    assert found.flatten().tolist() == pytest.approx([0.45, 1.0, 0.45, 1.0], abs=1e-5)  # values of 10 cancel


def test_by_hand() -> None:
    """An ordinary step, a truncated one (it bootstraps from 4), one of the next episode (it bootstraps from 2)."""
    reward = torch.tensor([1.0, 2.0, 3.0])[None, :, None]
    value, next_value = torch.tensor([0.5, 1.0, 1.5])[None, :, None], torch.tensor([1.0, 4.0, 2.0])[None, :, None]
    terminated, cut = torch.zeros(1, 3, 1, dtype=torch.bool), torch.tensor([False, True, False])[None, :, None]
    found = gae(reward, value, next_value, terminated, cut, torch.tensor([0.5]), torch.tensor([0.5]))
    # δ = 1 + 0.5 − 0.5, 2 + 2 − 1, 3 + 1 − 1.5
    assert found.flatten().tolist() == pytest.approx([1.0 + 0.25 * 3.0, 3.0, 2.5])


def test_with_lambda_one_targets_are_discounted_returns() -> None:
    g = torch.Generator().manual_seed(1)
    reward, value = (torch.randn(1, 6, 1, generator=g, dtype=torch.float64) for _ in range(2))
    following = torch.cat((value[:, 1:], torch.full((1, 1, 1), 7.0, dtype=torch.float64)), dim=1)
    no = torch.zeros(1, 6, 1, dtype=torch.bool)
    gamma = torch.tensor([0.9], dtype=torch.float64)
    found = (gae(reward, value, following, no, no, gamma, torch.ones_like(gamma)) + value).flatten()
    expected, after = [], 7.0
    for r in reversed(reward.flatten().tolist()):
        after = r + 0.9 * after
        expected.append(after)
    np.testing.assert_allclose(found.numpy(), expected[::-1], atol=1e-12)


def test_a_member_is_estimated_with_its_own_discount() -> None:
    g = torch.Generator().manual_seed(2)
    several = [torch.randn(1, 5, 3, generator=g).repeat(3, 1, 1) for _ in range(3)]
    no = torch.zeros(3, 5, 3, dtype=torch.bool)
    gamma, lam = torch.tensor([0.5, 0.9, 0.9]), torch.tensor([0.9, 0.9, 0.1])
    together = gae(*several, no, no, gamma, lam)
    for i in range(3):
        alone = gae(*(x[i : i + 1] for x in several), no[:1], no[:1], gamma[i : i + 1], lam[i : i + 1])
        assert torch.equal(together[i], alone[0])
