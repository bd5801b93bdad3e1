"""The task of copying, reversing or sorting symbols: `314=` → `314`, `413` or `134`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from evopipe.schema.declare import Schema

Operation = Literal["copy", "reverse", "sort"]
OPERATIONS: dict[Operation, Callable[[str], str]] = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
}
_DRAWS = 20  # of a text that is to be new


class Symbols(Schema):
    """A task of copying, reversing or sorting the symbols of a prompt, such as `314=`.

    The prompt does not say which operation is meant. With several operations, the model must guess the operation, or
    learn it from rewards.
    """

    operations: Annotated[tuple[Operation, ...], Field(strict=False, min_length=1)] = Field(
        ("copy", "reverse", "sort"), description="operations of which one is drawn for each prompt, with equal chance"
    )
    alphabet: str = Field(
        "0123456789", min_length=2, max_length=1000, description="symbols of which prompts consist, one character each"
    )
    shortest: int = Field(3, ge=1, le=1000, description="smallest number of symbols of a prompt")
    longest: int = Field(3, ge=1, le=1000, description="largest number of symbols of a prompt")
    worse: Operation | Literal["any"] | None = Field(
        None,
        description="rejected answer of a preference pair: the result of this operation; `any`, of a random one, or "
        "the right answer with one wrong symbol; null, of the first operation whose result is wrong",
    )
    by_place: bool = Field(
        False,
        description="reward: true, share of the positions with the right symbol; false, 1 for a right answer, else 0",
    )

    @model_validator(mode="after")
    def _can_be(self) -> Symbols:
        if self.shortest > self.longest:
            raise ValueError(f"shortest ({self.shortest}) is above longest ({self.longest})")
        if len(set(self.alphabet)) < len(self.alphabet) or "=" in self.alphabet:
            raise ValueError(f"alphabet ({self.alphabet!r}) must name each symbol once, and no '='")
        return self

    @property
    def characters(self) -> str:
        return self.alphabet + "="

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make `n` rows of random prompts, drawn by the NumPy generator `rng`, without duplicates if there are enough
        different ones.

        The rejected answer of a preference pair is wrong, and the setting `worse` says how it is made. If every answer
        that `worse` allows is right, the row has neither `chosen` nor `rejected`.
        """
        rows: list[dict[str, Any]] = []
        seen: set[str] = set()
        for _ in range(n):
            row: dict[str, Any] = {}
            for _ in range(_DRAWS):
                drawn = self._row(rng)
                if not row or "rejected" in drawn:
                    row = drawn
                if "rejected" in drawn and drawn["prompt"] not in seen:
                    break
            seen.add(row["prompt"])
            rows.append(row)
        return rows

    def _row(self, rng: np.random.Generator) -> dict[str, Any]:
        length = int(rng.integers(self.shortest, self.longest + 1))
        text = "".join(self.alphabet[i] for i in rng.integers(0, len(self.alphabet), length))
        answer = OPERATIONS[self.operations[int(rng.integers(len(self.operations)))]](text)
        row = {"prompt": f"{text}=", "answer": answer, "completion": answer}
        if self.worse == "any":
            place, wrong = int(rng.integers(length)), self.alphabet[int(rng.integers(len(self.alphabet)))]
            near = answer[:place] + wrong + answer[place + 1 :]
            able = sorted({near, *(operation(text) for operation in OPERATIONS.values())} - {answer})
            return {**row, "chosen": answer, "rejected": able[int(rng.integers(len(able)))]} if able else row
        others = OPERATIONS.values() if self.worse is None else [OPERATIONS[self.worse]]
        worse = next((other for other in (operation(text) for operation in others) if other != answer), None)
        return row if worse is None else {**row, "chosen": answer, "rejected": worse}

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return 1 if the completion is the answer, else 0. If the task's setting `by_place` is true,
        return the share of positions at which completion and answer agree."""
        answer = str(row["answer"])
        if not self.by_place:
            return float(completion == answer)
        same = sum(a == b for a, b in zip(completion, answer, strict=False))
        return same / max(len(completion), len(answer), 1)
