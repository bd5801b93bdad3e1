"""Exported policies: actions and values for one observation or many, from a folder, without pickle."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe import rng
from evopipe.algos import get
from evopipe.core.arch import Arch
from evopipe.core.cohort import create
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.envs.pool import EnvPool
from evopipe.errors import DataError, MissingInputError, UsageError
from evopipe.policies import policy
from evopipe.policies.policy import Policy
from evopipe.rng import Purpose
from evopipe.run.spec import first_members
from evopipe.storage.files import dump_json, read_json
from evopipe.storage.folders import write_folder
from evopipe.storage.tensors import dump_tensors, load_tensors
from evopipe.types import Spaces

OBS, ACTIONS = 5, 3
ABOUT: dict[str, Any] = {"observations": OBS, "actions": ACTIONS, "action_start": 0}
ARCHS = {
    "plain": Arch((Block(24),), 16, (), "ReLU", False),
    "deep": Arch((Block(20), Block(33)), 17, (Block(9),), "GELU", True),
}


def member(arch: Arch, seed: int = 7) -> Member:
    algo = get("dqn")
    cfg = algo.Config()
    widths = algo.networks(cfg, Spaces(OBS, ACTIONS))
    rows = {name: [arch.initialise(w, rng.host(seed, Purpose.INIT, 0))] for name, w in widths.items()}
    bare = Member(0, 0, None, seed, arch, {"lr": 1e-3}, {})
    return create([bare], partial(algo.init, cfg), rows, widths)[0]


@pytest.fixture(params=sorted(ARCHS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "elite"
    policy.save(path, "dqn", member(ARCHS[request.param]), ABOUT, program=False, card="# card\n")
    return path


@pytest.fixture
def loaded(folder: Path) -> Policy:
    return policy.load(folder)


def batch(n: int = 6) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, OBS)).astype(np.float32)


# --- kinds and shapes -------------------------------------------------------------------------------------------------


def test_numpy_in_numpy_out(loaded: Policy) -> None:
    obs = batch()
    actions, values = loaded.act(obs), loaded.q_values(obs)
    assert isinstance(actions, np.ndarray)
    assert (actions.shape, actions.dtype) == ((6,), np.int64)
    assert isinstance(values, np.ndarray)
    assert (values.shape, values.dtype) == ((6, ACTIONS), np.float32)
    assert (actions == values.argmax(axis=1)).all()


def test_torch_in_torch_out(loaded: Policy) -> None:
    obs = torch.from_numpy(batch())
    actions, values = loaded.act(obs), loaded.q_values(obs)
    assert isinstance(actions, torch.Tensor)
    assert (actions.shape, actions.dtype) == ((6,), torch.int64)
    assert torch.equal(actions, values.argmax(dim=1))
    assert not values.requires_grad
    assert loaded.q_values(obs.double().requires_grad_()).dtype == torch.float32


def test_one_observation(loaded: Policy) -> None:
    obs = batch(1)[0]
    action, values = loaded.act(obs), loaded.q_values(obs)
    assert isinstance(action, np.int64)
    assert values.shape == (ACTIONS,)
    assert action == loaded.act(obs[None])[0] == loaded.act(obs.tolist())
    tensor = loaded.act(torch.from_numpy(obs))
    assert (tensor.shape, int(tensor)) == ((), int(action))


def test_an_empty_batch(loaded: Policy) -> None:
    assert loaded.act(np.zeros((0, OBS))).shape == (0,)
    assert loaded.q_values(np.zeros((0, OBS))).shape == (0, ACTIONS)


@pytest.mark.thorough
def test_other_number_types(loaded: Policy) -> None:
    obs = np.arange(2 * OBS).reshape(2, OBS)
    expected = loaded.q_values(obs.astype(np.float32))
    for kind in (np.float64, np.int64, np.uint8, np.float16):
        assert (loaded.q_values(obs.astype(kind)) == expected).all()
    assert (loaded.q_values(obs.astype(np.float32)[:, ::-1][:, ::-1]) == expected).all()


def test_first_action_of_the_space(tmp_path: Path) -> None:
    policy.save(tmp_path / "a", "dqn", member(ARCHS["plain"]), ABOUT | {"action_start": -2}, False, "")
    policy.save(tmp_path / "b", "dqn", member(ARCHS["plain"]), ABOUT, False, "")
    assert (policy.load(tmp_path / "a").act(batch()) == policy.load(tmp_path / "b").act(batch()) - 2).all()


# --- choice -----------------------------------------------------------------------------------------------------------


def test_the_greedy_policy_is_deterministic(folder: Path) -> None:
    first, second = policy.load(folder), policy.load(folder)
    assert (first.q_values(batch()) == second.q_values(batch())).all()
    assert all((first.act(batch(), seed=seed) == first.act(batch())).all() for seed in range(5))


def test_masks(loaded: Policy) -> None:
    obs = batch(64)
    values = loaded.q_values(obs)
    mask = np.random.default_rng(2).random((64, ACTIONS)) < 0.5
    mask[~mask.any(axis=1), 0] = True
    expected = np.where(mask, values, -np.inf).argmax(axis=1)
    assert (loaded.act(obs, mask) == expected).all()
    assert (loaded.act(obs, torch.from_numpy(mask.astype(np.int8))) == expected).all()
    assert (loaded.act(obs, [False, True, False]) == 1).all()
    assert loaded.act(obs[0], mask[0]) == expected[0]
    explored = np.stack([loaded.act(obs, mask, epsilon=1.0, seed=seed) for seed in range(10)])
    assert mask[np.arange(64), explored].all()
    assert len({tuple(actions) for actions in explored.tolist()}) > 1


def test_exploration(loaded: Policy) -> None:
    obs = np.tile(batch(1), (3000, 1))
    actions = loaded.act(obs, epsilon=0.3, seed=1)
    greedy = loaded.act(obs[0])
    assert np.mean(actions != greedy) == pytest.approx(0.3 * (1 - 1 / ACTIONS), abs=0.03)
    assert (actions == loaded.act(obs, epsilon=0.3, seed=1)).all()
    assert (actions != loaded.act(obs, epsilon=0.3, seed=2)).any()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "obs", [np.zeros(4), np.zeros((2, 6)), np.zeros((2, 2, OBS)), np.zeros(()), torch.zeros(0), [[0.0]]]
)
def test_wrong_observations(loaded: Policy, obs: Any) -> None:
    shape = tuple(np.shape(obs))
    for call in (loaded.act, loaded.q_values):
        with pytest.raises(UsageError) as caught:
            call(obs)
        assert str(caught.value) == f"obs has shape {shape}; expected [5] or [B, 5]"
        assert caught.value.exit_code == 64


@pytest.mark.parametrize("obs", ["text", None, [[0.0] * OBS, [0.0]], np.array(["a"] * OBS), {"obs": 1}])
def test_observations_that_are_no_numbers(loaded: Policy, obs: Any) -> None:
    with pytest.raises(UsageError, match=r"obs is not an array of numbers \(.*\); pass NumPy or torch"):
        loaded.act(obs)


@pytest.mark.parametrize("mask", [[True], np.ones((2, ACTIONS)), np.ones((ACTIONS, 4)), np.ones(4 * ACTIONS)])
def test_wrong_masks(loaded: Policy, mask: Any) -> None:
    with pytest.raises(UsageError) as caught:
        loaded.act(batch(4), mask)
    assert str(caught.value) == f"mask has shape {tuple(np.shape(mask))}; expected [3] or [4, 3]"


def test_nothing_legal(loaded: Policy) -> None:
    mask = np.ones((4, ACTIONS), bool)
    mask[2] = False
    with pytest.raises(UsageError, match="mask leaves no legal action: allow at least one for every observation"):
        loaded.act(batch(4), mask)


# --- the folder -------------------------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.thorough
def test_equal_policies_are_equal_bytes(tmp_path: Path) -> None:
    for name in "ab":
        policy.save(tmp_path / name, "dqn", member(ARCHS["deep"]), ABOUT, program=True, card="card")
    first, second = files(tmp_path / "a"), files(tmp_path / "b")
    assert first.keys() == {
        "README.md", "manifest.json", "numpy_policy.py", "policy.json", "policy.npz", "policy.pt2",
        "policy.safetensors",
    }  # fmt: skip
    assert first == second


@pytest.mark.thorough
def test_the_program_does_not_say_where_it_was_made(tmp_path: Path) -> None:
    """Or clones in two folders would differ, and a policy that is given away would name the folders of its maker."""
    policy.save(tmp_path, "dqn", member(ARCHS["deep"]), ABOUT, program=True, card="card")
    source = str(Path(policy.__file__).parent).encode()
    with zipfile.ZipFile(tmp_path / "policy.pt2") as program:
        assert not [name for name in program.namelist() if source in program.read(name)]


def test_tensors_are_named_and_shaped(folder: Path) -> None:
    tensors = load_tensors((folder / "policy.safetensors").read_bytes())
    assert tensors["encoder.0.weight"].shape[0] == OBS
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


def test_loading_needs_no_pickle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was called")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert policy.load(folder).act(batch()).shape == (6,)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError) as caught:
        policy.load(tmp_path / "none")
    assert str(caught.value).startswith(f"{tmp_path / 'none'}")


def rewritten(folder: Path, change: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None = None) -> Path:
    """Write the policy anew, intact but with another content."""
    about = read_json(folder / "policy.json") | change
    data = (folder / "policy.safetensors").read_bytes() if tensors is None else dump_tensors(tensors)
    write_folder(folder, {"policy.json": dump_json(about, "policy"), "policy.safetensors": data})
    return folder


def test_a_policy_of_rows_is_another_one(loaded: Policy) -> None:
    before = loaded.observation_space
    assert (loaded.on_rows().act(batch()) == loaded.act(batch())).all()
    assert loaded.observation_space is before


def test_a_program_without_values_knows_the_first_action_too() -> None:
    p = populations.problem(algo="ppo")
    about = {"observations": 4, "actions": 2, "action_start": 3}
    made = Policy(p.algo, p.algo_config, first_members(p, 1)[0][0], about)
    obs = torch.randn(50, 4, generator=torch.Generator().manual_seed(2))
    actions = made.module()(obs)
    assert set(actions.tolist()) <= {3, 4}
    assert torch.equal(actions, made.act(obs))


def test_what_is_said_of_a_policy_is_not_taken_for_the_policy(folder: Path, loaded: Policy, tmp_path: Path) -> None:
    """`policy.json` says more than the project knows of; its own words come first."""
    about = {**ABOUT, "algo": "ppo", "format": 9, "network": "actor", "arch": {}, "lineage": []}
    policy.save(tmp_path / "other", "dqn", member(loaded.arch), about, program=False, card="")
    other = policy.load(tmp_path / "other")
    assert (other.about["algo"], other.about["format"], other.about["lineage"]) == ("dqn", 1, [])
    assert (other.q_values(batch()) == loaded.q_values(batch())).all()


def test_a_newer_format(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        policy.load(rewritten(folder, {"format": 2}))
    assert str(caught.value) == f"{folder / 'policy.json'}: format 2 is not known to this version of evopipe"


@pytest.mark.parametrize("change", [{"observations": 6}, {"actions": "many"}, {"arch": {}}, {"observations": None}])
def test_a_description_that_does_not_fit(folder: Path, change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"tensors and description do not fit: .*; export it again"):
        policy.load(rewritten(folder, change))


def test_tensors_that_do_not_fit(folder: Path) -> None:
    for tensors in ({}, {"encoder.0.weight": torch.zeros(2, 2)}):
        with pytest.raises(DataError, match=r"tensors and description do not fit: .*; export it again"):
            policy.load(rewritten(folder, {}, tensors))


# --- the program ------------------------------------------------------------------------------------------------------

TORCH_ALONE = """
import sys
sys.path = [path for path in sys.path if not path.endswith("src")]
class Guard:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("evopipe", "gymnasium", "safetensors", "pydantic"):
            raise ImportError(f"{name} must not be needed")
sys.meta_path.insert(0, Guard())
import torch
torch.set_num_threads(1)
obs = torch.tensor(eval(sys.stdin.read()))
found = []
for name in sys.argv[1:]:
    program = torch.export.load(name).module()
    for rows in (obs, obs[:1], obs[:3]):
        actions, values = program(rows)
        assert actions.shape == (len(rows),) and values.shape[0] == len(rows)
    actions, values = program(obs)
    found.append([actions.tolist(), values.tolist()])
assert "evopipe" not in sys.modules
print(found)
"""


@pytest.mark.thorough
def test_the_program_runs_with_torch_alone(tmp_path: Path) -> None:
    for name, arch in ARCHS.items():
        policy.save(tmp_path / name, "dqn", member(arch), ABOUT | {"action_start": 1}, program=True, card="")
    obs = batch(40)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TORCH_ALONE, *(str(tmp_path / name / "policy.pt2") for name in ARCHS)],
        input=str(obs.tolist()),
        env={"PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, (actions, values) in zip(ARCHS, eval(done.stdout), strict=True):
        loaded = policy.load(tmp_path / name)
        assert actions == loaded.act(obs).tolist()
        np.testing.assert_allclose(values, loaded.q_values(obs), rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------- with a memory


@pytest.mark.parametrize("env", [pytest.param("CartPole-v1", marks=pytest.mark.thorough), "Pendulum-v1"])
@pytest.mark.thorough
def test_a_recurrent_policy_remembers_and_so_does_its_program(env: str, tmp_path: Path) -> None:
    network = {"encoder_kind": "lstm", "encoder": [16, 16], "latent": 16}
    config = {"network": network, "learn_step": 64}
    kind = "continuous" if env == "Pendulum-v1" else "discrete"
    p = populations.problem(env, algo=f"ppo:{kind}", config=config)
    member = first_members(p, 1)[0][0]
    pool = EnvPool(p.env, 1)
    about = {**pool.actions.to_json(), **pool.observations.to_json(), "config": p.algo_config.model_dump(mode="json")}
    policy.save(tmp_path / "elite", "ppo", member, about, True, "")
    loaded = policy.load(tmp_path / "elite")
    program = torch.export.load(tmp_path / "elite" / policy.PROGRAM).module()
    obs = np.random.default_rng(0).standard_normal((6, 3, loaded.observations)).astype(np.float32)
    memory, kept = None, torch.zeros(3, loaded.memory)
    for now in obs:
        action, memory = loaded.step(now, memory)
        mine, kept = program(torch.from_numpy(now), kept)
        np.testing.assert_allclose(action, mine.numpy(), atol=1e-6)
        torch.testing.assert_close(torch.from_numpy(memory), kept)
    assert (loaded.step(obs[-1])[1] != memory).any(), "what was seen before counts"
    in_torch = loaded.step(torch.from_numpy(obs[0]), memory)[1]
    assert isinstance(in_torch, torch.Tensor)
    in_numpy = loaded.step(obs[0], in_torch)[1]
    assert (in_numpy == loaded.step(obs[0], in_torch.numpy())[1]).all()
    assert (in_numpy.shape, in_numpy.dtype) == ((3, loaded.memory), np.float32)
    with pytest.raises(UsageError, match=r"^memory is not an array of numbers \("):
        loaded.step(obs[0], object())
    assert loaded.step(obs[0, 0])[1].shape == (1, loaded.memory)
    with pytest.raises(UsageError, match="keeps a memory: call step"):
        loaded.act(obs[0])
    with pytest.raises(UsageError, match=r"memory has shape \(2, \d+\); expected \[3, \d+\]"):
        loaded.step(obs[0], memory[:2])
