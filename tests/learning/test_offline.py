"""Learning from a dataset alone: thresholds over several seeds, on held-out episodes, and above behaviour cloning.

Every algorithm has the same dataset, the same population, evolution and steps. Thresholds are never lowered to get
green.
"""

from __future__ import annotations

import pytest

import evopipe
from learned import SEEDS, run

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]


def scores(path: str, seed: int, *algorithms: str) -> list[float]:
    """The elite's mean return over 100 held-out episodes, of each algorithm."""
    results: list[evopipe.Result] = [run(path, seed, [("train.algo", algo)]) for algo in algorithms]
    assert all(result.evaluation["episodes"] == 100 for result in results)
    assert len({result.summary["warm_start"] for result in results}) == 1, "the same dataset"
    return [result.evaluation["elite"]["mean"] for result in results]


def test_cartpole_from_random_and_poor_play(seed: int) -> None:
    conservative, cloned = scores("pipelines/cqn-cartpole/params.yaml", seed, "cqn", "bc")
    assert conservative >= 450
    assert conservative > cloned


@pytest.mark.parametrize("algo", ["iql", "td3bc"])
def test_pendulum_from_good_and_random_play(algo: str, seed: int) -> None:
    """The margin: 300 of a return that goes from about −1200 (random) to −150 (best)."""
    learned, cloned = scores("pipelines/iql-pendulum/params.yaml", seed, algo, "bc")
    assert learned > cloned + 300
