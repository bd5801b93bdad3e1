"""What the base of the agent imitates: chats of somebody who plays the game by the rules, and guesses at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

TURNS = 4


class Demonstrations:
    """Chats of the game `my_agent.Guess`."""

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make n rows of JSON data, equal ones with equal generators."""
        return [{"messages": self.chat(rng)} for _ in range(n)]

    def chat(self, rng: np.random.Generator) -> list[dict[str, str]]:
        """Return a chat: what the game says, and a digit, in turn."""
        secret, chat = int(rng.integers(10)), [{"role": "user", "content": "guess"}]
        for _ in range(TURNS):
            guess = int(rng.integers(10))
            chat.append({"role": "assistant", "content": str(guess)})
            if guess == secret:
                break
            chat.append({"role": "user", "content": "higher" if secret > guess else "lower"})
        return chat if chat[-1]["role"] == "assistant" else chat[:-1]

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a first completion is the one that was shown."""
        return float(completion == row["messages"][1]["content"])
