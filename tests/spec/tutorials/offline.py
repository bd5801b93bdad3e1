"""A population of CQN on a dataset of random actions, in a loop of its own and by the training function."""

import gymnasium as gym
import h5py
import numpy as np
from agilerl.algorithms import CQN
from agilerl.components.data import Transition
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import make_vect_envs


def record(path, steps):
    """Write what random actions do."""
    env = gym.make("CartPole-v1")
    env.action_space.seed(1)
    obs, _ = env.reset(seed=1)
    rows = {"observations": [], "actions": [], "rewards": [], "terminals": []}
    for _ in range(steps):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(rows, (obs, action, reward, terminated), strict=True):
            rows[name].append(value)
        obs = env.reset()[0] if terminated or truncated else next_obs
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = np.array(values)
    return h5py.File(path, "r")


def made(env, size):
    pop = CQN.population(
        size=size, observation_space=env.single_observation_space, action_space=env.single_action_space,
        net_config={"encoder_config": {"hidden_size": [32, 32]}, "head_config": {"hidden_size": [32]}}, double=True,
        batch_size=64, lr=1e-3, gamma=0.99, learn_step=1, tau=1e-2,
    )  # fmt: skip
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=size)
    return pop, tournament, Mutations(no_mutation=0.4, architecture=0.2, parameters=0.2, activation=0.2, rl_hp=0.2)


def own_loop(size=4, rows=10_000, max_steps=100_000, evo_steps=10_000):
    env = make_vect_envs("CartPole-v1", num_envs=1)
    pop, tournament, mutations = made(env, size)
    memory = ReplayBuffer(max_size=rows)
    with record("cartpole.h5", rows) as dataset:
        for i in range(len(dataset["rewards"]) - 1):
            transition = Transition(
                obs=dataset["observations"][i],
                action=dataset["actions"][i],
                reward=dataset["rewards"][i],
                next_obs=dataset["observations"][i + 1],
                done=bool(dataset["terminals"][i]),
            )
            transition = transition.unsqueeze(0)
            transition.batch_size = [1]
            memory.add(transition.to_tensordict())
    history = []
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        for agent in pop:
            for _ in range(evo_steps):
                agent.learn(memory.sample(agent.batch_size))
            agent.steps[-1] += evo_steps
        history.append([agent.test(env, max_steps=500, loop=4) for agent in pop])
        _elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)
    env.close()
    return pop, history


def by_function(size=4, rows=10_000, max_steps=100_000, evo_steps=10_000):
    env = make_vect_envs("CartPole-v1", num_envs=1)
    pop, tournament, mutations = made(env, size)
    dataset = record("cartpole.h5", rows)
    trained, fitnesses = train_offline(
        env, "CartPole-v1", dataset, "CQN", pop, memory=ReplayBuffer(max_size=rows), max_steps=max_steps,
        evo_steps=evo_steps, eval_loop=4, target=None, tournament=tournament, mutation=mutations, wb=False,
        verbose=False,
    )  # fmt: skip
    dataset.close()
    env.close()
    return trained, fitnesses
