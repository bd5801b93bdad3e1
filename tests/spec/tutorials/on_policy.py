"""A population of PPO, plain and recurrent, in loops of its own and by the training function."""

import gymnasium as gym
import numpy as np
from agilerl.algorithms import PPO
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts.on_policy import collect_rollouts, collect_rollouts_recurrent
from agilerl.training.train_on_policy import train_on_policy
from agilerl.typing import BPTTSequenceType
from agilerl.utils.utils import default_progress_bar, make_vect_envs, plot_population_score
from agilerl.wrappers.agent import RSNorm


class MaskVelocity(gym.ObservationWrapper):
    """The pendulum without its angular velocity."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observation(self, observation):
        return observation[:2]


def population(env, size, num_envs, **more):
    return PPO.population(
        size=size, observation_space=env.single_observation_space, action_space=env.single_action_space,
        hp_config=HyperparameterConfig(
            lr=RLParameter(min=1e-4, max=1e-2), ent_coef=RLParameter(min=0.001, max=0.1),
            batch_size=RLParameter(min=8, max=512, dtype=int),
        ),
        batch_size=64, lr=1e-3, learn_step=128, gamma=0.99, gae_lambda=0.95, clip_coef=0.2, ent_coef=0.01, vf_coef=0.5,
        max_grad_norm=0.5, target_kl=None, update_epochs=4, num_envs=num_envs, **more,
    )  # fmt: skip


def evolution(size):
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=size)
    return tournament, Mutations(no_mutation=0.4, architecture=0.2, parameters=0.2, activation=0, rl_hp=0.2)


def own_loop(num_envs=16, size=4, max_steps=200_000, evo_steps=10_000):
    env = make_vect_envs("CartPole-v1", num_envs=num_envs)
    net = {"encoder_config": {"hidden_size": [32, 32]}, "head_config": {"hidden_size": [32]}}
    pop = population(env, size, num_envs, net_config=net, share_encoders=True, use_rollout_buffer=True)
    tournament, mutations = evolution(size)
    history, pbar = [], default_progress_bar(max_steps)
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        for agent in pop:
            agent.set_training_mode(True)
            obs = done = scores = info = None
            for _ in range(-(evo_steps // -agent.learn_step)):
                episode_scores, obs, done, scores, info = collect_rollouts(
                    agent, env, last_obs=obs, last_done=done, last_scores=scores, last_info=info
                )
                agent.learn()
                agent.steps[-1] += agent.learn_step
                agent.scores += episode_scores
            pbar.update(evo_steps // len(pop))
        history.append([agent.test(env) for agent in pop])
        _elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)
        for agent in pop:
            agent.steps.append(agent.steps[-1])
    pbar.close()
    env.close()
    plot_population_score(pop)
    return pop, history


def recurrent(num_envs=16, size=4, max_steps=200_000, rollouts=4):
    def make_env():
        return MaskVelocity(gym.make("Pendulum-v1"))

    env = make_vect_envs(num_envs=num_envs, make_env=make_env, should_async_vector=False)
    net = {"latent_dim": 32, "encoder_config": {"hidden_state_size": 32, "num_layers": 1, "max_seq_len": 16},
           "head_config": {"hidden_size": [32]}}  # fmt: skip
    pop = population(
        env, size, num_envs, net_config=net, recurrent=True, use_rollout_buffer=True, action_std_init=0.6,
        bptt_sequence_type=BPTTSequenceType.CHUNKED, wrapper_cls=RSNorm,
    )  # fmt: skip
    tournament, mutations = evolution(size)
    history = []
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        for agent in pop:
            agent.set_training_mode(True)
            state = (None, None, None, None)
            for _ in range(rollouts):
                _scores, *state = collect_rollouts_recurrent(
                    agent, env, last_obs=state[0], last_done=state[1], last_scores=state[2], last_info=state[3]
                )
                agent.learn()
                agent.steps[-1] += agent.learn_step
        history.append([agent.test(env) for agent in pop])
        _elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)
    env.close()
    return pop, history


def by_function(num_envs=16, size=4, max_steps=200_000, evo_steps=10_000):
    env = make_vect_envs("Acrobot-v1", num_envs=num_envs)
    tournament, mutations = evolution(size)
    trained, fitnesses = train_on_policy(
        env=env, env_name="Acrobot-v1", algo="PPO", pop=population(env, size, num_envs), max_steps=max_steps,
        evo_steps=evo_steps, eval_steps=50, eval_loop=1, target=None, tournament=tournament, mutation=mutations,
        wb=False, verbose=False,
    )  # fmt: skip
    env.close()
    return trained, fitnesses
