"""A hidden digit: an environment of Gymnasium's whose observations and actions are texts, and the trainer."""

from __future__ import annotations

from math import log
from typing import Any

import gymnasium
from gymnasium import spaces

import evopipe

GUESSES = 3
DIGITS = "1234567"


class Guess(gymnasium.Env[str, str]):
    """One of seven digits is hidden. A guess is told between which two digits, themselves included, it still may be.

    A guess earns the share of the uncertainty, in bits, that it takes away, so that a game is worth 1 if the digit was
    found. Three guesses find any of them, if each halves what is left.
    """

    observation_space = spaces.Text(2, min_length=2, charset=DIGITS)
    action_space = spaces.Text(1, charset=DIGITS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.hidden, self.low, self.high, self.left = int(self.np_random.integers(1, 8)), 1, 7, GUESSES
        return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        guess, before, self.left = int(action), self.high - self.low + 1, self.left - 1
        if guess <= self.hidden:
            self.low = max(self.low, guess + (guess < self.hidden))
        if guess >= self.hidden:
            self.high = min(self.high, guess - (guess > self.hidden))
        earned = log(before / (self.high - self.low + 1)) / log(len(DIGITS))
        return self._shown(), earned, guess == self.hidden or not self.left, False, {}

    def _shown(self) -> str:
        return f"{self.low}{self.high}"


def make(config: Any) -> evopipe.AgentTrainer:
    """Make the trainer; `config` is what the command line gives, and names the environment. Tasks are seeds, and those
    of validation nobody trained on."""
    return evopipe.AgentTrainer(config=config)
