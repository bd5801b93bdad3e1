"""rLLM's `AgentTrainer` and its keys of a configuration, over `evopipe.agents`."""

from __future__ import annotations

from evopipe.compat.rllm.trainer import AgentTrainer, Trained

__all__ = ["AgentTrainer", "Trained"]
