"""Agents, environments and workflows of one's own: what `evopipe.AgentTrainer` trains."""

from __future__ import annotations

from evopipe.agents.agent import BaseAgent, ChatAgent, ToolAgent
from evopipe.agents.data import Dataset, DatasetRegistry
from evopipe.agents.elsewhere import on_ray
from evopipe.agents.environment import (
    BaseEnv,
    GymEnvironment,
    MultiTurnEnvironment,
    SingleTurnEnvironment,
    ToolEnvironment,
)
from evopipe.agents.games import Calculator, CopyGame, FrozenLake, TwentyQuestions, WordGame
from evopipe.agents.model import Model
from evopipe.agents.teams import PettingZooEnvironment, TeamWorkflow
from evopipe.agents.trainer import AgentTrainer, Trained
from evopipe.agents.types import (
    Action,
    Episode,
    ModelOutput,
    RewardFunction,
    RewardOutput,
    Step,
    TerminationEvent,
    TerminationReason,
    Trajectory,
)
from evopipe.agents.workflow import CumulativeWorkflow, MultiTurnWorkflow, SingleTurnWorkflow, Workflow

__all__ = [
    "Action", "AgentTrainer", "BaseAgent", "BaseEnv", "Calculator", "ChatAgent", "CopyGame", "CumulativeWorkflow",
    "Dataset", "DatasetRegistry", "Episode", "FrozenLake", "GymEnvironment", "Model", "ModelOutput",
    "MultiTurnEnvironment", "MultiTurnWorkflow", "PettingZooEnvironment", "RewardFunction", "RewardOutput",
    "SingleTurnEnvironment", "SingleTurnWorkflow", "Step", "TeamWorkflow", "TerminationEvent", "TerminationReason",
    "ToolAgent", "ToolEnvironment", "Trained", "Trajectory", "TwentyQuestions", "WordGame",
    "Workflow", "on_ray",
]  # fmt: skip
