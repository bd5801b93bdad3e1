"""Exported policies by NumPy alone: the same actions and values, where neither torch nor evopipe can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import populations
from drawn_policies import drawn
from evopipe.core import numpy_policy
from evopipe.core.layers import ACTIVATIONS
from evopipe.envs.make import opened
from evopipe.envs.team import read_spaces
from evopipe.errors import DataError
from evopipe.policies import policy
from evopipe.policies.card import card
from evopipe.run.spec import first_members
from evopipe.storage.tensors import dump_arrays

ALONE = """
import sys
for name in ("torch", "evopipe"):
    sys.modules[name] = None
import numpy as np
sys.path.insert(0, sys.argv[1])
from numpy_policy import Policy
for folder in sys.argv[1:]:
    policy = Policy(folder + "/policy.npz")
    given = np.load(folder + "/given.npz")
    found = {"actions": policy.act(given["obs"]), "one": policy.act(given["obs"][0])}
    if "mask" in given:
        found["legal"] = policy.act(given["obs"], given["mask"])
    if policy.held["values"]:
        found["values"] = policy.q_values(given["obs"])
    np.savez(folder + "/found.npz", **found)
"""


@pytest.mark.parametrize("seeds", [range(14), pytest.param(range(14, 140), marks=pytest.mark.thorough)], ids=len)
def test_drawn_policies_act_and_value_by_numpy_as_by_torch(seeds: range, tmp_path: Path) -> None:
    """Of all activations, kinds of spaces and algorithms; layers that blend in, normalised ones, shared encoders."""
    folders, made = [str(tmp_path / str(seed)) for seed in seeds], []
    for seed, folder in zip(seeds, folders, strict=True):
        made.append(drawn(Path(folder), seed))
        loaded, obs, legal = made[-1]
        given = {"obs": obs} if loaded.action_space.continuous else {"obs": obs, "mask": legal}
        np.savez(f"{folder}/given.npz", **given)
    subprocess.run([sys.executable, "-I", "-c", ALONE, *folders], check=True, timeout=120)
    wide = 0
    for folder, (loaded, obs, legal) in zip(folders, made, strict=True):
        found = dict(np.load(f"{folder}/found.npz", allow_pickle=False))
        expected = loaded.act(obs)
        assert found["actions"].dtype == expected.dtype
        assert found["one"].shape == expected.shape[1:]
        np.testing.assert_allclose(found["actions"], expected, rtol=1e-5, atol=1e-5, err_msg=str(loaded))
        np.testing.assert_allclose(found["one"], loaded.act(obs[0]), rtol=1e-5, atol=1e-5)
        if "legal" in found:
            assert np.array_equal(found["legal"], loaded.act(obs, legal))
        if "values" in found:
            np.testing.assert_allclose(found["values"], loaded.q_values(obs), rtol=1e-5, atol=1e-5)
        wide += len(np.unique(found["actions"])) > 1
    assert wide > len(seeds) / 2
    assert {loaded.arch.activation for loaded, *_ in made} == set(ACTIVATIONS) == set(numpy_policy.ACTIVATIONS)


def test_equal_policies_are_equal_bytes_without_pickle(tmp_path: Path) -> None:
    for name in "ab":
        drawn(tmp_path / name, 1)
    first, second = ((tmp_path / name / policy.ARRAYS).read_bytes() for name in "ab")
    assert first == second
    with pytest.raises(DataError, match="array 'x': cannot be saved"):
        dump_arrays({"x": np.array([None])})


def test_as_a_program_it_reads_observations_and_writes_actions(tmp_path: Path) -> None:
    loaded, obs, _ = drawn(tmp_path / "elite", 0)
    told = "".join(json.dumps(each.tolist()) + "\n" for each in obs)
    words = [sys.executable, "-I", policy.NUMPY, policy.ARRAYS]
    done = subprocess.run(words, cwd=tmp_path / "elite", input=told, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == loaded.act(obs).tolist()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    drawn(tmp_path, 0)
    made = numpy_policy.Policy(tmp_path / policy.ARRAYS)
    inputs, actions = int(made.held["observations"]), int(made.held["choices"][0])
    with pytest.raises(ValueError, match=rf"obs has shape \({inputs + 1},\); expected \[{inputs}\] or \[B, {inputs}\]"):
        made.act(np.zeros(inputs + 1))
    with pytest.raises(ValueError, match="mask leaves no legal action"):
        made.act(np.zeros(inputs), np.zeros(actions))
    np.savez(tmp_path / "newer.npz", **{**made.held, "activation": np.array("ReLU6")})
    with pytest.raises(ValueError, match=r"no activation 'ReLU6': take the numpy_policy\.py that came with the arrays"):
        numpy_policy.Policy(tmp_path / "newer.npz")


@pytest.mark.parametrize(
    ("algo", "config", "why"),
    [
        ("ippo", {}, "it is a team's"),
        ("dqn", {"network": {"encoder_kind": "simba"}}, "its network is more than a plain perceptron"),
        ("ppo", {"network": {"encoder_kind": "lstm"}}, "its network is more than a plain perceptron"),
        ("qrdqn", {}, "its network gives other numbers than one for each action"),
        ("rainbow", {}, "its network gives other numbers than one for each action"),
    ],
)
def test_what_is_no_perceptron_has_none(algo: str, config: dict[str, Any], why: str) -> None:
    p = populations.problem(algo=algo, config=config)
    member = first_members(p, 1)[0][0]
    with opened(p.env) as env:
        about = read_spaces(env)[1]
    made = policy.kind_of(about)(p.algo, p.algo_config, member, about)
    assert policy.numpy_files(made) == ({}, why)


def test_the_card_says_what_there_is(tmp_path: Path) -> None:
    loaded, *_ = drawn(tmp_path, 0)
    score = {"mean": 1.0, "interval": [0.0, 2.0], "std": 1.0, "median": 1.0, "iqm": 1.0}
    loaded.about |= {"evaluation": score, "hyper": {}, "env": {"id": "CartPole-v1"}}
    assert 'actions = Policy("policy.npz").act(obs)' in card(loaded, 4)
    space = loaded.action_space  # its network no longer gives one number an action
    loaded.action_space = replace(space, choices=(*space.choices, 2))
    assert "There is no policy for NumPy alone: its network gives other numbers" in card(loaded, 4)


def test_an_algorithm_that_reads_its_network_in_its_own_way_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    p = populations.problem(algo="dqn")
    made = policy.Policy(p.algo, p.algo_config, first_members(p, 1)[0][0], {"observations": 4, "actions": 2})
    assert policy.numpy_files(made)[1] == ""
    monkeypatch.setattr(p.algo, "greedy", lambda cfg, state, obs, legal: p.algo.values(cfg, state, obs).argmin(dim=-1))
    assert policy.numpy_files(made) == ({}, "its algorithm reads the network's outputs in a way of its own")
