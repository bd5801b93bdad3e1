"""Users' own agents, environments and workflows, which `evopipe.AgentTrainer` trains."""

from __future__ import annotations

from evopipe.agents.agent import BaseAgent, CallingAgent, ChatAgent, ToolAgent
from evopipe.agents.data import DatasetRegistry
from evopipe.agents.data import Tasks as Dataset  # as rLLM names it
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
    "Action", "BaseAgent", "BaseEnv", "Calculator", "CallingAgent", "ChatAgent", "CopyGame", "CumulativeWorkflow",
    "Dataset", "DatasetRegistry", "Episode", "FrozenLake", "GymEnvironment", "Model", "ModelOutput",
    "MultiTurnEnvironment", "MultiTurnWorkflow", "PettingZooEnvironment", "RewardFunction", "RewardOutput",
    "SingleTurnEnvironment", "SingleTurnWorkflow", "Step", "TeamWorkflow", "TerminationEvent", "TerminationReason",
    "ToolAgent", "ToolEnvironment", "Trajectory", "TwentyQuestions", "WordGame",
    "Workflow", "on_ray",
]  # fmt: skip
