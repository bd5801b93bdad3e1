"""Pipelines as tournaments of four. Some search one trial at a time by their own file; what benchmarks, the table of
curves and the diagnosis measure with them is a population, or a trial of their own making."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evopipe.schema.read import read_yaml

LIVES = {
    "ppo-cartpole": 130_000,
    "ppo-acrobot": 250_000,
    "sac-pendulum": 30_000,
    "dqn-cartpole": 100_000,
    "qrdqn-cartpole": 100_000,
    "ppo-mountaincar": 500_000,
    "dqn-mountaincar": 100_000,
    "td3-mountaincar-continuous": 60_000,
    "td3-pendulum": 30_000,
}
"""The pipelines that search one trial at a time, and `train.max_steps` of a member of the tournament."""


def of(path: Path) -> dict[str, Any]:
    """Return the parameters in a pipeline's `params.yaml`, with a tournament of four in the place of a search of one
    trial at a time."""
    data: dict[str, Any] = read_yaml(path).data
    if path.parent.name in LIVES:
        data["population"]["size"] = 4
        data["search"] |= {"strategy": "tournament", "budget": None}
        data["train"] |= {
            "max_steps": LIVES[path.parent.name], "evaluation": "full", "confirmation": "full", "lowest_score": None,
        }  # fmt: skip
    return data
