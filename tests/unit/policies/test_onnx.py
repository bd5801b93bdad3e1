"""Policies as ONNX programs: an independent runtime acts as the policy does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import populations
from drawn_policies import drawn
from evopipe.envs.pool import EnvPool
from evopipe.errors import MissingInputError
from evopipe.policies import onnx, policy
from evopipe.run.spec import first_members
from tiny import evopipe

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

RECURRENT: tuple[str, str, dict[str, Any]] = ("CartPole-v1", "ppo", {"network": {"encoder_kind": "lstm"}})
QUANTILES: tuple[str, str, dict[str, Any]] = ("CartPole-v1", "qrdqn", {})


def saved(folder: Path, env: str, algo: str, config: dict[str, Any]) -> Path:
    p = populations.problem(env, algo=algo, config=config)
    pool = EnvPool(p.env, 1)
    about = {**pool.actions.to_json(), **pool.observations.to_json(), "config": p.algo_config.model_dump(mode="json")}
    policy.save(folder, algo, first_members(p, 1)[0][0], about, False, "")
    return folder


def ran(path: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = runtime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (0, 2, 3, 4, 9, 20))])
def test_drawn_programs_act_as_their_policies(seed: int, tmp_path: Path) -> None:
    loaded, obs, _ = drawn(tmp_path / "elite", seed)
    (path,) = onnx.write(tmp_path / "elite", tmp_path / "programs")
    assert path == tmp_path / "programs" / "policy.onnx"
    found = ran(path, observation=obs)
    np.testing.assert_allclose(found["action"], loaded.act(obs), rtol=1e-5, atol=1e-5)
    assert ran(path, observation=obs[:1])["action"].shape == loaded.act(obs[:1]).shape
    if "values" in found:
        np.testing.assert_allclose(found["values"], loaded.q_values(obs), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_a_recurrent_program_remembers_as_its_policy(tmp_path: Path) -> None:
    folder = saved(tmp_path / "elite", *RECURRENT)
    (path,) = onnx.write(folder, tmp_path)
    loaded = policy.load(folder)
    assert isinstance(loaded, policy.Policy)
    memory, kept = None, np.zeros((4, loaded.memory), np.float32)
    for obs in np.random.default_rng(3).normal(size=(3, 4, loaded.observations)).astype(np.float32):
        action, memory = loaded.step(obs, memory)
        found = ran(path, observation=obs, memory=kept)
        kept = found["memory_after"]
        assert (found["action"] == action).all()
        np.testing.assert_allclose(kept, memory, atol=1e-6)
    assert np.abs(kept).max() > 0.01


@pytest.mark.thorough
def test_the_command_writes_it_and_says_what_is_missing(tmp_path: Path) -> None:
    saved(tmp_path / "elite", *QUANTILES)
    done = evopipe(tmp_path, "onnx", "elite", "-o", "there")
    assert (done.returncode, done.stdout.split()) == (0, ["written:", "there/policy.onnx"])
    assert (tmp_path / "there/policy.onnx").is_file()
    gone = evopipe(tmp_path, "onnx", "elsewhere")
    assert gone.returncode == 66
    assert gone.stderr.startswith("error: elsewhere")
    assert len(gone.stderr.splitlines()) == 1


def test_the_package_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingInputError, match=r"^an ONNX program needs onnx, .* pip install 'evopipe\[onnx\]'$"):
        onnx.write(tmp_path, tmp_path)


def test_a_users_own_level_of_logging_is_back_after_an_export() -> None:
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    try:
        for level in (logging.NOTSET, logging.DEBUG):
            logger.setLevel(level)
            with pytest.raises(RuntimeError, match="in between"), onnx._quiet():
                assert logger.level == logging.ERROR
                raise RuntimeError("in between")
            assert logger.level == level
    finally:
        logger.setLevel(before)
