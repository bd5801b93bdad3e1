"""Datasets for language models: questions with a reward function, and pairs of completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evopipe.compat.agilerl.breed import one_process
from evopipe.errors import DataError, EnvironmentFailed, UsageError
from evopipe.language.data import check_rows
from evopipe.language.tasks import rewards
from evopipe.schema.language import Form

_SECONDS = 60.0  # longest that a completion's reward may take


class ReasoningGym:
    """A dataset of questions with answers, together with a function that rewards a language model's completions.

    All agents of a run get the same questions in the same order. Each pass over the questions has a new order.

    Args:
        train_dataset: rows to learn from, a Hugging Face dataset or mappings, each with `question` and `answer`.
        test_dataset: rows of the same kind, which score agents while they train.
        tokenizer: the model's tokenizer, of `transformers`.
        reward_fn: a function (completion, answer, question) that returns a number. If it raises an exception, the
            reward is 0.
        conversation_template: messages (`role`, `content`) in which `{question}` and `{answer}` are filled in. If the
            last message is the assistant's, the model continues it. None makes the question itself the prompt, without
            a chat template.
        data_batch_size_per_gpu: the number of questions in a step.
        accelerator: has no effect, but one with several processes is refused.
        return_raw_completions: must be False; `reward_fn` gets text without special tokens.
        max_context_length: the most tokens of a prompt; longer prompts are left out. None for no limit.
        seed: seed of the order of the rows.

    Raises:
        DataError: a dataset is empty, or a row lacks a field.
        UsageError: an argument cannot be used.

    Examples:
        >>> from evopipe import ReasoningGym
        >>> from evopipe.language.base import tiny_tokenizer
        >>> rows = [{"question": f"{n}=", "answer": str(n)} for n in range(10)]
        >>> reward = lambda completion, answer, question: float(completion == answer)
        >>> env = ReasoningGym(rows[:8], rows[8:], tiny_tokenizer("0123456789="), reward, data_batch_size_per_gpu=4)
        >>> len(env), env.data_batch_size
        (8, 4)
    """

    form: Form = "reasoning"

    def __init__(
        self, train_dataset: Iterable[Mapping[str, Any]], test_dataset: Iterable[Mapping[str, Any]], tokenizer: Any,
        reward_fn: Callable[[str, Any, Any], float], conversation_template: Sequence[Mapping[str, str]] | None = None,
        data_batch_size_per_gpu: int = 8, accelerator: Any = None, return_raw_completions: bool = False,
        max_context_length: int | None = None, seed: int = 42,
    ) -> None:  # fmt: skip
        one_process(accelerator)
        if return_raw_completions:
            raise UsageError("return_raw_completions: reward_fn sees text without special tokens: leave it out")
        if not callable(reward_fn):
            raise UsageError("reward_fn: give a function of (completion, answer, question)")
        self.tokenizer, self.reward_fn, self.template = tokenizer, reward_fn, conversation_template
        self.data_batch_size, self.max_context_length, self.seed = data_batch_size_per_gpu, max_context_length, seed
        self.train = _read(train_dataset, "train_dataset", self.form, self._row, ("question", "answer"))
        self.test = _read(test_dataset, "test_dataset", self.form, self._row, ("question", "answer"))
        self._proven = False

    def __len__(self) -> int:
        return len(self.train)

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        prompt: Any = str(row["question"])
        if self.template is not None:
            question, answer = str(row["question"]), str(row["answer"])
            prompt = [
                {**each, "content": each["content"].replace("{question}", question).replace("{answer}", answer)}
                for each in self.template
            ]
            if prompt[-1]["role"] == "assistant" and not prompt[-1]["content"]:
                prompt.pop()
        return {**row, "prompt": prompt}

    def judge(self, rows: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> tuple[np.ndarray, int]:
        """Return the rewards of completions, `[n]`, and the number of completions for which `reward_fn` failed; the
        reward of these is 0.

        `rows` has the dataset's row of each completion.

        Raises:
            EnvironmentFailed: `reward_fn` failed for all completions, and every earlier call of this method (if any)
                raised this error too.
        """

        def score(row: Mapping[str, Any], completion: str) -> float:
            return self.reward_fn(completion, row["answer"], row["question"])

        found = rewards(score, rows, completions, _SECONDS)
        if not self._proven and found.failed == len(completions):
            raise EnvironmentFailed(
                f"reward_fn: it rewards nothing: it {found.why}; it takes completion, answer, question"
            )
        self._proven = True
        return found.values, found.failed


class PreferenceGym:
    """A dataset of prompts with two completions each, of which one is preferred.

    All agents of a run get the same rows in the same order. Each pass over the rows has a new order.

    Args:
        train_dataset: rows to learn from, a Hugging Face dataset or mappings, each with `prompt`, `chosen` and
            `rejected`. A prompt is a text, or a list of messages (`role`, `content`).
        test_dataset: rows of the same kind, which score agents while they train.
        tokenizer: the model's tokenizer, of `transformers`.
        data_batch_size_per_gpu: the number of pairs in a step.
        accelerator: has no effect, but one with several processes is refused.
        max_context_length: the most tokens of a prompt, and of a completion; longer rows are left out. None for no
            limit.
        seed: seed of the order of the rows.

    Raises:
        DataError: a dataset is empty, or a row lacks a field.
        UsageError: an argument cannot be used.

    Examples:
        >>> from evopipe import PreferenceGym
        >>> from evopipe.language.base import tiny_tokenizer
        >>> rows = [{"prompt": f"{n}=", "chosen": str(n), "rejected": "0"} for n in range(1, 10)]
        >>> len(PreferenceGym(rows[:6], rows[6:], tiny_tokenizer("0123456789=")))
        6
    """

    form: Form = "preference"

    def __init__(
        self, train_dataset: Iterable[Mapping[str, Any]], test_dataset: Iterable[Mapping[str, Any]], tokenizer: Any,
        data_batch_size_per_gpu: int = 8, accelerator: Any = None, max_context_length: int | None = None,
        seed: int = 42,
    ) -> None:  # fmt: skip
        one_process(accelerator)
        self.tokenizer, self.data_batch_size = tokenizer, data_batch_size_per_gpu
        self.max_context_length, self.seed = max_context_length, seed
        self.train = _read(train_dataset, "train_dataset", self.form, dict)
        self.test = _read(test_dataset, "test_dataset", self.form, dict)

    def __len__(self) -> int:
        return len(self.train)


def _read(
    dataset: Iterable[Any], name: str, form: Form, row: Callable[[Any], dict[str, Any]], fields: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return a dataset's rows as those of `language.data`, made of these fields."""
    found = list(dataset)
    for number, each in enumerate(found, start=1):
        for field in fields if isinstance(each, Mapping) else ():
            if field not in each:
                raise DataError(f"{name}: row {number}: has no field {field!r} (it has {', '.join(each)}): add it")
    rows = [row(each) if isinstance(each, Mapping) else each for each in found]
    check_rows(rows, form, name)
    return rows
