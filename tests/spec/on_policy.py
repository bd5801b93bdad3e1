"""The on-policy page's scripts: PPO in LunarLander, by the training function, by a loop, and with a memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from evopipe import (
    HyperparameterConfig,
    Mutations,
    RLParameter,
    TournamentSelection,
    collect_rollouts_recurrent,
    create_population,
    default_progress_bar,
    make_vect_envs,
    train_on_policy,
)

INIT_HP = {
    "BATCH_SIZE": 128, "LR": 1e-3, "LEARN_STEP": 128, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "ACTION_STD_INIT": 0.6,
    "CLIP_COEF": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "TARGET_KL": None, "UPDATE_EPOCHS": 4,
}  # fmt: skip
PLAIN = {"encoder_config": {"hidden_size": [32, 32], "activation": "ReLU"}, "head_config": {"hidden_size": [32]}}
RECURRENT = {
    "encoder_config": {"hidden_state_size": 64, "num_layers": 1, "max_seq_len": 512},
    "head_config": {"hidden_size": [64]},
}


def made(env_name: str, num_envs: int, pop_size: int, net_config: Any, ranges: bool, **more: Any) -> tuple[Any, ...]:
    """Environment, population, tournament and mutations."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    init_hp = {"POP_SIZE": pop_size, **INIT_HP, **more}
    env = make_vect_envs(env_name, num_envs=num_envs)
    hp_config = HyperparameterConfig(
        lr=RLParameter(min=1e-4, max=1e-2),
        batch_size=RLParameter(min=8, max=1024),
        learn_step=RLParameter(min=64, max=1024),
    )
    pop = create_population(
        algo="PPO",
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        net_config=net_config,
        INIT_HP=init_hp,
        population_size=init_hp["POP_SIZE"],
        num_envs=num_envs,
        device=device,
        **({"hp_config": hp_config} if ranges else {}),
    )
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=init_hp["POP_SIZE"], eval_loop=1)
    mutations = Mutations(
        no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=0, rl_hp=0.2,
        mutation_sd=0.1, rand_seed=1, device=device,
    )  # fmt: skip
    return env, pop, tournament, mutations


def train(
    env_name: str = "LunarLander-v3", num_envs: int = 16, pop_size: int = 6, max_steps: int = 200_000,
    evo_steps: int = 10_000, target: float | None = 200.0, wb: bool = False,
) -> Any:  # fmt: skip
    """The training function."""
    env, agent_pop, tournament, mutations = made(
        env_name, num_envs, pop_size, {"encoder_config": {"hidden_size": [32, 32]}}, False, CHANNELS_LAST=False
    )
    trained_pop, pop_fitnesses = train_on_policy(
        env=env,
        env_name=env_name,
        pop=agent_pop,
        max_steps=max_steps,
        evo_steps=evo_steps,
        eval_steps=None,
        eval_loop=1,
        target=target,
        tournament=tournament,
        mutation=mutations,
        wb=wb,
    )
    env.close()
    return trained_pop, pop_fitnesses


def loop(
    env_name: str = "LunarLander-v3", num_envs: int = 16, pop_size: int = 6, max_steps: int = 200_000,
    evo_steps: int = 10_000, target: float = np.inf,
) -> tuple[Any, list[list[float]]]:  # fmt: skip
    """A loop of one's own. As on the page, the list of ends is appended to itself: the observations know them. Tests
    let it end at a target, which the page's does not."""
    env, pop, tournament, mutations = made(env_name, num_envs, pop_size, PLAIN, True)
    eval_steps, eval_loop, total_steps, history = None, 1, 0, []
    pbar = default_progress_bar(max_steps)
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        pop_episode_scores = []
        for agent in pop:
            agent.set_training_mode(True)
            obs, _info = env.reset()
            scores, completed_episode_scores, steps = np.zeros(num_envs), [], 0
            for _ in range(-(evo_steps // -agent.learn_step)):
                observations, actions, log_probs, rewards, values = [], [], [], [], []
                dones: list[Any] = []
                done, learn_steps = np.zeros(num_envs), 0
                for _ in range(-(agent.learn_step // -num_envs)):
                    action, log_prob, _, value = agent.get_action(obs)
                    if isinstance(agent.action_space, spaces.Box):
                        if agent.actor.squash_output:
                            clipped_action = agent.actor.scale_action(action)
                        else:
                            clipped_action = np.clip(action, agent.action_space.low, agent.action_space.high)
                    else:
                        clipped_action = action
                    next_obs, reward, terminated, truncated, _info = env.step(clipped_action)
                    next_done = np.logical_or(terminated, truncated).astype(np.int8)
                    total_steps += num_envs
                    steps += num_envs
                    learn_steps += num_envs
                    observations.append(obs)
                    actions.append(action)
                    log_probs.append(log_prob)
                    rewards.append(reward)
                    dones.append(dones)
                    values.append(value)
                    obs = next_obs
                    done = next_done
                    scores += np.array(reward)
                    for idx, (d, t) in enumerate(zip(terminated, truncated, strict=True)):
                        if d or t:
                            completed_episode_scores.append(scores[idx])
                            agent.scores.append(scores[idx])
                            scores[idx] = 0
                pbar.update(learn_steps // len(pop))
                experiences = (observations, actions, log_probs, rewards, dones, values, next_obs, done)
                agent.learn(experiences)
            agent.steps[-1] += steps
            pop_episode_scores.append(completed_episode_scores)
        fitnesses = [agent.test(env, max_steps=eval_steps, loop=eval_loop) for agent in pop]
        mean_scores = [np.mean(scores) if len(scores) > 0 else "0 completed episodes" for scores in pop_episode_scores]
        pbar.write(
            f"--- Global steps {total_steps} ---\n"
            f"Steps: {[agent.steps[-1] for agent in pop]}\n"
            f"Scores: {mean_scores}\n"
            f"Fitnesses: {[round(fitness, 2) for fitness in fitnesses]}\n"
            f"5 fitness avgs: {[round(np.mean(agent.fitness[-5:]), 2) for agent in pop]}\n"
        )
        history.append(fitnesses)
        if max(fitnesses) >= target:
            break
        _elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)
        for agent in pop:
            agent.steps.append(agent.steps[-1])
    pbar.close()
    env.close()
    return pop, history


def recurrent(
    env_name: str = "LunarLander-v3", num_envs: int = 16, pop_size: int = 6, max_steps: int = 200_000,
    evo_steps: int = 10_000, required_score: float = 200.0, target: float = np.inf,
) -> tuple[Any, list[list[float]]]:  # fmt: skip
    """The loop of agents that keep a memory; it ends by training's scores, and by a target as `loop` does."""
    env, pop, tournament, mutations = made(
        env_name, num_envs, pop_size, RECURRENT, False, RECURRENT=True, USE_ROLLOUT_BUFFER=True
    )
    eval_steps, eval_loop, total_steps, history = None, 1, 0, []
    pbar = default_progress_bar(max_steps)
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        pop_episode_scores: list[Any] = []
        for agent in pop:
            steps, completed_episodes = 0, []
            last_obs, last_done, last_scores, last_info = None, None, None, None
            for _ in range(-(evo_steps // -agent.learn_step)):
                episode_scores, last_obs, last_done, last_scores, last_info = collect_rollouts_recurrent(
                    agent, env, last_obs=last_obs, last_done=last_done, last_scores=last_scores, last_info=last_info
                )
                agent.learn()
                total_steps += agent.learn_step
                steps += agent.learn_step
                agent.steps[-1] += agent.learn_step
                completed_episodes += episode_scores
            pop_episode_scores.append(
                np.mean(completed_episodes) if len(completed_episodes) > 0 else "0 completed episodes"
            )
            pbar.update(steps // len(pop))
        fitnesses = [agent.test(env, max_steps=eval_steps, loop=eval_loop) for agent in pop]
        pbar.write(f"--- Global steps {total_steps} ---\nScores: {pop_episode_scores}\n")
        history.append(fitnesses)
        if max(fitnesses) >= target:
            break
        if any(not isinstance(score, str) and score >= required_score for score in pop_episode_scores):
            _elite, _ = tournament.select(pop)
            break
        _elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)
        for agent in pop:
            agent.steps.append(agent.steps[-1])
    pbar.close()
    env.close()
    return pop, history
