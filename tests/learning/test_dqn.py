"""DQN learns: thresholds over several seeds, on held-out episodes. Thresholds are never lowered to get green."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pytest

import evopipe
from evopipe.storage.yamlio import parse_yaml, read_yaml
from tiny import ROOT

SEEDS = (1, 2, 3)


def run(path: str, seed: int, settings: Sequence[tuple[str, str]] = ()) -> evopipe.Result:
    """Run a committed params file with another seed, and with settings as `dvc exp run -S` takes them."""
    data: dict[str, Any] = {**read_yaml(ROOT / path).data, "seed": seed}
    for key, value in settings:
        *blocks, name = key.split(".")
        reduce(dict.__getitem__, blocks, data)[name] = parse_yaml(f"value: {value}", "README.md").data["value"]
    return evopipe.train(data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_lunarlander_by_the_main_job(seed: int) -> None:
    result = run("params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole_by_the_command_in_the_readme(seed: int) -> None:
    command = next(line for line in (ROOT / "README.md").read_text().splitlines() if "-S env.id=CartPole-v1" in line)
    settings = re.findall(r"-S ([\w.]+)=(\S+)", command)
    assert len(settings) == 3
    assert run("params.yaml", seed, settings).evaluation["elite"]["mean"] >= 475


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/dqn-cartpole/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 475
