"""Networks of one's own: a module in the place of the Q-network, SimBa with normalised observations, a wrapper."""

import itertools

import torch
from agilerl.algorithms import DDPG, DQN
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules.dummy import DummyEvolvable
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs, print_hyperparams
from agilerl.wrappers.agent import AgentWrapper, RSNorm


class Basic(torch.nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, input_size, hidden_sizes, output_size):
        super().__init__()
        widths, layers = [input_size, *hidden_sizes], []
        for before, after in itertools.pairwise(widths):
            layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], output_size))

    def forward(self, x):
        return self.model(x)


class Halved(AgentWrapper):
    """Sees half of everything."""

    def get_action(self, obs, *args, **kwargs):
        return self.agent.get_action(obs / 2, *args, **kwargs)


def evolution(size, activation=0.0):
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=size, eval_loop=1)
    return tournament, Mutations(
        no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=activation, rl_hp=0.2,
        mutation_sd=0.1, rand_seed=42,
    )  # fmt: skip


def own_module(num_envs=8, size=4, max_steps=100_000, evo_steps=10_000):
    env = make_vect_envs("CartPole-v1", num_envs=num_envs)
    actor = DummyEvolvable(Basic, {"input_size": 4, "hidden_sizes": [32, 32], "output_size": 2}, device="cpu")
    pop = DQN.population(
        size=size, observation_space=env.single_observation_space, action_space=env.single_action_space,
        actor_network=actor, batch_size=32, lr=1e-3, learn_step=4,
    )  # fmt: skip
    tournament, mutations = evolution(size)
    trained, fitnesses = train_off_policy(
        env, "CartPole-v1", "DQN", pop, memory=ReplayBuffer(max_size=10_000), max_steps=max_steps, evo_steps=evo_steps,
        tournament=tournament, mutation=mutations, verbose=False,
    )  # fmt: skip
    env.close()
    return trained, fitnesses


def simba(num_envs=6, size=4, max_steps=1_000_000, evo_steps=15_000, learning_delay=10_000):
    env = make_vect_envs("Pendulum-v1", num_envs=num_envs)
    net_config = {
        "latent_dim": 32,
        "simba": True,
        "encoder_config": {"hidden_size": 32, "num_blocks": 2, "min_mlp_nodes": 16, "max_mlp_nodes": 500},
        "head_config": {
            "hidden_size": [32],
            "activation": "ReLU",
            "output_activation": "Tanh",
            "min_hidden_layers": 1,
            "max_hidden_layers": 2,
            "min_mlp_nodes": 16,
            "max_mlp_nodes": 500,
        },
    }
    pop = DDPG.population(
        size=size, observation_space=env.single_observation_space, action_space=env.single_action_space,
        wrapper_cls=RSNorm, O_U_noise=True, expl_noise=0.1, vect_noise_dim=num_envs, mean_noise=0.0, theta=0.15,
        dt=1e-2, hp_config=HyperparameterConfig(lr_actor=RLParameter(min=1e-4, max=1e-2)), net_config=net_config,
        batch_size=32, lr_actor=3e-4, lr_critic=3e-4, learn_step=2, gamma=0.99, tau=5e-3, policy_freq=2,
    )  # fmt: skip
    tournament, mutations = evolution(size)
    trained, fitnesses = train_off_policy(
        env, "Pendulum-v1", "DDPG", pop, memory=ReplayBuffer(max_size=10_000), max_steps=max_steps,
        evo_steps=evo_steps, eval_loop=1, learning_delay=learning_delay, tournament=tournament, mutation=mutations,
        verbose=False,
    )  # fmt: skip
    print_hyperparams(trained)
    env.close()
    return trained, fitnesses


def wrapped(num_envs=4, size=2, generations=2, steps=40):
    env = make_vect_envs("CartPole-v1", num_envs=num_envs)
    pop = DQN.population(
        size=size, observation_space=env.single_observation_space, action_space=env.single_action_space, batch_size=16,
        wrapper_cls=Halved,
    )  # fmt: skip
    memory, (tournament, mutations) = ReplayBuffer(max_size=1000), evolution(size)
    for _ in range(generations):
        for agent in pop:
            obs, _info = env.reset()
            for _ in range(steps):
                action = agent.get_action(obs, epsilon=0.2)
                next_obs, reward, terminated, _truncated, _info = env.step(action)
                memory.add({"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "done": terminated})
                if len(memory) >= agent.batch_size:
                    agent.learn(memory.sample(agent.batch_size))
                obs = next_obs
            agent.steps += steps * num_envs
            agent.test(env, max_steps=50)
        _elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)
    env.close()
    return pop
