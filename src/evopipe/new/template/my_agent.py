"""Your agent: a game to begin with, in which one counts on. Put your own in its place.

`evopipe agent explain my_agent:make params.yaml` says what is configured.
"""

from __future__ import annotations

from typing import Any

import evopipe
from evopipe.agents import ChatAgent, MultiTurnEnvironment


class CountOn(MultiTurnEnvironment):
    """A game of three turns. The agent sees a digit, and must answer with the next digit; 0 follows 9.

    Each right answer gives a reward of one third. A task has the three digits as a text, `digits`.
    """

    blocking = False  # its steps take no time: no threads are needed

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task, max_turns=len(task["digits"]))

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        return self.task["digits"][0], {}

    def get_reward_and_next_obs(self, task: dict[str, Any], action: str) -> tuple[float, Any]:
        digits, turn = task["digits"], self.current_turn
        right = action == str((int(digits[turn]) + 1) % 10)
        return right / len(digits), digits[turn + 1] if turn + 1 < len(digits) else ""


def make(config: Any) -> evopipe.AgentTrainer:
    """Return the trainer of agents that play `CountOn`.

    `config` has the settings given on the command line, which replace those of the default configuration.
    """
    tasks = [{"digits": f"{n:03d}"} for n in range(1000)]
    held = tasks[::20]
    return evopipe.AgentTrainer(
        agent_class=ChatAgent,
        env_class=CountOn,
        config=config,
        train_dataset=[task for task in tasks if task not in held],
        val_dataset=held,
    )
