"""Your task: write a word backwards. Change it, or write your own in its place.

`language.task` in params.yaml names it. `train.algo` says what is learned from its rows: `sft` from completions, `dpo`
from pairs, `grpo` from rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

LETTERS = "abcdefgh"


class Backwards:
    """A task in which a word is to be written backwards: the prompt `bad=` has the answer `dab`.

    Args:
        shortest: the least number of letters of a word.
        longest: the largest number of letters of a word.
    """

    def __init__(self, shortest: int = 2, longest: int = 4) -> None:
        self.shortest, self.longest = shortest, longest

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Return n rows of JSON data, each for a random word.

        All random draws are from `rng`, so that runs can be repeated.
        """
        return [self.row("".join(rng.choice(list(LETTERS), rng.integers(self.shortest, self.longest + 1))))
                for _ in range(n)]  # fmt: skip

    def row(self, word: str) -> dict[str, Any]:
        """Return the row for one word: the prompt, and what algorithms learn from.

        Algorithms that learn from rewards need `answer`. Those that imitate need `completion`. Those that learn from
        preferences need a right (`chosen`) and a wrong (`rejected`) completion.
        """
        right = word[::-1]
        wrong = word if word != right else right[1:]
        return {"prompt": f"{word}=", "answer": right, "completion": right, "chosen": right, "rejected": wrong}

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return the reward of a completion: the share of letters that are right and in the right place."""
        answer = str(row["answer"])
        right = sum(a == b for a, b in zip(answer, completion, strict=False))
        return right / max(len(answer), len(completion))
