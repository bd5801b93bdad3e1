"""AgileRL's evolutionary DQN, as its documentation shows it: `DQN.population`, `ReplayBuffer`, `train_off_policy`."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping
from typing import Any

warnings.filterwarnings("ignore")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from agilerl.algorithms import DQN  # noqa: E402
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter  # noqa: E402
from agilerl.components.replay_buffer import ReplayBuffer  # noqa: E402
from agilerl.hpo.mutation import Mutations  # noqa: E402
from agilerl.hpo.tournament import TournamentSelection  # noqa: E402
from agilerl.training.train_off_policy import train_off_policy  # noqa: E402
from common import EnvClock, OutOfBudget, Parts, held_out_seeds, main, play_episodes, sync_of, timed  # noqa: E402
from tensordict import TensorDict  # noqa: E402

Settings = Mapping[str, Any]


def vector_of(s: Settings, clock: EnvClock, envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Return the vector environment; every environment's steps are counted where they run in this process."""
    make = lambda: clock.watch(gymnasium.make(s["env"]))  # noqa: E731
    kind = gymnasium.vector.AsyncVectorEnv if s.get("vector") == "async" else gymnasium.vector.SyncVectorEnv
    return kind([make for _ in range(envs)])


def population_of(s: Settings, env: gymnasium.vector.VectorEnv[Any, Any, Any], size: int) -> list[Any]:
    """Return the first agents."""
    net = {
        "latent_dim": s["latent"],
        "encoder_config": {"hidden_size": list(s["encoder"]), "layer_norm": s["layer_norm"]},
        "head_config": {"hidden_size": list(s["head"]), "layer_norm": s["layer_norm"]},
    }
    ranges = {
        name: RLParameter(min=low, max=high, dtype=int if isinstance(low, int) else float)
        for name, (low, high) in s["search"].items()
    }
    return DQN.population(
        size=size, observation_space=env.single_observation_space, action_space=env.single_action_space,
        net_config=net, hp_config=HyperparameterConfig(**ranges), device=s["device"], batch_size=s["batch_size"],
        lr=s["lr"], learn_step=s["learn_step"], gamma=s["gamma"], tau=s["tau"], double=s["double"],
    )  # fmt: skip


def evolution_of(s: Settings, size: int) -> tuple[TournamentSelection, Mutations]:
    """Return selection and mutation."""
    p = s["probabilities"]
    mutation = Mutations(
        no_mutation=p["none"], architecture=p["architecture"], new_layer_prob=s["new_layer_prob"],
        parameters=p["parameters"], activation=p["activation"], rl_hp=p["rl_hp"], mutation_sd=s["mutation_sd"],
        mutate_elite=s["mutate_elite"], rand_seed=s["seed"], device=s["device"],
    )  # fmt: skip
    return TournamentSelection(s["tournament"], True, size), mutation


def start(s: Settings) -> None:
    """Set threads and seeds."""
    torch.set_num_threads(s["threads"])
    torch.manual_seed(s["seed"])
    np.random.seed(s["seed"])  # noqa: NPY002  AgileRL draws from the global generator


def train(s: Settings, env: Any, population: list[Any]) -> None:
    """Train as its documentation does. `max_steps` are of each agent, in whole generations."""
    tournament, mutation = evolution_of(s, s["population"])
    train_off_policy(
        env=env, env_name=s["env"], algo="DQN", pop=population, memory=ReplayBuffer(s["capacity"], device=s["device"]),
        max_steps=s["max_steps"], evo_steps=s["evo_steps"], eval_steps=None, eval_loop=1,
        learning_delay=s["learning_delay"], eps_start=s["eps_start"], eps_end=s["eps_end"], eps_decay=s["eps_decay"],
        selection_strategy=tournament, mutation=mutation, verbose=False,
    )  # fmt: skip


def watch_parts() -> Parts:
    """Count the seconds of learning, acting, sampling, storing, evaluating and evolving."""
    parts = Parts()
    for owner, method, part in (
        (DQN, "learn", "learn"), (DQN, "get_action", "act"), (DQN, "test", "evaluate"), (ReplayBuffer, "add", "store"),
        (ReplayBuffer, "sample", "sample"), (Mutations, "mutation", "evolve"),
        (TournamentSelection, "select", "evolve"),
    ):  # fmt: skip
        parts.watch(owner, method, part)
    return parts


def end_to_end(s: Settings) -> dict[str, Any]:
    """Train a population for a number of steps, evolution and evaluation included."""
    start(s)
    parts, clock = watch_parts(), EnvClock()
    env = vector_of(s, clock, s["num_envs"])
    population = population_of(s, env, s["population"])
    parameters = sum(p.numel() for p in population[0].actor.parameters())
    train(s, env, population)
    seconds = clock.seconds
    return {
        "seconds": seconds,
        "training_steps": s["population"] * s["max_steps"],
        "steps": clock.steps or None,
        "step_seconds": clock.step_seconds,
        "reset_seconds": clock.reset_seconds,
        "updates": parts.calls["learn"],
        "parameters": parameters,
        "parts": parts.seconds,
    }


class Solved(Exception):
    """An agent passed the held-out episodes."""


def time_to_solved(s: Settings) -> dict[str, Any]:
    """Train until an agent's evaluation reaches the target and 100 held-out episodes confirm it."""
    start(s)
    clock = EnvClock(s["budget_steps"], s["budget_seconds"])
    env, wide = vector_of(s, clock, s["num_envs"]), vector_of(s, clock, 20)
    population = population_of(s, env, s["population"])
    seeds, found, test = held_out_seeds(s["seed"], 1, s["confirm_episodes"]), [], DQN.test

    def judged(agent: Any, *args: Any, **options: Any) -> float:
        fitness = test(agent, *args, **options)
        if fitness >= s["target"]:
            agent.set_training_mode(False)
            score = float(play_episodes(wide, lambda obs: agent.get_action(obs, epsilon=0.0), seeds).mean())
            agent.set_training_mode(True)
            if score >= s["target"]:
                found.append((agent, score))
                raise Solved
        return fitness

    DQN.test = judged
    with contextlib.suppress(Solved, OutOfBudget):
        train(s, env, population)
    seconds, steps = clock.seconds, clock.steps
    result = {"solved": bool(found), "seconds": seconds, "steps": min(steps, s["budget_steps"])}
    if found:
        clock.max_steps = clock.max_seconds = float("inf")
        agent, score = found[0]
        agent.set_training_mode(False)
        again = play_episodes(wide, lambda obs: agent.get_action(obs, epsilon=0.0), held_out_seeds(s["seed"], 2, 100))
        result |= {"score": score, "second_score": float(again.mean())}
    return result


def parts(s: Settings) -> dict[str, Any]:
    """Time the parts of one round of a population alone: P learn steps, P acts, P samples, one evolution."""
    start(s)
    sync, seconds = sync_of(s["device"]), s["part_seconds"]
    env = vector_of(s, EnvClock(), s["num_envs"])
    memory, result = filled_memory(s, env), {}
    obs = np.random.default_rng(1).standard_normal((s["num_envs"], env.single_observation_space.shape[0]), np.float32)
    for size in s["sizes"]:
        agents = population_of(s, env, size)
        for agent in agents:
            agent.init_training_step(True)
        batch = memory.sample(s["batch_size"])
        result[str(size)] = {
            "learn": timed(lambda a=agents, b=batch: [agent.learn(b) for agent in a], seconds, sync=sync),
            "act": timed(lambda a=agents: [agent.get_action(obs, 0.1) for agent in a], seconds, sync=sync),
            "sample": timed(lambda p=size: [memory.sample(s["batch_size"]) for _ in range(p)], seconds, sync=sync),
            "evolve": timed_evolution(s, agents, sync),
        }
    return result


def filled_memory(s: Settings, env: Any) -> ReplayBuffer:
    """Return a replay memory full of standard-normal transitions."""
    rows, width = s["capacity"], env.single_observation_space.shape[0]
    memory = ReplayBuffer(rows, device=s["device"])
    draw = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    action = torch.randint(int(env.single_action_space.n), (rows, 1), generator=draw)
    memory.add(
        TensorDict(
            {
                "obs": normal(rows, width), "action": action, "reward": normal(rows, 1),
                "next_obs": normal(rows, width), "done": torch.zeros(rows, 1),
            },
            batch_size=[rows],
        )
    )  # fmt: skip
    return memory


def timed_evolution(s: Settings, agents: list[Any], sync: Any) -> float:
    """Return the median microseconds of select, clone and mutate."""
    tournament, mutation = evolution_of(s, len(agents))
    draw, times = np.random.default_rng(1), []
    for _ in range(s["evolutions"]):
        for agent in agents:
            agent.metrics.add_fitness(float(draw.random()))
        began = time.perf_counter()
        _, selected, indices = tournament.select(agents)
        agents = mutation.mutation(selected, indices=indices)
        if sync:
            sync()
        times.append((time.perf_counter() - began) * 1e6)
    return float(np.median(times))


if __name__ == "__main__":
    main({"end-to-end": end_to_end, "time-to-solved": time_to_solved, "parts": parts})
