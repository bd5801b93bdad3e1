"""The agent that plays textarena's game of a hidden number, and the trainer."""

from __future__ import annotations

from typing import Any

import evopipe
from evopipe.agents import ChatAgent
from evopipe.agents.types import Message

SIGNS = {"higher": "+", "lower": "-"}


class Hints(ChatAgent):
    """Tells the model of the game's long text the last hint alone, as a sign. The model's digit is a guess as it is:
    the game's wrapper puts it into brackets."""

    def message(self, observation: Any) -> Message:
        _, _, hint = str(observation).rpartition("The target number is ")
        return {"role": "user", "content": SIGNS.get(hint.strip().rstrip("."), "?")}


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives, and names the game. Tasks are seeds."""
    return evopipe.AgentTrainer(agent_class=Hints, config=config)
