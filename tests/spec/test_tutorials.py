"""Scripts of the six patterns of AgileRL's tutorials, with its import lines; here only these are changed.

The scripts lie in `tutorials/`. Every import of `agilerl` becomes one of `evopipe.compat.agilerl`, by `rewritten`.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent / "tutorials"
SMALL = {"num_envs": 2, "size": 2}


def rewritten(text: str) -> str:
    """A script with other import lines, and nothing else changed."""
    text = re.sub(r"^from (?:agilerl[\w.]*|tensordict) import", "from evopipe.compat.agilerl import", text, flags=re.M)
    return re.sub(r"^from pettingzoo\.mpe import", "from mpe2 import", text, flags=re.M)


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of a script, whose files go to a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    path = SCRIPTS / f"{request.param}.py"
    module = ModuleType(request.param)
    exec(compile(rewritten(path.read_text()), path, "exec"), module.__dict__)
    return module


def of(name: str) -> Any:
    return pytest.mark.parametrize("script", [name], indirect=True)


def checked(result: Any, generations: int, size: int = 2) -> Any:
    """A population of which all were tested in every generation, and learned."""
    pop, history = result
    assert [len(each) for each in history] == [size] * generations
    assert np.isfinite(history).all()
    assert all(agent.member.healthy for agent in pop)
    assert all(any(t.abs().sum() > 0 for n, t in agent.member.tensors.items() if n.endswith(".mean")) for agent in pop)
    return pop


def test_only_import_lines_change() -> None:
    for path in SCRIPTS.glob("*.py"):
        before, after = path.read_text().splitlines(), rewritten(path.read_text()).splitlines()
        assert len(before) == len(after)
        changed = [line for line, now in zip(before, after, strict=True) if line != now]
        assert changed
        assert all(re.match(r"from (agilerl|tensordict|pettingzoo\.mpe)", line) for line in changed)
        assert "evopipe" not in path.read_text()


@of("off_policy")
@pytest.mark.thorough
def test_off_policy(script: Any) -> None:
    pop = checked(script.own_loop(**SMALL, max_steps=400, evo_steps=200, learning_delay=64), 2)
    assert [type(agent).__name__ for agent in pop] == ["DQN", "DQN"]


@of("off_policy")
@pytest.mark.parametrize("per", [True, False])
def test_several_steps_and_priorities(script: Any, per: bool) -> None:
    agent, history = script.rainbow(num_envs=2, max_steps=160, evo_steps=80, learning_delay=32, per=per)
    assert len(history) == 2
    assert agent._learned > 20


@of("off_policy")
def test_off_policy_training_function(script: Any) -> None:
    pop = checked(script.by_function(**SMALL, max_steps=160, evo_steps=80, eval_steps=10), 2)
    assert [type(agent).__name__ for agent in pop] == ["TD3", "TD3"]


@of("on_policy")
def test_on_policy(script: Any) -> None:
    checked(script.own_loop(**SMALL, max_steps=512, evo_steps=256), 2)


@of("on_policy")
@pytest.mark.thorough
def test_on_policy_with_a_memory(script: Any) -> None:
    pop = checked(script.recurrent(**SMALL, max_steps=256, rollouts=2), 1)
    assert all(agent.recurrent and agent.member.tensors["normaliser.count"] > 200 for agent in pop)


@of("on_policy")
def test_on_policy_training_function(script: Any) -> None:
    checked(script.by_function(**SMALL, max_steps=256, evo_steps=128), 2)


@of("offline")
def test_offline(script: Any) -> None:
    checked(script.own_loop(size=2, rows=200, max_steps=40, evo_steps=20), 2)


@of("offline")
def test_offline_training_function(script: Any) -> None:
    checked(script.by_function(size=2, rows=200, max_steps=40, evo_steps=20), 2)


@of("teams")
@pytest.mark.parametrize("algo", ["MATD3", pytest.param("MADDPG", marks=pytest.mark.thorough)])
def test_teams(script: Any, algo: str) -> None:
    checked(script.off_policy(**SMALL, max_steps=160, evo_steps=80, algo=algo), 2)


@of("teams")
def test_teams_by_rollouts(script: Any) -> None:
    agent, losses, fitness = script.on_policy(num_envs=2, rollouts=2, steps=25)
    assert np.isfinite([*losses, fitness]).all()
    assert agent.steps == [100]


@of("teams")
@pytest.mark.thorough
@pytest.mark.parametrize("on", [True, False])
def test_teams_training_functions(script: Any, on: bool) -> None:
    checked(script.by_function(**SMALL, max_steps=128, evo_steps=64, on=on), 2)


@of("bandits")
@pytest.mark.parametrize("algo", ["NeuralUCB", pytest.param("NeuralTS", marks=pytest.mark.thorough)])
def test_bandits(script: Any, algo: str) -> None:
    small = {"size": 2, "max_steps": 48, "episode_steps": 24, "evo_steps": 24, "eval_steps": 30}
    *result, regret = script.own_loop(algo, **small)
    checked(result, 2)
    assert [len(each) for each in regret] == [49, 49]


@of("bandits")
@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["NeuralUCB", "NeuralTS"])
def test_bandits_training_function(script: Any, algo: str) -> None:
    checked(script.by_function(algo, size=2, max_steps=80, evo_steps=40, episode_steps=20, eval_steps=30), 2)


@of("bandits")
@pytest.mark.slow
@pytest.mark.parametrize("algo", ["NeuralUCB", "NeuralTS"])
def test_bandits_learn(script: Any, algo: str) -> None:
    """As long as in the tutorial: the last generation errs in one of twenty at most."""
    _, history, _ = script.own_loop(algo)
    assert max(history[-1]) >= 0.95 * 500


@of("networks")
def test_networks(script: Any) -> None:
    pop = checked(script.own_module(**SMALL, max_steps=160, evo_steps=80), 2)
    assert all(agent.member.arch.to_json()["kind"] == "module" for agent in pop)


@of("networks")
@pytest.mark.thorough
def test_networks_that_normalise_observations(script: Any) -> None:
    pop = checked(script.simba(**SMALL, max_steps=80, evo_steps=40, learning_delay=20), 2)
    assert all(agent.member.arch.to_json()["kind"] == "simba" for agent in pop)
    assert all(agent.member.tensors["normaliser.count"] > 0 for agent in pop)


@of("networks")
def test_wrapped_agents(script: Any) -> None:
    pop = script.wrapped(num_envs=2, steps=20)
    assert [type(agent).__name__ for agent in pop] == ["Halved", "Halved"]
    assert [agent.steps for agent in pop] == [[80], [80]]
