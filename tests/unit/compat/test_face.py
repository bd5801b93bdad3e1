"""Scripts' functions do what params do, to the bit; what would be without effect is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import evopipe
from evopipe import parse_params
from evopipe.compat import agilerl
from evopipe.compat.agilerl.environments import config_of
from evopipe.compat.agilerl.train import Call
from evopipe.errors import ParamsError, UsageError
from evopipe.machine import configure
from evopipe.native import build
from evopipe.problems.env import begin
from evopipe.problems.specs import make_spec
from evopipe.run.spec import first_members
from populations import finish, same

HP = {"BATCH_SIZE": 16, "LR": 1e-3, "LEARN_STEP": 2, "GAMMA": 0.99, "TAU": 1e-2}
NET = {"arch": "mlp", "hidden_size": [16, 16]}
BLOCK = {"batch_size": 16, "lr": 1e-3, "learn_step": 2, "gamma": 0.99, "tau": 1e-2,
         "network": {"encoder": [16], "latent": 16, "layer_norm": True}}  # fmt: skip
STEPS = {"max_steps": 80, "evo_steps": 40, "eval_steps": 20}
MUTATION = {"probabilities": {"none": 0.1, "architecture": 0.3, "parameters": 0.3, "activation": 0.0, "rl_hp": 0.3}}


def population(algo: str = "DQN", env: Any = None, hp: Mapping[str, Any] = HP, **more: Any) -> list[agilerl.Agent]:
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2) if env is None else env
    spaces = env.single_observation_space, env.single_action_space
    given = {"net_config": NET, "population_size": 2, "num_envs": 2, **more}
    return agilerl.create_population(algo, *spaces, INIT_HP=hp, **given)


def evolution() -> dict[str, Any]:
    mutation = agilerl.Mutations(no_mutation=0.1, architecture=0.3, parameters=0.3, rl_hp=0.3, rand_seed=1)
    return {"tournament": agilerl.TournamentSelection(2, True, 2, 1), "mutation": mutation, "verbose": False}


def by_params(algo: str, train: Mapping[str, Any], block: Mapping[str, Any], env: str, num_envs: int = 2) -> Any:
    """A finished run of the same as `params.yaml` says it."""
    params = parse_params(
        {
            "env": {"id": env, "num_envs": num_envs},
            "train": {"algo": algo, "warm_start": 0, "learning_delay": 0, "eval_episodes": num_envs, "target": None,
                      **STEPS, **train},
            "evolution": {"mutation": MUTATION},
            "algos": {algo: dict(block)},
        }
    )  # fmt: skip
    spec = make_spec(params)
    run = begin(spec, first_members(spec, 2)[0])
    finish(run)
    run.close()
    return run


def assert_same(trained: Any, run: Any) -> None:
    pop, fitnesses = trained
    assert [same(agent.member, member) for agent, member in zip(pop, run.members, strict=True)] == [True, True]
    assert [dict(agent.hp) for agent in pop] == [dict(member.hyper) for member in run.members]
    assert fitnesses == [[scored.fitness for scored in record.members] for record in run.lineage[1:]]
    assert [agent.fitness for agent in pop] == [[*member.fitness] for member in run.members]
    assert {agent.steps[-1] for agent in pop} == {run.clock.step}


def test_off_policy_is_the_same_run_as_by_params() -> None:
    env, memory = agilerl.make_vect_envs("CartPole-v1", num_envs=2), agilerl.ReplayBuffer(memory_size=100)
    trained = agilerl.train_off_policy(env, "CartPole-v1", "DQN", population(), memory, **STEPS, **evolution())
    eps = {"eps_start": 1.0, "eps_end": 0.1, "eps_schedule": "exponential", "eps_steps": 919}  # 2 · ln 0.1 / ln 0.995
    run = by_params("dqn", {"replay": {"capacity": 100}}, BLOCK | eps, "CartPole-v1")
    assert_same(trained, run)
    assert len(memory) == 100
    assert memory.counter == 160
    state, action, reward, _, done = memory.sample(50)
    assert (state.shape, action.dtype, set(reward.tolist())) == ((50, 4), np.int64, {1.0})
    assert set(np.unique(done)) <= {0.0, 1.0}


def test_on_policy_is_the_same_run_as_by_params() -> None:
    hp = {"BATCH_SIZE": 16, "LEARN_STEP": 20, "UPDATE_EPOCHS": 2, "TARGET_KL": None}
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    trained = agilerl.train_on_policy(env, "CartPole-v1", pop=population("PPO", hp=hp), **STEPS, **evolution())
    block = {"batch_size": 16, "learn_step": 20, "epochs": 2, "target_kl": 0.0, "network": BLOCK["network"]}
    assert_same(trained, by_params("ppo", {}, block, "CartPole-v1"))


@pytest.mark.thorough
def test_a_team_is_the_same_run_as_by_params() -> None:
    """By an environment that the caller made, which is copied, and by name."""
    from mpe2 import simple_speaker_listener_v4 as speaker_listener

    env = speaker_listener.parallel_env(continuous_actions=True, max_cycles=10)
    env.reset()
    agents = env.agents
    pop = agilerl.create_population(
        "MADDPG", [env.observation_space(agent) for agent in agents], [env.action_space(agent) for agent in agents],
        NET, {"BATCH_SIZE": 8, "LEARN_STEP": 4, "LR": 1e-3}, population_size=2, agent_ids=agents,
    )  # fmt: skip
    memory = agilerl.MultiAgentReplayBuffer(100, agent_ids=agents)
    trained = agilerl.train_multi_agent_off_policy(env, "speaker", "MADDPG", pop, memory, **STEPS, **evolution())
    block = {"batch_size": 8, "learn_step": 4, "lr_actor": 1e-3, "lr_critic": 1e-3, "network": BLOCK["network"]}
    params = {"replay": {"capacity": 100}}
    name = "teams_for_face:speaker_listener"
    assert_same(trained, by_params("maddpg", params, block, name, num_envs=1))


def test_agents_are_computed_by_the_kernels_that_runs_take_by_default() -> None:
    assert parse_params({}).runtime.kernels == "auto"
    build.use(None)
    population()
    chosen = build.chosen()
    configure(parse_params({}).runtime)
    assert (chosen is None) == (build.chosen() is None)


def test_what_the_memory_holds_is_learned_from_first() -> None:
    memory, env = agilerl.ReplayBuffer(memory_size=500), agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    state, _ = env.reset()
    for _ in range(20):
        following, reward, done, _, _ = env.step(np.array([0, 1]))
        memory.save_to_memory_vect_envs(state, np.array([0, 1]), reward, following, done)
        state = following
    held = len(memory)
    assert 0 < held <= 40
    agilerl.train_off_policy(env, "CartPole-v1", None, population(), memory, **STEPS, verbose=False)
    assert len(memory) == held + 160


def test_no_tournament_lets_every_member_go_on() -> None:
    pop, _ = agilerl.train_off_policy(
        agilerl.make_vect_envs("CartPole-v1", num_envs=2), "CartPole-v1", None, population(), agilerl.ReplayBuffer(100),
        **STEPS, verbose=False,
    )  # fmt: skip
    assert [len(agent.fitness) for agent in pop] == [2, 2]
    assert [agent.member.slot for agent in pop] == [0, 1]
    assert not same(pop[0].member, pop[1].member)


# --- environments that the caller made --------------------------------------------------------------------------------


def wrapped() -> Any:
    return gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1", max_episode_steps=30))


class Longer(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that no spec knows."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        self.unwrapped.length = 2.0  # type: ignore[attr-defined]
        return obs, info


@pytest.mark.parametrize(
    ("make", "num_envs", "observations"),
    [
        (lambda: agilerl.make_vect_envs("CartPole-v1", num_envs=3), 3, 4),
        (lambda: agilerl.make_vect_envs("CartPole-v1", 2, wrappers=["TimeAwareObservation"]), 2, 5),
        (lambda: agilerl.make_vect_envs(make_env=wrapped, num_envs=2), 2, 5),
        (lambda: SyncVectorEnv([wrapped] * 2), 2, 5),
        (lambda: SyncVectorEnv([lambda: Longer(gymnasium.make("CartPole-v1"))] * 2), 2, 4),
        (lambda: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), 2, 4),
        (lambda: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"), 2, 4),
        (lambda: gymnasium.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([wrapped])), 1, 5),
        (lambda: Longer(gymnasium.make("CartPole-v1")), 1, 4),
    ],
)
def test_any_vector_of_the_callers_can_be_made_again(make: Callable[[], Any], num_envs: int, observations: int) -> None:
    env = make()
    config = config_of(env)
    assert config.num_envs == num_envs
    assert config_of(env) is config
    pool = evopipe.compat.agilerl.environments.evaluation_pool(env, 1)
    pool.reset([0], [7])
    alone = env.env_fns[0]() if isinstance(env, SyncVectorEnv) else None
    assert pool.obs_size == observations
    if alone is not None:
        assert np.array_equal(pool.obs[0], np.float32(alone.reset(seed=7)[0]))
    env.close()


def test_what_cannot_be_made_again_is_told() -> None:
    inner = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    unlike = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1"), lambda: Longer(gymnasium.make("CartPole-v1"))])
    for env, sentence in (
        (gymnasium.wrappers.vector.NormalizeObservation(inner), "put its like around each environment"),
        (unlike, "made by unlike functions"),
        ("CartPole-v1", "is no environment"),
    ):
        with pytest.raises(UsageError, match=sentence):
            config_of(env)


# --- what would be without effect -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"checkpoint_path": "x"}, "checkpoint_path: it would be without effect: give checkpoint too"),
        ({"overwrite_checkpoints": True}, "overwrite_checkpoints: it would be without effect"),
        ({"elite_path": "x"}, "elite_path: it would be without effect: give save_elite too"),
        ({"wandb_kwargs": {"project": "x"}}, "wandb_kwargs: it would be without effect: give wb too"),
        ({"wb": True, "wandb_kwargs": {"tags": ["x"]}}, "does not hand tags on"),
        ({"n_step": True}, "give a MultiStepReplayBuffer"),
        ({"per": True}, "give a PrioritizedReplayBuffer"),
        ({"n_step_memory": agilerl.MultiStepReplayBuffer(10)}, "set n_step=True"),
        ({"algo": "PPO"}, "algo: it says PPO, and the population is one of dqn"),
        ({"INIT_HP": {"LR": 0.5}}, "LR is 0.5, and the population was created with 0.001"),
        ({"INIT_HP": {"LERN_STEP": 1}}, "nobody reads 'LERN_STEP', did you mean 'LEARN_STEP'"),
        ({"MUT_P": {"NO_MUT": 0.4}}, "give mutation, made of it"),
        ({"MUT_P": {"NO_MUT": 0.9}, "mutation": agilerl.Mutations()}, "NO_MUT is 0.9, and mutation was made with 0.4"),
        ({"MUT_P": {"MAX_LR": 0.9}, "mutation": agilerl.Mutations(max_lr=0.1)}, "MAX_LR is 0.9, and mutation was made"),
        ({"MUT_P": {"NO_MUTT": 0.4}, "mutation": agilerl.Mutations()}, "nobody reads 'NO_MUTT', did you mean 'NO_MUT'"),
        ({"tournament": agilerl.TournamentSelection(2, True, 6)}, "population_size is 6, and there are 2 agents"),
        ({"eps_decay": 1.5}, "0 < decay ≤ 1"),
        ({"memory": None}, "memory: give a ReplayBuffer"),
        ({"pop": []}, "give agents"),
    ],
)
def test_arguments_without_effect_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    given = {"pop": population(), "memory": agilerl.ReplayBuffer(100), "algo": None, **STEPS, "verbose": False}
    with pytest.raises(UsageError, match=sentence):
        agilerl.train_off_policy(agilerl.make_vect_envs("CartPole-v1", 2), "CartPole-v1", **{**given, **arguments})


def test_a_project_of_weights_and_biases_is_the_environments_unless_it_is_named() -> None:
    def tracked(**more: Any) -> dict[str, Any]:
        return Call({"env_name": "CartPole-v1", "wb": True, **more})._tracked()

    assert tracked() == tracked(wandb_kwargs={}) == {"experiment": "CartPole-v1"}
    assert tracked(wandb_kwargs={"project": "mine"}) == {"experiment": "mine"}
    assert tracked(env_name=None) == tracked(wb=False) == {}


def test_several_processes_are_refused() -> None:
    class Many:
        num_processes = 4

    with pytest.raises(UsageError, match="it has 4 processes, and evopipe trains all members in one"):
        population(accelerator=Many())


def test_each_algorithm_has_its_function() -> None:
    env, hp = agilerl.make_vect_envs("CartPole-v1", num_envs=2), {"LEARN_STEP": 64, "BATCH_SIZE": 32}
    with pytest.raises(UsageError, match="ppo is not for it: call train_on_policy"):
        agilerl.train_off_policy(env, "x", None, population("PPO", hp=hp), agilerl.ReplayBuffer(10), **STEPS)
    with pytest.raises(UsageError, match="dqn is not for it: call train_off_policy"):
        agilerl.train_on_policy(env, "x", None, population(), **STEPS)
    with pytest.raises(UsageError, match="all members are stepped together"):
        agilerl.train_on_policy(
            env, "x", None, population("PPO", hp=hp), collect_rollouts_fn=lambda agent, env, steps: None, **STEPS
        )


def test_an_environment_of_other_spaces_is_refused() -> None:
    env = agilerl.make_vect_envs("Acrobot-v1", num_envs=2)
    with pytest.raises(UsageError, match="it shows and takes other things than the population was created for"):
        agilerl.train_off_policy(env, "x", None, population(), agilerl.ReplayBuffer(100), **STEPS, verbose=False)


# --- what is left -----------------------------------------------------------------------------------------------------


def test_checkpoints_and_the_elite_come_back(tmp_path: Path) -> None:
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    pop, _ = agilerl.train_off_policy(
        env, "CartPole-v1", None, population(), agilerl.ReplayBuffer(100), **STEPS, **evolution(), checkpoint=40,
        checkpoint_path=str(tmp_path / "agent"), save_elite=True, elite_path=str(tmp_path / "elite"),
    )  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "agent_0_40", "agent_0_80", "agent_1_40", "agent_1_80", "elite"
    ]  # fmt: skip
    for agent in pop:
        again = agilerl.Agent.load(tmp_path / f"agent_{agent.index}_80")
        assert same(again.member, agent.member)
        assert (again.steps, again.fitness, again.algo) == (agent.steps, agent.fitness, "dqn")
        assert again.observation_space == env.single_observation_space
    assert evopipe.load(tmp_path / "elite").act(np.zeros(4, np.float32)) in (0, 1)
    agilerl.train_off_policy(
        env, "CartPole-v1", None, pop, agilerl.ReplayBuffer(100), **STEPS, verbose=False, checkpoint=40,
        checkpoint_path=str(tmp_path / "last"), overwrite_checkpoints=True,
    )  # fmt: skip
    assert sorted(path.name for path in tmp_path.glob("last*")) == ["last_0", "last_1"]
    assert agilerl.Agent.load(tmp_path / "last_0").steps == [160]


@pytest.mark.thorough
def test_weights_and_biases_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outbox is told; what it does with it is tested where it stands."""
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVOPIPE_TRACKING", "off")
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    told = {"wb": True, "wandb_kwargs": {"project": "mine"}, "verbose": False}
    agilerl.train_off_policy(env, "CartPole-v1", None, population(), agilerl.ReplayBuffer(100), **STEPS, **told)
    (log,) = tmp_path.glob(".evopipe/train/*/events.jsonl")
    assert log.read_text().count('"event":"generation"') == 2


class Pictures(gymnasium.Env[Any, Any]):
    """Images and an index; actions are counted from 1."""

    observation_space = gymnasium.spaces.Dict(
        {"image": gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8), "index": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert action in (1, 2, 3)
        self.t += 1
        return self.observation_space.sample(), float(action == 2), self.t >= 5, False, {}


def test_images_and_dictionaries_are_learned_from(tmp_path: Path) -> None:
    env = agilerl.make_vect_envs(make_env=Pictures, num_envs=2)
    net = {"arch": "cnn", "channels": [4], "kernels": [3], "strides": [2], "hidden_size": [16]}
    pop, memory = population("DQN", env, {"BATCH_SIZE": 8}, net_config=net), agilerl.ReplayBuffer(100)
    state, _ = env.reset()
    for _ in range(10):
        action = pop[0].get_action(state, 0.3)
        following, reward, done, _, _ = env.step(action)
        memory.save_to_memory_vect_envs(state, action, reward, following, done)
        state = following
    seen, taken, *_ = memory.sample(8)
    assert (seen["image"].dtype, seen["image"].shape, seen["index"].shape) == (np.uint8, (8, 8, 8, 3), (8,))
    assert set(taken) <= {1, 2, 3}
    assert np.isfinite(pop[0].learn(memory.sample(8)))
    pop, _ = agilerl.train_off_policy(
        env, "pictures", "DQN", pop, memory, swap_channels=True, **STEPS | {"max_steps": 40}, **evolution()
    )
    pop[0].save_checkpoint(tmp_path / "agent.pt")
    assert agilerl.Agent.load(tmp_path / "agent.pt").observation_space == Pictures.observation_space


def test_memories_say_how_is_sampled() -> None:
    env, hp = agilerl.make_vect_envs("CartPole-v1", num_envs=2), {"BATCH_SIZE": 16, "NUM_ATOMS": 11}
    memory, longer = agilerl.PrioritizedReplayBuffer(500, alpha=0.5), agilerl.MultiStepReplayBuffer(500, n_step=3)
    pop, _ = agilerl.train_off_policy(
        env, "CartPole-v1", "Rainbow DQN", population("Rainbow DQN", env, hp), memory, per=True, n_step=True,
        n_step_memory=longer, **STEPS, **evolution(),
    )  # fmt: skip
    replay = pop[0].breed.params.train.replay
    assert (replay.prioritised, replay.alpha, replay.n_step, replay.capacity) == (True, 0.5, 3, 500)


@pytest.mark.thorough
def test_a_team_that_learns_from_its_own_steps(tmp_path: Path) -> None:
    env = agilerl.make_vect_envs("simple_spread_v3", 2, max_cycles=10)
    spaces = ({agent: space(agent) for agent in env.agents} for space in (env.observation_space, env.action_space))
    pop = agilerl.create_population("IPPO", *spaces, NET, {"LEARN_STEP": 20, "BATCH_SIZE": 16}, population_size=2)
    pop, fitnesses = agilerl.train_multi_agent_on_policy(
        env, "spread", "IPPO", pop, sum_scores=False, **STEPS | {"max_steps": 40}, **evolution(), save_elite=True,
        elite_path=str(tmp_path / "team"),
    )  # fmt: skip
    assert np.isfinite(fitnesses).all()
    assert pop[0].breed.params.algo_config.score == "mean"
    assert evopipe.load(tmp_path / "team").agents == (*env.agents,)


def test_names_are_evopipes_own_too() -> None:
    assert {name for name in agilerl.__all__ if getattr(evopipe, name) is not getattr(agilerl, name)} == set()
    assert set(agilerl.__all__) <= set(evopipe.__all__)
    with pytest.raises(AttributeError, match="no attribute 'train_of_policy'"):
        evopipe.train_of_policy  # noqa: B018
    from evopipe import agents
    from evopipe.compat import rllm
    from evopipe.compat.agilerl import older
    from evopipe.face.older import train_multi_agent  # where these stood before

    assert train_multi_agent is older.train_multi_agent
    assert rllm.AgentTrainer is evopipe.AgentTrainer
    with pytest.raises(AttributeError, match="no attribute 'AgentTrainr'"):
        agents.AgentTrainr  # noqa: B018


def test_settings_out_of_bounds_name_their_key() -> None:
    with pytest.raises(ParamsError, match=r"algos\.dqn\.lr: .* above 0"):
        population(hp={"LR": -1.0})
    with pytest.raises(ParamsError, match="no algorithm 'DQM', did you mean 'dqn'"):
        population("DQM")
