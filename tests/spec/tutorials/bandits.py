"""NeuralUCB and NeuralTS on labelled data: loops of their own, and the training function."""

import numpy as np
from agilerl.algorithms import NeuralTS, NeuralUCB
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_bandits import train_bandits
from agilerl.utils.utils import create_population, default_progress_bar
from agilerl.wrappers.learning import BanditEnv
from gymnasium import spaces
from tensordict import TensorDict

NET = {"latent_dim": 32, "encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": []}}


def flowers(rows=150, seed=1):
    """Three kinds by four measures, as the well-known table of irises has them."""
    random = np.random.default_rng(seed)
    kinds = random.integers(3, size=rows)
    means = np.array([[5.0, 3.4, 1.5, 0.2], [5.9, 2.8, 4.3, 1.3], [6.6, 3.0, 5.6, 2.0]])
    return (means[kinds] + 0.3 * random.normal(size=(rows, 4))).astype(np.float32), kinds


def made(env, features, algo, size):
    hp = {"POPULATION_SIZE": size, "BATCH_SIZE": 16, "LR": 3e-3, "GAMMA": 0.1, "LAMBDA": 1.0, "REG": 0.000625,
          "LEARN_STEP": 2}  # fmt: skip
    pop = create_population(
        algo=algo, observation_space=spaces.Box(low=features.min(), high=features.max(), shape=env.context_dim),
        action_space=spaces.Discrete(env.arms), net_config=NET, INIT_HP=hp,
        hp_config=HyperparameterConfig(
            lr=RLParameter(min=6.25e-5, max=1e-2),
            batch_size=RLParameter(min=8, max=64, dtype=int),
            learn_step=RLParameter(min=1, max=10, dtype=int, grow_factor=1.5, shrink_factor=0.75),
        ),
        population_size=size,
    )  # fmt: skip
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=size, eval_loop=1)
    return pop, tournament, Mutations(
        no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=0.2, rl_hp=0.2,
        mutation_sd=0.1, mutate_elite=False, rand_seed=1,
    )  # fmt: skip


def own_loop(algo="NeuralUCB", size=4, max_steps=2500, episode_steps=500, evo_steps=500, eval_steps=500):
    features, targets = flowers()
    env = BanditEnv(features, targets)
    pop, tournament, mutations = made(env, features, algo, size)
    kinds = {"NeuralUCB": NeuralUCB, "NeuralTS": NeuralTS}
    assert all(isinstance(agent, kinds[algo]) for agent in pop)
    memory, evolved, history = ReplayBuffer(max_size=10_000), 0, []
    regret = [[0.0] for _ in pop]
    pbar = default_progress_bar(max_steps)
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        for i, agent in enumerate(pop):
            context = env.reset()
            for _ in range(episode_steps):
                action = agent.get_action(context)
                next_context, reward = env.step(action)
                transition = TensorDict({"obs": context[action], "reward": reward}).float()
                transition = transition.unsqueeze(0)
                transition.batch_size = [1]
                memory.add(transition)
                if len(memory) >= agent.batch_size:
                    for _ in range(agent.learn_step):
                        agent.learn(memory.sample(agent.batch_size))
                context = next_context
                regret[i].append(regret[i][-1] + 1 - reward)
            agent.steps[-1] += episode_steps
        pbar.update(episode_steps)
        history.append([agent.test(env, max_steps=eval_steps, loop=1) for agent in pop])
        pbar.write(f"Regret: {[each[-1] for each in regret]}, mutations: {[agent.mut for agent in pop]}")
        if pop[0].steps[-1] // evo_steps > evolved:
            _elite, pop = tournament.select(pop)
            pop = mutations.mutation(pop)
            evolved += 1
    pbar.close()
    return pop, history, regret


def by_function(algo="NeuralTS", size=4, max_steps=2500, evo_steps=500, episode_steps=500, eval_steps=500):
    features, targets = flowers()
    env = BanditEnv(features, targets)
    pop, tournament, mutations = made(env, features, algo, size)
    return train_bandits(
        env, "flowers", algo, pop, memory=ReplayBuffer(max_size=10_000), max_steps=max_steps,
        episode_steps=episode_steps, evo_steps=evo_steps, eval_steps=eval_steps, tournament=tournament,
        mutation=mutations, verbose=False,
    )  # fmt: skip
