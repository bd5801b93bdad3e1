"""The off-policy page's script: DQN in LunarLander, by the training function and by a loop of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from evopipe import (
    Mutations,
    ReplayBuffer,
    TournamentSelection,
    create_population,
    default_progress_bar,
    make_vect_envs,
    train_off_policy,
)


def made(env_name: str, num_envs: int, pop_size: int, memory_size: int = 10_000) -> tuple[Any, ...]:
    """Environment, population, memory, tournament and mutations."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net_config = {"arch": "mlp", "hidden_size": [32, 32]}
    init_hp = {"DOUBLE": True, "BATCH_SIZE": 128, "LR": 1e-3, "GAMMA": 0.99, "LEARN_STEP": 1, "TAU": 1e-3,
               "CHANNELS_LAST": False, "POP_SIZE": pop_size}  # fmt: skip
    env = make_vect_envs(env_name, num_envs=num_envs)
    try:
        state_dim, one_hot = env.single_observation_space.n, True
    except AttributeError:
        state_dim, one_hot = env.single_observation_space.shape, False
    try:
        action_dim = env.single_action_space.n
    except AttributeError:
        action_dim = env.single_action_space.shape[0]
    if init_hp["CHANNELS_LAST"]:
        state_dim = (state_dim[2], state_dim[0], state_dim[1])
    pop = create_population(
        algo="DQN",
        state_dim=state_dim,
        action_dim=action_dim,
        one_hot=one_hot,
        net_config=net_config,
        INIT_HP=init_hp,
        population_size=init_hp["POP_SIZE"],
        num_envs=num_envs,
        device=device,
    )
    field_names = ["state", "action", "reward", "next_state", "done"]
    memory = ReplayBuffer(memory_size=memory_size, field_names=field_names, action_dim=action_dim, device=device)
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=init_hp["POP_SIZE"], eval_loop=1)
    mutations = Mutations(
        algo="DQN",
        no_mutation=0.4,
        architecture=0.2,
        new_layer_prob=0.2,
        parameters=0.2,
        activation=0,
        rl_hp=0.2,
        rl_hp_selection=["lr", "batch_size"],
        mutation_sd=0.1,
        arch=net_config["arch"],
        rand_seed=1,
        device=device,
    )
    return env, pop, memory, tournament, mutations


def train(
    env_name: str = "LunarLander-v3", num_envs: int = 16, pop_size: int = 4, max_steps: int = 200_000,
    evo_steps: int = 10_000, learning_delay: int = 1000, target: float | None = 200.0,
) -> Any:  # fmt: skip
    """The training function."""
    env, pop, memory, tournament, mutations = made(env_name, num_envs, pop_size)
    trained_pop, pop_fitnesses = train_off_policy(
        env=env,
        env_name=env_name,
        algo="DQN",
        pop=pop,
        memory=memory,
        swap_channels=False,
        max_steps=max_steps,
        evo_steps=evo_steps,
        eval_steps=None,
        eval_loop=1,
        learning_delay=learning_delay,
        target=target,
        tournament=tournament,
        mutation=mutations,
        wb=False,
    )
    env.close()
    return trained_pop, pop_fitnesses


def loop(
    env_name: str = "LunarLander-v3", num_envs: int = 16, pop_size: int = 4, max_steps: int = 200_000,
    evo_steps: int = 10_000, learning_delay: int = 1000, target: float = np.inf,
) -> tuple[Any, list[list[float]]]:  # fmt: skip
    """A loop of one's own, agent by agent. Tests let it end at a target, which the page's does not."""
    env, pop, memory, tournament, mutations = made(env_name, num_envs, pop_size)
    eps_start, eps_end, eps_decay = 1.0, 0.1, 0.995
    epsilon = eps_start
    eval_steps, eval_loop, total_steps, history = None, 1, 0, []
    pbar = default_progress_bar(max_steps)
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        pop_episode_scores = []
        for agent in pop:
            state, _info = env.reset()
            scores, completed_episode_scores, steps = np.zeros(num_envs), [], 0
            epsilon = eps_start
            for _ in range(evo_steps // num_envs):
                action = agent.get_action(state, epsilon)
                epsilon = max(eps_end, epsilon * eps_decay)
                next_state, reward, terminated, truncated, _info = env.step(action)
                scores += np.array(reward)
                steps += num_envs
                total_steps += num_envs
                for idx, (d, t) in enumerate(zip(terminated, truncated, strict=True)):
                    if d or t:
                        completed_episode_scores.append(scores[idx])
                        agent.scores.append(scores[idx])
                        scores[idx] = 0
                memory.save_to_memory_vect_envs(state, action, reward, next_state, terminated)
                if memory.counter > learning_delay and len(memory) >= agent.batch_size:
                    for _ in range(num_envs // agent.learn_step):
                        experiences = memory.sample(agent.batch_size)
                        agent.learn(experiences)
                state = next_state
            pbar.update(evo_steps // len(pop))
            agent.steps[-1] += steps
            pop_episode_scores.append(completed_episode_scores)
        eps_start = epsilon
        fitnesses = [agent.test(env, swap_channels=False, max_steps=eval_steps, loop=eval_loop) for agent in pop]
        mean_scores = [np.mean(scores) if len(scores) > 0 else "0 completed episodes" for scores in pop_episode_scores]
        print(f"--- Global steps {total_steps} ---")
        print(f"Steps {[agent.steps[-1] for agent in pop]}")
        print(f"Scores: {mean_scores}")
        print(f"Fitnesses: {[round(fitness, 2) for fitness in fitnesses]}")
        print(f"5 fitness avgs: {[round(np.mean(agent.fitness[-5:]), 2) for agent in pop]}")
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
