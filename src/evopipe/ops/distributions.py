"""Distributions of actions, over tensors `[P, B, …]`: B observations of each of P members.

Each member has its own draws; nothing is reduced over `P` or `B`.

A mask marks the legal actions. An illegal action has probability 0 (its log-probability is the lowest float, or −∞),
adds nothing to the entropy, gets no gradient and is never drawn, even if a member's outputs are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from evopipe.native import explore
from evopipe.ops.value import masked_argmax, pick
from evopipe.rng import Stream
from evopipe.types import Spaces, Tensor

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """Protocol of a policy's action distributions, one for each of P members and each of its B observations.

    `sample` and `mode` return actions `[P, B, …]`. `log_prob` and `entropy` return numbers `[P, B]` in nats; for
    continuous actions, `log_prob` is a log-density.
    """

    def sample(self, draw: Stream) -> Tensor: ...
    def mode(self) -> Tensor: ...
    def log_prob(self, action: Tensor) -> Tensor: ...
    def entropy(self) -> Tensor: ...


@dataclass(frozen=True)
class _Categorical:
    """One of A actions, int64 `[P, B]`: softmax of logits `[P, B, A]`, or with more dimensions in the middle, over the
    legal ones, bool of a shape that expands to that."""

    logits: Tensor
    legal: Tensor | None = None
    log_probs: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_probs", masked_log_softmax(self.logits, self.legal))

    def sample(self, draw: Stream) -> Tensor:
        """Draw by the Gumbel-max trick: argmax (log p − log E), E exponential."""
        noise = gumbel(draw, self.logits[0].numel()).view(self.logits.shape).to(self.logits.dtype)
        # The argmax would take a NaN for the largest, and noise may be infinite: what is illegal goes last.
        return masked_argmax(torch.nan_to_num(self.log_probs) - noise, self.legal)

    def mode(self) -> Tensor:
        return masked_argmax(torch.nan_to_num(self.logits), self.legal)

    def log_prob(self, action: Tensor) -> Tensor:
        return pick(self.log_probs, action)

    def probabilities(self) -> Tensor:
        """Of every action, `[P, B, A]`."""
        return self.log_probs.exp()

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)  # the lowest number times 0 is 0, −∞ were NaN


@dataclass(frozen=True)
class _MultiCategorical:
    """D independent choices, int64 `[P, B, D]`: logits `[P, B, A]` are those of the first, then those of the second …;
    `each` holds the choices side by side, `[P, B, D, most]`: what a choice does not have is illegal there."""

    logits: Tensor
    choices: tuple[int, ...]
    legal: Tensor | None = None
    each: _Categorical = field(init=False, repr=False)

    def __post_init__(self) -> None:
        legal = self.legal
        if legal is None and len(set(self.choices)) > 1:
            legal = torch.ones(sum(self.choices), dtype=torch.bool, device=self.logits.device)
        legal = None if legal is None else _side_by_side(legal, self.choices)
        object.__setattr__(self, "each", _Categorical(_side_by_side(self.logits, self.choices), legal))

    def sample(self, draw: Stream) -> Tensor:
        return self.each.sample(draw)

    def mode(self) -> Tensor:
        return self.each.mode()

    def log_prob(self, action: Tensor) -> Tensor:
        return self.each.log_prob(action).sum(dim=-1)

    def probabilities(self) -> Tensor:
        """Of every value of each choice, one choice after another, `[P, B, A]`."""
        parts = zip(self.each.probabilities().unbind(dim=-2), self.choices, strict=True)
        return torch.cat([each[..., :n] for each, n in parts], dim=-1)

    def entropy(self) -> Tensor:
        return self.each.entropy().sum(dim=-1)


@dataclass(frozen=True)
class _Bernoulli:
    """A independent bits, int64 `[P, B, A]`, each 1 with probability σ(logit); `legal` says which may be 1."""

    logits: Tensor
    legal: Tensor | None = None
    possible: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        possible = self.logits if self.legal is None else _where_legal(self.logits, self.legal)
        object.__setattr__(self, "possible", possible)

    def sample(self, draw: Stream) -> Tensor:
        """Set each bit with its probability; a comparison with NaN sets none."""
        return (draw.uniform(self.logits[0].numel()).view(self.logits.shape) < self.possible.sigmoid()).long()

    def mode(self) -> Tensor:
        return (self.possible > 0).long()

    def probabilities(self) -> Tensor:
        """That each bit is 1, `[P, B, A]`."""
        return self.possible.sigmoid()

    def log_prob(self, action: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((2 * action - 1) * self.possible).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return Σ −log σ(y) + y σ(−y), y = |logit|: nothing cancels, whatever its size."""
        y = self.possible.abs()
        return (y * torch.sigmoid(-y) - torch.nn.functional.logsigmoid(y)).sum(dim=-1)


@dataclass(frozen=True)
class _Gaussian:
    """A independent normal numbers, float32 `[P, B, A]`, not clipped; `log_std` expands to the mean's shape."""

    mean: Tensor
    log_std: Tensor

    def sample(self, draw: Stream) -> Tensor:
        return self.mean + self.log_std.exp() * self._noise(draw)

    def _noise(self, draw: Stream) -> Tensor:
        return draw.normal(self.mean[0].numel()).view(self.mean.shape).to(self.mean.dtype)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        return self._log_density((action - self.mean) * torch.exp(-self.log_std)).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return Σ log std + ½ log 2πe."""
        return (self.log_std + (0.5 + _HALF_LOG_2PI)).expand_as(self.mean).sum(dim=-1)

    def _log_density(self, noise: Tensor) -> Tensor:
        return -0.5 * noise * noise - self.log_std - _HALF_LOG_2PI


@dataclass(frozen=True)
class _SquashedGaussian(_Gaussian):
    """tanh of normal numbers u, float32 `[P, B, A]` in [−1, 1]. Its entropy, u's, is an upper bound."""

    def sample(self, draw: Stream) -> Tensor:
        return squashed_draw(self.mean, self.log_std, self._noise(draw))

    def mode(self) -> Tensor:
        """Return tanh(mean), the median; the density itself peaks elsewhere."""
        return squashed(self.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-densities `[P, B]` of actions as float32 rounds them: towards ±1 an action tells u = atanh(a)
        only roughly, and ±1 counts as the number next to it. So a policy gives the same number when it sees an action
        again."""
        most = 1.0 - torch.finfo(action.dtype).eps / 2
        a = action.clamp(-most, most)
        u = 0.5 * (torch.log1p(a) - torch.log1p(-a))  # atanh, whose own bits depend on where in a tensor a number lies
        return (self._log_density((u - self.mean) * torch.exp(-self.log_std)) - _log_slope(u)).sum(dim=-1)


@dataclass(frozen=True)
class _Mixed:
    """D choices and C numbers at once, float32 `[P, B, D + C]`: all are independent given the observation, so that
    log-probabilities and entropies add up. Either is None where there are none."""

    choices: _MultiCategorical | None
    numbers: _Gaussian | None

    def sample(self, draw: Stream) -> Tensor:
        parts = zip((self.choices, self.numbers), (draw.part(1), draw.part(2)), strict=True)
        return self._joined([each.sample(own) for each, own in parts if each is not None])

    def mode(self) -> Tensor:
        return self._joined([each.mode() for each in (self.choices, self.numbers) if each is not None])

    def log_prob(self, action: Tensor) -> Tensor:
        count = 0 if self.choices is None else len(self.choices.choices)
        found = [] if self.choices is None else [self.choices.log_prob(action[..., :count].long())]
        return _added([*found, *([] if self.numbers is None else [self.numbers.log_prob(action[..., count:])])])

    def entropy(self) -> Tensor:
        return _added([each.entropy() for each in (self.choices, self.numbers) if each is not None])

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        kind = torch.float32 if self.numbers is None else self.numbers.mean.dtype
        return torch.cat([part.to(kind) for part in parts], dim=-1)


def _added(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def distribution(
    spaces: Spaces, outputs: Tensor, log_std: Tensor | None = None, legal: Tensor | None = None, squash: bool = False
) -> Distribution:
    """Return the action distribution of a policy, of the kind that the environment's action space needs.

    Discrete spaces get a categorical distribution, multi-discrete spaces independent categorical distributions,
    multi-binary spaces independent bits, continuous spaces independent Gaussians, mixed spaces independent categorical
    distributions and Gaussians.

    Args:
        spaces: the environment's spaces.
        outputs: `[P, B, A]` (P members, B observations), the network's outputs: logits, or means of continuous actions.
        log_std: log standard deviations of the numbers in an action, broadcast to the shape of their means; unused for
            actions without numbers.
        legal: `[P, B, A]` bool, which actions are legal; None if all are. Unused for continuous actions.
        squash: whether a hyperbolic tangent maps continuous actions to [−1, 1].

    Raises:
        ValueError: actions are continuous, and `log_std` is None.
    """
    if spaces.kind == "multidiscrete":
        return _MultiCategorical(outputs, spaces.choices, legal)
    if spaces.kind == "multibinary":
        return _Bernoulli(outputs, legal)
    if spaces.kind == "discrete":
        return _Categorical(outputs, legal)
    if spaces.kind == "mixed":
        return _mixed(spaces, outputs, log_std, legal, squash)
    if log_std is None:
        raise ValueError("log_std is None: a Gaussian of continuous actions needs its standard deviations")
    return _SquashedGaussian(outputs, log_std) if squash else _Gaussian(outputs, log_std)


def _mixed(
    spaces: Spaces, outputs: Tensor, log_std: Tensor | None, legal: Tensor | None, squash: bool
) -> _Mixed:  # fmt: skip
    logits, means = outputs.split([sum(spaces.choices), spaces.numbers], dim=-1)
    choices = numbers = None
    if spaces.choices:
        own = None if legal is None else legal[..., : sum(spaces.choices)]
        choices = _MultiCategorical(logits, spaces.choices, own)
    if spaces.numbers:
        if log_std is None:
            raise ValueError("log_std is None: a Gaussian of continuous actions needs its standard deviations")
        numbers = (_SquashedGaussian if squash else _Gaussian)(means, log_std)
    return _Mixed(choices, numbers)


def squashed(x: Tensor) -> Tensor:
    """Return tanh(x), of the same shape as x. Policies use it to map actions to [−1, 1].

    On the CPU, the tanh is computed in float64 and rounded to x's type, so that its bits do not depend on the
    processor. The last bits of a float32 tanh differ between AVX2 and AVX-512 where torch takes it from MKL.
    """
    if (found := explore.squashed(x)) is not None:
        return found
    return torch.tanh(x.double()).to(x.dtype) if x.device.type == "cpu" else torch.tanh(x)


def mean_and_deviation(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Split an actor's outputs `[…, 2 A]` into the mean and the log standard deviation of a Gaussian, `[…, A]` each.

    The log standard deviation is clipped to [`LOG_STD_MIN`, `LOG_STD_MAX`]. The Gaussian is the distribution of
    the action before a tanh squashes it.
    """
    mean, log_std = outputs.chunk(2, dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def with_noise(outputs: Tensor, draw: Stream) -> tuple[Tensor, Tensor, Tensor]:
    """Split an actor's outputs into the mean and the log standard deviation of a Gaussian, and draw noise for it.

    `outputs` is `[P, B, 2 A]` (P members, B observations), and `draw` the stream of random numbers. Return the mean,
    the log standard deviation (clipped as by `mean_and_deviation`) and standard normal noise, `[P, B, A]` each.
    """
    mean, log_std = mean_and_deviation(outputs)
    return mean, log_std, draw.normal(mean.numel() // len(mean)).view(mean.shape)


def squashed_draw(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Return the actions tanh(mean + exp(log_std) · noise); all tensors are `[…, A]`.

    On the CPU, the result is computed in float64 and rounded, so that its bits do not depend on the processor.
    """
    if (found := explore.squashed(mean, log_std, noise)) is not None:
        return found
    if mean.device.type != "cpu":
        return torch.tanh(mean + log_std.exp() * noise)
    return torch.tanh(mean.double() + log_std.double().exp() * noise).to(mean.dtype)


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions of a tanh-squashed Gaussian and their log-densities (Haarnoja et al., 2018, app. C).

    The action is a = tanh(u) with u = mean + exp(log_std) · noise, and log π(a) = log N(u) − Σ log(1 − tanh²u). The
    last term is computed as 2 (log 2 − u − softplus(−2u)), which cannot overflow.

    Args:
        mean, log_std: `[…, A]`, the Gaussian.
        noise: `[…, A]`, standard normal numbers.

    Returns:
        The actions `[…, A]` and the log-densities `[…]`.
    """
    u = mean + log_std.exp() * noise
    normal = -0.5 * noise * noise - log_std - _HALF_LOG_2PI
    return torch.tanh(u), (normal - _log_slope(u)).sum(dim=-1)


def _log_slope(u: Tensor) -> Tensor:
    """Return log(1 − tanh²u)."""
    # By a softplus it would have other bits from place to place in a tensor.
    return 2.0 * (math.log(2.0) - u + torch.nn.functional.logsigmoid(2.0 * u))


def gumbel(draw: Stream, n: int) -> Tensor:
    """Draw negative Gumbel noise, `[P, n]` float64: n numbers for each of the P members of the stream `draw`.

    For scores `[P, n]`, the argmax of (scores − noise) is a sample from the softmax of the scores (the Gumbel-max
    trick).
    """
    return torch.log(-torch.log1p(-draw.uniform(n)))


def relaxed(logits: Tensor, legal: Tensor | None, temperature: float, draw: Stream) -> Tensor:
    """Sample one-hot actions `[P, …, A]` of P members, whose gradient is that of the Gumbel-softmax.

    This is a straight-through estimator (Jang, Gu & Poole, 2017; Maddison, Mnih & Teh, 2017).

    Args:
        logits: `[P, …, A]`, unnormalised log-probabilities.
        legal: `[P, …, A]` bool, the legal actions; None if all actions are legal.
        temperature: the temperature of the softmax.
        draw: the stream of random numbers.
    """
    noise = gumbel(draw, logits[0].numel()).view(logits.shape).clamp(min=-40.0).to(logits.dtype)  # −∞ only where u is 0
    scores = masked_log_softmax(logits, legal) - noise
    soft = (scores / temperature).softmax(dim=-1)
    hard = torch.nn.functional.one_hot(masked_argmax(scores, legal), logits.shape[-1]).to(soft.dtype)
    return hard + (soft - soft.detach())


def expected(log_pi: Tensor, values: Tensor) -> Tensor:
    """Return the expectation Σ π(a) values(a) under a policy: `[…, A]` → `[…]`.

    `log_pi` `[…, A]` holds the log-probabilities. An action of probability 0 adds 0, even if its value is not finite.
    """
    pi = log_pi.exp()
    return (pi * torch.where(pi > 0, values, 0.0)).sum(dim=-1)  # otherwise the gradient of 0 · ∞ would be NaN


def masked_log_softmax(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Return the log-softmax `[…, A]` of logits over the legal actions.

    Where `legal` `[…, A]` is False, the logit is first replaced by the lowest float. `legal` is None if all actions are
    legal.
    """
    if legal is not None:
        logits = _where_legal(logits, legal)
    return logits.log_softmax(dim=-1)


def _where_legal(logits: Tensor, legal: Tensor) -> Tensor:
    return logits.masked_fill(~legal, torch.finfo(logits.dtype).min)


def _side_by_side(x: Tensor, choices: Sequence[int]) -> Tensor:
    """Lay `[…, A]`, the parts of several choices one after another, side by side: `[…, D, most]`, zeros behind."""
    most = max(choices)
    if all(n == most for n in choices):
        return x.view(*x.shape[:-1], len(choices), most)
    parts = x.split(list(choices), dim=-1)
    return torch.stack([torch.nn.functional.pad(part, (0, most - part.shape[-1])) for part in parts], dim=-2)
