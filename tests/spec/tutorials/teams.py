"""Teams: MATD3 in a loop of its own, IPPO by rollouts of its own, and the training functions."""

import numpy as np
from agilerl.algorithms import IPPO, MADDPG, MATD3
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.data import MultiAgentTransition
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.utils.utils import (
    create_population,
    default_progress_bar,
    make_multi_agent_vect_envs,
    tournament_selection_and_mutation,
)
from agilerl.vector.pz_async_vec_env import AsyncPettingZooVecEnv
from pettingzoo.mpe import simple_speaker_listener_v4

NET = {"latent_dim": 32, "encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}}


def make_env():
    return simple_speaker_listener_v4.parallel_env(continuous_actions=True, max_cycles=10)


def evolution(size):
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=size)
    return tournament, Mutations(
        no_mutation=0.2, architecture=0.2, parameters=0.2, activation=0, rl_hp=0.2, rand_seed=1
    )


def off_policy(num_envs=8, size=4, max_steps=2_000_000, evo_steps=10_000, learning_delay=0, algo="MATD3"):
    hp = {
        "ALGO": algo, "BATCH_SIZE": 32, "O_U_NOISE": True, "EXPL_NOISE": 0.1, "MEAN_NOISE": 0.0, "THETA": 0.15,
        "DT": 0.01, "LR_ACTOR": 1e-3, "LR_CRITIC": 1e-2, "GAMMA": 0.95, "MEMORY_SIZE": 100_000, "LEARN_STEP": 16,
        "TAU": 0.01, "POLICY_FREQ": 2,
    }  # fmt: skip
    env = make_multi_agent_vect_envs(env=make_env, num_envs=num_envs)
    observation_spaces = [env.single_observation_space(agent) for agent in env.agents]
    action_spaces = [env.single_action_space(agent) for agent in env.agents]
    hp["AGENT_IDS"] = env.agents
    hp_config = HyperparameterConfig(
        lr_actor=RLParameter(min=1e-4, max=1e-2),
        lr_critic=RLParameter(min=1e-4, max=1e-2),
        learn_step=RLParameter(min=8, max=64, dtype=int, grow_factor=1.5, shrink_factor=0.75),
    )
    pop: list[MATD3] = create_population(
        hp["ALGO"], observation_spaces, action_spaces, NET, hp, hp_config=hp_config, population_size=size,
        num_envs=num_envs,
    )  # fmt: skip
    memory = MultiAgentReplayBuffer(hp["MEMORY_SIZE"], agent_ids=env.agents)
    tournament, mutations = evolution(size)
    pbar, history = default_progress_bar(max_steps), []
    pop = mutations.mutation(pop, pre_training_mut=True)
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        for agent in pop:
            agent.set_training_mode(True)
            obs, info = env.reset()
            scores, finished = np.zeros(num_envs), []
            for step in range(evo_steps // num_envs):
                action, raw_action = agent.get_action(obs=obs, infos=info)
                next_obs, reward, termination, truncation, info = env.step(action)
                scores += np.sum(np.array(list(reward.values())).transpose(), axis=-1)
                transition = MultiAgentTransition(
                    obs=obs, action=raw_action, reward=reward, next_obs=next_obs, done=termination
                ).to_tensordict()
                transition.batch_size = [num_envs]
                memory.add(transition)
                if len(memory) >= agent.batch_size and memory.counter > learning_delay:
                    if agent.learn_step > num_envs:
                        if step % (agent.learn_step // num_envs) == 0:
                            agent.learn(memory.sample(agent.batch_size))
                    else:
                        for _ in range(num_envs // agent.learn_step):
                            agent.learn(memory.sample(agent.batch_size))
                obs = next_obs
                done = [np.array(list(each.values())).transpose() for each in (termination, truncation)]
                over = [i for i, (d, t) in enumerate(zip(*done, strict=True)) if np.any(d) or np.any(t)]
                for i in over:
                    finished.append(scores[i])
                    scores[i] = 0
                agent.reset_action_noise(over)
            agent.scores += finished
            agent.steps[-1] += evo_steps
            pbar.update(evo_steps // len(pop))
        history.append([agent.test(env, max_steps=None, loop=1) for agent in pop])
        pop = tournament_selection_and_mutation(
            population=pop, tournament=tournament, mutation=mutations, env_name="speaker_listener", algo=hp["ALGO"],
            save_elite=True, elite_path="elite_team",
        )  # fmt: skip
        for agent in pop:
            agent.steps.append(agent.steps[-1])
    pbar.close()
    env.close()
    again = MATD3.load("elite_team") if algo == "MATD3" else MADDPG.load("elite_team")
    assert again.agent_ids == ["speaker_0", "listener_0"]
    return pop, history


def on_policy(num_envs=8, rollouts=100, steps=32):
    env = AsyncPettingZooVecEnv([make_env for _ in range(num_envs)])
    env.reset()
    agent = IPPO(
        observation_spaces=[env.single_observation_space(agent) for agent in env.agents],
        action_spaces=[env.single_action_space(agent) for agent in env.agents],
        agent_ids=env.agents,
        net_config=dict.fromkeys(env.agents, NET),
        batch_size=32,
        learn_step=steps * num_envs,
    )
    obs, info = env.reset()
    losses = []
    for _ in range(rollouts):
        kept = {name: [] for name in ("obs", "action", "log_prob", "reward", "done", "value")}
        done = {agent_id: np.zeros(num_envs) for agent_id in env.agents}
        for _ in range(steps):
            action, log_prob, _entropy, value = agent.get_action(obs=obs, infos=info)
            clipped = {
                agent_id: np.clip(act, agent.action_space[agent_id].low, agent.action_space[agent_id].high)
                for agent_id, act in action.items()
            }
            next_obs, reward, termination, truncation, info = env.step(clipped)
            for name, part in zip(kept, (obs, action, log_prob, reward, done, value), strict=True):
                kept[name].append(part)
            done = {each: np.logical_or(termination[each], truncation[each]) for each in termination}
            obs = next_obs
        losses.append(agent.learn((*kept.values(), obs, done)))
        agent.steps[-1] += steps * num_envs
    fitness = agent.test(env)
    env.close()
    return agent, losses, fitness


def by_function(num_envs=8, size=4, max_steps=2_000_000, evo_steps=10_000, on=False):
    env = make_multi_agent_vect_envs(make_env, num_envs=num_envs)
    kind = IPPO if on else MADDPG
    pop = kind.population(
        size=size, observation_space=[env.single_observation_space(agent) for agent in env.agents],
        action_space=[env.single_action_space(agent) for agent in env.agents], agent_ids=env.agents, net_config=NET,
        batch_size=32, learn_step=32,
    )  # fmt: skip
    tournament, mutations = evolution(size)
    common = {"sum_scores": True, "max_steps": max_steps, "evo_steps": evo_steps, "tournament": tournament,
              "mutation": mutations, "verbose": False}  # fmt: skip
    if on:
        return train_multi_agent_on_policy(env, "speaker_listener", "IPPO", pop, **common)
    memory = MultiAgentReplayBuffer(10_000, agent_ids=env.agents)
    return train_multi_agent_off_policy(env, "speaker_listener", "MADDPG", pop, memory, **common)
