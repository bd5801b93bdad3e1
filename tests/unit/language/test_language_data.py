"""Rows of text: what a task makes, a file holds, or a Hugging Face dataset, and what can be wrong with them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from evopipe.errors import DataError, EnvironmentFailed, MissingInputError
from evopipe.language import tasks
from evopipe.language.data import (
    MAX_LINE,
    check_rows,
    generate,
    read_datasets,
    read_jsonl,
    read_rows,
    unpaired,
    write_rows,
)
from evopipe.language.hub import reach

GOOD: dict[str, list[dict[str, Any]]] = {
    "reasoning": [
        {"prompt": "1+1=", "answer": "2", "level": [1, {"of": None}]},
        {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}], "answer": 2},
    ],
    "preference": [{"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"}],
    "labelled": [
        {"prompt": "Hi", "completion": "Hello!", "label": True, "why": "polite"},
        {"prompt": "Hi", "completion": "What?", "label": False},
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"},
    ],
    "supervised": [
        {"prompt": "", "completion": "Grüße"},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]},
    ],
}


def jsonl(path: Path, *lines: Any) -> Path:
    """Write lines: bytes as they are, else as JSON."""
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path


@pytest.mark.parametrize("form", GOOD)
def test_rows_come_back_as_they_are_and_equal_rows_are_equal_bytes(form: str, tmp_path: Path) -> None:
    rows = read_jsonl(jsonl(tmp_path / "mine.jsonl", *GOOD[form]), form)
    assert rows == GOOD[form]
    write_rows(tmp_path / "a.jsonl", rows)
    write_rows(tmp_path / "b.jsonl", [dict(reversed(row.items())) for row in rows])
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert read_rows(tmp_path / "a.jsonl") == rows


def test_a_pair_becomes_two_rows_with_labels() -> None:
    rows = [{**GOOD["labelled"][2], "completion": "Hello!", "level": 3}, GOOD["labelled"][0]]
    assert unpaired(rows) == [
        {"prompt": "Hi", "completion": "Hello!", "label": True, "level": 3},
        {"prompt": "Hi", "completion": "What?", "label": False, "level": 3},
        GOOD["labelled"][0],
    ]


def test_empty_lines_and_a_mark_of_the_byte_order_are_passed_over(tmp_path: Path) -> None:
    line = json.dumps(GOOD["reasoning"][0]).encode()
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n  \n\n" + line)  # no line end behind the last one
    assert read_jsonl(path, "reasoning") == GOOD["reasoning"][:1] * 2


OK = GOOD["reasoning"][0]


@pytest.mark.parametrize(
    ("form", "bad", "sentence"),
    [
        ("reasoning", b'{"prompt": ', "is not valid JSON (Expecting value: line 1 column 12 (char 11)): "),
        ("reasoning", b'{"prompt": "a", "answer": "1"} {}', "is not valid JSON (Extra data: "),
        ("reasoning", b'{"prompt": "a", "answer": NaN}', "is not valid JSON (NaN is not a finite number): "),
        ("reasoning", b'{"prompt": "a", "answer": "1", "x": 1e999}', "is not valid JSON (1e999 is not a finite number"),
        ("reasoning", b"[" * 100_000, "is not valid JSON ("),
        ("reasoning", b'{"prompt": "\xff"}', "is not UTF-8 at byte 13: save the file as UTF-8"),
        ("reasoning", b'{"prompt": "\\ud800", "answer": "1"}', r"prompt: '\ud800' has no UTF-8 form: remove it"),
        ("reasoning", [1, 2], "is a list, a row is an object with the fields prompt, answer"),
        ("reasoning", "text", "is a text, a row is an object"),
        ("reasoning", {}, "has no field 'prompt', which reasoning rows must have (it has nothing): add it"),
        ("reasoning", {"prompt": "a", "anser": "b"}, "has no field 'answer', which reasoning rows must have (it has "),
        ("reasoning", {"prompt": 1, "answer": "2"}, "prompt must be a text, or a list of messages, got a number"),
        ("reasoning", {"prompt": "a", "answer": True}, "answer must be a text or a number, got true or false"),
        ("preference", {"prompt": "a", "chosen": None, "rejected": "c"}, "chosen must be a text, got null"),
        ("preference", {"prompt": "a", "chosen": "b"}, "has no field 'rejected', which preference rows must have"),
        ("labelled", {"prompt": "a", "chosen": "b"}, "has no field 'completion', which labelled rows must have"),
        ("labelled", {"prompt": "a", "completion": "b"}, "has no field 'label', which labelled rows must have"),
        ("labelled", {"prompt": "a", "completion": "b", "label": 1}, "label must be true or false, got a number"),
        ("labelled", {"prompt": "a", "chosen": "b", "rejected": 3}, "rejected must be a text, got a number"),
        ("supervised", {"prompt": "a", "completion": ["b"]}, "completion must be a text, got a list"),
        ("reasoning", {"prompt": [], "answer": "b"}, "prompt must be a list of one message or more, got a list"),
        (
            "reasoning",
            {"prompt": [{"role": "me", "content": "a"}], "answer": "b"},
            "prompt: message 1 has the role 'me'",
        ),
        ("supervised", {"messages": "hi"}, "messages must be a list of one message or more, got a text"),
        ("supervised", {"messages": [{"role": "user"}]}, "messages: message 1 must be an object with a `role` and a "),
        (
            "supervised",
            {"messages": [{"role": "user", "content": "a"}]},
            "messages: none is the assistant's: there is ",
        ),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(form: str, bad: Any, sentence: str, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "mine.jsonl", GOOD[form][0], b"", bad, GOOD[form][0])
    with pytest.raises(DataError) as raised:
        read_jsonl(path, form)
    assert str(raised.value).startswith(f"{path}:3: {sentence}")


def test_a_line_is_at_most_a_million_bytes_long(tmp_path: Path) -> None:
    """A longer one is not read to its end."""
    empty = len(json.dumps({"prompt": "", "answer": "1"})) + 1
    longest = {"prompt": "a" * (MAX_LINE - empty), "answer": "1"}
    assert read_jsonl(jsonl(tmp_path / "mine.jsonl", longest, OK), "reasoning") == [longest, OK]
    path = jsonl(tmp_path / "mine.jsonl", OK, {**longest, "answer": "12"})
    with pytest.raises(DataError, match=re.escape(f"{path}:2: is longer than 1000000 bytes")):
        read_jsonl(path, "reasoning")


def test_a_file_without_rows_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no row: write one JSON object a line"):
        read_jsonl(jsonl(tmp_path / "mine.jsonl", b"", b" "), "reasoning")
    with pytest.raises(MissingInputError, match="is not there; correct the path"):
        read_jsonl(tmp_path / "other.jsonl", "reasoning")
    with pytest.raises(DataError, match="is not a regular file"):
        read_jsonl(tmp_path, "reasoning")
    with pytest.raises(DataError, match="rows: holds no row"):
        check_rows([], "reasoning", "rows")


def test_a_damaged_file_of_evopipes_own_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [OK, OK])
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(DataError, match=r"rows.jsonl:2: is not valid JSON .* restore it with `dvc checkout`"):
        read_rows(path)
    path.write_bytes(whole + b"3\n")
    with pytest.raises(DataError, match=r"rows.jsonl:3: is no object: restore it with `dvc checkout`"):
        read_rows(path)


# --- tasks ------------------------------------------------------------------------------------------------------------


class Broken:
    """A task of one's own; its rows are what it was made with."""

    def __init__(self, rows: Any) -> None:
        self.made = rows

    def rows(self, rng: Any, n: int) -> Any:
        return self.made()

    def score(self, row: Any, completion: str) -> float:
        return 0.0


def test_a_seed_makes_the_rows_of_a_task() -> None:
    task = tasks.get("copy", {})
    first = generate(task, "copy", 1, 20, "reasoning")
    assert len(first) == 20
    assert first == generate(task, "copy", 1, 20, "supervised") != generate(task, "copy", 2, 20, "reasoning")


def test_rows_of_ones_own_task_are_checked() -> None:
    with pytest.raises(EnvironmentFailed, match=r"language.task: 'my:Task': making rows raised ZeroDivisionError"):
        generate(Broken(lambda: 1 / 0), "my:Task", 1, 2, "reasoning")
    with pytest.raises(DataError, match=r"language.task: 'my:Task': row 2: has no field 'answer'"):
        generate(Broken(lambda: [OK, {"prompt": "a"}]), "my:Task", 1, 2, "reasoning")
    with pytest.raises(DataError, match=r"language.task: 'my:Task': row 1: is a number, a row is an object"):
        generate(Broken(lambda: [1]), "my:Task", 1, 2, "reasoning")


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def test_the_hub_has_some_seconds_to_answer() -> None:
    def fails() -> None:
        raise OSError("no route\nto the host")

    began = time.monotonic()
    assert reach(lambda: None) is None
    assert reach(fails) == "no route"
    assert reach(lambda: time.sleep(3), 0.05) == "no answer within 0.05 s"
    assert time.monotonic() - began < 2


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingInputError, match=r"datasets needs datasets, .* pip install 'evopipe\[language\]'"):
        read_datasets("a/b", "train", {}, "reasoning")


@pytest.mark.thorough
def test_datasets_in_a_folder(tmp_path: Path) -> None:
    """As files, and as `save_to_disk` writes them; columns under other names; a folder with code in it is refused."""
    datasets = pytest.importorskip("datasets", reason="an extra of its own: pip install 'evopipe[language]'")
    datasets.disable_progress_bars()
    folder = tmp_path / "mine"
    folder.mkdir()
    jsonl(folder / "train.jsonl", *({"question": f"{i}+{i}=", "answer": 2 * i, "level": [i]} for i in range(3)))
    expected = [{"prompt": f"{i}+{i}=", "answer": 2 * i, "level": [i]} for i in range(3)]
    columns = {"prompt": "question"}
    assert read_datasets(str(folder), "train", columns, "reasoning") == expected

    (folder / "mine.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(DataError, match="Dataset scripts are no longer supported"):
        read_datasets(str(folder), "train", columns, "reasoning")
    (folder / "mine.py").unlink()

    datasets.Dataset.from_list(expected).save_to_disk(str(tmp_path / "saved"))
    assert read_datasets(str(tmp_path / "saved"), "train", {}, "reasoning") == expected
    both = datasets.DatasetDict(test=datasets.Dataset.from_list(expected[:1]))
    both.save_to_disk(str(tmp_path / "both"))
    assert read_datasets(str(tmp_path / "both"), "test", {}, "reasoning") == expected[:1]

    for where, split, names, sentence in (
        (folder, "test", columns, "mine: its split 'test' cannot be read .*: correct split or subset"),
        (folder, "train", {"prompt": "questio"}, "mine: has no column 'questio', did you mean 'question'"),
        (folder, "train", {}, "mine: row 1: has no field 'prompt', which reasoning rows must have"),
        (tmp_path / "both", "train", {}, "both: its split 'train' cannot be read"),
        (tmp_path / "empty", "train", {}, "empty: its split 'train' cannot be read"),
    ):
        where.mkdir(exist_ok=True)
        with pytest.raises(DataError, match=sentence):
            read_datasets(str(where), split, names, "reasoning")


@pytest.mark.thorough
def test_a_hub_that_does_not_answer_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="comes with `datasets`: pip install 'evopipe[language]'")
    pytest.importorskip("datasets")
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(MissingInputError, match=r"nobody/nothing is no folder here, and the hub does not give it \("):
        read_datasets("nobody/nothing", "train", {}, "reasoning")
    for name in ("./mine", "a/b/c", "/mine"):
        with pytest.raises(MissingInputError, match="is no folder here, and no id of the hub"):
            read_datasets(name, "train", {}, "reasoning")
