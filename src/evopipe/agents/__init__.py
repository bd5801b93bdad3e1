"""Users' own agents, environments and workflows, which `evopipe.AgentTrainer` trains."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from evopipe.compat.rllm.trainer import AgentTrainer, Trained

__all__ = [
    "Action", "AgentTrainer", "BaseAgent", "BaseEnv", "Calculator", "ChatAgent", "CopyGame", "CumulativeWorkflow",
    "Dataset", "DatasetRegistry", "Episode", "FrozenLake", "GymEnvironment", "Model", "ModelOutput",
    "MultiTurnEnvironment", "MultiTurnWorkflow", "PettingZooEnvironment", "RewardFunction", "RewardOutput",
    "SingleTurnEnvironment", "SingleTurnWorkflow", "Step", "TeamWorkflow", "TerminationEvent", "TerminationReason",
    "ToolAgent", "ToolEnvironment", "Trained", "Trajectory", "TwentyQuestions", "WordGame",
    "Workflow", "on_ray",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return what trains them: it lies above this package, and is imported when first used."""
    if name not in ("AgentTrainer", "Trained"):
        raise AttributeError(f"module 'evopipe.agents' has no attribute {name!r}")
    return getattr(import_module("evopipe.compat.rllm.trainer"), name)
