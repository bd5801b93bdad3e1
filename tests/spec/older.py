"""The readme's scripts, in the spellings of AgileRL's first versions, with the import lines that `older` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from evopipe import (
    MultiAgentReplayBuffer,
    Mutations,
    ReplayBuffer,
    ReplayDataset,
    Sampler,
    TournamentSelection,
    initialPopulation,
    makeVectEnvs,
)
from evopipe.face.older import train, train_multi_agent, train_offline, train_on_policy

NET_CONFIG = {"arch": "mlp", "h_size": [32, 32]}
MUTATION_PARAMS = {
    "NO_MUT": 0.4, "ARCH_MUT": 0.2, "NEW_LAYER": 0.2, "PARAMS_MUT": 0.2, "ACT_MUT": 0, "RL_HP_MUT": 0.2,
    "RL_HP_SELECTION": ["lr", "batch_size"], "MUT_SD": 0.1, "RAND_SEED": 1,
}  # fmt: skip
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def settings(algo: str, env_name: str, pop_size: int, batch_size: int, episodes: int, evo_epochs: int) -> Any:
    """`INIT_HP`."""
    return {
        "ENV_NAME": env_name, "ALGO": algo, "DOUBLE": True, "CHANNELS_LAST": False, "BATCH_SIZE": batch_size,
        "LR": 1e-3, "EPISODES": episodes, "TARGET_SCORE": 200.0, "GAMMA": 0.99, "MEMORY_SIZE": 10_000, "LEARN_STEP": 1,
        "TAU": 1e-3, "TOURN_SIZE": 2, "ELITISM": True, "POP_SIZE": pop_size, "EVO_EPOCHS": evo_epochs,
        "POLICY_FREQ": 2, "WANDB": False,
    }  # fmt: skip


def population(env: Any, hp: Any, **more: Any) -> tuple[Any, Any]:
    """The agents, and the number of actions."""
    try:
        state_dim, one_hot = env.single_observation_space.n, True
    except Exception:
        state_dim, one_hot = env.single_observation_space.shape, False
    try:
        action_dim = env.single_action_space.n
    except Exception:
        action_dim = env.single_action_space.shape[0]
    if hp["CHANNELS_LAST"]:
        state_dim = (state_dim[2], state_dim[0], state_dim[1])
    pop = initialPopulation(
        algo=hp["ALGO"],
        state_dim=state_dim,
        action_dim=action_dim,
        one_hot=one_hot,
        net_config=NET_CONFIG,
        INIT_HP=hp,
        population_size=hp["POP_SIZE"],
        **({"device": DEVICE} | more),
    )
    return pop, action_dim


def evolution(hp: Any, action_dim: Any, evo_step: int, **more: Any) -> tuple[Any, ...]:
    """Memory, tournament and mutations."""
    field_names = ["state", "action", "reward", "next_state", "done"]
    memory = ReplayBuffer(action_dim=action_dim, memory_size=hp["MEMORY_SIZE"], field_names=field_names, device=DEVICE)
    tournament = TournamentSelection(
        tournament_size=hp["TOURN_SIZE"], elitism=hp["ELITISM"], population_size=hp["POP_SIZE"], evo_step=evo_step
    )
    mutations = Mutations(
        algo=hp["ALGO"],
        no_mutation=MUTATION_PARAMS["NO_MUT"],
        architecture=MUTATION_PARAMS["ARCH_MUT"],
        new_layer_prob=MUTATION_PARAMS["NEW_LAYER"],
        parameters=MUTATION_PARAMS["PARAMS_MUT"],
        activation=MUTATION_PARAMS["ACT_MUT"],
        rl_hp=MUTATION_PARAMS["RL_HP_MUT"],
        rl_hp_selection=MUTATION_PARAMS["RL_HP_SELECTION"],
        mutation_sd=MUTATION_PARAMS["MUT_SD"],
        arch=NET_CONFIG["arch"],
        rand_seed=MUTATION_PARAMS["RAND_SEED"],
        **({"device": DEVICE} | more),
    )
    return memory, tournament, mutations


def off_policy(
    env_name: str = "LunarLander-v3", num_envs: int = 16, pop_size: int = 6, episodes: int = 2000, evo_epochs: int = 20,
    max_steps: int = 500, batch_size: int = 256,
) -> Any:  # fmt: skip
    """`train`, of environments that learn while they play."""
    hp = settings("DQN", env_name, pop_size, batch_size, episodes, evo_epochs)
    env = makeVectEnvs(env_name=hp["ENV_NAME"], num_envs=num_envs)
    agent_pop, action_dim = population(env, hp)
    memory, tournament, mutations = evolution(hp, action_dim, hp["EVO_EPOCHS"])
    return train(
        env=env,
        env_name=hp["ENV_NAME"],
        algo=hp["ALGO"],
        pop=agent_pop,
        memory=memory,
        swap_channels=hp["CHANNELS_LAST"],
        n_episodes=hp["EPISODES"],
        max_steps=max_steps,
        evo_epochs=hp["EVO_EPOCHS"],
        evo_loop=1,
        target=hp["TARGET_SCORE"],
        tournament=tournament,
        mutation=mutations,
        wb=hp["WANDB"],
    )


def on_policy(
    env_name: str = "LunarLander-v3", num_envs: int = 8, pop_size: int = 4, episodes: int = 1000, evo_epochs: int = 5,
    max_steps: int = 500,
) -> Any:  # fmt: skip
    """`train` of `train_on_policy`."""
    hp = settings("PPO", env_name, pop_size, 128, episodes, evo_epochs)
    env = makeVectEnvs(env_name=hp["ENV_NAME"], num_envs=num_envs)
    agent_pop, action_dim = population(env, hp)
    _, tournament, mutations = evolution(hp, action_dim, hp["EVO_EPOCHS"])
    return train_on_policy(
        env=env,
        env_name=hp["ENV_NAME"],
        algo=hp["ALGO"],
        pop=agent_pop,
        swap_channels=hp["CHANNELS_LAST"],
        n_episodes=hp["EPISODES"],
        max_steps=max_steps,
        evo_epochs=hp["EVO_EPOCHS"],
        evo_loop=1,
        target=hp["TARGET_SCORE"],
        tournament=tournament,
        mutation=mutations,
        wb=hp["WANDB"],
    )


def offline(
    dataset: Path, pop_size: int = 6, episodes: int = 2000, evo_epochs: int = 20, max_steps: int = 500,
    batch_size: int = 256,
) -> Any:  # fmt: skip
    """`train` of `train_offline`."""
    hp = settings("CQN", "CartPole-v1", pop_size, batch_size, episodes, evo_epochs)
    env = makeVectEnvs(hp["ENV_NAME"], num_envs=1)
    agent_pop, action_dim = population(env, hp)
    memory, tournament, mutations = evolution(hp, action_dim, hp["EVO_EPOCHS"])
    with h5py.File(dataset, "r") as opened:
        return train_offline(
            env=env,
            env_name=hp["ENV_NAME"],
            dataset=opened,
            algo=hp["ALGO"],
            pop=agent_pop,
            memory=memory,
            swap_channels=hp["CHANNELS_LAST"],
            n_episodes=hp["EPISODES"],
            max_steps=max_steps,
            evo_epochs=hp["EVO_EPOCHS"],
            evo_loop=1,
            target=hp["TARGET_SCORE"],
            tournament=tournament,
            mutation=mutations,
            wb=hp["WANDB"],
        )


def off_policy_loop(
    env_name: str = "LunarLander-v3", num_envs: int = 16, pop_size: int = 6, max_episodes: int = 1000,
    max_steps: int = 500, evo_epochs: int = 5, accelerator: Any = None, folder: Path = Path("models"),
) -> tuple[Any, list[list[float]]]:  # fmt: skip
    """The loop of one's own; with an accelerator that of several devices, whose agents come through files."""
    hp = settings("DQN", env_name, pop_size, 128, max_episodes, evo_epochs)
    env = makeVectEnvs(env_name, num_envs=num_envs)
    distributed = {} if accelerator is None else {"accelerator": accelerator}
    pop, action_dim = population(env, hp, **distributed)
    memory, tournament, mutations = evolution(hp, action_dim, 1, **distributed)
    sampler = Sampler(memory=memory)
    if accelerator is not None:
        replay_dataset = ReplayDataset(memory, hp["BATCH_SIZE"])
        replay_dataloader = accelerator.prepare(DataLoader(replay_dataset, batch_size=None))
        sampler = Sampler(distributed=True, dataset=replay_dataset, dataloader=replay_dataloader)
        folder.mkdir(parents=True, exist_ok=True)
    eps_start, eps_end, eps_decay = 1.0, 0.1, 0.995
    epsilon, evo_loop, history = eps_start, 1, []
    for idx_epi in range(max_episodes):
        for agent in pop:
            state, score = env.reset()[0], 0
            for _ in range(max_steps):
                if hp["CHANNELS_LAST"]:
                    state = np.moveaxis(state, [3], [1])
                action = agent.getAction(state, epsilon)
                next_state, reward, done, _, _ = env.step(action)
                memory.save2memoryVectEnvs(state, action, reward, next_state, done)
                if memory.counter % agent.learn_step == 0 and len(memory) >= agent.batch_size:
                    experiences = sampler.sample(agent.batch_size)
                    agent.learn(experiences)
                state = next_state
                score += reward
        epsilon = max(eps_end, epsilon * eps_decay)
        if (idx_epi + 1) % evo_epochs == 0:
            fitnesses = [
                agent.test(env, swap_channels=hp["CHANNELS_LAST"], max_steps=max_steps, loop=evo_loop) for agent in pop
            ]
            print(f"100 fitness avgs: {[round(np.mean(agent.fitness[-100:]), 2) for agent in pop]}")
            history.append(fitnesses)
            for model in pop:
                model.unwrap_models()
            _elite, pop = tournament.select(pop)
            pop = mutations.mutation(pop)
            if accelerator is not None:
                for pop_i, model in enumerate(pop):
                    model.saveCheckpoint(f"{folder}/DQN_{pop_i}.pt")
                accelerator.wait_for_everyone()
                for pop_i, model in enumerate(pop):
                    model.loadCheckpoint(f"{folder}/DQN_{pop_i}.pt")
            for model in pop:
                model.wrap_models()
    env.close()
    return pop, history


def on_policy_loop(
    env_name: str = "LunarLander-v3", num_envs: int = 8, pop_size: int = 4, max_episodes: int = 1000,
    max_steps: int = 500, evo_epochs: int = 5, evo_loop: int = 3,
) -> tuple[Any, list[list[float]]]:  # fmt: skip
    """The loop of one's own whose agents learn from each episode."""
    hp = {"POPULATION_SIZE": pop_size, "DOUBLE": True, "BATCH_SIZE": 128, "LR": 1e-3, "GAMMA": 0.99,
          "CHANNELS_LAST": False, "ALGO": "PPO", "POP_SIZE": pop_size, "MEMORY_SIZE": 1, "TOURN_SIZE": 2,
          "ELITISM": True}  # fmt: skip
    env = makeVectEnvs(env_name, num_envs=num_envs)
    pop, action_dim = population(env, hp)
    _, tournament, mutations = evolution(hp, action_dim, 1)
    history = []
    for idx_epi in range(max_episodes):
        for agent in pop:
            state, score = env.reset()[0], 0
            states, actions, log_probs, rewards, dones, values = [], [], [], [], [], []
            for _ in range(max_steps):
                action, log_prob, _, value = agent.getAction(state)
                next_state, reward, done, _trunc, _ = env.step(action)
                states.append(state)
                actions.append(action)
                log_probs.append(log_prob)
                rewards.append(reward)
                dones.append(done)
                values.append(value)
                state = next_state
                score += reward
            agent.scores.append(score)
            agent.learn((states, actions, log_probs, rewards, dones, values, next_state))
            agent.steps[-1] += max_steps
        if (idx_epi + 1) % evo_epochs == 0:
            fitnesses = [
                agent.test(env, swap_channels=hp["CHANNELS_LAST"], max_steps=max_steps, loop=evo_loop) for agent in pop
            ]
            history.append(fitnesses)
            _elite, pop = tournament.select(pop)
            pop = mutations.mutation(pop)
    env.close()
    return pop, history


def offline_loop(
    dataset: Path, pop_size: int = 6, max_episodes: int = 1000, max_steps: int = 500, evo_epochs: int = 5
) -> tuple[Any, list[list[float]]]:
    """The loop of one's own over a dataset."""
    hp = settings("CQN", "CartPole-v1", pop_size, 128, max_episodes, evo_epochs)
    env = makeVectEnvs("CartPole-v1", num_envs=1)
    pop, action_dim = population(env, hp)
    memory, tournament, mutations = evolution(hp, action_dim, 1)
    with h5py.File(dataset, "r") as file:
        columns = {name: file[name][:] for name in ("observations", "actions", "rewards", "terminals")}
    for i in range(columns["rewards"].shape[0] - 1):
        state, next_state = columns["observations"][i], columns["observations"][i + 1]
        action, reward = columns["actions"][i], columns["rewards"][i]
        done = bool(columns["terminals"][i])
        memory.save2memory(state, action, reward, next_state, done)
    history = []
    for idx_epi in range(max_episodes):
        for agent in pop:
            for _ in range(max_steps):
                experiences = memory.sample(agent.batch_size)
                agent.learn(experiences)
        if (idx_epi + 1) % evo_epochs == 0:
            history.append([agent.test(env, swap_channels=False, max_steps=max_steps, loop=1) for agent in pop])
            _elite, pop = tournament.select(pop)
            pop = mutations.mutation(pop)
    env.close()
    return pop, history


def multi_agent(
    pop_size: int = 6, episodes: int = 10_000, evo_epochs: int = 20, max_steps: int = 900, batch_size: int = 512
) -> Any:
    """`train_multi_agent`, of a speaker and a listener."""
    from mpe2 import simple_speaker_listener_v4

    hp: dict[str, Any] = {
        "ALGO": "MADDPG", "BATCH_SIZE": batch_size, "LR": 0.01, "EPISODES": episodes, "GAMMA": 0.95,
        "MEMORY_SIZE": 1_000_000, "LEARN_STEP": 5, "TAU": 0.01, "CHANNELS_LAST": False, "WANDB": False,
    }  # fmt: skip
    changes = MUTATION_PARAMS | {
        "RL_HP_SELECTION": ["lr", "batch_size", "learn_step"], "RAND_SEED": 42, "MIN_LR": 0.0001, "MAX_LR": 0.01,
        "MIN_LEARN_STEP": 1, "MAX_LEARN_STEP": 200, "MIN_BATCH_SIZE": 8, "MAX_BATCH_SIZE": 1024,
    }  # fmt: skip
    env = simple_speaker_listener_v4.parallel_env(continuous_actions=True)
    env.reset()
    try:
        state_dim, one_hot = [env.observation_space(agent).n for agent in env.agents], True
    except Exception:
        state_dim, one_hot = [env.observation_space(agent).shape for agent in env.agents], False
    try:
        action_dim = [env.action_space(agent).n for agent in env.agents]
        hp |= {"DISCRETE_ACTIONS": True, "MAX_ACTION": None, "MIN_ACTION": None}
    except Exception:
        action_dim = [env.action_space(agent).shape[0] for agent in env.agents]
        hp["DISCRETE_ACTIONS"] = False
        hp["MAX_ACTION"] = [env.action_space(agent).high for agent in env.agents]
        hp["MIN_ACTION"] = [env.action_space(agent).low for agent in env.agents]
    hp["N_AGENTS"], hp["AGENT_IDS"] = env.num_agents, list(env.agents)
    agent_pop = initialPopulation(
        algo=hp["ALGO"],
        state_dim=state_dim,
        action_dim=action_dim,
        one_hot=one_hot,
        net_config=NET_CONFIG,
        INIT_HP=hp,
        population_size=pop_size,
        device=DEVICE,
    )
    field_names = ["state", "action", "reward", "next_state", "done"]
    memory = MultiAgentReplayBuffer(
        memory_size=1_000_000, field_names=field_names, agent_ids=hp["AGENT_IDS"], device=DEVICE
    )
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=pop_size, evo_step=1)
    mutations = Mutations(
        algo=hp["ALGO"],
        no_mutation=changes["NO_MUT"],
        architecture=changes["ARCH_MUT"],
        new_layer_prob=changes["NEW_LAYER"],
        parameters=changes["PARAMS_MUT"],
        activation=changes["ACT_MUT"],
        rl_hp=changes["RL_HP_MUT"],
        rl_hp_selection=changes["RL_HP_SELECTION"],
        mutation_sd=changes["MUT_SD"],
        min_lr=changes["MIN_LR"],
        max_lr=changes["MAX_LR"],
        min_learn_step=changes["MIN_LEARN_STEP"],
        max_learn_step=changes["MAX_LEARN_STEP"],
        min_batch_size=changes["MIN_BATCH_SIZE"],
        max_batch_size=changes["MAX_BATCH_SIZE"],
        agent_ids=hp["AGENT_IDS"],
        arch=NET_CONFIG["arch"],
        rand_seed=changes["RAND_SEED"],
        device=DEVICE,
    )
    return train_multi_agent(
        env=env,
        env_name="simple_speaker_listener_v4",
        algo=hp["ALGO"],
        pop=agent_pop,
        memory=memory,
        INIT_HP=hp,
        MUT_P=changes,
        net_config=NET_CONFIG,
        swap_channels=hp["CHANNELS_LAST"],
        n_episodes=hp["EPISODES"],
        evo_epochs=evo_epochs,
        evo_loop=1,
        max_steps=max_steps,
        target=200.0,
        tournament=tournament,
        mutation=mutations,
        wb=hp["WANDB"],
    )
