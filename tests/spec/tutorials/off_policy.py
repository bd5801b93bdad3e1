"""A population of DQN in a loop of its own, Rainbow with n steps and priorities, and TD3 by the training function."""

import numpy as np
import torch
from agilerl.algorithms import DQN, TD3
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.algorithms.dqn_rainbow import RainbowDQN
from agilerl.components.data import Transition
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, default_progress_bar, make_vect_envs, print_hyperparams

NET = {"latent_dim": 32, "encoder_config": {"hidden_size": [32, 32]}, "head_config": {"hidden_size": [32]}}


def evolution(size, device):
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=size)
    mutations = Mutations(
        no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=0, rl_hp=0.2, mutation_sd=0.1,
        rand_seed=1, device=device,
    )  # fmt: skip
    return tournament, mutations


def own_loop(num_envs=16, size=4, max_steps=200_000, evo_steps=10_000, learning_delay=1000):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    env = make_vect_envs("CartPole-v1", num_envs=num_envs)
    pop = DQN.population(
        size=size, observation_space=env.single_observation_space, action_space=env.single_action_space, net_config=NET,
        hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2)), device=device, double=True, batch_size=64,
        lr=1e-3, gamma=0.99, learn_step=1, tau=1e-2,
    )  # fmt: skip
    memory = ReplayBuffer(max_size=10_000, device=device)
    tournament, mutations = evolution(size, device)
    eps_start, eps_end, eps_decay = 1.0, 0.1, 0.995
    history, pbar = [], default_progress_bar(max_steps)
    while np.less([agent.steps for agent in pop], max_steps).all():
        epsilon = eps_start
        for agent in pop:
            agent.set_training_mode(True)
            obs, _info = env.reset()
            scores, finished, epsilon = np.zeros(num_envs), [], eps_start
            for _ in range(evo_steps // num_envs):
                action = agent.get_action(obs, epsilon)
                epsilon = max(eps_end, epsilon * eps_decay)
                next_obs, reward, terminated, truncated, _info = env.step(action)
                scores += np.array(reward)
                for i, (d, t) in enumerate(zip(terminated, truncated, strict=True)):
                    if d or t:
                        finished.append(scores[i])
                        agent.scores.append(scores[i])
                        scores[i] = 0
                transition = Transition(
                    obs=obs, action=action, reward=reward, next_obs=next_obs, done=terminated, batch_size=[num_envs]
                )
                memory.add(transition.to_tensordict())
                if memory.size > learning_delay and len(memory) >= agent.batch_size:
                    for _ in range(num_envs // agent.learn_step):
                        agent.learn(memory.sample(agent.batch_size))
                obs = next_obs
            pbar.update(evo_steps // len(pop))
            agent.steps += evo_steps
        eps_start = epsilon
        history.append([agent.test(env, max_steps=None, loop=1) for agent in pop])
        elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)
    pbar.close()
    elite.save_checkpoint("elite_dqn.pt")
    again = DQN.load("elite_dqn.pt", device=device)
    assert again.test(env) == history[-1][elite.index]
    env.close()
    print_hyperparams(pop)
    return pop, history


def rainbow(num_envs=16, max_steps=200_000, evo_steps=10_000, learning_delay=1000, per=True):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    env = make_vect_envs("CartPole-v1", num_envs=num_envs)
    agent = RainbowDQN(
        observation_space=env.single_observation_space, action_space=env.single_action_space, net_config=NET,
        batch_size=32, lr=1e-3, learn_step=2, gamma=0.99, tau=1e-2, beta=0.4, num_atoms=21, v_min=0.0, v_max=200.0,
        n_step=3, device=device,
    )  # fmt: skip
    n_step_memory = MultiStepReplayBuffer(max_size=10_000, n_step=3, gamma=0.99, device=device)
    memory = PrioritizedReplayBuffer(max_size=10_000, alpha=0.6, device=device)
    if not per:
        memory = ReplayBuffer(max_size=10_000, device=device)
    obs, _info = env.reset()
    history = []
    while agent.steps[-1] < max_steps:
        for step in range(evo_steps // num_envs):
            action = agent.get_action(obs)
            next_obs, reward, terminated, _truncated, _info = env.step(action)
            transition = Transition(obs=obs, action=action, reward=reward, next_obs=next_obs, done=terminated)
            transition = transition.to_tensordict()
            transition.batch_size = [num_envs]
            one_step_transition = n_step_memory.add(transition)
            if one_step_transition:
                memory.add(one_step_transition)
            agent.beta += min((agent.steps[-1] + step * num_envs) / max_steps, 1.0) * (1.0 - agent.beta)
            if len(memory) >= agent.batch_size and memory.counter > learning_delay:
                for _ in range(num_envs // agent.learn_step):
                    if per:
                        experiences = memory.sample(agent.batch_size, agent.beta)
                    else:
                        experiences = memory.sample(agent.batch_size, return_idx=True)
                    n_step_experiences = n_step_memory.sample_from_indices(experiences["idxs"])
                    _loss, idxs, priorities = agent.learn(
                        experiences, n_experiences=n_step_experiences, n_step=True, per=per
                    )
                    if per:
                        memory.update_priorities(idxs, priorities)
            obs = next_obs
        agent.steps[-1] += evo_steps
        history.append(agent.test(env))
    env.close()
    return agent, history


def by_function(num_envs=8, size=4, max_steps=1_000_000, evo_steps=10_000, eval_steps=None):
    hp = {
        "BATCH_SIZE": 64, "O_U_NOISE": True, "EXPL_NOISE": 0.1, "MEAN_NOISE": 0.0, "THETA": 0.15, "DT": 0.01,
        "LR_ACTOR": 1e-4, "LR_CRITIC": 1e-3, "GAMMA": 0.99, "LEARN_STEP": 4, "TAU": 0.005, "POLICY_FREQ": 2,
        "POP_SIZE": size,
    }  # fmt: skip
    env = make_vect_envs("Pendulum-v1", num_envs=num_envs)
    pop = create_population(
        algo="TD3", observation_space=env.single_observation_space, action_space=env.single_action_space,
        net_config=NET, INIT_HP=hp, population_size=size, num_envs=num_envs,
    )  # fmt: skip
    assert all(isinstance(agent, TD3) for agent in pop)
    tournament, mutations = evolution(size, "cpu")
    trained, fitnesses = train_off_policy(
        env=env, env_name="Pendulum-v1", algo="TD3", pop=pop, memory=ReplayBuffer(max_size=10_000), init_hp=hp,
        max_steps=max_steps, evo_steps=evo_steps, eval_steps=eval_steps, eval_loop=1, learning_delay=0, target=None,
        tournament=tournament, mutation=mutations, wb=False, save_elite=True, elite_path="TD3_trained_agent",
    )  # fmt: skip
    env.close()
    return trained, fitnesses
