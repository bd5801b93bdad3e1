"""Signals of learning, by numbers that a person can check."""

from __future__ import annotations

import math

import pytest
import torch

from evopipe.ops import signals

WEIGHT = torch.tensor([[0.5, 0.25, 0.25, 0.0]])


def test_a_mean_leaves_out_what_does_not_count() -> None:
    x = torch.tensor([[1.0, 2.0, 4.0, math.nan]])
    assert signals.mean(WEIGHT, x).tolist() == [2.0]
    assert signals.mean(3.0 * WEIGHT, x).tolist() == [2.0]  # weights of prioritised rows do not sum to 1
    assert signals.largest(WEIGHT, torch.tensor([[1.0, 2.0, 4.0, 9.0]])).tolist() == [4.0]
    assert math.isnan(float(signals.mean(torch.zeros(1, 2), torch.ones(1, 2))))
    assert math.isnan(float(signals.mean(torch.ones(1, 2), torch.tensor([[math.nan, 1.0]]))))


def test_a_neighbour_and_pads_change_no_digit_that_is_kept() -> None:
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(1, 29, generator=g), torch.rand(1, 29, generator=g)
    padded = torch.nn.functional.pad(x, (0, 99), value=7.0), torch.nn.functional.pad(weight, (0, 99))
    wide = torch.cat((padded[0], torch.randn(1, 128, generator=g))), torch.cat((padded[1], torch.ones(1, 128)))
    assert f"{float(signals.mean(weight, x)):.9g}" == f"{float(signals.mean(wide[1], wide[0])[0]):.9g}"


def test_the_deviation_and_the_explained_variance() -> None:
    target = torch.tensor([[1.0, 3.0, 3.0, 8.0]])  # mean 2, variance 1 of those that count
    assert signals.deviations(WEIGHT, target, 2 * target).tolist() == [[1.0, 2.0]]
    constant, opposite = torch.full((1, 4), 5.0), 4.0 - target

    def explained(value: torch.Tensor, target: torch.Tensor) -> float:
        found = signals.of_rollout(WEIGHT, value, target, 3 * value)
        return float(found["losses/explained_variance"])

    assert [explained(value, target) for value in (target, constant, opposite)] == [1.0, 0.0, -3.0]
    assert math.isnan(explained(target, constant))
    assert signals.of_rollout(WEIGHT, target, target, 3 * target)["losses/advantage_std"].tolist() == [3.0]


def test_what_a_clipped_policy_gradient_tells() -> None:
    ratio = torch.tensor([[1.0, 2.0, 0.5, 9.0]])
    advantage, entropy = torch.tensor([[1.0, 1.0, -1.0, 1.0]]), torch.tensor([[0.5, 0.25, 0.25, 9.0]])
    error = torch.tensor([[4.0, 0.0, 4.0, math.nan]])
    found = signals.of_policy(WEIGHT, ratio.log(), advantage, torch.tensor([0.2]), entropy, error)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {
            "losses/policy_loss": -(0.5 * 1.0 + 0.25 * 1.2 - 0.25 * 0.8),
            "losses/entropy": 0.375,
            "losses/approx_kl": 0.25 * (1.0 - math.log(2.0)) + 0.25 * (-0.5 + math.log(2.0)),
            "losses/clipfrac": 0.5,
            "losses/value_loss": 1.5,
        },
        rel=1e-6,
    )


def test_idle_units_are_counted_among_those_that_a_member_has() -> None:
    """Of eight units, of which the second member has four: 0.1 and 0 are idle where the layer's mean is 10 or more."""
    size = torch.tensor([[20.0, 20, 20, 20, 20, 20, 0.1, 0.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])[:, None]
    mask = torch.tensor([[1.0] * 8, [1.0] * 4 + [0.0] * 4])[:, None]
    assert signals.dormant([(size, mask)]).tolist() == [0.25, 0.25]
    assert signals.dormant([(size, mask), (torch.ones(2, 1, 8), None)]).tolist() == [2 / 16, 1 / 12]
    together = torch.cat((size, torch.ones(2, 1, 8)), dim=1), torch.cat((mask, torch.ones(2, 1, 8)), dim=1)
    assert signals.dormant([together]).tolist() == [2 / 16, 1 / 12], "two layers in one pair"


def test_each_agent_of_a_team_has_its_own_mean() -> None:
    """With weights of its own; who does not count has none. Names are such that every tracker takes them."""
    weight = torch.tensor([[[1.0, 3.0], [0.0, 2.0], [0.0, 0.0]]])  # [P, K, B]
    x = torch.tensor([[[4.0, 8.0], [math.nan, 5.0], [1.0, 1.0]]])
    found = signals.of_agents(["red 0", "blue:1", "gone"], weight, {"entropy": x})
    assert [*found] == ["agents/red_0/entropy", "agents/blue_1/entropy", "agents/gone/entropy"]
    assert [float(value) for value in found.values()][:2] == [7.0, 5.0]
    assert math.isnan(float(found["agents/gone/entropy"]))
    assert signals.agent_names(["a b", "a:b"]) == ["a_b_0", "a_b_1"]
