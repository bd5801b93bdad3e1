"""How many CPUs a machine has, and how many processes learn, shows in no out: whole jobs, through their stages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evopipe.schema.read import read_yaml
from evopipe.schema.write import dump_yaml
from tiny import ROOT, TRAINED, call, digests, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be kept to some CPUs here"),
]

JOBS = ["", "cqn-cartpole", "ddpg-pendulum", "dqn-cartpole", "rainbow-lunarlander", "td3-lunarlander-continuous"]
"""The main job, and pipelines whose networks are normalised."""
SHORT: dict[str, dict[str, Any]] = {
    "train": {
        "max_steps": 3600, "evo_steps": 1200, "learning_delay": 200, "warm_start": 0, "target": None,
        "eval_episodes": 4, "eval_steps": 100,
    },
    "fetch": {"collect": {"episodes": 10, "policies": {"random": 1.0}, "policy_path": None, "max_steps": None}},
    "population": {"size": 4, "start": None},
    "search": {"strategy": "tournament", "budget": None},
    "tracking": {"backends": []},
}  # fmt: skip
"""Three generations, with enough work in each to be divided."""


def params(job: str) -> dict[str, Any]:
    """A job's own parameters for three short generations, of members that differ from the start."""
    path = ROOT / "pipelines" / job / "params.yaml" if job else ROOT / "params.yaml"
    data: dict[str, Any] = read_yaml(path).data
    assert data["algos"][data["train"]["algo"]]["network"]["layer_norm"] is True
    for block, values in SHORT.items():
        data[block] |= values
    data["evolution"]["mutation"]["before_training"] = True
    return data


def train(folder: Path, learners: int | str, cpus: set[int]) -> dict[str, str]:
    """Train in a copy of a prepared folder on these CPUs; return the digests of what it wrote."""
    own = Path(shutil.copytree(folder, folder.with_name(f"{learners}-{len(cpus)}")))
    data = read_yaml(own / "params.yaml").data
    data["runtime"]["learners"] = learners
    (own / "params.yaml").write_text(dump_yaml(data), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "evopipe", "train"], cwd=own, env=environment(), check=True, capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )  # fmt: skip
    return digests(own, TRAINED)


@pytest.mark.parametrize("job", JOBS)
def test_outs_are_the_same_however_many_processes_learn_on_however_many_cpus(job: str, tmp_path: Path) -> None:
    folder, cpus = tmp_path / "prepared", sorted(os.sched_getaffinity(0))
    folder.mkdir()
    (folder / "params.yaml").write_text(dump_yaml(params(job)), encoding="utf-8")
    for stage in ("fetch", "buffer", "population"):
        assert call(folder, stage).code == 0
    alone = train(folder, 1, set(cpus))
    assert len(alone) > 4
    for learners in (2, 3, 4):
        assert train(folder, learners, set(cpus)) == alone, learners
    for few in sorted({min(count, len(cpus)) for count in (2, 4)}):  # a machine may have two
        assert train(folder, "auto", set(cpus[:few])) == alone, f"{few} CPUs"
