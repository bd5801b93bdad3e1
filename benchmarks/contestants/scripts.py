"""The scripts of AgileRL's documentation: the same lines for everyone, and only where names come from differs.

`names` has what the pages import. What a newer release calls otherwise than its pages is put right there, not here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from common import processor

Settings = Mapping[str, Any]
TRAINERS = {
    "DQN": "train_off_policy", "DDPG": "train_off_policy", "PPO": "train_on_policy", "CQN": "train_offline",
    "MADDPG": "train_multi_agent_off_policy",
}  # fmt: skip


def random_steps(env_name: str, count: int, seed: int) -> dict[str, np.ndarray]:
    """Return a dataset of a policy that balances CartPole badly."""
    random = np.random.default_rng(seed)
    env = gymnasium.make(env_name)
    rows: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "terminals")}
    obs, over = env.reset(seed=seed)[0], False
    for _ in range(count):
        if over:
            obs = env.reset()[0]
        careful = int(obs[2] + 0.5 * obs[3] > 0)
        action = int(random.integers(2)) if random.random() < 0.4 else careful
        after, reward, end, cut, _ = env.step(action)
        for name, value in zip(rows, (obs, action, reward, end), strict=True):
            rows[name].append(value)
        obs, over = after, end or cut
    found = {name: np.array(values) for name, values in rows.items()}
    return {**found, "rewards": found["rewards"].astype(np.float32)}


def made(names: Any, s: Settings) -> Any:
    """Return environments that step together."""
    if "kwargs" in s:
        return names.make_team_envs(s["env"], s["num_envs"], **s["kwargs"])
    return names.make_vect_envs(s["env"], num_envs=s["num_envs"])


def script(names: Any, s: Settings) -> dict[str, Any]:
    """Run a page's script; return its seconds, those of a processor, and the best agent's mean return as its own `test`
    finds it."""
    algo, size, trainer = s["algo"], s["population"], TRAINERS[s["algo"]]
    team, offline = trainer.startswith("train_multi"), trainer == "train_offline"
    data = random_steps(s["env"], s["dataset"], s["seed"]) if offline else None
    began, idle = time.perf_counter(), processor()
    hp, more = dict(s["INIT_HP"]), {}
    env = made(names, s)
    if team:
        ids = [*env.agents]
        hp["AGENT_IDS"] = ids
        seen, done = ([space(agent) for agent in ids] for space in names.team_spaces(env))
        more["memory"] = names.MultiAgentReplayBuffer(s["memory_size"], ids)
    else:
        seen, done = env.single_observation_space, env.single_action_space
        if trainer != "train_on_policy":
            more["memory"] = names.ReplayBuffer(s["memory_size"])
    pop = names.create_population(
        algo=algo,
        observation_space=seen,
        action_space=done,
        net_config=s["NET_CONFIG"],
        INIT_HP=hp,
        population_size=size,
        num_envs=s["num_envs"],
        device="cpu",
    )
    if trainer == "train_off_policy" and algo == "DQN":
        more |= {"eps_start": 1.0, "eps_end": 0.1, "eps_decay": s["eps_decay"]}
    if offline:
        more["dataset"] = data
    tournament = names.TournamentSelection(tournament_size=2, elitism=True, population_size=size, eval_loop=1)
    mutations = names.Mutations(
        no_mutation=0.4, architecture=s["architecture"], new_layer_prob=0.2, parameters=0.2, activation=0, rl_hp=0.2,
        mutation_sd=0.1, rand_seed=s["seed"],
    )  # fmt: skip
    pop, _ = getattr(names, trainer)(
        env=env, env_name=s["env"], algo=algo, pop=pop, max_steps=s["max_steps"], evo_steps=s["evo_steps"],
        eval_loop=1, tournament=tournament, mutation=mutations, verbose=False, **more,
    )  # fmt: skip
    env.close()  # a training function may have done so
    seconds, busy = time.perf_counter() - began, processor() - idle
    env = made(names, s)
    fitness = max(float(agent.test(env, loop=s["test_loop"])) for agent in pop)
    return {"seconds": seconds, "processor_seconds": busy, "fitness": fitness}
