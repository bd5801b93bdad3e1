"""Your agent: a game to begin with, in which a number is to be guessed. Put your own in its place.

`evopipe agent explain my_agent:make params.yaml` says what is configured.
"""

from __future__ import annotations

from typing import Any

import evopipe
from evopipe.agents import ChatAgent, MultiTurnEnvironment


class Guess(MultiTurnEnvironment):
    """Guess a digit in four turns; after each one hears whether it is higher or lower. The first turn that is right
    earns 1."""

    blocking = False  # its steps take no time: no threads are needed

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task, max_turns=4)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        return "guess", {}

    def get_reward_and_next_obs(self, task: dict[str, Any], action: str) -> tuple[float, Any]:
        secret = str(task["secret"])
        if action == secret:
            self.done = True
            return 1.0, ""
        return 0.0, "higher" if secret > action else "lower"


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives."""
    tasks = [{"secret": n} for n in range(10)]
    return evopipe.AgentTrainer(
        agent_class=ChatAgent, env_class=Guess, config=config, train_dataset=tasks, val_dataset=tasks
    )
