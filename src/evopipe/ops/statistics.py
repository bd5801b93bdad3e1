"""Statistics of evaluation episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def interquartile_mean(x: NDArray[np.float64]) -> float:
    """Return the interquartile mean of `x` `[n]`, the mean of its middle half (Agarwal et al., NeurIPS 2021).

    If n is no multiple of 4, a value on the border of the middle half counts by the fraction that lies inside.
    """
    ordered = np.sort(x)
    n = len(x)
    edges = np.arange(n + 1) / n
    share = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return float((share * ordered).sum() / share.sum())


def bootstrap_interval(x: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> list[float]:
    """Return the 95 % percentile bootstrap interval of the mean of `x` `[n]`, as [low, high] (Efron, 1979).

    `resamples` is the number of bootstrap samples, which `rng` draws.
    """
    means = x[rng.integers(0, len(x), (resamples, len(x)))].mean(axis=1)
    return [float(end) for end in np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2])]


def wilson_interval(mean: float, n: int) -> list[float]:
    """Return the 95 % score interval of the mean of n values in [0, 1], as [low, high] (Wilson, 1927).

    This is the standard interval for binary values (0 and 1). For values between 0 and 1, whose variance is at most
    mean (1 − mean), the interval is wider than necessary. Unlike a bootstrap interval, this one has a positive width
    where all values are equal.
    """
    z = 1.959963984540054
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(max(0.0, mean * (1 - mean)) / n + z * z / (4 * n * n))
    return [max(0.0, float(centre - half)), min(1.0, float(centre + half))]


def pass_at(right: NDArray[np.bool_], k: int) -> NDArray[np.float64]:
    """Return for each task the probability that at least one of k sampled answers is right, `[tasks]`.

    `right` `[tasks, n]` says which of n ≥ k sampled answers were right. With c right answers the unbiased estimate is 1
    − C(n − c, k) / C(n, k) (Chen et al., "Evaluating large language models trained on code", 2021, eq. 1). For k = n it
    is 1 if any answer is right, else 0.
    """
    n, wrong = right.shape[1], right.shape[1] - right.sum(axis=1)
    none = np.ones(len(right))
    for drawn in range(k):  # the next one is wrong too
        none *= np.clip(wrong - drawn, 0, None) / (n - drawn)
    found: NDArray[np.float64] = 1.0 - none
    return found


def passes(right: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the mean of pass@k over tasks and its 95 % interval, for each k of 1, 2, 4 … up to n, and for n itself.

    `right` `[tasks, n]` says which of n answers to each task were right. The keys are `pass@<k>` and
    `pass@<k>_interval`. For pass@k see `pass_at`.
    """
    tasks, n = right.shape
    found: dict[str, Any] = {}
    for k in sorted({*(1 << i for i in range(n.bit_length()) if 1 << i <= n), n}):
        mean = float(pass_at(right, k).mean())
        found |= {f"pass@{k}": mean, f"pass@{k}_interval": wilson_interval(mean, tasks)}
    return found


def mean_of_finite(x: NDArray[np.float64]) -> float:
    """Return the mean of the finite values of `x` `[n]`; NaN if there are none."""
    finite = x[np.isfinite(x)]
    return float(finite.mean()) if len(finite) else float("nan")


def standard_error(x: NDArray[np.float64]) -> float:
    """Return the standard error of the mean of `x` `[n]`; 0 for one value."""
    return float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else 0.0


def summary(
    returns: NDArray[np.float64], lengths: NDArray[np.int64], resamples: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Return a summary of a member's n evaluation episodes by name: statistics of the returns, and the mean length.

    Among the names, `interval` is the 95 % bootstrap interval of the mean return, and `iqm` the interquartile mean.

    Args:
        returns, lengths: `[n]`, the undiscounted returns and the lengths of the episodes.
        resamples: the number of bootstrap samples.
        rng: draws the bootstrap samples.
    """
    return {
        "mean": float(returns.mean()),
        "std": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        "median": float(np.median(returns)),
        "iqm": interquartile_mean(returns),
        "interval": bootstrap_interval(returns, resamples, rng),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "mean_length": float(lengths.mean()),
    }
