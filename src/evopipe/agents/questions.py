"""Twenty questions, as an environment of text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from evopipe.agents.environment import MultiTurnEnvironment

THINGS: dict[str, str] = {
    "cat": "alive animal legs fur small", "dog": "alive animal legs fur big", "lion": "alive animal legs fur big wild",
    "mouse": "alive animal legs fur small wild", "eagle": "alive animal legs wings big wild",
    "bee": "alive animal legs wings small wild", "shark": "alive animal water big wild",
    "goldfish": "alive animal water small", "oak": "alive big wood", "daisy": "alive small", "boat": "wood water big",
    "chair": "wood legs small", "table": "wood legs big", "plane": "wings metal big", "key": "metal small",
    "car": "metal wheels big", "bicycle": "metal wheels small", "stone": "small wild",
}  # fmt: skip
"""Things and what is true of each; no two have the same."""


class TwentyQuestions(MultiTurnEnvironment):
    """Find out what was thought of: a task is `{"secret": "bee"}`.

    A text with a question mark is a question: the first property in it is answered by yes or no. Any other text is a
    guess, and the right one is worth 1.
    """

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any], max_turns: int = 20, things: Mapping[str, str] | None = None) -> None:
        super().__init__(task, max_turns)
        self.things = {name: set(text.split()) for name, text in (things or THINGS).items()}
        self.known = set().union(*self.things.values())
        if task["secret"] not in self.things:
            raise ValueError(f"TwentyQuestions: the secret {task['secret']!r} is none of {', '.join(self.things)}")

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        told = f"I think of one of: {', '.join(self.things)}. Ask whether it is or has one of: "
        return f"{told}{', '.join(sorted(self.known))}. Or name it.", {}

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        words = re.findall(r"[\w-]+", str(action).lower())
        if "?" in str(action):
            about = next((word for word in words if word in self.known), None)
            if about is None:
                return 0.0, "I do not know that word."
            return 0.0, "yes" if about in self.things[task["secret"]] else "no"
        self.done = words == [task["secret"]]
        return float(self.done), "no"

    @staticmethod
    def tasks(n: int, seed: int = 0) -> list[dict[str, Any]]:
        """Return so many tasks."""
        names = list(THINGS)
        return [{"secret": names[i]} for i in np.random.default_rng(seed).integers(len(names), size=n)]
