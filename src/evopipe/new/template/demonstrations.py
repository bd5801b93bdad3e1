"""Chats that the base of the agent imitates: the assistant repeats a digit as often as it answers with the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class Demonstrations:
    """A task whose rows are chats of the game `my_agent.CountOn`, in which the assistant is right in about half of the
    turns."""

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Return n rows of JSON data, each with a chat as `messages`.

        All random draws are from `rng`, so that runs can be repeated.
        """
        return [{"messages": self.chat(rng)} for _ in range(n)]

    def chat(self, rng: np.random.Generator) -> list[dict[str, str]]:
        """Return a chat of three turns as messages (`role`, `content`): the user says a digit, and the assistant the
        same digit or the next one, drawn from `rng`."""
        chat = []
        for digit, more in zip(rng.integers(10, size=3).tolist(), rng.integers(2, size=3).tolist(), strict=True):
            chat.append({"role": "user", "content": str(digit)})
            chat.append({"role": "assistant", "content": str((digit + more) % 10)})
        return chat

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return 1 if a completion equals the assistant's first message in the row's chat, else 0."""
        return float(completion == row["messages"][1]["content"])
