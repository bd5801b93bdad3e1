"""What the base of the agent imitates: chats of somebody who as often repeats a digit as he counts on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class Demonstrations:
    """Chats of the game `my_agent.CountOn`."""

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make n rows of JSON data: draw from `rng` and from nothing else, and runs can be repeated."""
        return [{"messages": self.chat(rng)} for _ in range(n)]

    def chat(self, rng: np.random.Generator) -> list[dict[str, str]]:
        """Return a chat: a digit, and what is said to it, in turn."""
        chat = []
        for digit, more in zip(rng.integers(10, size=3).tolist(), rng.integers(2, size=3).tolist(), strict=True):
            chat.append({"role": "user", "content": str(digit)})
            chat.append({"role": "assistant", "content": str((digit + more) % 10)})
        return chat

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a first completion is the one that was shown."""
        return float(completion == row["messages"][1]["content"])
