"""evopipe: train populations of reinforcement-learning agents that tune themselves while they learn.

`evopipe.train(...)` runs everything, `evopipe.load(...)` brings a trained policy back; `evopipe.train_off_policy(...)`
and its like do so for scripts of populations, memories and mutations (`evopipe.compat.agilerl`). Names are imported
when first used, so that `import evopipe` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evopipe.api import Result
    from evopipe.api import run as train
    from evopipe.compat.agilerl import (
        DPO,
        GRPO,
        LLMPPO,
        LLMREINFORCE,
        Agent,
        Experiences,
        HyperparameterConfig,
        LanguageAgent,
        MultiAgentReplayBuffer,
        MultiStepReplayBuffer,
        Mutations,
        PreferenceGym,
        PrioritizedReplayBuffer,
        ReasoningGym,
        ReplayBuffer,
        ReplayDataset,
        RLParameter,
        RolloutBuffer,
        Sampler,
        TournamentSelection,
        collect_rollouts,
        collect_rollouts_recurrent,
        create_population,
        default_progress_bar,
        finetune_llm_preference,
        finetune_llm_reasoning,
        make_vect_envs,
        observation_space_channels_to_first,
        train_multi_agent_off_policy,
        train_multi_agent_on_policy,
        train_off_policy,
        train_offline,
        train_on_policy,
    )
    from evopipe.compat.agilerl.older import initialPopulation, makeVectEnvs
    from evopipe.compat.rllm.trainer import AgentTrainer
    from evopipe.errors import EvopipeError
    from evopipe.loading import load
    from evopipe.policy import Policy
    from evopipe.schema.params import Params, load_params, parse_params

__version__ = "0.1.0"
__all__ = [
    "DPO", "GRPO", "LLMPPO", "LLMREINFORCE", "Agent", "AgentTrainer", "EvopipeError", "Experiences",
    "HyperparameterConfig", "LanguageAgent", "MultiAgentReplayBuffer", "MultiStepReplayBuffer", "Mutations", "Params",
    "Policy", "PreferenceGym", "PrioritizedReplayBuffer", "RLParameter", "ReasoningGym", "ReplayBuffer",
    "ReplayDataset", "Result", "RolloutBuffer", "Sampler", "TournamentSelection", "__version__", "collect_rollouts",
    "collect_rollouts_recurrent", "create_population", "default_progress_bar", "finetune_llm_preference",
    "finetune_llm_reasoning", "initialPopulation", "load", "load_params", "makeVectEnvs", "make_vect_envs",
    "observation_space_channels_to_first", "parse_params", "train", "train_multi_agent_off_policy",
    "train_multi_agent_on_policy", "train_off_policy", "train_offline", "train_on_policy",
]  # fmt: skip

_MODULES = {
    "AgentTrainer": ("evopipe.compat.rllm.trainer", "AgentTrainer"),
    "EvopipeError": ("evopipe.errors", "EvopipeError"),
    "Params": ("evopipe.schema.params", "Params"),
    "Policy": ("evopipe.policy", "Policy"),
    "Result": ("evopipe.api", "Result"),
    "load": ("evopipe.loading", "load"),
    "load_params": ("evopipe.schema.params", "load_params"),
    "parse_params": ("evopipe.schema.params", "parse_params"),
    "train": ("evopipe.api", "run"),
    "initialPopulation": ("evopipe.compat.agilerl.older", "initialPopulation"),
    "makeVectEnvs": ("evopipe.compat.agilerl.older", "makeVectEnvs"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'evopipe' has no attribute {name!r}")
    module, attribute = _MODULES.get(name, ("evopipe.compat.agilerl", name))
    return getattr(import_module(module), attribute)
