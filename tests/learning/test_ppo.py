"""PPO learns: thresholds over several seeds, on held-out episodes. Thresholds are never lowered to get green."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from learned import SEEDS, run
from tiny import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", SEEDS)]
PENDULUM = [
    ("env.id", "Pendulum-v1"),
    ("train.evo_steps", "16384"),
    ("train.max_steps", "200000"),
    ("train.target", "-250.0"),
    ("algos.ppo.lr", "1.0e-3"),
    ("algos.ppo.gamma", "0.9"),
    ("algos.ppo.gae_lambda", "0.95"),
    ("algos.ppo.epochs", "10"),
    ("algos.ppo.ent_coef", "0.0"),
]


@pytest.fixture
def two_cores() -> Iterator[None]:
    """Let this process, and those it starts, use two cores at most."""
    if not hasattr(os, "sched_setaffinity"):  # not on every system: then it uses what there is
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    yield
    os.sched_setaffinity(0, before)


def test_cartpole_in_seconds_by_its_pipeline(seed: int, two_cores: None, tmp_path: Path) -> None:
    result = run("pipelines/ppo-cartpole/params.yaml", seed, [("tracking.backends", "[]")], tmp_path)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 475
    with (tmp_path / "reports/timing.csv").open() as file:
        assert sum(float(row["seconds"]) for row in csv.DictReader(file)) <= 15


def test_acrobot_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/ppo-acrobot/params.yaml", seed)
    assert result.evaluation["episodes"] == 300
    assert result.evaluation["elite"]["mean"] >= -85


def test_lunarlander_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/ppo-lunarlander/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 220


def test_continuous_lunarlander_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/ppo-lunarlander-continuous/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 220


def test_pendulum(seed: int) -> None:
    result = run("pipelines/ppo-lunarlander-continuous/params.yaml", seed, PENDULUM)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= -300


def test_bipedalwalker_by_its_pipeline(seed: int) -> None:
    result = run("pipelines/ppo-bipedalwalker/params.yaml", seed)
    assert result.evaluation["episodes"] == 100
    assert result.evaluation["elite"]["mean"] >= 250


@pytest.mark.parametrize("encoder", ["lstm", "mlp"])
def test_hidden_velocities_need_a_memory(seed: int, encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "pipelines/recurrent-ppo-masked-cartpole"
    monkeypatch.chdir(folder)  # its environment is a module there
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    settings = [("algos.ppo.network.encoder_kind", encoder)]
    result = run("pipelines/recurrent-ppo-masked-cartpole/params.yaml", seed, settings)
    assert result.evaluation["episodes"] == 100
    mean = result.evaluation["elite"]["mean"]
    assert mean >= 400 if encoder == "lstm" else mean < 200
