"""Ready environments of text, small enough for a CPU."""

from __future__ import annotations

import ast
import operator
from functools import cache
from typing import Any, ClassVar

import numpy as np

from evopipe.agents.environment import BaseEnv, MultiTurnEnvironment, ToolEnvironment
from evopipe.agents.types import RewardOutput
from evopipe.language.tasks.words import Games, Vocabulary, read_words


class CopyGame(MultiTurnEnvironment):
    """Say the digit that was just shown: a task is `{"digits": "472"}`, a turn a digit, each worth 1."""

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task, max_turns=len(task["digits"]))

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        return self.task["digits"][0], {}

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        digits, turn = task["digits"], self.current_turn
        return float(str(action) == digits[turn]), digits[turn + 1] if turn + 1 < len(digits) else ""

    @staticmethod
    def tasks(n: int, seed: int = 0, turns: int = 3, alphabet: str = "0123456789") -> list[dict[str, Any]]:
        """Return so many tasks."""
        draws = np.random.default_rng(seed).integers(len(alphabet), size=(n, turns))
        return [{"digits": "".join(alphabet[i] for i in row)} for row in draws]


_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.USub: operator.neg,
}  # fmt: skip


def calculate(text: Any) -> int:
    """Return the value of whole numbers with + − * //; ValueError where it is anything else."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**12:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return int(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return int(_OPERATORS[type(node.op)](value(node.operand)))
        raise ValueError("only whole numbers with + - * //")

    if len(str(text)) > 200:
        raise ValueError("too long")
    try:
        return value(ast.parse(str(text), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"cannot be calculated ({type(error).__name__})") from None


class Calculator(ToolEnvironment):
    """Arithmetic with a calculator: a task is `{"question": "12*34", "answer": "408"}`.

    With `tool` false the calculator does not answer: the same task without it.
    """

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any], max_turns: int = 2, tool: bool = True) -> None:
        super().__init__(task, {"calculator": calculate} if tool else {}, self.score, max_turns)

    @staticmethod
    def score(task_info: dict[str, Any], action: str) -> RewardOutput:
        right = action.strip() == str(task_info["answer"])
        return RewardOutput(float(right), is_correct=right)

    @staticmethod
    def tasks(n: int, seed: int = 0, largest: int = 99) -> list[dict[str, Any]]:
        draws = np.random.default_rng(seed).integers(1, largest + 1, size=(n, 2)).tolist()
        return [{"question": f"{a}*{b}", "answer": str(a * b)} for a, b in draws]


class FrozenLake(BaseEnv):
    """A lake as text: `S` start, `F` ice, `H` hole, `G` goal, `P` where one is; actions are up, down, left, right.

    A task is `{"map": ["SFFF", …]}`; the goal is worth 1. The ice is not slippery.
    """

    blocking: ClassVar[bool] = False
    MOVES: ClassVar[dict[str, tuple[int, int]]] = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
    MAP: ClassVar[list[str]] = ["SFFF", "FHFH", "FFFH", "HFFG"]

    def __init__(self, task: dict[str, Any] | None = None) -> None:
        self.map = list((task or {}).get("map", self.MAP))
        self.place = self._start()

    def _start(self) -> tuple[int, int]:
        return next((r, row.index("S")) for r, row in enumerate(self.map) if "S" in row)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.place = self._start()
        return self.shown(), {}

    def shown(self) -> str:
        rows = [list(row) for row in self.map]
        rows[self.place[0]][self.place[1]] = "P"
        return "\n".join("".join(row) for row in rows)

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        move = self.MOVES.get(str(action).strip().lower()[:1])
        if move is None:
            return self.shown(), 0.0, False, {"legal": False}
        r, c = self.place[0] + move[0], self.place[1] + move[1]
        if 0 <= r < len(self.map) and 0 <= c < len(self.map[0]):
            self.place = (r, c)
        here = self.map[self.place[0]][self.place[1]]
        return self.shown(), float(here == "G"), here in "GH", {"legal": True}


class WordGame(MultiTurnEnvironment):
    """Wordle: an action is a word, what is seen is its colours (`g` in its place, `y` elsewhere, `b` nowhere).

    A task is `{"seed": 7}`, which draws the words (see `evopipe.language.tasks.words`). A guess earns −1, the right one
    0; what is no word of the vocabulary gets no colours, and counts.
    """

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any] | None = None, words: str | list[str] = "tiny", max_turns: int = 5) -> None:
        super().__init__(task, max_turns)
        self.vocabulary = _vocabulary(words if isinstance(words, str) else tuple(words))
        self.reset()

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        self.games, self.rng = Games(self.vocabulary, 1), np.random.default_rng(self.task.get("seed"))
        return "?" * self.vocabulary.length, {}

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        guess = np.array([self.vocabulary.place(str(action).strip().lower())])
        code = int(self.games.guess(guess, self.rng.random(1))[0])
        self.done = bool(self.games.over[0])
        return float(self.done) - 1.0, self.vocabulary.colours(code) or "not a word"

    @staticmethod
    def tasks(n: int, seed: int = 0) -> list[dict[str, Any]]:
        """Return so many tasks."""
        return [{"seed": int(x)} for x in np.random.default_rng(seed).integers(1 << 31, size=n)]


@cache
def _vocabulary(words: str | tuple[str, ...]) -> Vocabulary:
    return Vocabulary(read_words(words))
