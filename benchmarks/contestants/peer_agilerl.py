"""AgileRL's evolutionary training as it is documented: `Algorithm.population`, then `train_off_policy` with a memory,
or `train_on_policy`; of teams `train_multi_agent_off_policy` or `train_multi_agent_on_policy`.
"""

from __future__ import annotations

import contextlib
import importlib
import time
import warnings
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

warnings.filterwarnings("ignore")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from agilerl.algorithms import CQN, DDPG, DQN, IPPO, MADDPG, MATD3, PPO, TD3, RainbowDQN  # noqa: E402
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper  # noqa: E402
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter  # noqa: E402
from agilerl.components.replay_buffer import (  # noqa: E402
    MultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.components.rollout_buffer import RolloutBuffer  # noqa: E402
from agilerl.hpo.mutation import Mutations  # noqa: E402
from agilerl.hpo.tournament import TournamentSelection  # noqa: E402
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy  # noqa: E402
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy  # noqa: E402
from agilerl.training.train_off_policy import train_off_policy  # noqa: E402
from agilerl.training.train_offline import train_offline  # noqa: E402
from agilerl.training.train_on_policy import train_on_policy  # noqa: E402
from agilerl.utils.utils import create_population, make_vect_envs  # noqa: E402
from agilerl.vector import AsyncPettingZooVecEnv  # noqa: E402
from common import (  # noqa: E402
    EnvClock,
    OutOfBudget,
    Parts,
    held_out_seeds,
    judge_team,
    main,
    play_episodes,
    processor,
    sync_of,
    timed,
)
from scripts import script  # noqa: E402
from tensordict import TensorDict  # noqa: E402

Settings = Mapping[str, Any]
TEAM = 3  # agents of simple_spread
CONTINUOUS = {
    "lr_actor": "lr_actor", "lr_critic": "lr_critic", "policy_freq": "policy_delay", "expl_noise": "noise_sd",
    "vect_noise_dim": "num_envs", "share_encoders": "share_encoders", "O_U_noise": "ou", "tau": "tau",
}  # fmt: skip
CENTRALISED = {
    name: CONTINUOUS[name] for name in ("lr_actor", "lr_critic", "expl_noise", "vect_noise_dim", "O_U_noise", "tau")
}
# Each algorithm, and which setting each of its own arguments is.
ALGORITHMS: dict[str, tuple[Any, dict[str, str]]] = {
    "dqn": (DQN, {"lr": "lr", "double": "double", "tau": "tau"}),
    "td3": (TD3, CONTINUOUS),
    "ddpg": (DDPG, CONTINUOUS),
    "rainbow": (
        RainbowDQN,
        {
            "lr": "lr", "num_atoms": "atoms", "v_min": "v_min", "v_max": "v_max", "noise_std": "noisy_sigma",
            "tau": "tau",
        },
    ),
    "cqn": (CQN, {"lr": "lr", "double": "double", "tau": "tau"}),
    "ppo": (
        PPO,
        {
            "lr": "lr", "update_epochs": "epochs", "gae_lambda": "gae_lambda", "clip_coef": "clip",
            "vf_coef": "vf_coef", "ent_coef": "ent_coef", "max_grad_norm": "grad_clip",
            "share_encoders": "share_encoders", "num_envs": "num_envs", "recurrent": "recurrent",
            "max_seq_len": "max_seq_len",
        },
    ),
    "maddpg": (MADDPG, CENTRALISED),
    "matd3": (MATD3, CENTRALISED | {"policy_freq": "policy_delay"}),
    "ippo": (
        IPPO,
        {
            "lr": "lr", "update_epochs": "epochs", "gae_lambda": "gae_lambda", "clip_coef": "clip",
            "vf_coef": "vf_coef", "ent_coef": "ent_coef", "max_grad_norm": "grad_clip",
        },
    ),
}  # fmt: skip


def algorithm_of(s: Settings) -> Any:
    """Return the algorithm's class."""
    return ALGORITHMS[s.get("algo", "dqn")][0]


def vector_of(s: Settings, clock: EnvClock, envs: int) -> Any:
    """Return the vector environment; every environment's steps are counted where they run in this process. Those of
    teams have a process each, as it makes them."""
    if s.get("team"):
        source = importlib.import_module(f"mpe2.{s['env']}")
        return AsyncPettingZooVecEnv([lambda: source.parallel_env(**s["kwargs"]) for _ in range(envs)])
    make = lambda: clock.watch(gymnasium.make(s["env"]))  # noqa: E731
    kind = gymnasium.vector.AsyncVectorEnv if s.get("vector") == "async" else gymnasium.vector.SyncVectorEnv
    return kind([make for _ in range(envs)])


def population_of(s: Settings, env: Any, size: int) -> list[Any]:
    """Return the first agents."""
    encoder = {"hidden_size": list(s["encoder"]), "layer_norm": s["layer_norm"]}
    if s.get("recurrent"):
        encoder = {"hidden_state_size": s["encoder"][0], "num_layers": len(s["encoder"])}
    net = {
        "latent_dim": s["latent"],
        "encoder_config": encoder,
        "head_config": {"hidden_size": list(s["head"]), "layer_norm": s["layer_norm"]},
    }
    ranges = {
        name: RLParameter(min=low, max=high, dtype=int if isinstance(low, int) else float)
        for name, (low, high) in s["search"].items()
    }
    algorithm, names = ALGORITHMS[s.get("algo", "dqn")]
    own = {argument: s[setting] for argument, setting in names.items()}
    if s.get("replay"):
        own |= {"n_step": s["replay"]["n_step"], "beta": s["replay"]["beta"]}
    spaces = {"observation_space": env.single_observation_space, "action_space": env.single_action_space}
    if s.get("team"):
        own["agent_ids"] = env.agents
        spaces = {name: [space(agent) for agent in env.agents] for name, space in spaces.items()}
    return algorithm.population(
        size=size, **spaces,
        net_config=net, hp_config=HyperparameterConfig(**ranges), device=s["device"], batch_size=s["batch_size"],
        learn_step=s["learn_step"], gamma=s["gamma"], **own,
    )  # fmt: skip


def memories_of(s: Settings) -> dict[str, Any]:
    """Return the replay memory, for several steps and priorities a second one beside it, as `train_off_policy` asks."""
    replay = s.get("replay")
    if not replay:
        return {"memory": ReplayBuffer(s["capacity"], device=s["device"])}
    return {
        "memory": PrioritizedReplayBuffer(s["capacity"], alpha=replay["alpha"], device=s["device"]),
        "n_step_memory": MultiStepReplayBuffer(
            s["capacity"], n_step=replay["n_step"], gamma=s["gamma"], device=s["device"]
        ),
    }


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


def train(s: Settings, env: Any, population: list[Any]) -> list[Any]:
    """Train as its documentation does; return the agents' fitnesses of each generation, those of a child's parent
    before it was born. `max_steps` are of each agent, in whole generations."""
    tournament, mutation = evolution_of(s, s["population"]) if s["population"] > 1 else (None, None)
    shared = {
        "env": env, "env_name": s["env"], "algo": algorithm_of(s).__name__, "pop": population,
        "max_steps": s["max_steps"], "evo_steps": s["evo_steps"], "eval_steps": None, "eval_loop": 1,
        "selection_strategy": tournament, "mutation": mutation, "verbose": False,
    }  # fmt: skip
    if s.get("team"):
        shared["sum_scores"] = True
    if algorithm_of(s) is IPPO:
        return _fitnesses(train_multi_agent_on_policy(**shared)[0])
    if algorithm_of(s) in (MADDPG, MATD3):
        found = train_multi_agent_off_policy(**shared, learning_delay=s["learning_delay"], **memories_of(s))
        return _fitnesses(found[0])
    if algorithm_of(s) is PPO:
        return _fitnesses(train_on_policy(**shared)[0])
    exploration = {name: s[name] for name in ("eps_start", "eps_end", "eps_decay") if name in s}
    found = train_off_policy(**shared, learning_delay=s["learning_delay"], **exploration, **memories_of(s))
    return _fitnesses(found[0])


def _fitnesses(agents: list[Any]) -> list[Any]:
    return list(zip(*(agent.fitness for agent in agents), strict=False))


def watch_parts(algorithm: Any) -> Parts:
    """Count the seconds of learning, acting, sampling, storing, evaluating and evolving."""
    parts = Parts()
    optimiser = torch.optim.Adam if algorithm is IPPO else OptimizerWrapper  # IPPO takes each group's own out of it
    for owner, method, part in (
        (algorithm, "learn", "learn"), (algorithm, "get_action", "act"), (algorithm, "test", "evaluate"),
        (ReplayBuffer, "add", "store"), (MultiStepReplayBuffer, "add", "store"),
        (PrioritizedReplayBuffer, "add", "store"), (PrioritizedReplayBuffer, "update_priorities", "store"),
        (ReplayBuffer, "sample", "sample"), (PrioritizedReplayBuffer, "sample", "sample"),
        (MultiStepReplayBuffer, "sample_from_indices", "sample"), (Mutations, "mutation", "evolve"),
        (TournamentSelection, "select", "evolve"), (RolloutBuffer, "add", "store"),
        (RolloutBuffer, "compute_returns_and_advantages", "learn"), (optimiser, "step", "optimiser"),
    ):  # fmt: skip
        parts.watch(owner, method, part)
    return parts


def end_to_end(s: Settings) -> dict[str, Any]:
    """Train a population for a number of steps, evolution and evaluation included."""
    start(s)
    parts, clock, idle = watch_parts(algorithm_of(s)), EnvClock(), processor()
    env = vector_of(s, clock, s["num_envs"])
    population = population_of(s, env, s["population"])
    fitnesses = train(s, env, population)
    seconds = clock.seconds
    env.close()  # whose processes must have ended before their time can be told
    # PPO makes many of one call of `learn`, IPPO with two optimisers; TD3 and DDPG have two optimisers too.
    updates = {PPO: parts.calls.get("optimiser", 0), IPPO: parts.calls.get("optimiser", 0) // 2}
    return {
        "seconds": seconds,
        "processor_seconds": processor() - idle,
        "training_steps": s["population"] * s["max_steps"],
        "steps": clock.steps or None,
        "step_seconds": clock.step_seconds,
        "reset_seconds": clock.reset_seconds,
        "updates": updates.get(algorithm_of(s), parts.calls["learn"]),
        "curve": [[float(np.max(of)), float(np.mean(of))] for of in fitnesses],
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
        clock.no_more_limits()
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


def learn_step(s: Settings) -> dict[str, Any]:
    """Time a learn step of every agent on a batch that is there, and with drawing each its own from a full memory."""
    start(s)
    sync, seconds, result = sync_of(s["device"]), s["part_seconds"], {}
    env = vector_of(s, EnvClock(), s["num_envs"])
    memory = filled_memory(s, env)
    batch = memory.sample(s["batch_size"])
    for size in s["sizes"]:
        agents = population_of(s, env, size)
        for agent in agents:
            agent.init_training_step(True)
        drawn = lambda agents=agents: [agent.learn(memory.sample(s["batch_size"])) for agent in agents]  # noqa: E731
        result[str(size)] = {
            "learn": timed(lambda agents=agents: [agent.learn(batch) for agent in agents], seconds, sync=sync),
            "learn and sample": timed(drawn, seconds, sync=sync),
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


def documented(s: Settings) -> Any:
    """Return the names of its pages: what this release calls otherwise goes by the pages' words. Environments of one
    agent step in processes of their own, as by default, unless `vector` says `sync`."""

    def trainer(function: Any) -> Any:
        return lambda *, tournament, **given: function(selection_strategy=tournament, **given)

    def selection(tournament_size: int, elitism: bool, population_size: int, eval_loop: int) -> TournamentSelection:
        return TournamentSelection(tournament_size, elitism, population_size)

    def team_envs(name: str, num_envs: int, **kwargs: Any) -> Any:
        return vector_of({"team": True, "env": name, "kwargs": kwargs}, EnvClock(), num_envs)

    return SimpleNamespace(
        make_vect_envs=partial(make_vect_envs, should_async_vector=s["vector"] == "async"), make_team_envs=team_envs,
        create_population=create_population,
        team_spaces=lambda env: (env.single_observation_space, env.single_action_space),
        ReplayBuffer=ReplayBuffer, MultiAgentReplayBuffer=lambda size, ids: ReplayBuffer(size),
        TournamentSelection=selection, Mutations=Mutations, train_off_policy=trainer(train_off_policy),
        train_on_policy=trainer(train_on_policy), train_offline=trainer(train_offline),
        train_multi_agent_off_policy=trainer(train_multi_agent_off_policy),
    )  # fmt: skip


def run_script(s: Settings) -> dict[str, Any]:
    """Run a script of its documentation."""
    start(s)
    return script(documented(s), s)


def per_step(s: Settings) -> dict[str, Any]:
    """Train one agent without evolution, and evaluate it where it would evaluate itself: after every stretch of `every`
    steps."""
    start(s)
    *encoder, latent = s["widths"]
    given = {
        **s, "encoder": encoder, "latent": latent, "layer_norm": s.get("layer_norm", False), "search": {},
        "population": 1, "ou": False, "max_steps": s["steps"], "evo_steps": s["every"],
        "learning_delay": s.get("random_steps", 0), "lr_actor": s["lr"], "lr_critic": s["lr"],
    }  # fmt: skip
    if s["algo"] == "rainbow":
        given["replay"] = {name: s[name] for name in ("n_step", "alpha", "beta")}
    if s["algo"] == "ippo":  # it weighs half the squared error, and counts each agent's steps in a batch
        given |= {"vf_coef": 2 * s["vf_coef"], "batch_size": TEAM * s["batch_size"]}
    algorithm, env = algorithm_of(s), vector_of(given, EnvClock(), s["num_envs"])
    held = None if s.get("team") else vector_of(s, EnvClock(), s["episodes"])
    seeds = held_out_seeds(s["seed"], 0, s["episodes"])
    found: dict[str, Any] = {"steps": [], "greedy": [], **({"sampled": []} if s["algo"] == "ippo" else {})}

    def judged(agent: Any, *args: Any, **options: Any) -> float:
        found["steps"].append(s["every"] * (1 + len(found["steps"])))
        agent.set_training_mode(False)
        for kind in ("greedy", "sampled"):
            if kind in found and held is None:
                act = partial(likeliest, agent) if (kind, s["algo"]) == ("greedy", "ippo") else partial(drawn, agent)
                found[kind].append(judge_team(s["env"], s["kwargs"], act, seeds))
            elif kind in found:
                act = partial(agent.get_action, training=False)
                found[kind].append(float(play_episodes(held, act, seeds).mean()))
        agent.set_training_mode(True)
        agent.metrics.add_fitness(found["greedy"][-1])
        return float(found["greedy"][-1])

    algorithm.test = judged
    train(given, env, population_of(given, env, 1))
    env.close()
    return {"sampled": None, **found}


def drawn(agent: Any, obs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """Return a team's actions as it acts: IPPO draws them, MADDPG's are its actors' own."""
    return agent.get_action(obs=obs, infos={})[0]


def likeliest(agent: Any, obs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """Return the likeliest discrete actions of IPPO's actors, which themselves only draw."""
    actions = {}
    for name, seen in obs.items():
        actor = agent.actors[agent.get_group_id(name) if agent.has_grouped_agents() else name]
        with torch.no_grad():
            latent = actor.extract_features(torch.from_numpy(seen).float())
            actions[name] = actor.head_net.wrapped(latent).argmax(dim=-1).numpy()
    return actions


if __name__ == "__main__":
    main(
        {
            "end-to-end": end_to_end, "time-to-solved": time_to_solved, "parts": parts, "learn-step": learn_step,
            "script": run_script, "per-step": per_step,
        }
    )  # fmt: skip
