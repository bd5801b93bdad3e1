"""Policies as ONNX programs: an independent runtime acts as the policy does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import populations
from drawn_policies import drawn
from evopipe import algos
from evopipe.envs.make import opened
from evopipe.envs.team import read_spaces
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
    with opened(p.env) as example:
        _, spaces = read_spaces(example)
    about = {**spaces, "config": p.algo_config.model_dump(mode="json")}
    policy.save(folder, algo, first_members(p, 1)[0][0], about, False, "")
    return folder


def ran(path: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = runtime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def assert_same(found: np.ndarray, wanted: np.ndarray, summand: float = 0.0) -> None:
    """To 1e-6 of the largest output: both add the same float32 products, each in its own order, so that they differ as
    much where an output is near 0 as where it is largest. 1e-6 is eight units in the last place. If outputs are sums of
    larger numbers that cancel, the largest `summand` counts."""
    assert found.shape == wanted.shape
    assert np.abs(found.astype(np.float64) - wanted).max() <= 1e-6 * max(summand, np.abs(wanted).max())


def largest_atom(loaded: Any) -> float:
    """The largest return of a distribution over fixed ones; values are means of these. 0 for other policies."""
    return max(abs(loaded.about["config"].get(name, 0.0)) for name in ("v_min", "v_max"))


EXPORTED = [
    (name, kind)
    for name in algos.names()
    for kind in (*populations.ENVIRONMENTS, "team")
    if (kind == "team") == algos.get(name).TEAM and kind in (*algos.get(name).ACTIONS, "team")
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "kind"), EXPORTED)
def test_programs_of_every_algorithm_and_kind_of_action_are_as_their_policies(
    name: str, kind: str, tmp_path: Path
) -> None:
    env = populations.TEAM if kind == "team" else populations.ENVIRONMENTS[kind]
    folder = saved(tmp_path / "elite", env, name, {})
    loaded: Any = policy.load(folder)
    draw = np.random.default_rng(len(name))
    modules = loaded.modules()
    for path, (module, width) in zip(onnx.write(folder, tmp_path), modules.values(), strict=True):
        obs = draw.normal(size=(16, width)).astype(np.float32)
        with torch.no_grad():
            wanted = module.eval()(torch.from_numpy(obs))
        outputs = wanted if isinstance(wanted, tuple) else (wanted,)
        found = [*ran(path, observation=obs).values()]
        for one, other in zip(found, outputs, strict=True):
            assert_same(one, other.numpy(), largest_atom(loaded))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (0, 2, 3, 4, 9, 20))])
def test_drawn_programs_act_as_their_policies(seed: int, tmp_path: Path) -> None:
    loaded, obs, _ = drawn(tmp_path / "elite", seed)
    (path,) = onnx.write(tmp_path / "elite", tmp_path / "programs")
    assert path == tmp_path / "programs" / "policy.onnx"
    found = ran(path, observation=obs)
    assert_same(found["action"], loaded.act(obs))
    assert ran(path, observation=obs[:1])["action"].shape == loaded.act(obs[:1]).shape
    if "values" in found:
        assert_same(found["values"], loaded.q_values(obs))


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
        assert_same(kept, memory)
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
