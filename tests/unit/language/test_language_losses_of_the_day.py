"""Losses of later papers, switches of an algorithm's file or files of their own: loss and gradient of every
log-probability against the papers' equations, in plain float64 and by differences.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from evopipe.ops import language as ops
from evopipe.types import Hyper, Text, TokenScores

pytestmark = pytest.mark.numerical

P, B, T = 2, 6, 3
Scores = np.ndarray  # [B, T] float64, log-probabilities of a member


def algorithm(name: str) -> Any:
    return importlib.import_module(f"evopipe.algos.{name}")


def settings(name: str, unlike: dict[str, list[float]], **changes: Any) -> tuple[Any, Hyper]:
    """A configuration, and hyper-parameters as tensors, some of them unlike between members."""
    cfg = algorithm(name).Config.model_validate({"evolve": {}, **changes})
    plain = {key: value for key, value in cfg if isinstance(value, float | int) and not isinstance(value, bool)}
    return cfg, {key: torch.tensor(unlike.get(key, [float(value)] * P)).double() for key, value in plain.items()}


def batch(seed: int) -> tuple[Text, torch.Tensor]:
    """Rows of unlike lengths and what a policy says of them, float64; numbers where nothing counts are drawn too."""
    g = np.random.default_rng(seed)
    now, old, base = (-g.uniform(0.1, 2.0, (P, B, T)) for _ in range(3))
    mask = np.arange(T) < g.integers(1, T + 1, (P, B, 1))
    real = np.concatenate((np.ones((P, B, 1), dtype=bool), mask), axis=-1)
    text = Text(
        torch.zeros(P, B, T + 1, dtype=torch.int64), torch.from_numpy(real), torch.from_numpy(mask),
        torch.zeros(P, B, T, dtype=torch.int64), log_prob=torch.from_numpy(old), reference=torch.from_numpy(base),
        reward=torch.from_numpy(g.integers(0, 2, (P, B)).astype(float)),
    )  # fmt: skip
    return text, torch.from_numpy(now)


def compare(loss: Callable[[TokenScores], torch.Tensor], expected: Callable[[int, Scores], float], now: Any) -> None:
    """Compare a loss `[P]` and its gradient with a member's loss as a function of its log-probabilities.

    Weights of rows and tokens are float32: six digits agree.
    """
    leaf = now.clone().requires_grad_(True)
    found = loss(TokenScores(leaf, torch.zeros_like(now), None))
    found.sum().backward()
    assert leaf.grad is not None
    for p in range(P):
        own = now[p].numpy()
        assert float(found[p].detach()) == pytest.approx(expected(p, own), rel=1e-6)
        for place in np.ndindex(B, T):
            step = np.zeros((B, T))
            step[place] = 1e-6
            slope = (expected(p, own + step) - expected(p, own - step)) / 2e-6
            assert float(leaf.grad[(p, *place)]) == pytest.approx(slope, abs=1e-7, rel=1e-5), (p, place)
    assert (leaf.grad != 0).any()


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


# --- rewards ----------------------------------------------------------------------------------------------------------


UNLIKE = {"beta": [0.3, 1.0], "clip_low": [0.1, 0.3], "clip_high": [0.2, 0.4]}


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("changes", [{"unbiased_kl": True}, {"clip_most": 1.5}, {"unbiased_kl": True, "cispo": True}])
def test_grpos_switches_by_their_equations(changes: dict[str, Any], level: str) -> None:
    """DeepSeek-V3.2: the estimate of the divergence times π / π_old. INTELLECT-2: ρ of the unclipped term is at most
    δ. GSPO: ρ is the mean over a sequence, of all three."""
    algo, (cfg, hp) = algorithm("grpo"), settings("grpo", UNLIKE, level=level, ent_coef=0.0, **changes)
    text, now = batch(1)
    text = algo.estimate(cfg, hp, text, 2)
    assert text.keep.any()

    def expected(p: int, own: Scores) -> float:
        mask, old, base = (getattr(text, name)[p].numpy() for name in ("mask", "log_prob", "reference"))
        terms = []
        for b in range(B):
            if not text.keep[p, b]:
                continue
            places = [t for t in range(T) if mask[b, t]]
            mean = sum(own[b, t] - old[b, t] for t in places) / len(places)
            for t in places:
                # CISPO's weight is a constant: of a step aside it is that of the numbers themselves.
                apart = mean if level == "sequence" else own[b, t] - old[b, t]
                rho, a = math.exp(apart), float(text.advantage[p, b, t])
                low, high = 1 - float(hp["clip_low"][p]), 1 + float(hp["clip_high"][p])
                if cfg.cispo:
                    fixed = now[p].numpy()
                    still = sum(fixed[b, u] - old[b, u] for u in places) / len(places)
                    weight = math.exp(still if level == "sequence" else fixed[b, t] - old[b, t])
                    each = -min(max(weight, low), high) * a * own[b, t]
                else:
                    most = rho if cfg.clip_most is None else min(rho, cfg.clip_most)
                    each = -min(most * a, min(max(rho, low), high) * a)
                kl = math.exp(base[b, t] - own[b, t]) - (base[b, t] - own[b, t]) - 1
                terms.append(each + float(hp["beta"][p]) * kl * (rho if cfg.unbiased_kl else 1.0))
        return sum(terms) / len(terms)

    compare(lambda scores: algo.loss(cfg, hp, scores, text), expected, now)


def test_a_bound_on_the_ratio_acts_where_the_advantage_is_negative() -> None:
    """ρ = e² = 7.4: 7.4 without a bound, 1.5 with it; a positive advantage was clipped at 1.2 before."""
    two, low = torch.full((1, 1, 2), 2.0), torch.tensor([0.2])
    advantage = torch.tensor([[[-1.0, 1.0]]])
    assert ops.clipped(two, advantage, low, low)[0, 0].tolist() == pytest.approx([math.exp(2), -1.2])
    assert ops.clipped(two, advantage, low, low, 1.5)[0, 0].tolist() == pytest.approx([1.5, -1.2])
    with pytest.raises(ValidationError, match=r"clip_most \(1.1\) must be at least 1 \+ clip_high \(1.28\)"):
        algorithm("grpo").Config(clip_most=1.1)


def test_the_corrected_divergence_is_that_of_the_policy_over_another_ones_tokens() -> None:
    """Over four tokens: the mean of the old policy's, weighted, is the divergence itself, and its gradient is right."""
    g = np.random.default_rng(3)
    logits, old, base = (torch.from_numpy(g.standard_normal(4)) for _ in range(3))
    logits.requires_grad_(True)
    q, lr = old.softmax(-1), base.log_softmax(-1)

    def of(corrected: bool) -> tuple[torch.Tensor, torch.Tensor]:
        lp = logits.log_softmax(-1)
        ratio = (lp - q.log())[None, None] if corrected else None
        each = ops.k3(lp[None, None], lr[None, None], torch.ones(1, 1, 4, dtype=torch.bool), ratio)
        value = (q * each[0, 0]).sum()
        return value.detach(), torch.autograd.grad(value, logits)[0]

    lp = logits.log_softmax(-1)
    exact = (lp.exp() * (lp - lr)).sum()
    slope = torch.autograd.grad(exact, logits)[0]
    value, own = of(True)
    torch.testing.assert_close(value, exact.detach())
    torch.testing.assert_close(own, slope)
    plain, other = of(False)
    assert abs(float(plain - exact.detach())) > 0.01
    assert (other - slope).abs().max() > 0.01


def test_places_without_spread_are_filled_by_others_in_order() -> None:
    reward = torch.tensor([[1.0, 1, 0, 1, 2, 2, 3, 3], [0, 1, 0, 1, 0, 1, 0, 1]])
    assert ops.without_spread(reward, 2).tolist() == [[True, False, True, True], [False] * 4]
    full = torch.tensor([[False, True, False, True], [True] * 4])
    assert ops.refill(ops.without_spread(reward, 2), full).tolist() == [[4 + 1, 1, 4 + 3, 3], [0, 1, 2, 3]]
    assert ops.refill(ops.without_spread(reward, 2), ~full & False).tolist() == [[0, 1, 2, 3]] * 2


# --- tokens that others drew ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "tokens", "bounded"),
    [
        # ratios are 1, e² and e⁻², and of the second row .5 and 2: the products are 1
        ("none", [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], 2 / 5),
        ("token_truncate", [[1.0, 3.0, 0.25], [0.5, 2.0, 0.0]], 2 / 5),
        ("token_mask", [[1.0, 0.0, 0.0], [0.5, 2.0, 0.0]], 2 / 5),
        ("sequence_truncate", [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], 0.0),
        ("sequence_mask", [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], 0.0),
    ],
)
def test_what_others_drew_counts_by_a_ratio_with_two_ends(how: Any, tokens: list[list[float]], bounded: float) -> None:
    gap = torch.tensor([[[0.0, 2.0, -2.0], [math.log(0.5), math.log(2.0), 99.0]]])
    drawn, mask = torch.full((1, 2, 3), -3.0), torch.tensor([[[True, True, True], [True, True, False]]])
    found = ops.importance((drawn + gap).requires_grad_(True), drawn, mask, how, 0.25, 3.0)
    expected = torch.tensor([tokens])
    torch.testing.assert_close(found.weight, expected)
    assert float(found.bounded) == pytest.approx(bounded)
    assert not found.weight.requires_grad


def test_whole_sequences_are_bounded_by_the_product_of_their_ratios() -> None:
    gap = torch.tensor([[[1.0, 1.0], [-1.0, -1.0], [200.0, 0.0]]])
    drawn, mask = torch.full((1, 3, 2), -9.0), torch.ones(1, 3, 2, dtype=torch.bool)
    for how, tokens in (("sequence_truncate", [3.0, 0.25, 3.0]), ("sequence_mask", [0.0, 0.0, 0.0])):
        found = ops.importance(drawn + gap, drawn, mask, how, 0.25, 3.0)  # type: ignore[arg-type]
        assert found.weight[0].tolist() == [[token] * 2 for token in tokens]
        assert float(found.bounded) == 1.0
    found = ops.importance(drawn + gap, drawn, mask, "sequence_mask", 0.0, 8.0)
    assert found.weight[0, :, 0].tolist() == pytest.approx([math.exp(2), math.exp(-2), 0.0])


# --- preferences ------------------------------------------------------------------------------------------------------


def means(own: Scores, mask: np.ndarray) -> list[float]:
    return [float(np.mean(row[real])) for row, real in zip(own, mask, strict=True)]


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["simpo", "orpo"])
def test_losses_without_a_base_by_their_equations(kind: str, alpha: float) -> None:
    """SimPO, eq. 6, and ORPO, eq. 6 and 7, whose λ is β; rows 0 to 2 were chosen, 3 to 5 rejected. The base's numbers
    are not there."""
    unlike = {"beta": [2.0, 0.5], "margin": [0.5, 1.0], "nll_alpha": [alpha, alpha]}
    algo, (cfg, hp) = algorithm("dpo"), settings("dpo", unlike, loss=kind)
    text, now = batch(2)
    text = replace(text, reference=None)

    def pairs(p: int, own: Scores, beta: float, gamma: float, nll: float) -> list[float]:
        found, each = [], means(own, text.mask[p].numpy())
        for w, r in zip(each[:3], each[3:], strict=True):
            if kind == "simpo":
                first = -math.log(sigmoid(beta * (w - r) - gamma))
            else:
                odds = [math.exp(x) / (1 - math.exp(x)) for x in (w, r)]
                first = -beta * math.log(sigmoid(math.log(odds[0] / odds[1])))
            found.append(first - nll * w)
        return found

    def expected(p: int, own: Scores) -> float:
        return float(np.mean(pairs(p, own, *(float(hp[name][p]) for name in ("beta", "margin", "nll_alpha")))))

    compare(lambda scores: algo.loss(cfg, hp, scores, text), expected, now)
    scores = TokenScores(now, torch.zeros_like(now), None)
    fit, told = algo.fitness(cfg, hp, scores, text), algo.figures(cfg, hp, scores, text)
    for p in range(P):
        own, each = now[p].numpy(), means(now[p].numpy(), text.mask[p].numpy())
        alike = pairs(p, own, cfg.beta, cfg.margin, cfg.nll_alpha)
        assert (-fit[p]).tolist() == pytest.approx(alike)
        assert told["accuracy"][p].tolist() == [float(w > r) for w, r in zip(each[:3], each[3:], strict=True)]


def test_only_dpo_itself_asks_for_the_base() -> None:
    algo = algorithm("dpo")
    asked = {kind: algo.asks(algo.Config(loss=kind)) for kind in ("dpo", "simpo", "orpo")}
    assert asked == {"dpo": {"reference"}, "simpo": frozenset(), "orpo": frozenset()}


def test_a_completion_that_is_certain_has_a_finite_odds_ratio() -> None:
    mean = torch.tensor([[0.0, -1e-9, -1.0]], requires_grad=True)
    found = ops.odds_ratio(mean, torch.full((1, 3), -1.0), torch.ones(1))
    found.loss.sum().backward()
    assert found.loss.isfinite().all()
    assert mean.grad is not None
    assert mean.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["kto", "apo_zero"])
def test_ktos_loss_by_its_equation(kind: str) -> None:
    """Rows 0 to 2 are the completions, 3 to 5 their prompts with others': these make the reference point, a constant,
    and have no gradient."""
    unlike = {"beta": [0.5, 2.0], "desirable": [1.0, 1.3], "undesirable": [0.7, 1.0]}
    algo, (cfg, hp) = algorithm("kto"), settings("kto", unlike, loss=kind)
    text, now = batch(4)
    text = replace(text, reward=torch.tensor([[1.0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0]]).double())
    base, mask = text.reference, text.mask
    assert base is not None
    now[0, 3:] = base[0, 3:] + 0.2  # the first member's reference point is above 0, the second one's would be below
    now[1, 3:] = base[1, 3:] - 0.2

    def apart(p: int, own: Scores) -> list[float]:
        return [float(((own - base[p].numpy()) * mask[p].numpy())[b].sum()) for b in range(B)]

    zeros = [max(0.0, float(np.mean(apart(p, now[p].numpy())[3:]))) if kind == "kto" else 0.0 for p in range(P)]
    assert zeros[1] == 0.0
    assert (zeros[0] > 0.1) is (kind == "kto")

    def expected(p: int, own: Scores) -> float:
        beta, good, bad = (float(hp[name][p]) for name in ("beta", "desirable", "undesirable"))
        each = [
            good * (1 - sigmoid(beta * (r - zeros[p]))) if label else bad * (1 - sigmoid(beta * (zeros[p] - r)))
            for r, label in zip(apart(p, own)[:3], text.reward[p, :3].tolist(), strict=True)
        ]
        return float(np.mean(each))

    compare(lambda scores: algo.loss(cfg, hp, scores, text), expected, now)
    scores = TokenScores(now, torch.zeros_like(now), None)
    told = algo.figures(cfg, hp, scores, text)["accuracy"]
    for p in range(P):
        signs = [r > 0 if label else r < 0 for r, label in zip(apart(p, now[p].numpy()), text.reward[p], strict=True)]
        assert told[p].tolist() == [float(x) for x in signs[:3]]
