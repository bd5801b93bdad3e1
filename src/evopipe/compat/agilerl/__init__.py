"""The functions and objects of AgileRL-style scripts, over populations that train as tensors.

`from evopipe import train_off_policy, create_population, ...`: every name of `__all__` is evopipe's own too.
"""

from __future__ import annotations

from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.buffers import (
    Experiences,
    MultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayDataset,
    Sampler,
)
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
from evopipe.compat.agilerl.language import DPO, GRPO, LLMPPO, LLMREINFORCE, LanguageAgent
from evopipe.compat.agilerl.learning import RolloutBuffer
from evopipe.compat.agilerl.population import create_population, observation_space_channels_to_first
from evopipe.compat.agilerl.rollouts import collect_rollouts, collect_rollouts_recurrent, default_progress_bar
from evopipe.compat.agilerl.settings import HyperparameterConfig, RLParameter
from evopipe.compat.agilerl.team_buffer import MultiAgentReplayBuffer
from evopipe.compat.agilerl.vect import make_vect_envs

__all__ = [
    "DPO", "GRPO", "LLMPPO", "LLMREINFORCE", "Agent", "Experiences", "HyperparameterConfig", "LanguageAgent",
    "MultiAgentReplayBuffer", "MultiStepReplayBuffer", "Mutations", "PreferenceGym", "PrioritizedReplayBuffer",
    "RLParameter", "ReasoningGym", "ReplayBuffer", "ReplayDataset", "RolloutBuffer", "Sampler", "TournamentSelection",
    "collect_rollouts", "collect_rollouts_recurrent", "create_population", "default_progress_bar",
    "finetune_llm_preference", "finetune_llm_reasoning", "make_vect_envs", "observation_space_channels_to_first",
    "train_multi_agent_off_policy", "train_multi_agent_on_policy", "train_off_policy", "train_offline",
    "train_on_policy",
]  # fmt: skip
