"""Population-based bandits (PB2; Parker-Holder et al., 2020): PBT whose copies explore by a Gaussian process.

A copy of a member gets the hyper-parameters for which the process promises the largest gain, not random ones.

The worst 20 % copy one of the best 20 %, as in `pbt`. The values x of a copy are those with the highest upper
confidence bound μ(x, t) + √β σ(x, t) for the generation t to come. The process is fitted to all changes of a score from
one generation to the next, by the values and the generation in which they came about, standardised. Its covariance is
that of a function that drifts (Bogunovic et al., 2016), k(x, x′) (1 − ε)^(|t − t′| / 2), k the squared exponential.
Those of one generation are chosen one after another: σ knows of all who will live in it already, the mean does not
(Desautels et al., 2014). β is that of the paper, c₁ + log(c₂ t) with c₁ = .2, c₂ = .4, and at least c₁.

scikit-learn computes the process; the scales of k, ε and the noise are those of highest likelihood. Until two changes
are known, copies draw their values from the space, as the first members did. A member that diverged counts as the
largest fall of all that are known.

Paper: https://arxiv.org/abs/2002.02518
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from pydantic import Field

from evopipe.errors import need_package
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Plan, Stateless
from evopipe.searchers.pbt import Truncation, copies, everyone, exploit
from evopipe.searchers.propose import at, random_values, share_of

RENEWS, PAUSES, DRAWS = False, False, True
PACKAGES = ("scikit-learn", "scipy")
_C1, _C2 = 0.2, 0.4
_EPSILON = (0.01, 0.5)  # within which ε is fitted
_JITTER = 1e-8  # on the diagonal, for the decomposition's sake
_CANDIDATES, _POLISHED = 1000, 3  # points at which the bound is looked at, and from how many of them it is climbed


class Config(Truncation):
    """Settings of the strategy `pb2`, population-based bandits (Parker-Holder et al., 2020)."""

    window: int = Field(
        200, ge=2, le=10**4, description="number of the latest changes in score to which the Gaussian process is fitted"
    )


class Search(Stateless):
    """The strategy `pb2`: the worst members copy the best, with hyper-parameters that a Gaussian process chooses.

    It implements `contract.Searcher`; the rules are in the module's docstring.

    Args:
        config: the strategy's settings.
        about: what the strategy knows of the run from the start: slots, steps, searched ranges, budget and target.

    Raises:
        MissingInputError: scikit-learn is not installed.
    """

    def __init__(self, config: Config, about: About) -> None:
        need_package("sklearn", "search", "search.strategy: pb2")
        self.config, self.about = config, about

    def plan(self, history: History, draw: Draw) -> Plan:
        """Plan one generation of training for all members."""
        return everyone(self.about)

    def step(self, history: History, draw: Draw) -> list[Fate] | None:
        """Replace the worst members by copies of the best, with hyper-parameters chosen by a Gaussian process; keep all
        others.

        Return one decision for each slot (place in the population). The result is None if all members diverged;
        the run then returns to an earlier generation.
        """
        chooser, space = draw(), self.about.space
        copied = exploit(history.scores(), self.config.fraction, chooser)
        if copied is None:
            return None
        known = [*changes(history)][-self.config.window :]
        points = np.array([[*self._shares(hyper), t] for hyper, t, _ in known])
        gains = np.array([gain for *_, gain in known])
        finite = np.isfinite(gains)
        found: list[Fate] = [Keep("not among the worst")] * self.about.size
        bandit = None
        if space and finite.sum() >= 2:
            here = [self._shares(member.hyper) for member in history.members if member.slot not in copied]
            bandit = Bandit(points, np.where(finite, gains, gains[finite].min()), history.generation + 1, here)
        for slot, of in sorted(copied.items()):
            values = random_values(space, chooser) if bandit is None else at(space, bandit.next(chooser))
            found[slot] = Child(of, values, copies(history.members[slot]))
        return found

    def _shares(self, hyper: Any) -> list[float]:
        return [share_of(bound, hyper[name]) for name, bound in sorted(self.about.space.items())]


def changes(history: History) -> Iterator[tuple[Any, int, float]]:
    """Yield (hyper-parameters, generation, change of the score) for every member and every generation except the first.

    The hyper-parameters are those with which the member trained in that generation. The change is its score after the
    generation minus the score before. If the member began the generation as a copy, the score before is its parent's.
    The change is −∞ if the member diverged. If the run went back to an earlier generation, the next generation yields
    nothing.
    """
    before: dict[int, float] = {}  # the score with which each slot's member began the generation
    for record in history.records:
        after = {member.slot: member.fitness for member in record.members}
        for member in record.members:
            begun = before.get(member.slot, math.nan)
            if math.isfinite(begun):
                yield member.hyper, record.generation, member.fitness - begun
        parents = {child.slot: child.parent_slot for child in record.children}
        before = {slot: after[parent] for slot, parent in parents.items() if parent is not None and parent in after}


def covariance(variance: float = 1.0, length: float = 0.5, epsilon: float = 0.1, noise: float = 0.1) -> Any:
    """Return the covariance function of the Gaussian process, as a kernel of scikit-learn over points `[N, D + 1]`.

    A point has D coordinates of hyper-parameters, then the time t. The covariance of two points has a factor for the
    hyper-parameters and a factor for the time; noise is added. The factor for the time, called drift, is
    (1 − ε)^(|t − t′| / 2). This is the Matérn covariance with ν = ½ and the length −2 / log(1 − ε).

    The arguments are initial values, which are fitted later.

    Args:
        variance: the initial variance of the process.
        length: the initial length scale over hyper-parameters.
        epsilon: the initial ε of the drift.
        noise: the initial variance of the observations' noise.
    """
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    class OverValues(RBF):  # type: ignore[misc]
        def __call__(self, X: np.ndarray, Y: Any = None, eval_gradient: bool = False) -> Any:
            return super().__call__(X[:, :-1], None if Y is None else Y[:, :-1], eval_gradient)

    class OverTime(Matern):  # type: ignore[misc]
        def __call__(self, X: np.ndarray, Y: Any = None, eval_gradient: bool = False) -> Any:
            return super().__call__(X[:, -1:], None if Y is None else Y[:, -1:], eval_gradient)

    drift = OverTime(_memory(epsilon), [_memory(each) for each in reversed(_EPSILON)], nu=0.5)
    scale, values = ConstantKernel(variance, (1e-2, 1e2)), OverValues(length, (0.05, 5.0))
    return scale * values * drift + WhiteKernel(noise, (1e-4, 1.0))


def _memory(epsilon: float) -> float:
    return -2 / math.log1p(-epsilon)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let a process be computed without warnings that a scale is at the end of its range, and by one thread: more would
    give other last bits."""
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield


class Bandit:
    """A Gaussian process that chooses points of the unit cube `[0, 1]^D` by upper confidence bounds.

    It serves for one generation. A point stands for the D hyper-parameters of a member.

    Args:
        points: `[N, D + 1]`, points with known gains; the last column is the time.
        gains: `[N]`, the change of the score at each point.
        time: the generation for which points are chosen.
        here: a point `[D]` for each member that keeps its hyper-parameters in this generation.
        kernel: the covariance function, whose parameters are not fitted. If None, the function is `covariance()`, and
            its parameters are fitted to the points.
    """

    def __init__(
        self, points: np.ndarray, gains: np.ndarray, time: int, here: Sequence[Sequence[float]], kernel: Any = None
    ) -> None:
        """Fit the process. The arguments are explained in the docstring of the class."""
        from sklearn.gaussian_process import GaussianProcessRegressor

        self.time = time
        spread = gains.std()
        self.gains = (gains - gains.mean()) / spread if spread > 0 else np.zeros(len(gains))
        self.points, self.here = points, [list(each) for each in here]
        self.beta = _C1 + max(0.0, math.log(_C2 * time))
        optimizer = "fmin_l_bfgs_b" if kernel is None else None
        model = GaussianProcessRegressor(kernel or covariance(), alpha=_JITTER, optimizer=optimizer)
        with _quiet():
            self.model = model.fit(points, self.gains)

    def next(self, draw: np.random.Generator) -> list[float]:
        """Return the point with the highest upper confidence bound, found by random candidates from `draw` and local
        search.

        The point is then treated as known, so that further points of this generation differ from it.
        """
        from scipy.optimize import minimize

        with _quiet():
            certain = self._certain()
            tried = draw.random((_CANDIDATES, self.points.shape[1] - 1))
            best = tried[np.argsort(-self.bound(tried, certain), kind="stable")[:_POLISHED]]
            for start in best.copy():
                ends = minimize(
                    lambda x: -float(self.bound(x[None], certain)[0]), start, method="L-BFGS-B",
                    bounds=[(0.0, 1.0)] * len(start),
                )  # fmt: skip
                best = np.vstack([best, ends.x])
            point: list[float] = best[int(np.argmax(self.bound(best, certain)))].tolist()
        self.here.append(point)
        return point

    def bound(self, points: np.ndarray, certain: Any) -> np.ndarray:
        """Return the upper confidence bounds μ + √β σ of points `[n, D]`, as `[n]`.

        The mean μ is that of the process fitted to the known gains. The deviation σ is that of `certain`, a second
        Gaussian process of scikit-learn. It is also fitted to the points at which members will train in this generation
        (the attribute `here`), so σ is small near them.
        """
        timed = np.column_stack([points, np.full(len(points), float(self.time))])
        noise = certain.kernel_.k2.noise_level  # of a score, not of the function
        variance = certain.predict(timed, return_std=True)[1] ** 2 - noise
        bounds: np.ndarray = self.model.predict(timed) + math.sqrt(self.beta) * np.sqrt(np.maximum(variance, 0.0))
        return bounds

    def _certain(self) -> Any:
        """Return a process that is also fitted to the points in `here`. Their gains are unknown, but a deviation does
        not depend on gains."""
        from sklearn.gaussian_process import GaussianProcessRegressor

        points = self.points
        if self.here:
            points = np.vstack([points, [[*each, float(self.time)] for each in self.here]])
        model = GaussianProcessRegressor(self.model.kernel_, alpha=_JITTER, optimizer=None)
        return model.fit(points, np.zeros(len(points)))
