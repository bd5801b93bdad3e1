"""Ready-made text environments, small enough for a CPU."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np

from evopipe.agents.environment import BaseEnv, MultiTurnEnvironment, ToolEnvironment
from evopipe.agents.types import RewardOutput
from evopipe.language.tasks.words import Vocabulary, WordGames, read_words


class CopyGame(MultiTurnEnvironment):
    """A game in which the agent copies the digit that it sees. A task is `{"digits": "472"}`; each turn shows one
    digit, and a correct copy has the reward 1."""

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
        draws = np.random.default_rng(seed).integers(len(alphabet), size=(n, turns))
        return [{"digits": "".join(alphabet[i] for i in row)} for row in draws]


_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.USub: operator.neg,
}  # fmt: skip
_CALCULABLE = re.compile(r"[0-9+*/() -]+")


def _calculate(text: Any) -> int:
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
    if not _CALCULABLE.fullmatch(str(text)):  # Python would warn of "2or"
        raise ValueError("only whole numbers with + - * //")
    try:
        return value(ast.parse(str(text), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"cannot be calculated ({type(error).__name__})") from None


class Calculator(ToolEnvironment):
    """Arithmetic questions with a calculator as a tool. A task is `{"question": "12*34", "answer": "408"}`; the right
    answer has the reward 1.

    If `tool` is False, there is no calculator: a call of it returns an error message, and the agent must calculate by
    itself.
    """

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any], max_turns: int = 2, tool: bool = True) -> None:
        super().__init__(task, {"calculator": _calculate} if tool else {}, self.score, max_turns)

    @staticmethod
    def score(task_info: dict[str, Any], action: str) -> RewardOutput:
        right = action.strip() == str(task_info["answer"])
        return RewardOutput(float(right), is_correct=right)

    @staticmethod
    def tasks(
        n: int, seed: int = 0, smallest: int = 1, largest: int = 99, operators: str = "*"
    ) -> list[dict[str, Any]]:
        """Return `n` random tasks, drawn with `seed`, each with one operator from `operators` between two whole numbers
        from `smallest` to `largest`."""
        chance = np.random.default_rng(seed)
        draws = chance.integers(smallest, largest + 1, size=(n, 2)).tolist()
        signs = chance.integers(len(operators), size=n).tolist()
        questions = [f"{a}{operators[sign]}{b}" for (a, b), sign in zip(draws, signs, strict=True)]
        return [{"question": question, "answer": str(_calculate(question))} for question in questions]


class FrozenLake(BaseEnv):
    """The frozen lake as text: `S` start, `F` ice, `H` hole, `G` goal, `P` the player. Actions are up, down, left and
    right.

    A task is `{"map": ["SFFF", …], "seed": 7}`; the default map is 4 × 4, the default seed 0. The reward is 1 for
    reaching the goal, else 0. The episode ends at the goal or in a hole.

    Args:
        task: the map, and the seed of the random slips.
        slip: probability that a step goes to one of the two sides instead, each equally likely.
        max_turns: number of steps after which the episode ends; None for no limit.
    """

    blocking: ClassVar[bool] = False
    MOVES: ClassVar[dict[str, tuple[int, int]]] = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
    MAP: ClassVar[list[str]] = ["SFFF", "FHFH", "FFFH", "HFFG"]

    def __init__(self, task: dict[str, Any] | None = None, slip: float = 0.0, max_turns: int | None = None) -> None:
        given = task or {}
        self.map, self.slip, self.max_turns = list(given.get("map", self.MAP)), slip, max_turns
        self.seed = int(given.get("seed", 0))
        self.place, self.turn = self._start(), 0

    def _start(self) -> tuple[int, int]:
        return next((r, row.index("S")) for r, row in enumerate(self.map) if "S" in row)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.place, self.turn = self._start(), 0
        self.chance = np.random.default_rng(self.seed)
        return self.shown(), {}

    def shown(self) -> str:
        rows = [list(row) for row in self.map]
        rows[self.place[0]][self.place[1]] = "P"
        return "\n".join("".join(row) for row in rows)

    def moved(self, place: tuple[int, int], move: tuple[int, int]) -> tuple[int, int]:
        """Return the place (row, column) to which a move (rows down, columns right) leads without a slip. A move off
        the lake returns `place` unchanged."""
        r, c = place[0] + move[0], place[1] + move[1]
        return (r, c) if 0 <= r < len(self.map) and 0 <= c < len(self.map[0]) else place

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        self.turn += 1
        move, slipped = self.MOVES.get(str(action).strip().lower()[:1]), self.chance.random()
        over = self.max_turns is not None and self.turn >= self.max_turns
        if move is None:
            return self.shown(), 0.0, over, {"legal": False}
        if slipped < self.slip:
            side = 1 if slipped < self.slip / 2 else -1
            move = (side * move[1], side * move[0])
        self.place = self.moved(self.place, move)
        here = self.map[self.place[0]][self.place[1]]
        return self.shown(), float(here == "G"), over or here in "GH", {"legal": True}


class WordGame(MultiTurnEnvironment):
    """The game Wordle. An action is a word, the guess. The observation is the colours of the guess, one for each of its
    letters: `g` for the right place, `y` for another place, `b` for a letter that the secret word lacks.

    A task is `{"seed": 7}`; the secret word is drawn with this seed (see `evopipe.language.tasks.words`). Each wrong
    guess has the reward −1, the right guess 0. A guess that is not in the vocabulary counts as a turn too, but the
    observation is then `not a word`.

    Args:
        task: a mapping with the `seed`.
        words: the vocabulary: `tiny`, `five`, a file or a list, as `evopipe.language.tasks.words.read_words` takes it.
        max_turns: the number of guesses after which the episode ends.
    """

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any] | None = None, words: str | list[str] = "tiny", max_turns: int = 5) -> None:
        super().__init__(task, max_turns)
        self.vocabulary = _vocabulary(words if isinstance(words, str) else tuple(words))
        self.reset()

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        self.games, self.rng = WordGames(self.vocabulary, 1), np.random.default_rng(self.task.get("seed"))
        return "?" * self.vocabulary.length, {}

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, Any]:
        guess = np.array([self.vocabulary.place(str(action).strip().lower())])
        code = int(self.games.guess(guess, self.rng.random(1))[0])
        self.done = bool(self.games.over[0])
        return float(self.done) - 1.0, self.vocabulary.colours(code) or "not a word"

    @staticmethod
    def tasks(n: int, seed: int = 0) -> list[dict[str, Any]]:
        return [{"seed": int(x)} for x in np.random.default_rng(seed).integers(1 << 31, size=n)]


@cache
def _vocabulary(words: str | tuple[str, ...]) -> Vocabulary:
    return Vocabulary(read_words(words))


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
    """A game in which the agent finds a secret thing by yes-no questions. A task is `{"secret": "bee"}`.

    A text with a question mark is a question: the answer says whether the first known property in it is true of the
    secret. Any other text is a guess; the right guess has the reward 1 and ends the episode.

    Args:
        task: the secret, one of `things`.
        max_turns: number of questions and guesses after which the episode ends.
        things: a mapping from a thing to its properties, words with spaces between; None for the ready-made things,
            such as `bee`.
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
        names = list(THINGS)
        return [{"secret": names[i]} for i in np.random.default_rng(seed).integers(len(names), size=n)]
