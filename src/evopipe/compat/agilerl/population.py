"""`create_population`: agents by the arguments of AgileRL's scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from evopipe import algos
from evopipe.compat.agilerl.agent import Agent, kind_of
from evopipe.compat.agilerl.breed import NOWHERE, build, device_of, one_process, params_of
from evopipe.compat.agilerl.networks import own_network
from evopipe.compat.agilerl.settings import HyperparameterConfig, algorithm_of, block_of
from evopipe.errors import UsageError
from evopipe.run.spec import first_members

_EVER = 10**9
_OVER_A_MODEL = {
    "dpo": "dpo", "grpo": "grpo", "llmppo": "ppo_language", "llmreinforce": "reinforce", "reinforce": "reinforce",
    "sft": "sft",
}  # fmt: skip
"""The algorithms whose agents are adapters over one model, by what scripts call them, without what parts words."""


def create_population(
    algo: str, observation_space: Any = None, action_space: Any = None, net_config: Mapping[str, Any] | None = None,
    INIT_HP: Mapping[str, Any] | None = None, hp_config: HyperparameterConfig | None = None, population_size: int = 1,
    num_envs: int = 1, device: Any = None, accelerator: Any = None, *, state_dim: Any = None, action_dim: Any = None,
    one_hot: bool = False, agent_ids: Sequence[Any] | None = None, seed: int = 1, actor_network: Any = None,
    critic_network: Any = None, agent_wrapper: Any = None, wrapper_kwargs: Mapping[str, Any] | None = None,
    torch_compiler: str | None = None, tokenizer: Any = None, pad_token_id: int | None = None,
    pad_token: str | None = None, lora_config: Any = None,
) -> list[Agent]:  # fmt: skip
    """Return a new population of agents. The call also sets the number of torch's threads in this process to 1
    (`runtime.threads`), as every run does.

    Args:
        algo: `DQN`, `Rainbow DQN`, `DDPG`, `TD3`, `PPO`, `CQN`, `MADDPG`, `MATD3`, `IPPO` …; `evopipe algos` lists all.
        observation_space: Gymnasium's observation space; for a team, a dictionary or a list of spaces.
        action_space: the action space, in the same form.
        net_config: the network, either as `arch` with `hidden_size` (or `h_size`), or as `encoder_config`,
            `head_config` and `latent_dim`. Sizes are lists with the hidden units of each layer.
        INIT_HP: hyper-parameters by their names in capitals, such as `LR`, `BATCH_SIZE` (transitions), `LEARN_STEP`
            (environment steps), `GAMMA`. Others have the defaults that `evopipe params block` prints.
        hp_config: the ranges of the hyper-parameters that may mutate; None for the algorithm's own ranges.
        population_size: the number of agents.
        num_envs: the number of environments of each agent, as in `make_vect_envs`.
        device: cpu or cuda; None for cuda if it is available.
        accelerator: has no effect, because all members train in one process; an Accelerator must have one process.
        state_dim, action_dim, one_hot: older alternatives to the spaces. `state_dim` is an observation's shape, or,
            with `one_hot`, its number of values. `action_dim` is the number of actions, or of an action's dimensions.
            For teams, both are lists.
        agent_ids: names of a team's agents, if spaces are lists; the default is `INIT_HP["AGENT_IDS"]`.
        seed: seed of the networks' first weights and of all random draws.
        actor_network: for DQN, CQN and PPO, the caller's own network, see `DummyEvolvable`. For language models, the
            model.
        critic_network: for PPO, the caller's own network for the value.
        agent_wrapper, wrapper_kwargs: a wrapper such as `RSNorm`, which is called with each agent, and its arguments.
        torch_compiler: has no effect.
        tokenizer, pad_token_id, pad_token, lora_config: for the language models `GRPO`, `LLMPPO`, `LLMREINFORCE` and
            `DPO`, see `LanguageAlgorithm`. Language models need no spaces; their `INIT_HP` has the names of
            `LanguageSettings` in capitals.

    Returns:
        The agents by index, each an `Agent` or, for language models, a `LanguageAgent`.

    Raises:
        UsageError: something is missing, or a key would have no effect.
        ParamsError: a value is out of its bounds, or the algorithm does not support the spaces.

    Examples:
        >>> from evopipe import create_population
        >>> import gymnasium
        >>> env = gymnasium.make("CartPole-v1")
        >>> net_config = {"encoder_config": {"hidden_size": [32]}, "latent_dim": 16}
        >>> pop = create_population("DQN", env.observation_space, env.action_space, net_config,
        ...                         {"LR": 1e-3, "BATCH_SIZE": 64}, population_size=2)
        >>> [agent.index for agent in pop], pop[0].batch_size, pop[0].hp["lr"]
        ([0, 1], 64, 0.001)
    """
    plain = algo.lower().replace("_", "").replace(" ", "")
    if (language := _OVER_A_MODEL.get(plain)) is not None:
        from evopipe.compat.agilerl.language import language_agents

        spaces = {"observation_space": observation_space, "action_space": action_space, "net_config": net_config,
                  "state_dim": state_dim, "action_dim": action_dim}  # fmt: skip
        for what, value in spaces.items():
            if value is not None:
                raise UsageError(f"{what}: {algo} adapts a model, and has no use for it: leave it out")
        adapters: list[Any] = language_agents(
            language, population_size, actor_network, tokenizer, pad_token_id, pad_token, hp_config, lora_config, False,
            seed, device, accelerator, INIT_HP,
        )  # fmt: skip
        return adapters
    if lora_config is not None or hasattr(actor_network, "get_output_embeddings"):
        raise UsageError(f"actor_network, lora_config: {algo} learns networks of its own: give net_config")
    name, hp = algorithm_of(algo), dict(INIT_HP or {})
    team = algos.get(name).TEAM
    if (observation_space is None) == (state_dim is None) or (action_space is None) == (action_dim is None):
        raise UsageError("create_population: give observation_space and action_space (or state_dim and action_dim)")
    if state_dim is not None:
        dims = state_dim if team else [state_dim]
        found = [_space_from(each, one_hot) for each in dims]
        observation_space = found if team else found[0]
    if action_dim is not None:
        action_space = _actions(name, action_dim, hp, team)
    ids = [*(agent_ids or hp.get("AGENT_IDS") or ())]
    agents = made(
        name, observation_space, action_space, net_config, hp, hp_config, population_size, num_envs, device,
        accelerator, ids, seed, {"actor": actor_network, "critic": critic_network},
    )  # fmt: skip
    return agents if agent_wrapper is None else [agent_wrapper(agent, **(wrapper_kwargs or {})) for agent in agents]


def made(
    algo: str, observation_space: Any, action_space: Any, net_config: Mapping[str, Any] | None, hp: Mapping[str, Any],
    hp_config: HyperparameterConfig | None, size: int, num_envs: int, device: Any, accelerator: Any,
    ids: Sequence[Any], seed: int, own: Mapping[str, Any],
) -> list[Agent]:  # fmt: skip
    """Return a new population of agents. `create_population` calls this after it has converted its older arguments.

    Args:
        algo: evopipe's name of the algorithm.
        observation_space, action_space: Gymnasium's spaces; for a team, dictionaries or lists of spaces.
        net_config, hp, hp_config: the network, the hyper-parameters in capitals, and the ranges of those that may
            mutate.
        size: the number of agents.
        num_envs: the number of environments of each agent.
        device: cpu or cuda; None for cuda if it is available.
        accelerator: has no effect, but one with several processes is refused.
        ids: names of a team's agents, if spaces are lists.
        seed: seed of the networks' first weights and of all random draws.
        own: the caller's own networks by role, `actor` and `critic`; both values are None for evopipe's networks.

    Raises:
        UsageError: something is missing, or a key would have no effect.
        ParamsError: a value is out of its bounds, or the algorithm does not support the spaces.
    """
    one_process(accelerator)
    net = dict(net_config or {})
    if algos.get(algo).TEAM:
        observation_space, action_space = (_by_agent(spaces, ids) for spaces in (observation_space, action_space))
        net = _of_all(net, observation_space)
    if "contexts" in algos.get(algo).Config.model_fields:  # scripts name the space of one arm's context
        observation_space, hp = _rows(observation_space, action_space), {"CONTEXTS": "rows", **hp}
    block = block_of(algo, hp, net, hp_config)
    if any(each is not None for each in own.values()):
        block["network"] = own_network(algo, own, net)
    train = {"algo": algo, "mode": "offline" if algos.get(algo).OFFLINE_ONLY else "online", "max_steps": _EVER,
             "evo_steps": _EVER, "warm_start": 0, "target": None, "replay": {"capacity": _EVER}}  # fmt: skip
    params = params_of(
        {
            "seed": seed, "env": {"id": NOWHERE, "num_envs": num_envs}, "population": {"size": size},
            "train": train, "runtime": {"device": device_of(device)}, "algos": {algo: block},
        }
    )  # fmt: skip
    breed = build(params, observation_space, action_space)
    members, births = first_members(breed.spec, size)
    return [kind_of(algo).viewing(breed, member, birth) for member, birth in zip(members, births, strict=True)]


def _rows(space: Any, arms: Any) -> Any:
    """Return the space of one context for each arm, of that of an arm's. Raises UsageError if it is no vector's."""
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise UsageError("observation_space: give the space of one arm's context, a Box of one dimension")
    return gymnasium.spaces.Box(-np.inf, np.inf, (int(getattr(arms, "n", 0)), *space.shape), np.float32)


def _of_all(net: Mapping[str, Any], spaces: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the network of a team's agents, of a configuration by agent or by group too.

    Raises:
        UsageError: the agents' networks are unlike.
    """
    groups = {*map(str, spaces), *(str(agent).rpartition("_")[0] for agent in spaces)}
    if not net or not {*net} <= groups:
        return dict(net)
    first, *others = net.values()
    if any(each != first for each in others):
        raise UsageError("net_config: all agents of a team have networks of one architecture here: give one for all")
    return dict(first)


def _actions(algo: str, dims: Any, hp: Mapping[str, Any], team: bool) -> Any:
    kinds = algos.get(algo).ACTIONS
    default = "discrete" in kinds and not (team and hp.get("MAX_ACTION") is not None)
    discrete = bool(hp.get("DISCRETE_ACTIONS", default))
    if not team:
        low, high = hp.get("MIN_ACTION", -1.0), hp.get("MAX_ACTION", 1.0)
        return _actions_from(dims, discrete, -1.0 if low is None else low, 1.0 if high is None else high)
    lows, highs = (hp.get(key) or [bound] * len(dims) for key, bound in (("MIN_ACTION", -1.0), ("MAX_ACTION", 1.0)))
    each = zip(dims, lows, highs, strict=True)
    return [_actions_from(dim, discrete, np.asarray(low), np.asarray(high)) for dim, low, high in each]


def _by_agent(spaces: Any, ids: Sequence[Any]) -> Any:
    if isinstance(spaces, gymnasium.spaces.Dict):
        return dict(spaces.spaces)
    if isinstance(spaces, Mapping):
        return dict(spaces)
    if len(ids) != len(spaces):
        raise UsageError(
            f"create_population: {len(spaces)} spaces and {len(ids)} names of agents: give agent_ids, one for each"
        )
    return dict(zip(ids, spaces, strict=True))


def observation_space_channels_to_first(space: Any) -> Any:
    """Return an observation space in which images have the shape (channels, height, width). Other parts are unchanged.

    Evopipe's networks accept channels in either order, so a script need not call this function.

    Examples:
        >>> from evopipe import observation_space_channels_to_first
        >>> import gymnasium, numpy
        >>> image = gymnasium.spaces.Box(0, 255, (64, 48, 3), numpy.uint8)
        >>> observation_space_channels_to_first(image).shape
        (3, 64, 48)
    """
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: observation_space_channels_to_first(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([observation_space_channels_to_first(part) for part in space.spaces])
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.shape[2] < space.shape[0]:
        low, high = (np.moveaxis(bound, -1, 0) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)
    return space


def _space_from(dims: Any, one_hot: bool) -> gymnasium.Space[Any]:
    """Return the space that a script describes by `state_dim` and `one_hot`: how many values, or a shape. One of three
    dimensions, channels first, is an image of bytes."""
    if isinstance(dims, tuple) and one_hot and len(dims) == 1:
        (dims,) = dims
    if one_hot:
        return gymnasium.spaces.Discrete(int(dims))
    shape = tuple(int(n) for n in (dims if isinstance(dims, Sequence) else (dims,)))
    if len(shape) == 3 and shape[0] in (1, 3, 4):
        return gymnasium.spaces.Box(0, 255, shape, np.uint8)
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)


def _actions_from(dim: Any, discrete: bool, low: Any, high: Any) -> gymnasium.Space[Any]:
    """Return the space that a script describes by `action_dim`: so many choices, or a vector between bounds."""
    if discrete:
        return gymnasium.spaces.Discrete(int(dim))
    least, most = (np.broadcast_to(np.asarray(x, np.float32), (int(dim),)) for x in (low, high))
    return gymnasium.spaces.Box(least, most, dtype=np.float32)
