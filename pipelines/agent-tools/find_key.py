"""A key that notes lead to: a class in TRL's form, what to imitate first, and the trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

import evopipe

ROOMS = "abcdef"
LOOKS = 3


class FindKey:
    """A key lies in one of six rooms. The first note names a room, where another note names the next; the third room
    has the key, and who looks elsewhere comes too late."""

    def reset(self, notes: str, **row: Any) -> str:
        self.notes, self.looks, self.found = notes, 0, False
        return notes[0]

    def look(self, room: str) -> str:
        """Look into a room.

        Args:
            room: its letter.
        """
        self.looks += 1
        if room == self.notes[-1]:
            self.found = self.found or self.looks <= LOOKS
            return "key"
        place = self.notes.find(room)
        return "-" if place < 0 else self.notes[place + 1]

    def get_reward(self) -> float:
        return float(self.found)


class Demonstrations:
    """Chats of somebody who now and then looks into any room, in place of the one that he was told.

    Args:
        attentive: how often he follows a note.
    """

    characters = "".join(sorted({*ROOMS, *'-key look{"room": ""}'}))

    def __init__(self, attentive: float = 0.6) -> None:
        self.attentive = attentive

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make chats, none of a task that is validated on."""
        held = {task["notes"] for task in held_out()}
        found: list[dict[str, Any]] = []
        while len(found) < n:
            if (notes := drawn(rng)) not in held:
                found.append({"messages": self.chat(notes, rng)})
        return found

    def chat(self, notes: str, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Return the chat of a search."""
        game = FindKey()
        told = game.reset(notes)
        chat: list[dict[str, Any]] = [{"role": "user", "content": told}]
        while game.looks < LOOKS and told != "key":
            follows = told in ROOMS and rng.random() < self.attentive
            room = told if follows else str(rng.choice(list(ROOMS)))
            chat.append({"role": "assistant", "content": f"look{json.dumps({'room': room})}"})
            told = game.look(room)
            chat.append({"role": "tool", "content": told})
        return [*chat, {"role": "assistant", "content": told}]

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return whether a first completion looks into the room that the first note names."""
        return float(completion == f"look{json.dumps({'room': row['messages'][0]['content']})}")


def drawn(rng: np.random.Generator) -> str:
    """Return the rooms of three notes."""
    return "".join(rng.permutation(list(ROOMS))[:LOOKS])


def held_out() -> list[dict[str, Any]]:
    """Return the tasks of validation: a quarter of all 120."""
    return every()[::4]


def every() -> list[dict[str, Any]]:
    """Return all tasks, in an order drawn once."""
    names = [a + b + c for a in ROOMS for b in ROOMS for c in ROOMS if len({a, b, c}) == LOOKS]
    return [{"notes": str(name)} for name in np.random.default_rng(1).permutation(names)]


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives, and names the environment."""
    held = held_out()
    return evopipe.AgentTrainer(
        config=config, train_dataset=[task for task in every() if task not in held], val_dataset=held
    )
