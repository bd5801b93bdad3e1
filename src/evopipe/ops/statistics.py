"""Statistics of evaluation episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def interquartile_mean(x: NDArray[np.float64]) -> float:
    """Return the interquartile mean of `x` `[n]`, the mean of its middle half (Agarwal et al., NeurIPS 2021).

    If n is no multiple of 4, the border values count by the share of them that lies inside.
    """
    ordered = np.sort(x)
    n = len(x)
    edges = np.arange(n + 1) / n
    share = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return float((share * ordered).sum() / share.sum())


def bootstrap_interval(x: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> list[float]:
    """Return the 95 % percentile bootstrap interval of the mean of `x` `[n]` (Efron, 1979), as [low, high]."""
    means = x[rng.integers(0, len(x), (resamples, len(x)))].mean(axis=1)
    return [float(end) for end in np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2])]


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
    """Summarise a member's episodes from their returns and lengths `[n]`: mean, spread, 95 % bootstrap interval and
    more."""
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
