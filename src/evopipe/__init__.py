"""evopipe: train populations of reinforcement-learning agents that tune themselves while they learn.

The library's own names, which `dir(evopipe)` lists:

- `train(params)` runs everything, `load(folder)` loads a trained policy, `evaluate(policy)` scores it;
- `Population(params)` trains generation by generation in this process, `Policy` is one trained member;
- `Dataset` makes a dataset of arrays or of a data frame;
- `Params`, `load_params`, `parse_params` describe a run; `evopipe.errors` has the errors;
- `evopipe.parts` has the parts of the library's loops, `evopipe.agents` the parts of language agents, `evopipe.zoo` the
  repository's trained rows.

The other names of `__all__` are spellings of AgileRL's and rLLM's documents, for scripts that keep to those:
`evopipe.compat.agilerl` and `evopipe.compat.rllm`. All are imported when first used, so that `import evopipe` costs
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evopipe.core.readers import ARCHITECTURES
from evopipe.version import __version__

if TYPE_CHECKING:
    from evopipe.api import Result
    from evopipe.api import run as train
    from evopipe.compat.agilerl import (
        CQN,
        DDPG,
        DPO,
        DQN,
        GRPO,
        IPPO,
        LLMPPO,
        LLMREINFORCE,
        MADDPG,
        MATD3,
        PPO,
        TD3,
        Agent,
        AgentWrapper,
        AsyncPettingZooVecEnv,
        BanditEnv,
        BPTTSequenceType,
        DummyEvolvable,
        Experiences,
        HyperparameterConfig,
        LanguageAgent,
        MultiAgentReplayBuffer,
        MultiAgentTransition,
        MultiStepReplayBuffer,
        Mutations,
        NeuralTS,
        NeuralUCB,
        PreferenceGym,
        PrioritizedReplayBuffer,
        RainbowDQN,
        ReasoningGym,
        ReplayBuffer,
        ReplayDataset,
        RLParameter,
        RolloutBuffer,
        RSNorm,
        Sampler,
        TensorDict,
        TournamentSelection,
        Transition,
        collect_rollouts,
        collect_rollouts_recurrent,
        create_population,
        default_progress_bar,
        finetune_llm_preference,
        finetune_llm_reasoning,
        make_multi_agent_vect_envs,
        make_vect_envs,
        observation_space_channels_to_first,
        plot_population_score,
        print_hyperparams,
        save_population_checkpoint,
        tournament_selection_and_mutation,
        train_bandits,
        train_from_config,
        train_multi_agent_off_policy,
        train_multi_agent_on_policy,
        train_off_policy,
        train_offline,
        train_on_policy,
    )
    from evopipe.compat.agilerl.older import initialPopulation, makeVectEnvs
    from evopipe.compat.rllm import AgentTrainer
    from evopipe.data.table import Dataset
    from evopipe.errors import EvopipeError
    from evopipe.params.load import Params, load_params, parse_params
    from evopipe.policies.loading import load
    from evopipe.policies.play import evaluate
    from evopipe.policies.policy import Policy
    from evopipe.population import Population

__all__ = [  # noqa: RUF022 (in the order in which one meets them)
    # the library's own
    "train", "load", "evaluate", "Population", "Policy", "Result", "Dataset", "Params", "load_params", "parse_params",
    "EvopipeError", "__version__",
    # rLLM's and AgileRL's
    "AgentTrainer", "CQN", "DDPG", "DPO", "DQN", "GRPO", "IPPO", "LLMPPO", "LLMREINFORCE", "MADDPG", "MATD3", "PPO",
    "TD3", "Agent", "AgentWrapper", "AsyncPettingZooVecEnv", "BPTTSequenceType", "BanditEnv", "DummyEvolvable",
    "Experiences", "HyperparameterConfig", "LanguageAgent", "MultiAgentReplayBuffer", "MultiAgentTransition",
    "MultiStepReplayBuffer", "Mutations", "NeuralTS", "NeuralUCB", "PreferenceGym", "PrioritizedReplayBuffer",
    "RLParameter", "RSNorm", "RainbowDQN", "ReasoningGym", "ReplayBuffer", "ReplayDataset", "RolloutBuffer",
    "Sampler", "TensorDict", "TournamentSelection", "Transition", "collect_rollouts", "collect_rollouts_recurrent",
    "create_population", "default_progress_bar", "finetune_llm_preference", "finetune_llm_reasoning",
    "make_multi_agent_vect_envs", "make_vect_envs", "observation_space_channels_to_first", "plot_population_score",
    "print_hyperparams", "save_population_checkpoint", "tournament_selection_and_mutation", "train_bandits",
    "train_from_config", "train_multi_agent_off_policy", "train_multi_agent_on_policy", "train_off_policy",
    "train_offline", "train_on_policy", "initialPopulation", "makeVectEnvs",
]  # fmt: skip

ARCHITECTURES |= {
    "lora": lambda data: import_module("evopipe.language.adapters").read_adapter(data),
    "full": lambda data: import_module("evopipe.language.adapters").read_adapter(data),
    "gpt": lambda data: import_module("evopipe.language.gpt").GPT.from_json(data),
}

_OWN = {
    "train": ("evopipe.api", "run"),
    "load": ("evopipe.policies.loading", "load"),
    "evaluate": ("evopipe.policies.play", "evaluate"),
    "Population": ("evopipe.population", "Population"),
    "Policy": ("evopipe.policies.policy", "Policy"),
    "Result": ("evopipe.api", "Result"),
    "Dataset": ("evopipe.data.table", "Dataset"),
    "Params": ("evopipe.params.load", "Params"),
    "load_params": ("evopipe.params.load", "load_params"),
    "parse_params": ("evopipe.params.load", "parse_params"),
    "EvopipeError": ("evopipe.errors", "EvopipeError"),
}
_ROOMS = ("agents", "errors", "parts", "zoo")
_OTHERS = {
    "AgentTrainer": ("evopipe.compat.rllm", "AgentTrainer"),
    "initialPopulation": ("evopipe.compat.agilerl.older", "initialPopulation"),
    "makeVectEnvs": ("evopipe.compat.agilerl.older", "makeVectEnvs"),
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"evopipe.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'evopipe' has no attribute {name!r}")
    module, attribute = (_OWN | _OTHERS).get(name, ("evopipe.compat.agilerl", name))
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return [*_OWN, *_ROOMS, "__version__"]
