"""Every name of AgileRL's documentation is here, or says what to write instead; its YAML files are read."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from evopipe.compat import agilerl
from evopipe.compat.agilerl import __main__ as command
from evopipe.compat.agilerl import configs, names
from evopipe.errors import ParamsError
from tiny import ROOT

WISHED = (
    "DQN RainbowDQN DDPG TD3 PPO CQN MADDPG MATD3 IPPO Transition MultiAgentTransition "
    "ReplayBuffer MultiStepReplayBuffer PrioritizedReplayBuffer make_multi_agent_vect_envs AsyncPettingZooVecEnv "
    "RSNorm AgentWrapper print_hyperparams plot_population_score HyperparameterConfig RLParameter train_from_config "
    "NeuralUCB NeuralTS BanditEnv train_bandits"
).split()


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_names", ROOT / "docs/make_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_lists_every_name() -> None:
    made = maker()
    assert made.render() == made.PAGE.read_text(encoding="utf-8"), "run `python docs/make_names.py`"
    assert {*names.HERE, *names.OURS} == {*agilerl.__all__}
    assert not names.HERE.keys() & names.INSTEAD.keys()
    page = made.PAGE.read_text(encoding="utf-8")
    for name, (home, _) in (names.HERE | names.INSTEAD).items():
        assert page.count(f"| `agilerl.{home}.{name}` |") == 1


def test_the_names_of_the_tutorials_are_here() -> None:
    assert len(WISHED) == 27
    assert {*WISHED} <= {*agilerl.__all__}
    assert all(callable(getattr(agilerl, name)) for name in agilerl.__all__)


@pytest.mark.parametrize("name", names.INSTEAD)
def test_a_name_that_is_not_here_says_what_to_write(name: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(f"from evopipe.compat.agilerl import {name}", {})
    assert str(raised.value) == f"evopipe.compat.agilerl has no {name}: {names.INSTEAD[name][1]}"


def test_a_name_of_nobodys_is_an_attribute_error() -> None:
    assert not hasattr(agilerl, "DQM")
    with pytest.raises(ImportError, match="cannot import name 'DQM'"):
        from evopipe.compat.agilerl import DQM  # noqa: F401


# --- YAML files -------------------------------------------------------------------------------------------------------

SECTIONS = """
INIT_HP:
  ENV_NAME: CartPole-v1
  ALGO: DQN
  DOUBLE: false
  CHANNELS_LAST: false
  NUM_ENVS: 2
  BATCH_SIZE: 16
  LR: 0.001
  MAX_STEPS: 80
  TARGET_SCORE: 900.
  GAMMA: 0.97
  MEMORY_SIZE: 1000
  LEARN_STEP: 4
  TAU: 0.02
  TOURN_SIZE: 3
  ELITISM: false
  POP_SIZE: 2
  EVO_STEPS: 40
  EVAL_STEPS: 20
  EVAL_LOOP: 3
  LEARNING_DELAY: 10
  EPS_START: 0.8
  EPS_END: 0.05
  EPS_DECAY: 0.9
  WANDB: false
MUTATION_PARAMS: {NO_MUT: 0.35, ARCH_MUT: 0.25, NEW_LAYER: 0.3, PARAMS_MUT: 0.15, ACT_MUT: 0.05, RL_HP_MUT: 0.2,
                  MUT_SD: 0.07, RAND_SEED: 42, MIN_LR: 0.0001, MAX_LR: 0.01}
NET_CONFIG: {latent_dim: 16, encoder_config: {hidden_size: [16]}}
"""
MANIFEST = """
algorithm: {name: DQN, batch_size: 16, lr: 1.0e-3, learn_step: 4, gamma: 0.97, tau: 0.02, double: false}
environment: {name: CartPole-v1, num_envs: 2}
mutation:
  probabilities: {no_mut: 0.35, arch_mut: 0.25, new_layer: 0.3, params_mut: 0.15, act_mut: 0.05, rl_hp_mut: 0.2}
  rl_hp_selection: {lr: {min: 0.0001, max: 0.01}, batch_size: {min: 8, max: 64}}
  mutation_sd: 0.07
  rand_seed: 42
network: {latent_dim: 16, arch: mlp, encoder_config: {hidden_size: [16]}}
replay_buffer: {max_size: 1000}
selection_strategy: {strategy: tournament, tournament_size: 3, elitism: false}
training: {max_steps: 80, target_score: 900.0, pop_size: 2, evo_steps: 40, eval_steps: 20, eval_loop: 3,
           learning_delay: 10, eps_start: 0.8, eps_end: 0.05, eps_decay: 0.9}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [SECTIONS, MANIFEST])
def test_a_file_trains_as_it_says(text: str, tmp_path: Path) -> None:
    pop, fitnesses = agilerl.train_from_config(written(tmp_path, text), verbose=False)
    assert [len(each) for each in fitnesses] == [2, 2]
    params = pop[0].breed.params
    config = params.algo_config
    assert (params.seed, params.env.num_envs, params.train.target, params.train.learning_delay) == (42, 2, 900.0, 10)
    assert params.train.replay.capacity == 1000
    steps = round(2 * np.log(0.05 / 0.8) / np.log(0.9))
    assert (config.lr, config.batch_size, config.eps_start, config.eps_end, config.eps_steps) == (
        1e-3, 16, 0.8, 0.05, steps,
    )  # fmt: skip
    assert (config.learn_step, config.gamma, config.tau, config.double) == (4, 0.97, 0.02, False)
    train, evolution = params.train, params.evolution
    assert (train.max_steps, train.evo_steps, train.eval_steps, train.eval_episodes) == (80, 40, 20, 2 * 3)
    assert (evolution.tournament.size, evolution.tournament.elitism, params.population.size) == (3, False, 2)
    weights = {"none": 0.35, "architecture": 0.25, "parameters": 0.15, "activation": 0.05, "rl_hp": 0.2}
    assert evolution.mutation.probabilities.model_dump() == weights
    assert (evolution.mutation.new_layer_prob, evolution.mutation.sd) == (0.3, 0.07)
    assert (config.network.latent, config.evolve["lr"].min, config.evolve["lr"].max) == (16, 1e-4, 1e-2)


def test_what_a_file_leaves_out_has_its_documented_value() -> None:
    """And memories are of the kind, the size and the steps that a file asks for."""
    for hp, kind, size, steps, alpha in (
        ({}, agilerl.ReplayBuffer, 100_000, 1, None),
        ({"MEMORY_SIZE": 70, "N_STEP": 1}, agilerl.ReplayBuffer, 70, 1, None),
        ({"N_STEP": 4}, agilerl.MultiStepReplayBuffer, 100_000, 4, None),
        ({"PER": True, "N_STEP": 2, "ALPHA": 0.3}, agilerl.PrioritizedReplayBuffer, 100_000, 2, 0.3),
        ({"PER": True}, agilerl.PrioritizedReplayBuffer, 100_000, 1, 0.6),
    ):
        function, given = configs._functions("dqn", hp)
        memory = given["memory"]
        assert (function, type(memory)) == (agilerl.train_off_policy, kind)
        assert (memory.memory_size, memory.steps, memory.alpha) == (size, steps, alpha)
    for name, wanted, kind in (
        ("ddpg", agilerl.train_off_policy, agilerl.ReplayBuffer),
        ("maddpg", agilerl.train_multi_agent_off_policy, agilerl.MultiAgentReplayBuffer),
    ):
        function, given = configs._functions(name, {"MEMORY_SIZE": 9})
        assert (function, type(given["memory"]), given["memory"].memory_size) == (wanted, kind, 9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algo", "env", "more"),
    [
        ("PPO", "CartPole-v1", {}),
        ("TD3", "Pendulum-v1", {}),
        ("RainbowDQN", "CartPole-v1", {"N_STEP": 3, "PER": "true", "V_MIN": 0.0, "V_MAX": 100.0}),
        ("IPPO", "teams_for_face:speaker_listener", {}),
        ("MADDPG", "teams_for_face:speaker_listener", {}),
    ],
)
def test_a_files_algorithm_chooses_the_function(algo: str, env: str, more: dict[str, object], tmp_path: Path) -> None:
    hp = {"ENV_NAME": env, "ALGO": algo, "NUM_ENVS": 2, "POP_SIZE": 2, "MAX_STEPS": 128, "EVO_STEPS": 64,
          "BATCH_SIZE": 16, "LEARN_STEP": 32 if "PPO" in algo else 2, "EVAL_STEPS": 10, **more}  # fmt: skip
    text = "INIT_HP:\n" + "".join(f"  {key}: {value}\n" for key, value in hp.items())
    pop, fitnesses = agilerl.train_from_config(written(tmp_path, text), verbose=False)
    assert len(fitnesses) == 2
    assert type(pop[0]).__name__ == algo
    replay = pop[0].breed.params.train.replay
    assert (replay.n_step, replay.prioritised) == ((3, True) if algo == "RainbowDQN" else (1, False))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("INIT_HP: {ALGO: DQN}", "it names no environment: give ENV_NAME"),
        ("INIT_HP: {ENV_NAME: CartPole-v1}", "it names no algorithm: give ALGO"),
        ("INIT_HP: {}\nNETWORK: {}", "nobody reads 'NETWORK'"),
        (SECTIONS.replace("MUT_SD", "MUT_DS"), "mutation: nobody reads 'MUT_DS', did you mean 'MUT_SD'"),
        (MANIFEST.replace("strategy: tournament", "strategy: multi_frequency"), "'multi_frequency' is not served"),
        (MANIFEST.replace("network:", "networks:"), "nobody reads 'networks', did you mean 'network'"),
    ],
)
def test_what_a_file_says_wrong_is_said(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ParamsError, match=said):
        agilerl.train_from_config(path)
    assert command.main([str(path)]) == 65
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: ")
    assert error.count("\n") == 1


def test_the_command_trains_and_writes_the_elite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elite = tmp_path / "elite"
    assert command.main([str(written(tmp_path, SECTIONS)), "--max-steps", "40", "--elite", str(elite)]) == 0
    assert "generation 1: best fitness " in capsys.readouterr().out
    assert (elite / "policy.json").is_file()
    assert command.main([str(tmp_path / "none.yaml")]) == 66
