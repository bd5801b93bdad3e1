"""Questions about a store that tools of an MCP server answer: what to imitate first, and the trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import store

import evopipe


class Demonstrations:
    """Chats of somebody who looks up where an item lies, but then mostly counts the first shelf with that letter.

    Args:
        attentive: how often the shelf that was found is the one that is counted.
    """

    characters = "".join(sorted({*"0123456789-abcdefghijklmnopqrstuvwxyz", *'find{"item": ""}count{"shelf": ""}'}))

    def __init__(self, attentive: float = 0.4) -> None:
        self.attentive = attentive

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make chats, none about an item that is validated on."""
        own = items()[0]
        return [{"messages": self.chat(str(rng.choice(own)), rng)} for _ in range(n)]

    def chat(self, item: str, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Return the chat about an item."""
        shelf = store.find(item)
        counted = shelf if rng.random() < self.attentive else f"{shelf[0]}0"
        told = store.count(counted)
        return [
            {"role": "user", "content": item},
            {"role": "assistant", "content": f"find{json.dumps({'item': item})}"},
            {"role": "tool", "content": shelf},
            {"role": "assistant", "content": f"count{json.dumps({'shelf': counted})}"},
            {"role": "tool", "content": told},
            {"role": "assistant", "content": told},
        ]

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a first completion is the one that was shown."""
        return float(completion == row["messages"][1]["content"])


def items() -> tuple[list[str], list[str]]:
    """Return the items of training, and the hundred of validation."""
    every = [str(item) for item in np.random.default_rng(1).permutation(store.ITEMS)]
    return every[100:], every[:100]


def task(item: str) -> dict[str, str]:
    """Return the question about an item: how many things lie on its shelf."""
    return {"prompt": item, "answer": store.count(store.find(item))}


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives, and names the server."""
    own, held = ([task(item) for item in each] for each in items())
    return evopipe.AgentTrainer(config=config, train_dataset=own, val_dataset=held)
