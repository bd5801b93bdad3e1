"""Normalisation of observations and rewards by running statistics, which are part of a member's state.

An observation x becomes clip((x − μ) / √(σ² + ε), −c, c), column by column, with mean and variance of the observations
that the member has acted on. A reward r becomes clip(r / √(σ² + ε), −c, c), with the variance of the discounted returns
R ← γ R + r so far. New values are merged as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
computing sample variances", 1979. Columns of images and one-hot columns are not normalised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from evopipe.native import statistics
from evopipe.native.episodes import Normalised
from evopipe.native.statistics import Normalising, Running
from evopipe.schema.train import NormaliseConfig
from evopipe.types import Spaces, Tensor

EPSILON = 1e-8
_CHUNK = 1 << 16  # rows of a dataset that are entered at once
_PARTS = ("count", "mean", "square")
_CLIP, COLUMNS = "normaliser.clip", "normaliser.columns"
_OBSERVATIONS, _RETURNS = ([start + part for part in _PARTS] for start in ("normaliser.", "normaliser.return_"))
SHOWN = (_CLIP, COLUMNS, *_OBSERVATIONS)
"""Names of a member's tensors that change what its policy is shown."""
KINDS = dict.fromkeys((*SHOWN, *_RETURNS), ("row", ""))
"""How a member's tensors of a normaliser change with its architecture, see `core.member.tensor_kinds`: never."""
GROUPS = {frozenset(names) for names in (SHOWN, (_CLIP, *_RETURNS), KINDS)}
"""Which of them there may be, where there are any: of observations, of rewards, of both."""


@dataclass(frozen=True)
class Statistics:
    """Running mean and variance of N columns, separately for each of P members, in float64.

    Attributes:
        count: `[P]`, the number of values so far, which is the same for all columns of a member.
        mean: `[P, N]`, the mean of each column's values.
        square: `[P, N]`, the sum of the squared distances of each column's values from the column's mean.
    """

    count: Tensor
    mean: Tensor
    square: Tensor

    @property
    def running(self) -> Running:
        """The statistics in the form that the C kernels take."""
        return Running(self.count, self.mean, self.square)

    def merge(self, values: Tensor, given: Tensor) -> None:
        """Merge n values of each column into the statistics, in place.

        Args:
            values: `[P, n, N]`, n values of N columns for each of P members.
            given: `[P, n]` bool, which values count. If none counts for a member, its statistics do not change.
        """
        # One column's values lie together, so that their sum does not depend on how many members there are.
        x = torch.where(given[..., None], values.double(), 0.0).transpose(1, 2).contiguous()  # [P, N, n]
        if statistics.merge(self.running, x, given.contiguous()):
            return
        count = given.sum(dim=1).double()
        mean = x.sum(dim=2) / count.clamp(min=1.0)[:, None]
        apart = torch.where(given[:, None], x - mean[..., None], 0.0)
        total = self.count + count
        share = (count / total.clamp(min=1.0))[:, None]
        shift = mean - self.mean
        self.square.add_(apart.square().sum(dim=2) + shift.square() * self.count[:, None] * share)
        self.mean.add_(shift * share)
        self.count.copy_(total)

    def scale(self) -> Tensor:
        """Return 1 / √(σ² + ε) for each column, `[P, N]` float32, where σ² is the variance. The result is 1 before the
        first value."""
        seen = self.count[:, None]
        variance = torch.where(seen > 0, self.square / seen.clamp(min=1.0), 1.0 - EPSILON)
        return (variance + EPSILON).rsqrt().float()


@dataclass(frozen=True)
class Normaliser:
    """The running statistics by which the observations and rewards of a cohort's P members are normalised.

    A cohort is a batch of members that train together.

    Attributes:
        held: the tensors of the statistics, by their names in `Member.tensors`. Each tensor has one row per member. The
            indices of the normalised columns are an exception: they have no such rows, because they are equal for all
            members.
    """

    held: Mapping[str, Tensor]

    @classmethod
    def stack(cls, members: Sequence[Mapping[str, Tensor]], device: torch.device) -> Normaliser | None:
        """Stack the statistics of several members into a normaliser on the device. `members` holds each member's
        tensors by name. Return None if the members have none."""
        rows = {name: [m[name] for m in members] for name in KINDS if name in members[0]}
        held = {name: own[0] if name == COLUMNS else torch.stack(own) for name, own in rows.items()}
        return cls({name: tensor.to(device) for name, tensor in held.items()}) if held else None

    @property
    def clip(self) -> Tensor:
        """The bound c of each member, `[P]` float32: normalised observations and rewards are clipped to [−c, c]."""
        return self.held[_CLIP]

    @property
    def columns(self) -> Tensor | None:
        """The indices `[N]` int64 of the observation's columns that are normalised; None if observations are not
        normalised."""
        return self.held.get(COLUMNS)

    @cached_property
    def observations(self) -> Statistics | None:
        """The statistics of the normalised columns of observations; None if observations are not normalised."""
        return self._statistics(_OBSERVATIONS)

    @cached_property
    def returns(self) -> Statistics | None:
        """The statistics of the discounted returns (one column), whose deviation scales rewards; None if rewards are
        not normalised."""
        return self._statistics(_RETURNS)

    def _statistics(self, names: Sequence[str]) -> Statistics | None:
        return Statistics(*(self.held[name] for name in names)) if names[0] in self.held else None

    def rows(self) -> Iterator[tuple[str, Sequence[Tensor]]]:
        """Yield the normaliser's tensors as pairs (name, tensors), with one tensor per member; the names are those in
        `Member.tensors`. This is the inverse of `stack`."""
        for name, tensor in self.held.items():
            yield name, [tensor] * len(self.clip) if name == COLUMNS else tensor.unbind(0)

    def part(self, first: int, end: int) -> Normaliser:
        """Return the normaliser of the rows `first` to `end` (exclusive); it shares memory with this normaliser."""
        return Normaliser({name: x if name == COLUMNS else x[first:end] for name, x in self.held.items()})

    def update(self, obs: Tensor, healthy: Tensor, there: Tensor | None = None) -> None:
        """Update the statistics in place.

        Args:
            obs: `[P, E, O]`, E observations of O numbers for each of P members. For a team, each agent in each
                environment has one of the E. An observation that is not finite is left out.
            healthy: `[P]` bool. The observations of members for which it is False are left out.
            there: for a team, `[P, E]` bool, whether the agent is present. The zeros of absent agents are left out.
        """
        if self.observations is not None:
            values = self._chosen(obs)
            given = values.isfinite().all(dim=-1) & healthy[:, None]
            self.observations.merge(values, given if there is None else given & there)

    def normalised(self, obs: Tensor) -> Tensor:
        """Return observations `[P, B, O]` normalised by the present statistics. If observations are not normalised,
        return `obs`."""
        if (by := self.now()) is None:
            return obs
        limit = by.limit[:, None, None]
        values = ((self._chosen(obs) - by.mean[:, None]) * by.scale[:, None]).clamp(-limit, limit)
        return values if values.shape == obs.shape else obs.index_copy(-1, by.columns, values)

    def now(self) -> Normalised | None:
        """Return the mean, scale and limit that normalise observations at present; None if observations are not
        normalised."""
        if self.observations is None or self.columns is None:
            return None
        return Normalised(self.columns, self.observations.mean.float(), self.observations.scale(), self.clip)

    def while_playing(self, healthy: Tensor, returns: Tensor, gamma: Tensor) -> Normalising:
        """Return the state that the C kernels need to normalise while they play many steps in one call.

        The kernels then do the work of `update`, `normalised` and `normalise_rewards` at every step.

        Args:
            healthy: `[P]` bool, True for the members whose statistics change.
            returns: `[slots, E]` float64, the discounted returns of the unfinished episodes in the E environments of
                every slot (place in the population), not of the P members only.
            gamma: `[P]`, the discounts.
        """
        seen, paid = (None if each is None else each.running for each in (self.observations, self.returns))
        return Normalising(seen, paid, self.columns, self.clip, healthy, returns, gamma)

    def _chosen(self, obs: Tensor) -> Tensor:
        assert self.columns is not None
        return obs if len(self.columns) == obs.shape[-1] else obs.index_select(-1, self.columns)

    def normalise_rewards(self, returns: Tensor, reward: Tensor, gamma: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Update the statistics with the rewards of a step, in place; return normalised rewards and new discounted
        returns.

        Both results are `[P, E]`, for P members with E environments each. If rewards are not normalised, `reward` and
        `returns` are returned unchanged.

        Args:
            returns: `[P, E]` float64, the discounted returns of the unfinished episodes before the step.
            reward: `[P, E]`, the rewards of the step.
            gamma: `[P]`, the discounts.
            given: `[P, E]` bool, which rewards enter the statistics.
        """
        if self.returns is None:
            return reward, returns
        returns = torch.where(given, returns * gamma[:, None] + reward, returns)
        self.returns.merge(returns[..., None], given)
        limit = self.clip[:, None]
        return (reward * self.returns.scale()).clamp(-limit, limit), returns


def start(cfg: NormaliseConfig, spaces: Spaces) -> dict[str, Tensor]:
    """Return the initial tensors of normalisation for a new member, by name; empty if nothing is normalised.

    Args:
        cfg: which of observations and rewards are normalised.
        spaces: the environment's spaces.
    """
    columns = plain_columns(spaces)
    found = {_CLIP: torch.tensor(cfg.clip)}
    if cfg.observations and len(columns):
        found |= {COLUMNS: columns, **_nothing(_OBSERVATIONS, len(columns))}
    if cfg.rewards:
        found |= _nothing(_RETURNS, 1)
    return found if len(found) > 1 else {}


def _nothing(names: Sequence[str], columns: int) -> dict[str, Tensor]:
    shapes: list[tuple[int, ...]] = [(), (columns,), (columns,)]
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in zip(names, shapes, strict=True)}


def plain_columns(spaces: Spaces) -> Tensor:
    """Return the indices `[N]` int64 of an observation's columns that belong neither to an image nor to a one-hot
    code."""
    plain = torch.ones(spaces.observations, dtype=torch.bool)
    for first, end in [*((image.start, image.start + image.size) for image in spaces.images), *spaces.one_hot]:
        plain[first:end] = False
    return plain.nonzero()[:, 0]


def after(tensors: Mapping[str, Tensor], obs: Tensor) -> dict[str, Tensor]:
    """Return a member's tensors by name, with the observation statistics updated by the observations `obs` `[n, O]` of
    a dataset.

    If the member does not normalise observations, its tensors are returned unchanged.
    """
    normaliser = Normaliser.stack([tensors], torch.device("cpu"))
    if normaliser is None:
        return dict(tensors)
    for rows in obs.split(_CHUNK):
        normaliser.update(rows[None], torch.ones(1, dtype=torch.bool))
    return {**tensors, **{name: rows[0].clone() for name, rows in normaliser.rows()}}


def describe(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return how observations are normalised, as JSON data.

    The result is a list with one dict, which has the formula (`normalise`) and the names of the tensors in it
    (`tensors`). The list is empty if observations are not normalised. The argument `tensors` has a member's tensors by
    name.
    """
    if COLUMNS not in tensors:
        return []
    what = f"columns: clip((x - mean) / sqrt(square / count + {EPSILON}), -clip, clip)"
    return [{"normalise": what, "tensors": list(SHOWN)}]
