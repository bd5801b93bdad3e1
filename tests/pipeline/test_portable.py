"""Runs that our own kernels compute alone have the same bits whatever instructions a processor has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from evopipe import algos
from evopipe.layout import SIGNALS
from evopipe.track.signals import read_signals
from evopipe.verify.bits import PORTABLE

OTHER = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3,X86_V4,AVX512_ICL",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F",
}
"""What makes torch, NumPy and the system's mathematics take a processor for an older one that the kernels still run
on: these need AVX2 and FMA. Without them the C library's sines have other last bits, and Gymnasium steps a pendulum by
these."""
STAGES = ("fetch", "buffer", "population", "train", "evaluate")
SMALL = {"batch_size": 29, "learn_step": 4, "network": {"encoder": [16], "latent": 16}}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {"algos.ppo.learn_step": 128},
    "ddpg": {"env.id": "Pendulum-v1"},
    "td3": {"env.id": "Pendulum-v1"},
    "sac": {"env.id": "Pendulum-v1"},
    "sac:discrete": {},
}
"""What is different from the others' task."""


@pytest.mark.thorough
@pytest.mark.parametrize("case", sorted(PORTABLE | RUNS.keys()))
def test_a_run_has_the_same_bits_on_another_processor(case: str, tmp_path: Path) -> None:
    algo = case.partition(":")[0]
    config = algos.get(algo).Config
    block = config.model_validate({name: value for name, value in SMALL.items() if name in config.model_fields})
    changes = {"train.algo": algo, f"algos.{algo}": block.model_dump(mode="json"), **RUNS.get(case, {})}
    found = []
    for name, kernels, more in (("here", "native", {}), ("there", "portable", OTHER)):
        folder = tmp_path / name
        tiny.write_params(folder, {**changes, "train.max_steps": 800, "runtime.kernels": kernels})
        for stage in STAGES:
            ended = tiny.evopipe(folder, stage, **more)
            assert ended.returncode == 0, ended.stderr
        outs = (*tiny.TRAINED, "reports/evaluation.json", "reports/episodes.csv")
        found.append(tiny.digests(folder, tuple(out for out in outs if out != SIGNALS.as_posix())))
    assert found[0] == found[1]
    told = [read_signals(tmp_path / name / SIGNALS) for name in ("here", "there")]  # which torch computes
    numbers = [np.array([each[key][name] for key in sorted(each) for name in sorted(each[key])]) for each in told]
    np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-6)
    assert len(found[0]) > 4
