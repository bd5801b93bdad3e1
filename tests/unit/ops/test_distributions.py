"""Distributions of actions, against `torch.distributions`, counts of many draws, and hand-computed values.

Values are compared in float64 to 1e-6 of absolute error, and of relative error too where they are large.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as reference

from evopipe import rng
from evopipe.ops.distributions import Distribution, distribution, squashed_gaussian
from evopipe.rng import Purpose, Stream
from evopipe.types import Spaces

pytestmark = pytest.mark.numerical

MEMBERS, BATCH = 3, 7
CHOICES = (2, 4, 1, 3)
WIDTH = sum(CHOICES)
CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}
SPACES = {
    "discrete": Spaces(4, WIDTH),
    "multidiscrete": Spaces(4, WIDTH, kind="multidiscrete", choices=CHOICES),
    "multibinary": Spaces(4, WIDTH, kind="multibinary"),
    "continuous": Spaces(4, WIDTH, True),
}
MASKED = sorted(SPACES.keys() - {"continuous"})


def categorical(logits: torch.Tensor, legal: torch.Tensor | None = None) -> Distribution:
    return distribution(Spaces(1, logits.shape[-1]), logits, legal=legal)


def multicategorical(logits: torch.Tensor, choices: tuple[int, ...], legal: torch.Tensor | None = None) -> Distribution:
    return distribution(Spaces(1, sum(choices), kind="multidiscrete", choices=choices), logits, legal=legal)


def bernoulli(logits: torch.Tensor, legal: torch.Tensor | None = None) -> Distribution:
    return distribution(Spaces(1, logits.shape[-1], kind="multibinary"), logits, legal=legal)


def gaussian(mean: torch.Tensor, log_std: torch.Tensor) -> Distribution:
    return distribution(Spaces(1, mean.shape[-1], True), mean, log_std)


def squashed(mean: torch.Tensor, log_std: torch.Tensor) -> Distribution:
    return distribution(Spaces(1, mean.shape[-1], True), mean, log_std, squash=True)


def drawn(policy: Distribution, draw: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions, and their log-probabilities."""
    action = policy.sample(draw)
    return action, policy.log_prob(action)


def stream(step: int = 3, members: int = MEMBERS) -> Stream:
    return Stream(torch.from_numpy(rng.member_keys(11, range(members))), Purpose.ACT, torch.tensor([step]))


def numbers(seed: int = 0, scale: float = 2.0, width: int = WIDTH) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(MEMBERS, BATCH, width, generator=g, dtype=torch.float64)


def mask(seed: int = 0) -> torch.Tensor:
    """Half of all is illegal; every choice keeps its first or last alternative."""
    g = torch.Generator().manual_seed(seed)
    legal = torch.rand(MEMBERS, BATCH, WIDTH, generator=g) < 0.5
    for i, part in enumerate(legal.split(list(CHOICES), dim=-1)):
        part[..., -(i % 2)] = True
    return legal


def masks(masked: bool) -> torch.Tensor | None:
    return mask() if masked else None


def parts(x: torch.Tensor | None) -> list[Any]:
    return [None] * len(CHOICES) if x is None else list(x.split(list(CHOICES), dim=-1))


def softmax_of(logits: torch.Tensor, legal: torch.Tensor | None) -> reference.Categorical:
    """The reference with masked probabilities renormalised, independent of any lowest number."""
    p = logits.softmax(dim=-1) if legal is None else logits.softmax(dim=-1) * legal
    return reference.Categorical(probs=p / p.sum(dim=-1, keepdim=True))


def entropy_of(p: torch.Tensor) -> torch.Tensor:
    """−Σ p log p over what can occur; the reference's own clamps probabilities of 0."""
    return -torch.where(p > 0, p * p.log(), 0.0).sum(dim=-1)


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == (MEMBERS, BATCH)
    torch.testing.assert_close(found, expected, **CLOSE)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_categorical_values(masked: bool) -> None:
    logits, legal = numbers(), masks(masked)
    ours, theirs = categorical(logits, legal), softmax_of(logits, legal)
    for action in torch.arange(WIDTH).view(-1, 1, 1).expand(-1, MEMBERS, BATCH):
        torch.testing.assert_close(ours.log_prob(action).exp(), theirs.log_prob(action).exp(), **CLOSE)
    drawn = ours.sample(stream())
    check(ours.log_prob(drawn), theirs.log_prob(drawn))
    p = theirs.probs
    check(ours.entropy(), entropy_of(p))
    assert torch.equal(ours.mode(), p.argmax(dim=-1))


@pytest.mark.parametrize("masked", [False, True])
def test_multicategorical_values(masked: bool) -> None:
    logits, legal = numbers(), masks(masked)
    ours = multicategorical(logits, CHOICES, legal)
    theirs = [softmax_of(x, m) for x, m in zip(parts(logits), parts(legal), strict=True)]
    action = ours.sample(stream())
    assert action.shape == (MEMBERS, BATCH, len(CHOICES))
    check(ours.log_prob(action), torch.stack([t.log_prob(action[..., i]) for i, t in enumerate(theirs)]).sum(dim=0))
    check(ours.entropy(), torch.stack([entropy_of(t.probs) for t in theirs]).sum(dim=0))
    assert torch.equal(ours.mode(), torch.stack([t.probs.argmax(dim=-1) for t in theirs], dim=-1))


@pytest.mark.parametrize("masked", [False, True])
def test_bernoulli_values(masked: bool) -> None:
    logits, legal = numbers(), masks(masked)
    p = logits.sigmoid() if legal is None else logits.sigmoid() * legal
    ours, theirs = bernoulli(logits, legal), reference.Bernoulli(probs=p, validate_args=False)
    action = ours.sample(stream())
    each = torch.where(action == 1, p, 1 - p)
    check(ours.log_prob(action), each.log().sum(dim=-1))
    check(ours.entropy(), theirs.entropy().sum(dim=-1))
    assert torch.equal(ours.mode(), (p > 0.5).long())


def test_bernoulli_entropy_of_sure_bits_is_exact() -> None:
    """At logit 30 a bit's entropy is 31 e⁻³⁰ to first order: the difference of two large numbers would lose it."""
    found = bernoulli(torch.tensor([[[30.0], [-30.0], [0.0]]])).entropy()
    expected = torch.tensor([[31 * math.exp(-30), 31 * math.exp(-30), math.log(2)]])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("shape", [(WIDTH,), (MEMBERS, 1, WIDTH), (MEMBERS, BATCH, WIDTH)])
def test_gaussian_values(shape: tuple[int, ...]) -> None:
    mean, log_std = numbers(), torch.linspace(-3, 1, math.prod(shape), dtype=torch.float64).view(shape)
    ours, theirs = gaussian(mean, log_std), reference.Normal(mean, log_std.exp().expand_as(mean))
    action = ours.sample(stream())
    check(ours.log_prob(action), theirs.log_prob(action).sum(dim=-1))
    check(ours.entropy(), theirs.entropy().sum(dim=-1))
    assert torch.equal(ours.mode(), mean)


@pytest.mark.parametrize("shape", [(WIDTH,), (MEMBERS, 1, WIDTH), (MEMBERS, BATCH, WIDTH)])
def test_squashed_gaussian_values(shape: tuple[int, ...]) -> None:
    mean, log_std = numbers(scale=0.7), torch.linspace(-2, 0, math.prod(shape), dtype=torch.float64).view(shape)
    ours = squashed(mean, log_std)
    normal = reference.Normal(mean, log_std.exp().expand_as(mean))
    theirs = reference.TransformedDistribution(normal, [reference.TanhTransform()])
    action, log_prob = drawn(ours, stream())
    assert torch.equal(action, ours.sample(stream()))
    assert float(action.abs().max()) < 1.0
    check(ours.log_prob(action), theirs.log_prob(action).sum(dim=-1))
    check(log_prob, theirs.log_prob(action).sum(dim=-1))
    check(ours.entropy(), normal.entropy().sum(dim=-1))


def test_the_squashed_density_integrates_to_one() -> None:
    """Without the Jacobian it would not."""
    a = torch.linspace(-1 + 1e-7, 1 - 1e-7, 400_001, dtype=torch.float64)
    ours = squashed(torch.full((1, len(a), 1), 0.4, dtype=torch.float64), torch.tensor([-0.3]).double())
    assert float(torch.trapezoid(ours.log_prob(a.view(1, -1, 1)).exp()[0], a)) == pytest.approx(1.0, abs=1e-6)


def test_a_squashed_action_tells_its_density_in_single_precision() -> None:
    """As well as an action that is one or two roundings off can tell the u that was drawn, up to |u| = 4."""
    mean, log_std, draw = torch.linspace(-2.9, 2.9, 4000).view(1, -1, 1), torch.tensor([-1.0]), stream(members=1)
    action, log_prob = drawn(squashed(mean, log_std), draw)
    noise = draw.normal(4000).view(1, -1, 1)
    single, exact = squashed_gaussian(mean, log_std, noise)
    u = [float(m) + math.exp(-1.0) * float(n) for m, n in zip(mean.flatten(), noise.flatten(), strict=True)]
    assert action.flatten().tolist() == pytest.approx([math.tanh(x) for x in u], rel=6e-8)  # half a last bit
    torch.testing.assert_close(single, action, rtol=4e-7, atol=1e-7)
    assert float(torch.atanh(action.double()).abs().max()) > 3.5
    u, inside = torch.atanh(action.double()), 1 - action.double().square()
    steep = ((u - mean) / (2 * log_std).exp().double() - 2 * action).abs().squeeze(-1)  # of the density, in u
    limit = 2 * torch.finfo(torch.float32).eps * (steep / inside.squeeze(-1) + 8)
    assert ((log_prob - exact).abs() < limit).all()


@pytest.mark.parametrize("squash", [False, True])
def test_an_action_has_the_same_density_when_it_is_drawn_and_when_it_is_seen_again(squash: bool) -> None:
    """To the bit, where tanh is rounded to 1 too: a ratio of equal policies is 1."""
    policy = (squashed if squash else gaussian)(torch.linspace(-30, 30, 4000).view(1, -1, 1), torch.tensor([1.0]))
    action, log_prob = drawn(policy, stream(members=1))
    assert torch.isfinite(log_prob).all()
    assert torch.equal(policy.log_prob(action.clone()), log_prob)
    assert not squash or (action.abs() == 1).any()


@pytest.mark.parametrize("kind", MASKED)
@pytest.mark.parametrize("legal", [None, torch.tensor([[[True, False, True]]])])
def test_logits_up_to_1e30_give_finite_values(kind: str, legal: torch.Tensor | None) -> None:
    logits = torch.tensor([[[1e30, -1e30, 0.0], [1e30, 1e30, -1e30], [-1e30, -1e30, -1e30]]])
    choices = (2, 1) if kind == "multidiscrete" else ()
    found = distribution(Spaces(4, 3, kind=kind, choices=choices), logits, legal=legal)
    assert torch.isfinite(found.entropy()).all()
    assert torch.isfinite(found.log_prob(found.mode())).all()


# --- masks ------------------------------------------------------------------------------------------------------------


def test_hand_computed_values_behind_a_mask() -> None:
    """Of p = (1, 2, 5) / 8 the second alone is illegal: (1, 0, 5) / 6 is left."""
    logits = torch.tensor([[[1.0, 2.0, 5.0]]], dtype=torch.float64).log()
    found = categorical(logits, torch.tensor([[[True, False, True]]]))
    expected = torch.tensor([[[1 / 6, 0.0, 5 / 6]]], dtype=torch.float64)
    torch.testing.assert_close(
        torch.stack([found.log_prob(torch.full((1, 1), i)) for i in range(3)], dim=-1).exp(),
        expected,
        rtol=1e-12,
        atol=0.0,
    )
    assert float(found.entropy()) == pytest.approx(math.log(6) - 5 / 6 * math.log(5), abs=1e-12)


@pytest.mark.parametrize("kind", MASKED)
@pytest.mark.thorough
def test_what_is_illegal_has_probability_zero_and_is_never_drawn(kind: str) -> None:
    """10⁵ draws of every member, with illegal logits far above the legal ones."""
    n, legal = 100_000, mask()[:, :1]
    logits = torch.where(legal, numbers()[:, :1], 50.0).float()
    found = distribution(SPACES[kind], logits.expand(-1, n, -1), legal=legal.expand(-1, n, -1))
    action = found.sample(stream())
    for chosen in (action, found.mode()):
        assert one_hot(kind, chosen)[~legal.expand(-1, n, -1)].sum() == 0
    single = distribution(SPACES[kind], logits, legal=legal)
    forbidden = (~legal).nonzero()
    assert len(forbidden) > 5
    for member, _, column in forbidden.tolist():
        probability = float(single.log_prob(containing(kind, column))[member, 0].exp())
        assert probability == 0.0


def one_hot(kind: str, action: torch.Tensor) -> torch.Tensor:
    """Which of the A columns an action uses: `[P, B, A]`."""
    if kind == "multibinary":
        return action
    if kind == "discrete":
        return torch.nn.functional.one_hot(action, WIDTH)
    return torch.cat(
        [torch.nn.functional.one_hot(each, n) for each, n in zip(action.unbind(-1), CHOICES, strict=True)], dim=-1
    )


def containing(kind: str, column: int) -> torch.Tensor:
    """An action of every member, `[P, 1, …]`, that uses a column."""
    if kind == "discrete":
        return torch.full((MEMBERS, 1), column)
    if kind == "multibinary":
        return torch.nn.functional.one_hot(torch.tensor(column), WIDTH).expand(MEMBERS, 1, -1)
    component = int(np.searchsorted(np.cumsum(CHOICES), column, side="right"))
    action = torch.zeros(MEMBERS, 1, len(CHOICES), dtype=torch.int64)
    action[..., component] = column - sum(CHOICES[:component])
    return action


@pytest.mark.parametrize("kind", MASKED)
def test_gradients_are_finite_and_zero_where_illegal(kind: str) -> None:
    legal = mask()
    logits = (30.0 * numbers().float()).requires_grad_()
    found = distribution(SPACES[kind], logits, legal=legal)
    action, log_prob = drawn(found, stream())
    assert torch.equal(log_prob, found.log_prob(action))
    (log_prob + 0.01 * found.entropy()).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[~legal] == 0).all()
    assert logits.grad[legal].abs().max() > 0


@pytest.mark.parametrize("kind", MASKED)
def test_a_member_that_diverged_still_acts_legally_and_alone(kind: str) -> None:
    """Outputs that are no numbers draw legal actions, show as NaN in what is learned from, and touch no neighbour."""
    legal, logits = mask(), numbers().float()
    spoilt = logits.clone()
    spoilt[1] = torch.tensor([math.nan, math.inf, -math.inf] * WIDTH)[:WIDTH]
    found, whole = distribution(SPACES[kind], spoilt, legal=legal), distribution(SPACES[kind], logits, legal=legal)
    action = found.sample(stream())
    for chosen in (action, found.mode()):
        assert one_hot(kind, chosen)[~legal].sum() == 0
    assert not torch.isfinite(found.entropy()[1]).all()
    for i in (0, 2):
        assert torch.equal(action[i], whole.sample(stream())[i])
        assert torch.equal(found.entropy()[i], whole.entropy()[i])


# --- draws ------------------------------------------------------------------------------------------------------------


def unlikely(degrees: int) -> float:
    """What χ² exceeds once in a thousand times (Wilson & Hilferty, 1931)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 3.0902 * math.sqrt(spread)) ** 3)


def fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Pearson's chi-square test at one in a thousand, of categories that can occur."""
    possible = expected > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    return bool(statistic < unlikely(int(possible.sum()) - 1))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.thorough
def test_frequencies_are_the_probabilities(masked: bool) -> None:
    n, legal = 100_000, mask()[:, :1] if masked else None
    logits = numbers(1, 1.0)[:, :1].float()
    wide = None if legal is None else legal.expand(-1, n, -1)
    one = categorical(logits.expand(-1, n, -1), wide).sample(stream())
    several = multicategorical(logits.expand(-1, n, -1), CHOICES, wide).sample(stream())
    p = softmax_of(logits, legal).probs
    for member in range(MEMBERS):
        assert fits(np.bincount(one[member], minlength=WIDTH), n * p[member, 0].numpy())
        for i, (x, m) in enumerate(zip(parts(logits), parts(legal), strict=True)):
            expected = n * softmax_of(x, m).probs[member, 0].numpy()
            if (expected > 0).sum() > 1:
                assert fits(np.bincount(several[member, :, i], minlength=CHOICES[i]), expected)
        pairs = np.bincount(several[member, :, 1] * 3 + several[member, :, 3], minlength=12)  # choices are independent
        both = [softmax_of(x, m).probs[member, 0].numpy() for x, m in zip(parts(logits), parts(legal), strict=True)]
        joint = np.outer(both[1], both[3]).reshape(-1)
        if (joint > 0).sum() > 1:
            assert fits(pairs, n * joint)


def test_frequencies_of_bits_are_the_probabilities() -> None:
    n, logits = 100_000, numbers(1, 1.0)[:, :1].float()
    action = bernoulli(logits.expand(-1, n, -1)).sample(stream())
    p = logits.sigmoid()[:, 0]
    deviation = (action.double().mean(dim=1) - p) / (p * (1 - p) / n).sqrt()
    assert float(deviation.abs().max()) < 4.5
    assert float(deviation.square().sum()) < unlikely(deviation.numel())


def test_gaussian_draws_have_their_mean_and_deviation() -> None:
    n = 100_000
    mean, std = torch.tensor([-1.5, 0.0, 4.0]), torch.tensor([0.1, 1.0, 3.0])
    noise = (gaussian(mean.expand(MEMBERS, n, 3), std.log()).sample(stream()) - mean) / std
    assert noise.dtype == torch.float32
    assert float(noise.mean(dim=1).abs().max()) < 4.5 / math.sqrt(n)
    assert float((noise.square().mean(dim=1) - 1).abs().max()) < 4.5 * math.sqrt(2 / n)


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_a_members_draws_do_not_depend_on_its_neighbours(kind: str) -> None:
    outputs, log_std = numbers().float(), torch.zeros(WIDTH)
    whole = distribution(SPACES[kind], outputs, log_std).sample(stream())
    alone = distribution(SPACES[kind], outputs[1:2], log_std)
    keys = Stream(stream().keys[1:2], Purpose.ACT, torch.tensor([3]))
    assert torch.equal(alone.sample(keys)[0], whole[1])
    assert not torch.equal(alone.sample(Stream(keys.keys, Purpose.ACT, torch.tensor([4])))[0], whole[1])


# --- the choice of one ------------------------------------------------------------------------------------------------

KINDS: list[tuple[str, bool, tuple[int, ...], torch.dtype]] = [
    ("discrete", False, (), torch.int64),
    ("multidiscrete", False, (len(CHOICES),), torch.int64),
    ("multibinary", False, (WIDTH,), torch.int64),
    ("continuous", False, (WIDTH,), torch.float32),
    ("continuous", True, (WIDTH,), torch.float32),
]


@pytest.mark.parametrize(("kind", "squash", "shape", "dtype"), KINDS)
def test_every_kind_of_actions_has_its_distribution(
    kind: str, squash: bool, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    found = distribution(SPACES[kind], numbers().float(), torch.zeros(WIDTH), squash=squash)
    assert SPACES[kind].action_shape == shape
    action, log_prob = drawn(found, stream())
    for actions in (action, found.mode()):
        assert (actions.shape, actions.dtype) == ((MEMBERS, BATCH, *shape), dtype)
    for values in (log_prob, found.log_prob(action), found.entropy()):
        assert (values.shape, values.dtype) == ((MEMBERS, BATCH), torch.float32)


def test_a_gaussian_needs_its_deviations() -> None:
    with pytest.raises(ValueError, match="log_std is None"):
        distribution(SPACES["continuous"], numbers())


@pytest.mark.thorough
def test_all_of_it_is_one_graph() -> None:
    """Sampling, log-probability and entropy hold nothing that a compiler or a captured graph would stumble over."""

    def everything(outputs: torch.Tensor, legal: torch.Tensor, draw_keys: torch.Tensor) -> list[torch.Tensor]:
        values = []
        for kind, squash, *_ in KINDS:
            masked = None if kind == "continuous" else legal
            found = distribution(SPACES[kind], outputs, torch.zeros(WIDTH), masked, squash)
            action, log_prob = drawn(found, Stream(draw_keys, Purpose.ACT, torch.tensor([3])))
            values += [log_prob, found.log_prob(action), found.entropy()]
        return values

    compiled = torch.compile(everything, backend="aot_eager", fullgraph=True)
    inputs = numbers().float(), mask(), stream().keys
    for ours, plain in zip(compiled(*inputs), everything(*inputs), strict=True):
        torch.testing.assert_close(ours, plain)


def test_a_squashed_gaussian_acts_greedily_by_the_tangent_of_its_mean() -> None:
    mean = torch.tensor([[[-3.0, 0.0, 0.5]]])
    mode = squashed(mean, torch.zeros_like(mean)).mode()
    assert mode[0, 0].tolist() == pytest.approx([math.tanh(-3.0), 0.0, math.tanh(0.5)])
