"""What is found before the first stage does anything: an environment that is not there, or not for this run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import evopipe
from evopipe import algos
from evopipe.envs.make import make_env
from evopipe.envs.spaces import ActionSpace
from evopipe.errors import ParamsError
from evopipe.problems.env_check import KNOWN
from evopipe.schema.env import EnvConfig
from tiny import call, params, write_params

MADDPG = algos.get("maddpg").Config().model_dump(mode="json")
MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"env.id": "CartPol-v1"}, "  id: CartPol-v1", "env.id: unknown environment 'CartPol-v1', did you mean 'CartPole-"),
    ({"env.id": "Pendulum-v1"}, "  algo: dqn", "train.algo: dqn serves discrete actions, Pendulum-v1 has continuous "),
    ({"env.id": "LunarLander-v3", "env.kwargs": {"continuous": True}}, "  algo: dqn", "train.algo: dqn serves discr"),
    ({"env.id": "Taxi-v4", "train.warm_start": 5}, "  warm_start: 5", "train.warm_start: the environment masks act"),
    (
        {"train.algo": "maddpg", "algos.maddpg": MADDPG},
        "  algo: maddpg",
        "train.algo: maddpg serves teams of agents, Cart",
    ),
    (
        {"env.id": "teams_for_tests:Crew", "train.algo": "maddpg", "algos.maddpg": MADDPG, "train.warm_start": 5},
        "  warm_start: 5",
        "train.warm_start: datasets are of one agent, the environment has a team; set it to 0",
    ),
    (
        {"env.id": "envs_for_tests:Masked-v0", "train.mode": "offline", "train.warm_start": 0},
        "  mode: offline",
        "train.mode: the environment masks actions, the dataset has no masks",
    ),
]


@pytest.mark.parametrize(("values", "line", "sentence"), MISTAKES)
def test_params_check_says_where_an_environment_does_not_fit(
    tmp_path: Path, values: dict[str, Any], line: str, sentence: str
) -> None:
    lines = write_params(tmp_path, values).read_text().splitlines()
    code, out, err = call(tmp_path, "params", "check")
    assert (code, out) == (65, "")
    assert err.startswith(f"error: params.yaml:{lines.index(line) + 1}:3: {sentence}")


@pytest.mark.thorough
@pytest.mark.parametrize(("values", "line", "sentence"), MISTAKES)
def test_fetch_and_population_refuse_it_first(tmp_path: Path, values: dict[str, Any], line: str, sentence: str) -> None:
    lines = write_params(tmp_path, values).read_text().splitlines()
    for stage in ("fetch", "population"):
        code, _, err = call(tmp_path, stage)
        assert (code, err.startswith(f"error: params.yaml:{lines.index(line) + 1}:3: {sentence}")) == (65, True), err
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def test_a_run_in_python_refuses_it_first(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"train\.warm_start: the environment masks actions"):
        evopipe.train(params({"env.id": "Taxi-v4", "train.warm_start": 5}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_masks_without_a_dataset_are_served(tmp_path: Path) -> None:
    write_params(tmp_path, {"env.id": "Taxi-v4"})
    assert call(tmp_path, "params", "check") == (0, "params.yaml: ok\n", "")


def test_an_environment_that_cannot_be_reset_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken_at_reset.py").write_text(
        "import gymnasium\n\n\nclass Broken(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n\n"
        "    def reset(self, **_):\n        raise ValueError('no map')\n\n\n"
        "gymnasium.register('Broken-v0', Broken)\n"
    )
    write_params(tmp_path, {"env.id": "broken_at_reset:Broken-v0", "train.warm_start": 5})
    assert call(tmp_path, "params", "check") == (
        71,
        "",
        "error: environment 'broken_at_reset:Broken-v0': reset() raised ValueError: no map\n",
    )


def of_numbers(env_id: str, algo: str) -> dict[str, Any]:
    """A run of an algorithm in an environment of ours whose actions are numbers."""
    block = algos.get(algo).Config().model_dump(mode="json")
    datasets_only = algos.get(algo).OFFLINE_ONLY
    return {
        "env.id": env_id, "env.kwargs": {"kind": "continuous"}, "train.algo": algo, f"algos.{algo}": block,
        "train.max_steps": 100_000, "train.mode": "offline" if datasets_only else "online",
    }  # fmt: skip


NUMBERS = [name for name in algos.names() if "continuous" in algos.get(name).ACTIONS]
REFUSED = "action_mask for actions that are numbers (Box), of which none can be ruled out: leave it out, or make them "


@pytest.mark.thorough
@pytest.mark.parametrize("algo", NUMBERS)
def test_masks_of_numbers_are_refused_before_anything_is_done(tmp_path: Path, algo: str) -> None:
    """By every algorithm, of one agent or a team, in info or in observations."""
    team = algos.get(algo).TEAM
    for env_id in (
        ("teams_for_tests:MasksNumbers", "teams_for_tests:SeesNumbers")
        if team
        else ("envs_for_tests:MaskedNumbers-v0",)
    ):
        path = write_params(tmp_path, of_numbers(env_id, algo))
        line = path.read_text().splitlines().index(f"  id: {env_id}") + 1
        for stage in (("params", "check"), ("population",)):
            code, _, err = call(tmp_path, *stage)
            assert (code, err.count("\n")) == (65, 1), err
            assert err.startswith(f"error: params.yaml:{line}:3: env.id: ")
            assert REFUSED in err


@pytest.mark.parametrize("env_id", KNOWN)
def test_what_is_said_without_making_an_environment_is_true(env_id: str) -> None:
    with closing(make_env(EnvConfig(id=env_id))) as env:
        assert ActionSpace.of(env.action_space).kind == KNOWN[env_id]
        assert "action_mask" not in env.reset(seed=0)[1]
