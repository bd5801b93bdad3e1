"""Held-out rows: who is selected by which, what is reported of which, and those that were learned from, too.

Rewards and lengths name the rows, so that an exchange of two splits changes the numbers that are reported.
"""

from __future__ import annotations

import json
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

import words
from evopipe import layout
from evopipe.errors import DataError
from evopipe.language.tokens import Corpus, read_corpus, seen, tokenise
from evopipe.ops.statistics import pass_at, passes, wilson_interval
from evopipe.params.text import LanguageParams
from evopipe.schema.language import TextFetch
from evopipe.storage.files import read_json


def worth(completion: str, row: dict[str, Any]) -> float:
    """A reward that says of which row it is, whatever was written."""
    return int(row["answer"]) / 100


ROLES = ("user", "assistant")
ROWS = [{"prompt": f"{i}=", "answer": str(i), "completion": "7" * i} for i in range(40)]


def ran(folder: Path, algo: str) -> tuple[Corpus, dict[str, Any], list[dict[str, Any]]]:
    """Run a pipeline on rows that name themselves; return its rows, its evaluation and its lineage."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    block = {"rows": 8, "group_size": 4, "batch_size": 8} if algo == "grpo" else {"batch_size": 8}
    params = LanguageParams.model_validate({
        "seed": 5,
        "language": {
            "tiny": {"characters": "0123456789=", "hidden": 16, "layers": 1, "heads": 2}, "rank": 2, "max_prompt": 8,
            "max_completion": 2 if algo == "grpo" else 48, "reward": f"{__name__}:worth" if algo == "grpo" else None,
        },
        "fetch": {"source": "jsonl", "jsonl": {"path": str(folder / "rows.jsonl")}, "validation": 0.2, "test": 0.3},
        "population": {"size": 2},
        "train": {"algo": algo, "max_steps": 2, "evo_steps": 1, "eval_episodes": 64, "confirm_episodes": 64},
        "evaluate": {"episodes": 64, "bootstrap": 100},
        "runtime": {"device": "cpu"},
        "algos": {algo: {**block, "evolve": {}}},
    })  # fmt: skip
    for name in ("fetch", "buffer", "population", "train", "evaluate"):
        import_module(f"evopipe.stages.{name}").run(params, quiet=True, folder=folder)
    lineage = [json.loads(line) for line in (folder / layout.LINEAGE).read_text().splitlines()]
    return read_corpus(folder / layout.TOKENS), read_json(folder / layout.EVALUATION), lineage


def numbers(corpus: Corpus, split: str) -> list[int]:
    return [int(corpus.rows[i]["answer"]) for i in corpus.splits[split].tolist()]


def test_members_are_selected_on_validation_rows_and_reported_on_test_rows(tmp_path: Path) -> None:
    corpus, found, lineage = ran(tmp_path, "grpo")
    chosen, told = (float(np.mean(numbers(corpus, split))) / 100 for split in ("validation", "test"))
    assert abs(chosen - told) > 0.01
    for record in lineage:
        for member in record["members"]:
            assert member["fitness"] == pytest.approx(chosen)
    assert found["elite"]["mean"] == found["base"]["mean"] == pytest.approx(told)
    assert found["episodes"] == 12


def test_rows_of_text_are_reported_on_test_rows_too(tmp_path: Path) -> None:
    corpus, found, _ = ran(tmp_path, "sft")
    lengths = {split: float(np.mean(numbers(corpus, split))) + 1 for split in ("train", "validation", "test")}
    assert len({round(x, 2) for x in lengths.values()}) == 3
    assert found["elite"]["mean_length"] == pytest.approx(lengths["test"])


# --- rows that are learned from, too ----------------------------------------------------------------------------------


def made(rows: list[dict[str, Any]], overlap: Any) -> Corpus:
    return tokenise(rows, "reasoning", words.base(), words.config(), TextFetch(overlap=overlap), 1)


def test_held_out_rows_whose_prompt_is_learned_from_are_counted_left_out_or_an_error() -> None:
    rows = [{"prompt": f"{i % 30}=", "answer": str(i)} for i in range(40)]  # ten prompts twice, with other answers
    kept = made(rows, "keep")
    both = seen(kept.rows, kept.splits)
    learned = {rows[i]["prompt"] for i in kept.splits["train"].tolist()}
    for name, index in both.items():
        assert index.tolist() == [i for i in kept.splits[name].tolist() if rows[i]["prompt"] in learned]
    count = sum(map(len, both.values()))
    assert 0 < count < 8
    apart = made(rows, "leave_out")
    assert apart.splits["train"].tolist() == kept.splits["train"].tolist()
    for name in ("validation", "test"):
        assert sorted([*apart.splits[name], *both[name]]) == kept.splits[name].tolist()
        assert not len(seen(apart.rows, apart.splits)[name])
    first = next(index for index in both.values() if len(index))[0]
    with pytest.raises(DataError, match=rf"{count} held-out rows have a prompt that is learned from .*row {first}: "):
        made(rows, "error")
    assert made(rows[:30], "error").splits.keys() == kept.splits.keys()


def test_a_split_of_which_nothing_is_left_is_said() -> None:
    rows = [{"prompt": f"{i % 2}=", "answer": str(i)} for i in range(40)]
    with pytest.raises(DataError, match="every validation row has a prompt that is learned from, and nothing is left"):
        made(rows, "leave_out")


# --- pass@k -----------------------------------------------------------------------------------------------------------


def test_pass_at_k_is_the_share_of_all_choices_of_k_answers_with_a_right_one() -> None:
    right = np.random.default_rng(2).random((5, 6)) < np.array([[0.0], [0.2], [0.5], [0.8], [1.0]])
    for k in range(1, 7):
        choices = list(combinations(range(6), k))
        expected = [np.mean([task[list(choice)].any() for choice in choices]) for task in right]
        assert pass_at(right, k).tolist() == pytest.approx(expected)


def test_pass_at_k_of_few_answers_has_no_bias() -> None:
    """Of answers that are right with a chance of .3, one of three is with a chance of 1 − .7³."""
    right = np.random.default_rng(1).random((40_000, 8)) < 0.3
    assert float(pass_at(right, 3).mean()) == pytest.approx(1 - 0.7**3, abs=0.005)


def test_intervals_are_wilsons_and_cover_what_they_should() -> None:
    assert wilson_interval(0.0, 10) == pytest.approx([0.0, 0.27754], abs=1e-5)
    assert wilson_interval(0.5, 20) == pytest.approx([0.29930, 0.70070], abs=1e-5)
    assert wilson_interval(1.0, 10) == pytest.approx([0.72246, 1.0], abs=1e-5)
    g = np.random.default_rng(3)
    for chance in (0.02, 0.5, 0.9):
        inside = 0
        for _ in range(400):
            told = passes(g.random((60, 4)) < chance)
            ends = told["pass@2_interval"]
            inside += ends[0] <= 1 - (1 - chance) ** 2 <= ends[1]
        assert inside >= 0.93 * 400
    assert list(told) == [f"pass@{k}{end}" for k in (1, 2, 4) for end in ("", "_interval")]
    assert list(passes(np.ones((3, 3), dtype=bool)))[::2] == ["pass@1", "pass@2", "pass@3"]


def test_a_chat_is_known_by_its_questions_whatever_was_answered() -> None:
    """Another answer to what members learned an answer to is no new row."""

    def chat(*said: str) -> dict[str, Any]:
        return {"messages": [{"role": ROLES[i % 2], "content": text} for i, text in enumerate(said)]}

    rows = [chat("1", "a", "2", "b"), chat("1", "c", "2", "d"), chat("1", "a", "3", "b"), {"prompt": "1"}]
    splits = {"train": np.array([0]), "validation": np.array([1, 2]), "test": np.array([3])}
    assert {name: index.tolist() for name, index in seen(rows, splits).items()} == {"validation": [1], "test": []}
