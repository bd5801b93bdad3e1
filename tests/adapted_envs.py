"""Environments as other libraries have them authored, for tests of the adapters."""

from __future__ import annotations

import os
import string
import time
from typing import Any

import gymnasium
from gymnasium import spaces


class Doors:
    """In TRL's form: one of ten doors opens."""

    def reset(self, door: int, **row: Any) -> str:
        self.door, self.tried = door, 0
        return f" {row['prompt']}?" if "prompt" in row else "which?"

    def open(self, number: int, push: bool = False) -> str:
        """Open a door.

        Args:
            number: which, from 0 to 9.
            push: whether to push.
        """
        self.tried += 1
        return "open" if number == self.door else f"{'pushed, ' * push}closed"

    async def knock(self) -> dict[str, int]:
        """Knock, and count the answers."""
        return {"answers": self.door}

    def break_in(self) -> str:
        """Break in, which fails."""
        raise RuntimeError("the alarm rings")

    def leave(self) -> str:
        """Leave for good."""
        os._exit(3)

    def get_reward(self) -> float:
        return 1.0 / self.tried if self.tried else 0.0


class Leaves(Doors):
    """Behind the first door it ends its process, behind the second it raises, and a third hangs."""

    def reset(self, door: int, **row: Any) -> str:
        if door == 0:
            self.leave()
        if door == 1:
            raise KeyError("no door")
        if door == 2:
            time.sleep(30)
        return super().reset(door, **row)


class Apart(Leaves):
    """The same in a process of its own."""

    blocking = "process"


class Owned:
    """In TRL's form, with an attribute in the place of `get_reward`."""

    reward = 0.0

    def reset(self, **row: Any) -> None:
        self.reward = 0.0

    def win(self) -> None:
        """Win."""
        self.reward = 2.5


class Undocumented:
    """In TRL's form, but a tool without a docstring."""

    def reset(self, **row: Any) -> None: ...

    def go(self, where: str) -> str:
        return where


class Raw:
    def reset(self, **row: Any) -> None: ...

    def read(self) -> bytes:
        """Read."""
        return "grün".encode() + b"\xff"


class Unnamed:
    def reset(self, **row: Any) -> None: ...

    def go(self, *steps: int) -> str:
        """Go.

        Args:
            steps: how far.
        """
        return str(steps)


class Untyped:
    def reset(self, **row: Any) -> None: ...

    def go(self, where) -> str:  # type: ignore[no-untyped-def]
        """Go.

        Args:
            where: to.
        """
        return str(where)


class Digits(gymnasium.Env[str, str]):
    """Say the digit that is shown, three times."""

    observation_space = spaces.Text(8, charset=string.digits)
    action_space = spaces.Text(2, charset=string.digits)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.digit = (options or {}).get("turns", 3), str(self.np_random.integers(10))
        return self.digit, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        earned, self.left = float(action == self.digit), self.left - 1
        self.digit = str(self.np_random.integers(10))
        return self.digit, earned, self.left == 0, False, {}


class Choices(Digits):
    """The same by a number, with a mapping as the observation."""

    observation_space = spaces.Dict({"digit": spaces.Text(1), "left": spaces.Discrete(4)})  # type: ignore[assignment]
    action_space = spaces.Discrete(10)  # type: ignore[assignment]

    def reset(self, **how: Any) -> Any:
        digit, info = super().reset(**how)
        return {"digit": digit, "left": self.left}, info

    def step(self, action: Any) -> Any:
        digit, *rest = super().step(str(action))
        return {"digit": digit, "left": self.left}, *rest


class Boxes(Digits):
    observation_space = spaces.Box(0, 1, (2,))  # type: ignore[assignment]


class Broken(Digits):
    """It exits or raises at its first step."""

    action_space = spaces.Text(4, min_length=0, charset=string.digits)

    def step(self, action: str) -> Any:
        if self.digit < "5":
            os._exit(7)
        raise KeyError("lost")
