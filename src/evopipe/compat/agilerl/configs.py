"""Training from AgileRL's YAML files: those with `INIT_HP`, `MUTATION_PARAMS` and `NET_CONFIG`, and the newer
manifests."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from evopipe import algos
from evopipe.compat.agilerl.buffers import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from evopipe.compat.agilerl.evolution import Mutations, TournamentSelection
from evopipe.compat.agilerl.functions import (
    train_multi_agent_off_policy,
    train_multi_agent_on_policy,
    train_off_policy,
    train_offline,
    train_on_policy,
)
from evopipe.compat.agilerl.population import create_population
from evopipe.compat.agilerl.settings import HyperparameterConfig, RLParameter, algorithm_of
from evopipe.compat.agilerl.team_buffer import MultiAgentReplayBuffer
from evopipe.compat.agilerl.train import Trained, function_for
from evopipe.compat.agilerl.vect import make_vect_envs
from evopipe.errors import ParamsError, suggestion
from evopipe.schema.read import read_yaml

_SECTIONS = ("INIT_HP", "MUTATION_PARAMS", "NET_CONFIG", "DISTRIBUTED_TRAINING")
_MANIFEST = ("algorithm", "environment", "mutation", "network", "replay_buffer", "selection_strategy",
             "tournament_selection", "training")  # fmt: skip
_MUTATION = {"NO_MUT": "no_mutation", "ARCH_MUT": "architecture", "NEW_LAYER": "new_layer_prob",
             "PARAMS_MUT": "parameters", "ACT_MUT": "activation", "RL_HP_MUT": "rl_hp", "MUT_SD": "mutation_sd",
             "RAND_SEED": "rand_seed", "RL_HP_SELECTION": "rl_hp_selection"}  # fmt: skip
_ENDS = {f"{end}_{of}": f"{end}_{of}".lower() for end in ("MIN", "MAX") for of in ("LR", "LEARN_STEP", "BATCH_SIZE")}
_LOOP = {"MAX_STEPS": "max_steps", "EVO_STEPS": "evo_steps", "EVAL_STEPS": "eval_steps", "EVAL_LOOP": "eval_loop",
         "TARGET_SCORE": "target", "WANDB": "wb"}  # fmt: skip
_REPLAY = {"LEARNING_DELAY": "learning_delay"}
_EPSILON = {"EPS_START": "eps_start", "EPS_END": "eps_end", "EPS_DECAY": "eps_decay"}
_PARTS = {"PRIORITIZED": "PER", "STANDARD": "", "MAX_SIZE": "MEMORY_SIZE", "TOURNAMENT_SIZE": "TOURN_SIZE",
          "NAME": "ENV_NAME", "N_STEP_BUFFER": "", "PER_BUFFER": "", "STANDARD_BUFFER": ""}  # fmt: skip


def train_from_config(path: str | os.PathLike[str], **arguments: Any) -> Trained:
    """Train as an AgileRL YAML file says, by the training function that fits its algorithm.

    Args:
        path: a file with `INIT_HP`, and perhaps `MUTATION_PARAMS` and `NET_CONFIG`; or a manifest with `algorithm`,
            `environment`, `mutation`, `network`, `replay_buffer`, `selection_strategy` and `training`.
        arguments: arguments of the training function by name, such as `max_steps` or `save_elite`, which replace the
            file's values.

    Returns:
        The trained agents by index, and one list of their fitnesses for each generation.

    Raises:
        ParamsError: the file has a key that is not read, or lacks the algorithm or the environment.
        UsageError: an argument would have no effect. Errors of the training function are raised too.

    Examples:
        >>> from pathlib import Path
        >>> from evopipe.compat.agilerl import train_from_config
        >>> _ = Path("dqn.yaml").write_text('''
        ... INIT_HP: {ENV_NAME: CartPole-v1, ALGO: DQN, BATCH_SIZE: 16, LEARN_STEP: 4, NUM_ENVS: 2, POP_SIZE: 2,
        ...           MAX_STEPS: 80, EVO_STEPS: 40, MEMORY_SIZE: 1000}
        ... MUTATION_PARAMS: {NO_MUT: 0.4, ARCH_MUT: 0.2, RL_HP_MUT: 0.2, RAND_SEED: 42}
        ... NET_CONFIG: {latent_dim: 16, encoder_config: {hidden_size: [16]}}
        ... ''')
        >>> pop, fitnesses = train_from_config("dqn.yaml", verbose=False)
        >>> len(fitnesses), pop[0].batch_size
        (2, 16)
    """
    data = read_yaml(path).data
    hp, mut, net, ranges = _of_manifest(path, data) if "algorithm" in data else _of_sections(path, data)
    for key in ("ALGO", "ENV_NAME"):
        if not hp.get(key):
            raise ParamsError(f"{path}: it names no {'algorithm' if key == 'ALGO' else 'environment'}: give {key}")
    name = algorithm_of(str(hp["ALGO"]))
    size, num_envs = int(hp.get("POP_SIZE") or 1), int(hp.get("NUM_ENVS") or 1)
    env = make_vect_envs(str(hp["ENV_NAME"]), num_envs)
    seen, done = (
        of if isinstance(of, gymnasium.Space) else {agent: of(agent) for agent in env.possible_agents}
        for of in (env.single_observation_space, env.single_action_space)
    )
    own = {key: value for key, value in hp.items() if key not in ("POP_SIZE", "NUM_ENVS")}
    pop = create_population(name, seen, done, net, own, ranges, size, num_envs)
    evolution = {
        "tournament": TournamentSelection(int(hp.get("TOURN_SIZE") or 2), bool(hp.get("ELITISM", True)), size),
        "mutation": _mutations(path, mut),
    }
    function, memory = _functions(name, hp)
    table = _LOOP | (_REPLAY if "learning_delay" in inspect.signature(function).parameters else {})
    table |= _EPSILON if hasattr(pop[0].breed.params.algo_config, "eps_schedule") else {}
    loop = {own: hp[key] for key, own in table.items() if hp.get(key) is not None}
    common = {"env": env, "env_name": str(hp["ENV_NAME"]), "algo": name, "pop": pop, **memory, **evolution}
    found: Trained = function(**{**common, **loop, **arguments})
    return found


def _functions(name: str, hp: Mapping[str, Any]) -> tuple[Callable[..., Trained], dict[str, Any]]:
    """Return the training function of an algorithm, and its memory as an argument.

    Raises:
        ParamsError: the algorithm has no environment of a name.
    """
    room, steps = int(hp.get("MEMORY_SIZE") or 100_000), int(hp.get("N_STEP") or 1)
    fits = "train_offline" if algos.get(name).OFFLINE_ONLY else function_for(name)
    if fits == "train_bandits":
        raise ParamsError(f"ALGO: {name} learns from a BanditEnv, which no file names: call train_bandits")
    if hp.get("PER"):
        replay: ReplayBuffer = PrioritizedReplayBuffer(room, alpha=float(hp.get("ALPHA") or 0.6), n_step=steps)
    else:
        replay = MultiStepReplayBuffer(room, n_step=steps) if steps > 1 else ReplayBuffer(room)
    known: dict[str, tuple[Callable[..., Trained], dict[str, Any]]] = {
        "train_off_policy": (train_off_policy, {"memory": replay}),
        "train_on_policy": (train_on_policy, {}),
        "train_offline": (train_offline, {"memory": ReplayBuffer(room)}),
        "train_multi_agent_off_policy": (train_multi_agent_off_policy, {"memory": MultiAgentReplayBuffer(room)}),
        "train_multi_agent_on_policy": (train_multi_agent_on_policy, {}),
    }
    return known[fits]


_Read = tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, HyperparameterConfig | None]


def _of_sections(path: Any, data: Mapping[str, Any]) -> _Read:
    for key in data:
        if key not in _SECTIONS and key != "MLP":
            raise ParamsError(f"{path}: nobody reads {key!r}{suggestion(key, _SECTIONS)}")
    return (
        {**data.get("INIT_HP", {})},
        {**data.get("MUTATION_PARAMS", {})},
        data.get("NET_CONFIG", data.get("MLP")),
        None,
    )


def _of_manifest(path: Any, data: Mapping[str, Any]) -> _Read:
    """Read a manifest as what the older files say."""
    for key in data:
        if key not in _MANIFEST:
            raise ParamsError(f"{path}: nobody reads {key!r}{suggestion(key, _MANIFEST)}")
    algorithm, mutation = dict(data["algorithm"]), dict(data.get("mutation") or {})
    selection = dict(data.get("selection_strategy") or data.get("tournament_selection") or {})
    if (strategy := selection.pop("strategy", "tournament")) != "tournament":
        raise ParamsError(
            f"{path}: selection_strategy: {strategy!r} is not served: take tournament, or another search of evopipe's "
            "own (`search.strategy` in params.yaml)"
        )
    selection.pop("population_size", None)
    hp = {"ALGO": algorithm.pop("name", None)}
    for part in (algorithm, data.get("environment"), data.get("replay_buffer"), selection, data.get("training")):
        for key, value in (part or {}).items():
            own = _PARTS.get(key.upper(), key.upper())
            hp |= {own: value} if own else {}
    chances, mut = mutation.pop("probabilities", {}), {}
    selected = mutation.pop("rl_hp_selection", None)
    for key, value in {**chances, **mutation}.items():
        mut["MUT_SD" if key == "mutation_sd" else key.upper()] = value
    ranges = None
    if isinstance(selected, Mapping):
        ranges = HyperparameterConfig(**{name: RLParameter(**ends) for name, ends in selected.items()})
    return hp, mut, data.get("network"), ranges


def _mutations(path: Any, mut: Mapping[str, Any]) -> Mutations | None:
    known = _MUTATION | _ENDS
    for key in mut:
        if key not in known:
            raise ParamsError(f"{path}: mutation: nobody reads {key!r}{suggestion(key, known)}")
    return Mutations(**{known[key]: value for key, value in mut.items() if value is not None}) if mut else None
