"""The functions and objects of AgileRL-style scripts, over populations that train as tensors.

A name of AgileRL's that is not here raises an ImportError, which says what to write instead.

`from evopipe import train_off_policy, create_population, ...`: every name of `__all__` is evopipe's own too.
"""

from __future__ import annotations

from typing import Any

from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.algorithms import (
    CQN,
    DDPG,
    DQN,
    IPPO,
    MADDPG,
    MATD3,
    PPO,
    TD3,
    BPTTSequenceType,
    RainbowDQN,
)
from evopipe.compat.agilerl.bandits import BanditEnv, NeuralTS, NeuralUCB, train_bandits
from evopipe.compat.agilerl.buffers import (
    Experiences,
    MultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayDataset,
    Sampler,
)
from evopipe.compat.agilerl.configs import train_from_config
from evopipe.compat.agilerl.evolution import Mutations, TournamentSelection
from evopipe.compat.agilerl.finetune import finetune_llm_preference, finetune_llm_reasoning
from evopipe.compat.agilerl.functions import (
    train_multi_agent_off_policy,
    train_multi_agent_on_policy,
    train_off_policy,
    train_offline,
    train_on_policy,
)
from evopipe.compat.agilerl.gyms import PreferenceGym, ReasoningGym
from evopipe.compat.agilerl.helpers import (
    plot_population_score,
    print_hyperparams,
    save_population_checkpoint,
    tournament_selection_and_mutation,
)
from evopipe.compat.agilerl.language import DPO, GRPO, LLMPPO, LLMREINFORCE, LanguageAgent
from evopipe.compat.agilerl.learning import RolloutBuffer
from evopipe.compat.agilerl.names import INSTEAD
from evopipe.compat.agilerl.networks import DummyEvolvable
from evopipe.compat.agilerl.population import create_population, observation_space_channels_to_first
from evopipe.compat.agilerl.rollouts import collect_rollouts, collect_rollouts_recurrent, default_progress_bar
from evopipe.compat.agilerl.settings import HyperparameterConfig, RLParameter
from evopipe.compat.agilerl.team_buffer import MultiAgentReplayBuffer
from evopipe.compat.agilerl.transitions import MultiAgentTransition, TensorDict, Transition
from evopipe.compat.agilerl.vect import AsyncPettingZooVecEnv, make_multi_agent_vect_envs, make_vect_envs
from evopipe.compat.agilerl.wrappers import AgentWrapper, RSNorm

__all__ = [
    "CQN", "DDPG", "DPO", "DQN", "GRPO", "IPPO", "LLMPPO", "LLMREINFORCE", "MADDPG", "MATD3", "PPO", "TD3", "Agent",
    "AgentWrapper", "AsyncPettingZooVecEnv", "BPTTSequenceType", "BanditEnv", "DummyEvolvable", "Experiences",
    "HyperparameterConfig", "LanguageAgent", "MultiAgentReplayBuffer", "MultiAgentTransition",
    "MultiStepReplayBuffer", "Mutations", "NeuralTS", "NeuralUCB", "PreferenceGym", "PrioritizedReplayBuffer",
    "RLParameter", "RSNorm", "RainbowDQN", "ReasoningGym", "ReplayBuffer", "ReplayDataset", "RolloutBuffer",
    "Sampler", "TensorDict", "TournamentSelection", "Transition", "collect_rollouts", "collect_rollouts_recurrent",
    "create_population", "default_progress_bar", "finetune_llm_preference", "finetune_llm_reasoning",
    "make_multi_agent_vect_envs", "make_vect_envs", "observation_space_channels_to_first", "plot_population_score",
    "print_hyperparams", "save_population_checkpoint", "tournament_selection_and_mutation", "train_bandits",
    "train_from_config", "train_multi_agent_off_policy", "train_multi_agent_on_policy", "train_off_policy",
    "train_offline", "train_on_policy",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in INSTEAD:
        raise ImportError(f"evopipe.compat.agilerl has no {name}: {INSTEAD[name][1]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
