"""The tasks of the package `reasoning-gym`: a hundred generators of questions, each with its own score."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from evopipe.errors import need_package, suggestion
from evopipe.schema.declare import Schema


class GymTask(Schema):
    """A task of questions from one generator of the package reasoning-gym.

    To score an answer, the generator needs the question as it made it, which a row cannot hold as JSON data. A row
    therefore has the generator's `seed` and `size` and the question's `index`, from which the question is made again.
    """

    dataset: str = Field(description="name of the reasoning-gym generator, for example `chain_sum`")
    config: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the generator")
    tag: str | None = Field(
        None,
        pattern=r"\w+",
        description="name of a tag: only the text between `<tag>` and `</tag>` is scored; null: the whole completion "
        "is",
    )
    _made: dict[tuple[int, int], Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _can_be(self) -> GymTask:
        need_package("reasoning_gym", "reasoning", "language.task: reasoning-gym")
        from reasoning_gym.factory import DATASETS

        if self.dataset not in DATASETS:
            raise ValueError(
                f"dataset: reasoning-gym has no generator {self.dataset!r}{suggestion(self.dataset, DATASETS)}"
            )
        try:
            self._questions(0, 1)
        except Exception as error:
            raise ValueError(f"config: {self.dataset!r} does not take {self.config}: {error}") from None
        return self

    def _questions(self, seed: int, size: int) -> Any:
        import reasoning_gym

        if (seed, size) not in self._made:
            self._made[seed, size] = reasoning_gym.create_dataset(self.dataset, seed=seed, size=size, **self.config)
        return self._made[seed, size]

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make `n` rows of questions, drawn by the NumPy generator `rng`.

        If a question has no single answer, the row's `answer` is empty, and the row has no `completion`.
        """
        seed = int(rng.integers(2**31))
        made = self._questions(seed, n)
        return [_row(each, seed, n, index) for index, each in zip(range(n), made, strict=False)]

    def question(self, seed: int) -> dict[str, Any]:
        """Return the row of the question that the generator makes from a seed."""
        return _row(self._questions(seed, 1)[0], seed, 1, 0)

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return the generator's score of the completion, from 0 to 1; 0 if the completion lacks the `tag`.

        Raises:
            ValueError: the installed version of reasoning-gym makes another question from this row.
        """
        questions = self._questions(row["seed"], row["size"])
        made = questions[row["index"]]
        if made["question"] != row["prompt"]:
            raise ValueError("this version of reasoning-gym makes another question of the row; run `fetch` again")
        if self.tag is not None:
            found = re.findall(f"<{self.tag}>(.*?)</{self.tag}>", completion, re.DOTALL)
            if not found:
                return 0.0
            completion = found[-1]
        return float(questions.score_answer(completion.strip(), made))


def _row(made: Mapping[str, Any], seed: int, size: int, index: int) -> dict[str, Any]:
    answer = made["answer"]
    row = {"prompt": made["question"], "answer": answer or "", "seed": seed, "size": size, "index": index}
    return row if answer is None else {**row, "completion": answer}
