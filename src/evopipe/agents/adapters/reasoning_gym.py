"""The tasks of the package `reasoning-gym` as environments of one turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evopipe.agents.adapters import AdaptedEnvironment
from evopipe.agents.adapters.text_spaces import seeds
from evopipe.agents.environment import SingleTurnEnvironment
from evopipe.errors import ParamsError, need_package, suggestion
from evopipe.language.tasks.gym import GymTask


class ReasoningQuestion(SingleTurnEnvironment):
    """A question from a generator of the package reasoning-gym, which also scores the answer. A task is `{"seed": 7}`.

    Args:
        generator: the generator's name, for example `chain_sum`.
        generator_args: settings of the generator.
        tag: the name of a tag. Only the text between `<tag>` and `</tag>` is scored; with None, the whole answer.
        task: a mapping with the `seed` of the question; without it the seed is 0.
    """

    def __init__(
        self, generator: str, generator_args: Mapping[str, Any] | None = None, tag: str | None = None,
        task: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        questions = GymTask(dataset=generator, config=dict(generator_args or {}), tag=tag)
        self.row = questions.question(int((task or {}).get("seed", 0)))
        super().__init__(task, lambda _, answer: questions.score(self.row, answer))

    def reset(self) -> tuple[Any, dict[str, Any]]:
        super().reset()
        return self.row["prompt"], {}


def adapted(generator: str, key: str) -> AdaptedEnvironment:
    """Return the adapter of a reasoning-gym generator, by its name.

    `key` is the parameter or argument that error messages name.

    Raises:
        ParamsError: reasoning-gym has no generator of this name.
        MissingInputError: reasoning-gym is not installed.
    """
    need_package("reasoning_gym", "reasoning", key)
    from reasoning_gym.factory import DATASETS

    if generator not in DATASETS:
        raise ParamsError(f"{key}: reasoning-gym has no generator {generator!r}{suggestion(generator, DATASETS)}")
    return AdaptedEnvironment(ReasoningQuestion, {"generator": generator}, tasks=seeds)
