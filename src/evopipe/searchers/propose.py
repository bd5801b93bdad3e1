"""Proposers, which choose the hyper-parameters of new trials within the space of the search (`search.proposer`).

- `random` draws every value by itself (Bergstra & Bengio, 2012).
- `sobol` takes the next point of a scrambled Sobol sequence (Owen, 1998), which fills the space more evenly: the trials
  of a run are its first points.
- `prior` draws every other trial around the configured values and the others from the whole space: good beliefs of who
  configured them are used, bad ones at most double the cost (after PriorBand; Mallik et al., 2023,
  https://arxiv.org/abs/2306.12370).
- `tpe` and `gp` ask Optuna (Akiba et al., 2019), whose study is made anew from the lineage each time, so that a run
  that was killed goes on to the same values: the tree-structured Parzen estimator (Bergstra et al., 2011), or a
  Gaussian process with expected improvement. Both draw at random until ten members have been scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from evopipe.errors import need_package
from evopipe.searchers.contract import About, Bound, Draw, History, Trial

if TYPE_CHECKING:
    import numpy as np

LOG_FROM = 10.0
"""A hyper-parameter is drawn by its logarithm if its range spans at least this factor."""


def bound(low: float, high: float, whole: bool) -> Bound:
    """Return the `Bound` of a hyper-parameter: its range, and how values are drawn from the range.

    The range is `low` to `high`; `whole` says whether values are whole numbers. Values are drawn uniformly in their
    logarithm if the range is positive and its ends differ by a factor of `LOG_FROM` or more, else uniformly.
    """
    return Bound(low, high, log=low > 0 and high / low >= LOG_FROM, whole=whole)


def inside(bound: Bound, value: float) -> float:
    """Return the value clipped to a bound, and rounded if the bound is for whole numbers."""
    if bound.whole:
        return int(min(max(round(value), math.ceil(bound.low)), math.floor(bound.high)))
    return float(min(max(value, bound.low), bound.high))


def at(space: Mapping[str, Bound], shares: Sequence[float]) -> dict[str, float]:
    """Map the point `shares` of the unit cube to values of the hyper-parameters in `space`, by name.

    The point has one coordinate in [0, 1) for each hyper-parameter, in the order of sorted names. 0 is the low end of a
    range, 1 the high end.
    """
    return {name: value_at(space[name], share) for name, share in zip(sorted(space), shares, strict=True)}


def value_at(bound: Bound, share: float) -> float:
    """Map the coordinate `share` in [0, 1) to a value in a bound's range, linearly or by logarithm (see `Bound`).

    If the range has whole numbers, the value is rounded to one of them. For this, the range is first widened by 0.5 at
    both ends, so that the lowest and the highest number are not chosen too rarely.
    """
    low, high = _ends(bound)
    return inside(bound, math.exp(low + share * (high - low)) if bound.log else low + share * (high - low))


def share_of(bound: Bound, value: float) -> float:
    """Map a value to its coordinate in [0, 1] within a bound's range. This is the inverse of `value_at`.

    A value outside the range is mapped to 0 or 1. If the range is a single value, the coordinate is 0.5.
    """
    low, high = _ends(bound)
    place = math.log(inside(bound, value)) if bound.log else inside(bound, value)
    return min(max((place - low) / (high - low), 0.0), 1.0) if high > low else 0.5


def _ends(bound: Bound) -> tuple[float, float]:
    """Return the interval whose shares are drawn, of logarithms if the values are."""
    low, high = bound.low, bound.high
    if bound.whole:
        low, high = math.ceil(low) - 0.5, math.floor(high) + 0.5
    return (math.log(low), math.log(high)) if bound.log else (low, high)


def random_values(space: Mapping[str, Bound], draw: np.random.Generator) -> dict[str, float]:
    """Draw a value for every hyper-parameter of a space independently, uniformly or uniformly in its logarithm (see
    `Bound`)."""
    return at(space, draw.random(len(space)).tolist())


SPREAD = 0.125
"""The deviation of values that are drawn around the configured ones, as a share of their range."""


def prior_values(
    space: Mapping[str, Bound], configured: Mapping[str, float], draw: np.random.Generator
) -> dict[str, float]:
    """Draw a value for each hyper-parameter in `space`, near its value in `configured`; return the values by name.

    `share_of` maps each range to [0, 1]. A point is drawn there, and mapped back to a value. The point's distribution
    is normal, truncated to [0, 1]. Its centre is the point of the configured value, its standard deviation `SPREAD`.
    """
    centres = [share_of(space[name], configured[name]) for name in sorted(space)]
    return at(space, [_around(*each) for each in zip(centres, draw.random(len(space)).tolist(), strict=True)])


def _around(centre: float, u: float) -> float:
    """Return the quantile of `u`, in [0, 1), of the truncated normal distribution."""
    normal = NormalDist(centre, SPREAD)
    low, high = normal.cdf(0.0), normal.cdf(1.0)
    return min(max(normal.inv_cdf(low + u * (high - low)), 0.0), math.nextafter(1.0, 0.0))


def drawn_values(
    proposer: str, space: Mapping[str, Bound], configured: Mapping[str, float], number: int, draw: np.random.Generator
) -> dict[str, float]:  # fmt: skip
    """Draw the searched hyper-parameters of one trial, and return them by name.

    Args:
        proposer: `search.proposer`. For `prior`, trials with odd numbers have values around the configured ones; all
            other values are drawn from the whole space.
        space: the range of each searched hyper-parameter.
        configured: the values in the algorithm's own block.
        number: the trial's number in the run.
        draw: the random generator.
    """
    return prior_values(space, configured, draw) if proposer == "prior" and number % 2 else random_values(space, draw)


def sobol_values(space: Mapping[str, Bound], seed: int, index: int) -> dict[str, float]:
    """Return values of the hyper-parameters in `space`: the point with the number `index`, from 0, of a Sobol sequence.

    The sequence is scrambled with `seed`, the run's seed.
    """
    if not space:
        return {}
    from torch.quasirandom import SobolEngine

    sequence = SobolEngine(len(space), scramble=True, seed=seed)
    return at(space, sequence.fast_forward(index).draw(1)[0].tolist())


def first_values(
    proposer: str, space: Mapping[str, Bound], seed: int, draws: Sequence[np.random.Generator],
    configured: Mapping[str, float], first: str = "drawn",
) -> list[dict[str, float]]:  # fmt: skip
    """Return the hyper-parameters of a run's initial members.

    Args:
        proposer: `search.proposer`; `tpe` and `gp` draw at random, because nothing was scored yet.
        space: the range of each searched hyper-parameter.
        seed: the run's seed.
        draws: one random generator for each member.
        configured: the values in the algorithm's own block.
        first: `configured` gives the first member the configured values, clipped to their ranges, as SMAC3 does
            (Lindauer et al., 2022); `drawn` draws them like all others.
    """
    if proposer == "sobol":
        found = [sobol_values(space, seed, index) for index in range(len(draws))]
    else:
        found = [drawn_values(proposer, space, configured, number, draw) for number, draw in enumerate(draws)]
    if first == "configured":
        found[:1] = [{name: inside(bound, configured[name]) for name, bound in space.items()}]
    return found


class Proposer:
    """An object that chooses the hyper-parameters of new trials, by the method that `search.proposer` names.

    Args:
        about: what is known of the run from the start, such as searched ranges; `about.proposer` is the method.

    Raises:
        MissingInputError: the method needs Optuna, which is not installed.
    """

    def __init__(self, about: About) -> None:
        self.about = about
        self._history: History | None = None  # what is being decided on, and the trials that begin by it
        self._begun: dict[int, Trial] = {}
        if about.proposer in ("tpe", "gp"):
            need_package("optuna", "search", f"search.proposer: {about.proposer}")

    def trial(self, history: History, draw: Draw, slot: int, why: str) -> Trial:
        """Return the decision to begin a new trial in a slot, with chosen hyper-parameters; `why` is the reason for it,
        as text.

        The values depend on the history, the generation's random draw, the slot, and the trials that were chosen for
        other slots in this generation.
        """
        if self._history is not history:
            self._history, self._begun = history, {}
        begun = self._begun
        if slot not in begun:
            generator = draw().spawn(slot + 1)[slot]
            begun[slot] = Trial(self._values(history, generator, [trial.values for trial in begun.values()]), why)
        return begun[slot]

    def _values(
        self, history: History, draw: np.random.Generator, begun: Sequence[Mapping[str, float]]
    ) -> dict[str, float]:
        about = self.about
        number = history.trials + len(begun)
        if about.proposer == "sobol":
            return sobol_values(about.space, about.seed, number)
        if about.proposer in ("tpe", "gp") and about.space:
            return _asked(about, history, int(draw.integers(2**31)), begun)
        return drawn_values(about.proposer, about.space, about.configured, number, draw)


def _asked(about: About, history: History, seed: int, begun: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Ask Optuna, which knows every member's values and last score; those not scored yet, and trials that begin in this
    generation (`begun`), are under way. A member that diverged counts as the worst of all."""
    import optuna

    distributions = {name: _distribution(bound) for name, bound in sorted(about.space.items())}
    said = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it tells of every study that is made
    try:
        samplers = optuna.samplers
        sampler = (samplers.TPESampler if about.proposer == "tpe" else samplers.GPSampler)(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for values, score in [*scored(about.space, history), *((each, None) for each in begun)]:
            state = optuna.trial.TrialState.RUNNING if score is None else optuna.trial.TrialState.COMPLETE
            trial = optuna.trial.create_trial(
                state=state, params=dict(values), distributions=dict(distributions), value=score
            )
            study.add_trial(trial)
        found = study.ask(distributions).params
    finally:
        optuna.logging.set_verbosity(said)
    return {name: inside(about.space[name], value) for name, value in found.items()}


def _distribution(bound: Bound) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    if bound.whole:
        return IntDistribution(math.ceil(bound.low), math.floor(bound.high), log=bound.log)
    return FloatDistribution(bound.low, bound.high, log=bound.log)


def scored(space: Mapping[str, Bound], history: History) -> list[tuple[dict[str, float], float | None]]:
    """Return, for every member that was ever in the population, its searched hyper-parameters and its last score, by
    ascending id.

    The score is None if the member has none yet, and the worst of all scores if the member diverged.
    """
    values: dict[int, Mapping[str, Any]] = {}
    scores: dict[int, float | None] = {}
    for record in history.records:
        for each in record.members:
            values[each.id], scores[each.id] = each.hyper, each.fitness
    for member in history.members:
        values.setdefault(member.id, member.hyper)
        scores.setdefault(member.id, None)
    finite = [score for score in scores.values() if score is not None and math.isfinite(score)]
    worst = min(finite, default=None)
    return [
        (
            {name: inside(bound, values[id][name]) for name, bound in space.items()},
            score if score is None or math.isfinite(score) else worst,
        )
        for id, score in sorted(scores.items())
    ]
