"""A key that notes lead to: a class in TRL's form, what to imitate first, and the trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

import evopipe

LOOKS = 3


class FindKey:
    """A key lies in one of ninety rooms. The task names a room, a note there names another, and the note in that one
    names the room with the key. Who needs more than three looks comes too late."""

    def reset(self, rooms: list[str], **row: Any) -> str:
        self.rooms, self.looks, self.found = rooms, 0, False
        return rooms[0]

    def look(self, room: str) -> str:
        """Look into a room.

        Args:
            room: its number.
        """
        self.looks += 1
        if room == self.rooms[-1]:
            self.found = self.found or self.looks <= LOOKS
            return "key"
        return self.rooms[self.rooms.index(room) + 1] if room in self.rooms else "-"

    def get_reward(self) -> float:
        return float(self.found)


class Demonstrations:
    """Chats of somebody who as often looks once more where he has just been as where a note sends him.

    Args:
        attentive: how often he follows a note.
    """

    characters = "".join(sorted(set('0123456789-key look{"room": ""}')))

    def __init__(self, attentive: float = 0.6) -> None:
        self.attentive = attentive

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make chats, none of a task that is validated on."""
        held = {str(task["rooms"]) for task in held_out()}
        found: list[dict[str, Any]] = []
        while len(found) < n:
            if str(rooms := drawn(rng)) not in held:
                found.append({"messages": self.chat(rooms, rng)})
        return found

    def chat(self, rooms: list[str], rng: np.random.Generator) -> list[dict[str, Any]]:
        """Return the chat of a search."""
        game = FindKey()
        room = told = game.reset(rooms)
        chat: list[dict[str, Any]] = [{"role": "user", "content": told}]
        while game.looks < LOOKS and told != "key":
            room = told if rng.random() < self.attentive else room
            chat.append({"role": "assistant", "content": f"look{json.dumps({'room': room})}"})
            told = game.look(room)
            chat.append({"role": "tool", "content": told})
        return [*chat, {"role": "assistant", "content": told}]

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a first completion is the one that was shown."""
        return float(completion == row["messages"][1]["content"])


def drawn(rng: np.random.Generator) -> list[str]:
    """Return three rooms."""
    return [str(room) for room in rng.choice(np.arange(10, 100), LOOKS, replace=False)]


def tasks(n: int, seed: int) -> list[dict[str, Any]]:
    """Return tasks; other ones for other seeds, but for chance."""
    rng = np.random.default_rng(seed)
    return [{"rooms": drawn(rng)} for _ in range(n)]


def held_out() -> list[dict[str, Any]]:
    """Return the tasks of validation."""
    return tasks(100, 2)


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives, and names the environment."""
    held = held_out()
    own = [task for task in tasks(2000, 1) if task not in held]
    return evopipe.AgentTrainer(config=config, train_dataset=own, val_dataset=held)
