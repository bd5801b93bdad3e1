"""`evopipe.train`: a whole run from Python, with and without a folder."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import evopipe
from evopipe.envs.make import make_env
from evopipe.errors import MissingInputError, ParamsError
from evopipe.params.load import any_params, load_params, parse_params
from evopipe.policies.play import environment_of
from tiny import environment, params, write_params

SHORT = {"train.max_steps": 800}


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_whole_run_from_a_mapping(working_folder: Path) -> None:
    result = evopipe.train(params(SHORT))
    assert list(working_folder.iterdir()) == [], "nothing stays where no folder was given"
    assert result.evaluation["episodes"] == 4
    assert set(result.members) == {"member_0", "member_1", "member_2"}
    assert math.isfinite(result.evaluation["elite"]["mean"])
    assert result.summary["reason"] == "max_steps"
    assert [record.generation for record in result.lineage] == [0, 1, 2]
    assert repr(result).startswith("<Result: elite ")
    assert len(repr(result)) < 250
    steps = result.summary["steps"]
    assert steps["all"] == steps["training"] + steps["evaluation"] > steps["training"]
    assert f" in 4 episodes; 3 members, {steps['all']:,} steps; " in repr(result)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    action = result.policy.act(obs)
    assert env.action_space.contains(action)
    env.step(action)
    assert result.policy.q_values(np.stack([obs, obs])).shape == (2, 2)
    env.close()


@pytest.mark.thorough
def test_an_interrupted_script_ends_with_a_sentence() -> None:
    """And without a traceback; with a folder, the same script goes on from there."""
    Path("stopping.py").write_text(
        "import gymnasium, os, signal\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Stopping(CartPoleEnv):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        Stopping.steps += 1\n"
        "        if Stopping.steps == 500:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        return super().step(action)\n"
        "gymnasium.register('Stopping-v0', Stopping, max_episode_steps=50)\n"
    )
    stopped = {"env.id": "stopping:Stopping-v0", "runtime.env_workers": 0}
    script = Path("script.py")
    script.write_text(f"import evopipe, sys\nevopipe.train({params(SHORT | stopped)!r}, *sys.argv[1:])\n")
    for folder, said in (
        ([], "stopped; nothing is kept, for no `folder` was named\n"),
        (["out"], "; saved, the same "),
    ):
        words = [sys.executable, script, *folder]
        done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 128 + signal.SIGINT
        assert done.stderr.count(said) == 1
        assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_a_dataset_comes_first_where_training_starts_from_one() -> None:
    result = evopipe.train(params(SHORT | {"train.warm_start": 30}), folder="out")
    assert result.summary["warm_start"] == 30
    assert Path("out/data/transitions.h5").is_file()


@pytest.mark.thorough
def test_wrappers_go_through_all_stages(working_folder: Path) -> None:
    """The policy learns, is scored and is played on stacked observations, and knows in which environment."""
    stacked = [{"name": "FrameStackObservation", "kwargs": {"stack_size": 2}}, "FlattenObservation"]
    values = params({"train.max_steps": 400, "train.warm_start": 30, "env.wrappers": stacked})
    result = evopipe.train(values, folder=working_folder)
    assert result.policy.observations == 8
    env = make_env(environment_of(evopipe.load(working_folder / "models/elite")))
    assert result.policy.act(env.reset(seed=0)[0]) in (0, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("warm", [{}, {"warm_start": 20}])
def test_an_on_policy_algorithm_needs_no_dataset(warm: dict[str, int]) -> None:
    """Neither by default nor where one is asked for; and no dataset holds actions of several choices."""
    train = {"algo": "ppo", "max_steps": 64, "evo_steps": 64, "eval_episodes": 2, "confirm_episodes": 2, **warm}
    result = evopipe.train(
        {
            "env": {"id": "action_envs:Locks-v0", "num_envs": 4},
            "population": {"size": 2},
            "train": train,
            "evaluate": {"episodes": 2},
            "export": {"program": False, "critic": True},
            "runtime": {"device": "cpu", "env_workers": 0, "learners": 1},
            "tracking": {"backends": []},
            "algos": {"ppo": {"learn_step": 32, "batch_size": 16}},
        },
        folder="out",
    )
    obs = np.zeros((5, result.policy.observations), np.float32)
    assert np.isfinite(result.policy.value(obs)).all()
    again = evopipe.load("out/models/trained", member=1)
    assert (again.value(obs) == result.policies[1].value(obs)).all()
    assert len(result.policies) == len(result.members) == 2
    assert result.summary["reason"] == "max_steps"
    assert not Path("out/data").exists()
    unused = ["train.warm_start: not used, ppo learns from its own last steps alone"]
    assert result.summary.get("remarks", []) == (unused if warm else [])


def test_equal_params_in_any_form_are_one_run(tmp_path: Path) -> None:
    file = write_params(tmp_path, SHORT)
    forms: list[Any] = [params(SHORT), file, str(file), load_params(file)]
    assert [any_params(form) for form in forms] == [load_params(file)] * 4


@pytest.mark.parametrize(("train", "wanted"), [
    ({"mode": "online", "warm_start": 0}, False),
    ({"mode": "online", "warm_start": 1}, True),
    ({"mode": "offline", "warm_start": 0}, True),
    ({"algo": "ppo", "warm_start": 1}, False),
])  # fmt: skip
def test_who_learns_from_a_dataset_gets_one(train: dict[str, Any], wanted: bool) -> None:
    assert parse_params({"train": train}).needs_dataset == wanted


def test_a_folder_keeps_everything(tmp_path: Path, working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = evopipe.train(str(write_params(tmp_path, SHORT)), folder=tmp_path / "out")
    said = capsys.readouterr()
    assert said.out == "", "quiet by default"
    assert all(line.startswith("warning: held-out interval ") for line in said.err.splitlines())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"models", "reports", ".evopipe"}
    loaded = evopipe.load(tmp_path / "out/models/elite")
    obs = np.random.default_rng(0).normal(size=(20, 4))
    assert (loaded.act(obs) == result.policy.act(obs)).all()
    assert json.loads((tmp_path / "out/reports/evaluation.json").read_text()) == result.evaluation
    assert json.loads((tmp_path / "out/reports/members.json").read_text()) == result.members
    assert (tmp_path / "out/reports/report.html").is_file()
    assert list(working_folder.iterdir()) == []


@pytest.mark.thorough
def test_told_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    evopipe.train(params(SHORT), quiet=False)
    said = capsys.readouterr()
    assert "generation 2" in said.err
    assert "elite: mean" in said.out


@pytest.mark.thorough
def test_a_folder_inside_a_dvc_repository_shares_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But DVC's own variables, set where a stage calls `evopipe.train`, do not pull other folders' state there."""
    (tmp_path / "repository/.dvc").mkdir(parents=True)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "elsewhere"))
    evopipe.train(params(SHORT), folder=tmp_path / "repository/runs/one")
    assert (tmp_path / "repository/.evopipe/train").is_dir()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.thorough
def test_outside_the_main_thread() -> None:
    """Where no signal can be caught, a run works all the same."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(evopipe.train(params(SHORT))))
    thread.start()
    thread.join(60)
    assert results[0].summary["generations"] == 2


def test_bad_params() -> None:
    wrong = params(SHORT)
    wrong["train"]["max_stepz"] = 3
    with pytest.raises(ParamsError, match="max_stepz: unknown key, did you mean 'max_steps'"):
        evopipe.train(wrong)
    with pytest.raises(MissingInputError):
        evopipe.train("nowhere.yaml")
