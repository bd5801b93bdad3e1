"""Exported policies by NumPy alone: the same actions and values, where neither torch nor evopipe can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import populations
from evopipe.algos import get
from evopipe.core import normalise
from evopipe.core.arch import Arch
from evopipe.core.cohort import create
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.envs.make import opened
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import read_spaces
from evopipe.errors import DataError
from evopipe.policies import numpy_policy, policy
from evopipe.policies.card import card
from evopipe.run.spec import first_members
from evopipe.schema.blocks import NormaliseConfig
from evopipe.storage.tensors import dump_arrays

ROWS = 32
SERVED = {
    "discrete": ("dqn", "cqn", "ppo", "sac", "iql", "bc"),
    "continuous": ("ddpg", "td3", "td3bc", "sac", "ppo", "iql", "bc"),
    "multidiscrete": ("ppo",),
    "multibinary": ("ppo",),
}
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


def action_space(kind: str, draw: np.random.Generator) -> ActionSpace:
    if kind == "discrete":
        return ActionSpace.of(spaces.Discrete(int(draw.integers(2, 19)), start=int(draw.integers(-2, 3))))
    if kind == "multidiscrete":
        return ActionSpace.of(spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[5, 0], [-1, 2]]))
    if kind == "multibinary":
        return ActionSpace.of(spaces.MultiBinary([2, 3]))
    size = int(draw.integers(1, 6))
    low = draw.normal(size=size).astype(np.float32)
    return ActionSpace.of(spaces.Box(low, low + draw.uniform(0.1, 9.0, size).astype(np.float32)))


def drawn(folder: Path, seed: int) -> tuple[policy.Policy, np.ndarray, np.ndarray]:
    """Export a policy of a drawn algorithm, architecture and space; return it, observations, and legal actions."""
    draw = np.random.default_rng(seed)
    kind = [*SERVED, "discrete", "continuous", "discrete"][seed % 7]
    algo_name = SERVED[kind][seed // 7 % len(SERVED[kind])]
    algo, space, inputs = get(algo_name), action_space(kind, draw), int(draw.integers(1, 9))
    options = {"share_encoder": bool(draw.integers(2)), "squash": bool(draw.integers(2))}
    options = {name: value for name, value in options.items() if name in algo.Config.model_fields}
    cfg = algo.Config.model_validate({**options, "network": {"head": [8]}})
    widths = lambda most: [int(n) for n in draw.integers(1, 40, int(draw.integers(0, most)))]  # noqa: E731
    blocks = [tuple(Block(n, bool(draw.integers(2))) for n in widths(4)) for _ in "ab"]
    activation = [*ACTIVATIONS][seed % len(ACTIVATIONS)]
    head = blocks[1] or (Block(7),)  # a shared encoder's critics need one
    arch = Arch(blocks[0], int(draw.integers(1, 40)), head, activation, bool(draw.integers(2)))
    observations = ObservationSpace.vector(inputs)
    known = space.spaces(observations)
    rows = {}
    for name, shape in algo.networks(cfg, known).items():
        row = arch.initialise(shape, draw)
        rows[name] = [row + 0.2 * torch.from_numpy(draw.normal(size=row.shape)).float()]
    bare = Member(0, 0, None, seed, arch, {}, {})
    (member,) = create([bare], partial(algo.init, cfg.at(known)), rows, algo.networks(cfg, known))
    obs = draw.normal(3.0, 2.0, (ROWS, inputs)).astype(np.float32)
    if draw.integers(2):
        seen = normalise.start(NormaliseConfig(observations=True, clip=1.5), known)
        tensors = normalise.after(seen, torch.from_numpy(draw.normal(2.0, 3.0, (500, inputs))).float())
        member = replace(member, tensors=member.tensors | tensors)
    about = {**space.to_json(), **observations.to_json(), "config": cfg.model_dump(mode="json"), "algo": algo_name}
    policy.save(folder, algo_name, member, about, program=False, card="")
    legal = draw.random((ROWS, space.size)) < 0.4
    if kind != "multibinary":
        ends = np.cumsum((0, *space.choices))
        for first, end in pairwise(ends):
            legal[np.arange(ROWS), draw.integers(first, end, ROWS)] = True
    return policy.load(folder), obs, legal


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
    loaded.actions += 1  # its network no longer gives one number an action
    assert "There is no policy for NumPy alone: its network gives other numbers" in card(loaded, 4)


def test_an_algorithm_that_reads_its_network_in_its_own_way_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    p = populations.problem(algo="dqn")
    made = policy.Policy(p.algo, p.algo_config, first_members(p, 1)[0][0], {"observations": 4, "actions": 2})
    assert policy.numpy_files(made)[1] == ""
    monkeypatch.setattr(p.algo, "greedy", lambda cfg, state, obs, legal: p.algo.values(cfg, state, obs).argmin(dim=-1))
    assert policy.numpy_files(made) == ({}, "its algorithm reads the network's outputs in a way of its own")
