"""What language models are asked: built-in tasks, tasks and rewards of one's own, and rewards that go wrong."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from evopipe.errors import EnvironmentFailed, MissingInputError, ParamsError
from evopipe.language import tasks
from evopipe.language.data import check_rows
from evopipe.language.tasks import rewards
from evopipe.language.tasks.gym import GymTask

REFERENCE = {"copy": str, "reverse": lambda text: text[::-1], "sort": lambda text: "".join(sorted(text))}


def rows_of(name: str, n: int = 50, seed: int = 0, **kwargs: Any) -> tuple[tasks.Task, list[dict[str, Any]]]:
    task = tasks.get(name, kwargs)
    return task, task.rows(np.random.default_rng(seed), n)


# --- built-in ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["copy", "reverse", "sort"])
def test_symbols_are_copied_reversed_or_sorted(operation: str) -> None:
    task, rows = rows_of(operation, alphabet="abcd", shortest=2, longest=4)
    assert {len(row["prompt"]) - 1 for row in rows} == {2, 3, 4}
    assert len({row["prompt"] for row in rows}) == len(rows), "no two are alike"
    for row in rows:
        text, end = row["prompt"][:-1], row["prompt"][-1]
        expected = REFERENCE[operation](text)
        assert end == "="
        assert row["answer"] == row["completion"] == row["chosen"] == expected
        assert row["rejected"] != expected
        assert row["rejected"] in {other(text) for other in REFERENCE.values()}
        assert set("".join(map(str, row.values()))) <= set(task.characters)  # type: ignore[attr-defined]
        assert (task.score(row, expected), task.score(row, expected + "a")) == (1.0, 0.0)
    for form in ("reasoning", "preference", "supervised"):
        check_rows(rows, form, "rows")


def test_of_a_mix_the_prompt_does_not_say_which_operation_is_meant() -> None:
    _, rows = rows_of("symbols", 300, shortest=4, longest=4)
    found = Counter(name for row in rows for name, do in REFERENCE.items() if do(row["prompt"][:-1]) == row["answer"])
    assert min(found.values()) > 70
    assert {re.sub(r"\d", "0", row["prompt"]) for row in rows} == {"0000="}


def test_the_worse_completion_of_a_pair_may_be_any_that_is_wrong() -> None:
    _, rows = rows_of("reverse", shortest=4, longest=4, worse="any")
    kinds = set()
    for row in rows:
        text, wrong = row["prompt"][:-1], row["rejected"]
        assert row["chosen"] == text[::-1] != wrong
        known = {text: "copy", "".join(sorted(text)): "sort"}
        kinds.add(known.get(wrong, "mistake"))
        assert wrong in known or sum(a != b for a, b in zip(wrong, row["chosen"], strict=True)) == 1
    assert kinds == {"copy", "sort", "mistake"}


def test_the_worse_completion_of_a_pair_can_be_chosen() -> None:
    """By default it is the first operation's whose result differs; of one symbol all results are the same."""
    for worse, expected in ((None, "copy"), ("copy", "copy"), ("sort", "sort")):
        _, rows = rows_of("reverse", shortest=4, longest=4, worse=worse)
        assert all(row["rejected"] == REFERENCE[expected](row["prompt"][:-1]) for row in rows)
    _, rows = rows_of("reverse", 60, alphabet="012", shortest=2, longest=2)
    assert len({row["prompt"] for row in rows if "rejected" in row}) == 6, "all but 00, 11 and 22"
    assert all("rejected" in row for row in rows)
    _, rows = rows_of("copy", 4, shortest=1, longest=1)
    assert not any("rejected" in row for row in rows)


def test_an_answer_that_is_partly_right_earns_a_share_where_that_is_asked() -> None:
    task, row = tasks.get("copy", {"by_place": True}), {"prompt": "1234=", "answer": "1234"}
    scores = {"1234": 1.0, "1239": 0.75, "12": 0.5, "12345": 0.8, "": 0.0, "4321": 0.0}
    assert {completion: task.score(row, completion) for completion in scores} == scores


@pytest.mark.parametrize("operations", [["+"], ["+", "-", "*"]])
def test_arithmetic_is_right(operations: list[str]) -> None:
    task, rows = rows_of("arithmetic", operations=operations, digits=2, terms=3, question="What is {expression}?")
    for row in rows:
        found = re.fullmatch(r"What is ([-+*\d]+)\?", row["prompt"])
        assert found is not None
        assert row["answer"] == str(eval(found[1]))
        assert 1 <= abs(int(row["rejected"]) - int(row["answer"])) <= 9
        assert set("".join(row.values())) <= set(task.characters)  # type: ignore[attr-defined]
    assert len({row["prompt"] for row in rows}) == len(rows)
    for form in ("reasoning", "preference", "supervised"):
        check_rows(rows, form, "rows")


def test_the_last_number_of_a_completion_is_the_answer() -> None:
    task, row = tasks.get("arithmetic", {}), {"prompt": "5-8=", "answer": "-3"}
    scores = {"-3": 1.0, "5 less 8 is -3.": 1.0, "3": 0.0, "-3 or 3": 0.0, "minus three": 0.0, "-33": 0.0}
    assert {completion: task.score(row, completion) for completion in scores} == scores


@pytest.mark.parametrize("name", ["symbols", "arithmetic"])
def test_equal_seeds_make_equal_rows(name: str) -> None:
    assert rows_of(name, seed=3)[1] == rows_of(name, seed=3)[1] != rows_of(name, seed=4)[1]


def test_rows_are_as_many_as_asked_for_where_there_are_fewer_prompts() -> None:
    _, rows = rows_of("copy", 100, shortest=1, longest=1)
    assert len(rows) == 100
    assert {row["prompt"] for row in rows} == {f"{i}=" for i in range(10)}


@pytest.mark.parametrize(
    ("name", "kwargs", "sentence"),
    [
        ("copi", {}, r"language.task: no task 'copi' \(`module:Class` is one's own\), did you mean 'copy'\?"),
        ("copy", {"longest": 0}, "language.kwargs.longest: must be at least 1, got 0"),
        ("copy", {"lenght": 3}, r"language.kwargs.lenght: unknown key, did you mean 'longest'"),
        ("copy", {"shortest": 5}, r"language.kwargs: shortest \(5\) is above longest \(3\)"),
        ("copy", {"alphabet": "aab"}, r"language.kwargs: alphabet \('aab'\) must name each symbol once, and no '='"),
        ("symbols", {"operations": ["turn"]}, "language.kwargs.operations.0: must be 'copy', 'reverse' or 'sort'"),
        ("arithmetic", {"question": "?"}, r"language.kwargs.question: question \('\?'\) must hold '{expression}'"),
        ("no_such_module:Task", {}, "language.task: no module named 'no_such_module' in "),
        ("one two:Task", {}, "language.task: 'one two:Task' is not of the form 'module:name'"),
    ],
)
def test_what_is_no_task_is_refused_with_a_sentence(name: str, kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParamsError, match=sentence):
        tasks.get(name, kwargs)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingInputError, match=r"reasoning-gym needs .* pip install 'evopipe\[reasoning\]'"):
        tasks.get("reasoning-gym", {"dataset": "chain_sum"})


def test_a_completion_is_scored_as_the_rows_own_question_by_its_last_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a generator as the package has them, which is asked what stands between the tags."""

    class Generator(list[dict[str, str]]):
        def score_answer(self, answer: str, made: dict[str, str]) -> float:
            return 1.0 if answer == made["answer"] else 0.25 if answer == "near" else 0.0

    def create(dataset: str, seed: int, size: int, terms: int) -> Generator:
        assert (dataset, seed, terms) == ("sums", 7, 2)
        return Generator([{"question": "1+1", "answer": "2"}, {"question": "2+3", "answer": "5"}][:size])

    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=create))
    plain, tagged = (GymTask.model_construct(dataset="sums", config={"terms": 2}, tag=tag) for tag in (None, "a"))
    first, second = ({"seed": 7, "size": 2, "index": i, "prompt": prompt} for i, prompt in ((0, "1+1"), (1, "2+3")))
    assert [plain.score(row, " 5\n") for row in (first, second)] == [0.0, 1.0]
    for said, expected in (
        ("<a>5</a>", 1.0), ("<a>2</a> no: <a> 5 </a>", 1.0), ("<a>5</a> or <a>near</a>.", 0.25), ("<a>\n5\n</a>", 1.0),
        ("5", 0.0), ("<b>5</b>", 0.0),
    ):  # fmt: skip
        assert tagged.score(second, said) == expected, said
    assert plain.question(7) == {"prompt": "1+1", "answer": "2", "seed": 7, "size": 1, "index": 0, "completion": "2"}
    with pytest.raises(ValueError, match="makes another question of the row; run `fetch` again"):
        plain.score({**second, "index": 0}, "2")


@pytest.mark.thorough
def test_questions_of_reasoning_gym_are_made_again_to_be_scored() -> None:
    pytest.importorskip("reasoning_gym", reason="an extra of its own: pip install 'evopipe[reasoning]'")
    _, rows = rows_of("reasoning-gym", 5, dataset="chain_sum", config={"max_terms": 2})
    other = tasks.get("reasoning-gym", {"dataset": "chain_sum", "config": {"max_terms": 2}})
    for row in rows:
        assert eval(row["prompt"].partition(":")[2].rstrip("= ")) == int(row["answer"])
        assert (other.score(row, f" {row['answer']}\n"), other.score(row, "no")) == (1.0, 0.0)
    check_rows(rows, "reasoning", "rows")
    check_rows(rows, "supervised", "rows")
    assert rewards(other.score, [{**rows[0], "prompt": "?"}], ["1"], 5.0).failed == 1

    tagged = tasks.get("reasoning-gym", {"dataset": "chain_sum", "config": {"max_terms": 2}, "tag": "answer"})
    assert tagged.score(rows[0], f"It is <answer>{rows[0]['answer']}</answer>.") == 1.0
    assert tagged.score(rows[0], rows[0]["answer"]) == 0.0
    both = "<answer>no</answer>", f"<answer>{rows[0]['answer']}</answer>"
    assert [tagged.score(rows[0], " or ".join(order)) for order in (both, both[::-1])] == [1.0, 0.0], "the last counts"

    _, open_ended = rows_of("reasoning-gym", 2, dataset="graph_color")
    assert all(row["answer"] == "" and "completion" not in row for row in open_ended)
    for kwargs, sentence in (
        ({"dataset": "chain_sums"}, "no generator 'chain_sums', did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "config": {"terms": 2}}, "config: 'chain_sum' does not take {'terms': 2}"),
    ):
        with pytest.raises(ParamsError, match=sentence):
            tasks.get("reasoning-gym", kwargs)


# --- one's own --------------------------------------------------------------------------------------------------------


OWN = """
import os, time

class Vowels:
    def __init__(self, vowels="aeiou"):
        self.vowels = vowels

    def rows(self, rng, n):
        return [{"prompt": f"Say {i} vowels.", "answer": str(i)} for i in range(n)]

    def score(self, row, completion):
        return sum(letter in self.vowels for letter in completion) == int(row["answer"])

class Dumb:
    def rows(self, rng, n):
        return []

class Exits:
    def __init__(self):
        os._exit(3)

def length(completion, row):
    return -abs(len(completion) - len(row["answer"]))

PI = 3.14
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_task.py").write_text(OWN)
    (tmp_path / "broken_task.py").write_text("raise KeyError('a')")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in ("own_task", "broken_task"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own")
def test_a_task_and_a_reward_of_ones_own() -> None:
    task = tasks.get("own_task:Vowels", {"vowels": "ae"})
    row = task.rows(np.random.default_rng(0), 3)[2]
    assert rewards(tasks.score_of(task, None), [row] * 2, ["aei", "a"], 5.0).values.tolist() == [1.0, 0.0]
    score = tasks.score_of(task, "own_task:length")
    assert rewards(score, [row] * 2, ["aei", "a"], 5.0).values.tolist() == [-2.0, 0.0]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "kwargs", "error", "sentence"),
    [
        ("own_task:Vowels", {"tone": 1}, ParamsError, "language.kwargs: 'own_task:Vowels' does not take {'tone': 1}: "),
        (
            "own_task:Vowel",
            {},
            ParamsError,
            "language.task: the module 'own_task' has no 'Vowel', did you mean 'Vowels'",
        ),
        ("own_task:PI", {}, ParamsError, "language.task: 'own_task:PI' is of type float, and cannot be called"),
        ("own_task:Dumb", {}, ParamsError, "language.task: 'own_task:Dumb' has no method 'score'"),
        ("own_task:Exits", {}, EnvironmentFailed, "language.task: making 'own_task:Exits' raised SystemExit: "),
        ("broken_task:A", {}, EnvironmentFailed, "language.task: importing 'broken_task' raised KeyError: 'a'"),
    ],
)
def test_code_of_ones_own_that_cannot_be_used_is_refused_with_a_sentence(
    name: str, kwargs: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        tasks.get(name, kwargs)


@pytest.mark.usefixtures("own")
def test_a_reward_that_is_not_there_is_refused_with_a_sentence() -> None:
    with pytest.raises(ParamsError, match=r"reward: the module 'own_task' has no 'lenght', did you mean 'length'"):
        tasks.score_of(tasks.get("copy", {}), "own_task:lenght")


# --- rewards that go wrong --------------------------------------------------------------------------------------------


def raises(row: Mapping[str, Any], completion: str) -> float:
    raise ValueError("no such answer")


def leaves(row: Mapping[str, Any], completion: str) -> float:
    sys.exit(2)


def hangs(row: Mapping[str, Any], completion: str) -> float:
    while True:
        time.sleep(0.01)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def cannot_be_told(row: Mapping[str, Any], completion: str) -> float:
    raise Unspeakable


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (raises, "raised ValueError: no such answer"),
        (leaves, "raised SystemExit: 2"),
        (cannot_be_told, "raised Unspeakable: its text cannot be read, for __str__ raised RuntimeError"),
        (hangs, "did not return within 0.1 seconds (language.reward_seconds)"),
        *(
            (lambda row, completion, value=value: value, f"returned {value!r}, which is no finite number")
            for value in (float("nan"), float("inf"), -float("inf"), "1.0", None, 1j, [1.0], 1e300)
        ),
        (lambda row, completion: torch.ones(2), "raised RuntimeError: "),
        (lambda row, completion: 10**400, "raised OverflowError: "),
    ],
)
def test_a_reward_that_goes_wrong_is_0_and_counted(bad: Any, why: str) -> None:
    """The others are what they are, the first reason is told, and a run goes on."""

    def score(row: Mapping[str, Any], completion: str) -> Any:
        return bad(row, completion) if completion == "bad" else 2.0

    found = rewards(score, [{"answer": "1"}] * 3, ["good", "bad", "good"], 0.1)
    assert found.values.tolist() == [2.0, 0.0, 2.0]
    assert found.failed == 1
    assert found.why is not None
    assert found.why.startswith(why)


def test_why_rewards_failed_is_told_of_the_first() -> None:
    def score(row: Mapping[str, Any], completion: str) -> Any:
        raise ValueError(completion)

    found = rewards(score, [{}] * 3, ["one", "two", "three"], 5.0)
    assert (found.failed, found.why) == (3, "raised ValueError: one")


@pytest.mark.parametrize(
    "value", [1, True, 1.0, np.float32(1), np.int64(1), np.bool_(True), torch.ones(()), Fraction(1)]
)
def test_whatever_is_a_number_is_a_reward(value: Any) -> None:
    found = rewards(lambda row, completion: value, [{}], ["x"], 5.0)
    assert (found.values.tolist(), found.failed, found.why) == ([1.0], 0, None)


def test_a_score_cannot_change_a_row() -> None:
    row = {"answer": "1"}
    assert rewards(lambda row, completion: len(row.pop("answer")), [row, row], ["", ""], 5.0).failed == 0  # type: ignore[attr-defined]
    assert row == {"answer": "1"}
