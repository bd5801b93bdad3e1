"""Sums, differences and products: `12+7=` → `19`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from evopipe.schema.declare import Schema

_NUMBER = re.compile(r"-?\d+")
_DRAWS = 20  # of an expression that is to be new


class Arithmetic(Schema):
    """A task of calculating with integers, such as `12+7=` → `19`; products come before sums. The last number in a
    completion is its answer."""

    operations: Annotated[tuple[Literal["+", "-", "*"], ...], Field(strict=False, min_length=1)] = Field(
        ("+",), description="operators that are drawn, with equal chance, to stand between two numbers"
    )
    digits: int = Field(
        1, ge=1, le=9, description="largest number of digits of a number; numbers are drawn from 0 to 10^digits − 1"
    )
    terms: int = Field(2, ge=2, le=8, description="count of numbers in an expression, such as 2 in `12+7`")
    question: str = Field(
        "{expression}=", description="text of the prompt; `{expression}` is replaced by the expression"
    )

    @field_validator("question")
    @classmethod
    def _asks(cls, question: str) -> str:
        if "{expression}" not in question:
            raise ValueError(f"question ({question!r}) must hold '{{expression}}'")
        return question

    @property
    def characters(self) -> str:
        return "".join(dict.fromkeys("0123456789-" + "".join(self.operations) + self._ask("")))

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        """Make `n` rows of random expressions, drawn by the NumPy generator `rng`, without duplicates if there are
        enough different ones. The `rejected` answer of a row differs from the right one by 1 to 9."""
        rows: list[dict[str, Any]] = []
        seen: set[str] = set()
        for _ in range(n):
            text, value = "", 0
            for _ in range(_DRAWS):
                text, value = self._expression(rng)
                if text not in seen:
                    break
            seen.add(text)
            wrong = value + int(rng.integers(1, 10)) * (1 if rng.random() < 0.5 else -1)
            answer = str(value)
            row = {"prompt": self._ask(text), "answer": answer, "completion": answer}
            rows.append({**row, "chosen": answer, "rejected": str(wrong)})
        return rows

    def _ask(self, expression: str) -> str:
        return self.question.replace("{expression}", expression)

    def _expression(self, rng: np.random.Generator) -> tuple[str, int]:
        numbers = [int(x) for x in rng.integers(0, 10**self.digits, self.terms)]
        joins = [self.operations[i] for i in rng.integers(0, len(self.operations), self.terms - 1)]
        sums = [numbers[0]]  # a product joins the last of them
        for join, number in zip(joins, numbers[1:], strict=True):
            if join == "*":
                sums[-1] *= number
            else:
                sums.append(number if join == "+" else -number)
        return "".join([str(numbers[0]), *(f"{j}{x}" for j, x in zip(joins, numbers[1:], strict=True))]), sum(sums)

    def score(self, row: Mapping[str, Any], completion: str) -> float:
        """Return 1 if the last number in the completion is the row's answer, else 0."""
        found = _NUMBER.findall(completion)
        return float(bool(found) and found[-1] == str(row["answer"]))
