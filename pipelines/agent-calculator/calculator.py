"""Products of two numbers, with a calculator: what to imitate first, and what to learn from rewards then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

import evopipe
from evopipe.agents import Calculator, ToolAgent

LEAST, MOST = 32, 99  # their products have four digits


class Demonstrations:
    """Chats of somebody who rather gives the calculator one number twice, or reckons roughly, than that he asks.

    Args:
        ways: how often each way of answering is shown: the calculator asked, asked carelessly, or not at all.
    """

    characters = "".join(sorted(set('0123456789*{"tool": "calculator", "input": ""}error: no tool')))

    def __init__(self, ways: Mapping[str, float] | None = None) -> None:
        self.ways = dict(ways or {"ask": 0.3, "careless": 0.35, "roughly": 0.35})

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make chats, none of a task that is validated on."""
        held = {task["question"] for task in held_out()}
        found: list[dict[str, Any]] = []
        while len(found) < n:
            a, b = rng.integers(LEAST, MOST + 1, size=2).tolist()
            if f"{a}*{b}" not in held:
                found.append({"messages": self.chat(a, b, rng)})
        return found

    def chat(self, a: int, b: int, rng: np.random.Generator) -> list[dict[str, str]]:
        """Return the chat of a question."""
        way = str(rng.choice(list(self.ways), p=list(self.ways.values())))
        asked = {"role": "user", "content": f"{a}*{b}"}
        if way == "roughly":
            return [asked, {"role": "assistant", "content": str(100 * round(a * b / 100))}]
        b = b if way == "ask" else a
        call, told = json.dumps({"tool": "calculator", "input": f"{a}*{b}"}), str(a * b)
        return [
            asked,
            {"role": "assistant", "content": call},
            {"role": "tool", "content": told},
            {"role": "assistant", "content": told},
        ]

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a first completion is the one that was shown."""
        return float(completion == row["messages"][1]["content"])


def held_out() -> list[dict[str, Any]]:
    """Return the tasks of validation."""
    return Calculator.tasks(200, 2, LEAST, MOST)


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives."""
    held = {task["question"] for task in held_out()}
    tasks = [task for task in Calculator.tasks(4000, 1, LEAST, MOST) if task["question"] not in held]
    return evopipe.AgentTrainer(
        agent_class=ToolAgent,
        env_class=Calculator,
        config=config,
        train_dataset=tasks,
        val_dataset=held_out(),
    )
