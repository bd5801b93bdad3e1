"""Distributions of actions, over tensors `[P, B, …]`. Draws are a member's own; nothing is reduced over `P` or `B`.

A mask names the legal actions. An illegal one has probability 0 (its log-probability is the lowest number there is, or
−∞), adds nothing to the entropy, gets no gradient and is never drawn, not even where a member's outputs are no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from evopipe.ops.value import masked_argmax, pick
from evopipe.rng import Stream
from evopipe.types import Spaces

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """What a policy gives: a distribution of actions for every member and observation.

    Actions are `[P, B, …]`; log-probabilities (or log-densities) and entropies, in nats, are `[P, B]`.
    """

    def sample(self, draw: Stream) -> torch.Tensor: ...
    def mode(self) -> torch.Tensor: ...
    def log_prob(self, action: torch.Tensor) -> torch.Tensor: ...
    def entropy(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class Categorical:
    """One of A actions: softmax over the legal ones. An action is int64 `[P, B]`.

    Attributes:
        logits: `[P, B, A]`, or with more dimensions in the middle.
        legal: bool, of the same shape or one that expands to it; None where all are.
        log_probs: `[P, B, A]`, of every action.
    """

    logits: torch.Tensor
    legal: torch.Tensor | None = None
    log_probs: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_probs", masked_log_softmax(self.logits, self.legal))

    def sample(self, draw: Stream) -> torch.Tensor:
        """Draw by the Gumbel-max trick: argmax (log p − log E), E exponential."""
        u = draw.uniform(self.logits[0].numel()).view(self.logits.shape)
        noise = torch.log(-torch.log1p(-u)).to(self.logits.dtype)
        # The argmax would take a NaN for the largest, and noise may be infinite: what is illegal goes last.
        return masked_argmax(torch.nan_to_num(self.log_probs) - noise, self.legal)

    def mode(self) -> torch.Tensor:
        return masked_argmax(torch.nan_to_num(self.logits), self.legal)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return pick(self.log_probs, action)

    def probabilities(self) -> torch.Tensor:
        """Of every action, `[P, B, A]`."""
        return self.log_probs.exp()

    def entropy(self) -> torch.Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(dim=-1)  # the lowest number times 0 is 0, −∞ were NaN


@dataclass(frozen=True)
class MultiCategorical:
    """D independent choices. An action is int64 `[P, B, D]`.

    Attributes:
        logits: `[P, B, A]`, those of the first choice, then those of the second, and so on.
        choices: how many each has, A in all.
        legal: `[P, B, A]` bool; None where all are.
        each: the choices side by side, `[P, B, D, most]`: what a choice does not have is illegal there.
    """

    logits: torch.Tensor
    choices: tuple[int, ...]
    legal: torch.Tensor | None = None
    each: Categorical = field(init=False, repr=False)

    def __post_init__(self) -> None:
        legal = self.legal
        if legal is None and len(set(self.choices)) > 1:
            legal = torch.ones(sum(self.choices), dtype=torch.bool, device=self.logits.device)
        legal = None if legal is None else side_by_side(legal, self.choices)
        object.__setattr__(self, "each", Categorical(side_by_side(self.logits, self.choices), legal))

    def sample(self, draw: Stream) -> torch.Tensor:
        return self.each.sample(draw)

    def mode(self) -> torch.Tensor:
        return self.each.mode()

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return self.each.log_prob(action).sum(dim=-1)

    def probabilities(self) -> torch.Tensor:
        """Of every value of each choice, one choice after another, `[P, B, A]`."""
        parts = zip(self.each.probabilities().unbind(dim=-2), self.choices, strict=True)
        return torch.cat([each[..., :n] for each, n in parts], dim=-1)

    def entropy(self) -> torch.Tensor:
        return self.each.entropy().sum(dim=-1)


@dataclass(frozen=True)
class Bernoulli:
    """A independent bits, each 1 with probability σ(logit). An action is int64 `[P, B, A]`.

    Attributes:
        logits: `[P, B, A]`.
        legal: `[P, B, A]` bool, which bits may be 1; None where all may.
        possible: the logits, the lowest number there is where a bit must stay 0.
    """

    logits: torch.Tensor
    legal: torch.Tensor | None = None
    possible: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        possible = self.logits if self.legal is None else _where_legal(self.logits, self.legal)
        object.__setattr__(self, "possible", possible)

    def sample(self, draw: Stream) -> torch.Tensor:
        """Set each bit with its probability; a comparison with NaN sets none."""
        return (draw.uniform(self.logits[0].numel()).view(self.logits.shape) < self.possible.sigmoid()).long()

    def mode(self) -> torch.Tensor:
        return (self.possible > 0).long()

    def probabilities(self) -> torch.Tensor:
        """That each bit is 1, `[P, B, A]`."""
        return self.possible.sigmoid()

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.logsigmoid((2 * action - 1) * self.possible).sum(dim=-1)

    def entropy(self) -> torch.Tensor:
        """Return Σ −log σ(y) + y σ(−y), y = |logit|: nothing cancels, whatever its size."""
        y = self.possible.abs()
        return (y * torch.sigmoid(-y) - torch.nn.functional.logsigmoid(y)).sum(dim=-1)


@dataclass(frozen=True)
class Gaussian:
    """A independent normal numbers. An action is float32 `[P, B, A]`, not clipped.

    Attributes:
        mean: `[P, B, A]`.
        log_std: logarithms of the standard deviations; of a shape that expands to the mean's.
    """

    mean: torch.Tensor
    log_std: torch.Tensor

    def sample(self, draw: Stream) -> torch.Tensor:
        return self.mean + self.log_std.exp() * self._noise(draw)

    def mode(self) -> torch.Tensor:
        return self.mean

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return self._log_density((action - self.mean) * torch.exp(-self.log_std)).sum(dim=-1)

    def entropy(self) -> torch.Tensor:
        """Return Σ log std + ½ log 2πe."""
        return (self.log_std + (0.5 + _HALF_LOG_2PI)).expand_as(self.mean).sum(dim=-1)

    def _noise(self, draw: Stream) -> torch.Tensor:
        return draw.normal(self.mean[0].numel()).view(self.mean.shape).to(self.mean.dtype)

    def _log_density(self, noise: torch.Tensor) -> torch.Tensor:
        """Of each number by itself, that lies `noise` standard deviations from the mean: `[P, B, A]`."""
        return -0.5 * noise * noise - self.log_std - _HALF_LOG_2PI


@dataclass(frozen=True)
class SquashedGaussian(Gaussian):
    """The hyperbolic tangent of such normal numbers u. An action is float32 `[P, B, A]` in [−1, 1].

    Its entropy is u's, an upper bound: its own has no closed form.
    """

    def sample(self, draw: Stream) -> torch.Tensor:
        return torch.tanh(super().sample(draw))

    def mode(self) -> torch.Tensor:
        """Return tanh(mean): of the median, and what acts greedily; the density itself peaks elsewhere."""
        return torch.tanh(self.mean)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """Return the log-densities of actions, u = atanh(a): float32 `[P, B, A]` → `[P, B]`.

        They are those of the actions as they are, which float32 rounds: towards ±1 an action tells u only roughly, and
        ±1 counts as the number next to it. So a policy gives the same number when it sees an action again.
        """
        most = 1.0 - torch.finfo(action.dtype).eps / 2
        a = action.clamp(-most, most)
        u = 0.5 * (torch.log1p(a) - torch.log1p(-a))  # atanh, whose own bits depend on where in a tensor a number lies
        return (self._log_density((u - self.mean) * torch.exp(-self.log_std)) - _log_slope(u)).sum(dim=-1)


def distribution(
    spaces: Spaces,
    outputs: torch.Tensor,
    log_std: torch.Tensor | None = None,
    legal: torch.Tensor | None = None,
    squash: bool = False,
) -> Distribution:
    """Return the distribution of an environment's actions.

    Args:
        spaces: which kind of actions.
        outputs: `[P, B, A]`, logits, or means of continuous actions.
        log_std: of continuous actions, of a shape that expands to `[P, B, A]`; others have none.
        legal: `[P, B, A]` bool, or None where all are; continuous actions have none.
        squash: whether continuous actions pass a hyperbolic tangent.
    """
    if spaces.kind == "multidiscrete":
        return MultiCategorical(outputs, spaces.choices, legal)
    if spaces.kind == "multibinary":
        return Bernoulli(outputs, legal)
    if spaces.kind == "discrete":
        return Categorical(outputs, legal)
    if log_std is None:
        raise ValueError("log_std is None: a Gaussian of continuous actions needs its standard deviations")
    return SquashedGaussian(outputs, log_std) if squash else Gaussian(outputs, log_std)


def squashed_gaussian(
    mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a = tanh(u), u = mean + exp(log_std) · noise, and return its log-density (Haarnoja et al., 2018, app. C).

    log π(a) = log N(u) − Σ log(1 − tanh²u), the latter as 2 (log 2 − u − softplus(−2u)), which cannot overflow.

    Args:
        mean: `[…, A]`.
        log_std: `[…, A]`.
        noise: `[…, A]`, standard normal.

    Returns:
        Actions `[…, A]` in (−1, 1) and log-densities `[…]`.
    """
    u = mean + log_std.exp() * noise
    normal = -0.5 * noise * noise - log_std - _HALF_LOG_2PI
    return torch.tanh(u), (normal - _log_slope(u)).sum(dim=-1)


def _log_slope(u: torch.Tensor) -> torch.Tensor:
    """Return log(1 − tanh²u)."""
    # By a softplus it would have other bits from place to place in a tensor.
    return 2.0 * (math.log(2.0) - u + torch.nn.functional.logsigmoid(2.0 * u))


def masked_log_softmax(logits: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
    """Return log-probabilities `[…, A]`, the lowest number there is where `legal` (bool, or None) says no."""
    if legal is not None:
        logits = _where_legal(logits, legal)
    return logits.log_softmax(dim=-1)


def _where_legal(logits: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(~legal, torch.finfo(logits.dtype).min)


def side_by_side(x: torch.Tensor, choices: Sequence[int]) -> torch.Tensor:
    """Lay `[…, A]`, the parts of several choices one after another, side by side: `[…, D, most]`, zeros behind."""
    most = max(choices)
    if all(n == most for n in choices):
        return x.view(*x.shape[:-1], len(choices), most)
    parts = x.split(list(choices), dim=-1)
    return torch.stack([torch.nn.functional.pad(part, (0, most - part.shape[-1])) for part in parts], dim=-2)
