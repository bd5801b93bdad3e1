"""Rows of text from a task, a JSONL file or a Hugging Face dataset.

A row is a JSON object. Its form says what it must have:

- `reasoning`: a `prompt`, and the `answer` that a reward function compares with, a text or a number;
- `preference`: a `prompt`, and two completions, `chosen` and `rejected`;
- `labelled`: a `prompt`, a `completion`, and a `label`, true if the completion is desirable; a pair counts as two rows;
- `supervised`: a `prompt` and its `completion`; or `messages`, of which the assistant's are learned;
- `games`: what the task checks, which makes and plays them.

A prompt is a text, or a list of messages, each with a `role` and a `content`. Other fields are kept, for reward
functions.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evopipe import rng
from evopipe.errors import DataError, MissingInputError, need_package, suggestion
from evopipe.language.hub import REACH_SECONDS, first_line, quiet, reach
from evopipe.language.tasks import Task
from evopipe.own import foreign
from evopipe.rng import Purpose
from evopipe.storage.files import RESTORE, dump_json, finite, parse_json, read_bytes, write_bytes

FIELDS = {
    "reasoning": ("prompt", "answer"),
    "preference": ("prompt", "chosen", "rejected"),
    "labelled": ("prompt", "completion", "label"),
    "supervised": ("prompt", "completion"),
}
ROLES = ("system", "user", "assistant", "tool")
MAX_LINE = 1_000_000  # bytes
_BOM = b"\xef\xbb\xbf"

Row = dict[str, Any]


# --- what a row must have ---------------------------------------------------------------------------------------------


def check_row(row: Any, form: str, where: str) -> None:
    """Check that a row has the fields of its form, of the right types. The forms are `reasoning`, `preference`,
    `labelled`, `supervised` and `games`.

    Raises:
        DataError: the row is no mapping, or a field is missing or of a wrong type; the message begins with `where`.
    """
    if not isinstance(row, dict):
        fields = f" with the fields {', '.join(FIELDS[form])}" if form in FIELDS else ""
        raise DataError(f"{where}: is {_kind(row)}, a row is an object{fields}")
    if form == "games":
        return
    if form == "supervised" and "messages" in row:
        _check_messages(row["messages"], f"{where}: messages")
        if not any(message["role"] == "assistant" for message in row["messages"]):
            raise DataError(f"{where}: messages: none is the assistant's: there is nothing to learn")
        return
    for name in FIELDS["preference" if form == "labelled" and is_pair(row) else form]:
        if name not in row:
            has = ", ".join(map(str, row)) or "nothing"
            raise DataError(f"{where}: has no field {name!r}, which {form} rows must have (it has {has}): add it")
        value = row[name]
        if name == "answer" and isinstance(value, int | float) and not isinstance(value, bool):
            continue
        if name == "label":
            if not isinstance(value, bool):
                raise DataError(f"{where}: label must be true or false, got {_kind(value)}")
        elif name == "prompt" and isinstance(value, list):
            _check_messages(value, f"{where}: prompt")
        elif not isinstance(value, str):
            wanted = {"prompt": "a text, or a list of messages", "answer": "a text or a number"}.get(name, "a text")
            raise DataError(f"{where}: {name} must be {wanted}, got {_kind(value)}")
        else:
            _check_text(value, f"{where}: {name}")


def is_pair(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the fields `chosen` and `rejected`, and no `label`."""
    return "label" not in row and "chosen" in row and "rejected" in row


def unpaired(rows: Sequence[Row]) -> list[Row]:
    """Return labelled rows: each pair becomes two, the chosen completion with the label true, then the rejected one
    with false. Other rows are unchanged."""
    found: list[Row] = []
    for row in rows:
        if not is_pair(row):
            found.append(row)
            continue
        other = {name: value for name, value in row.items() if name not in ("chosen", "rejected", "completion")}
        found += [{**other, "completion": row[name], "label": name == "chosen"} for name in ("chosen", "rejected")]
    return found


def check_rows(rows: Sequence[Any], form: str, where: str) -> None:
    """Check that there is at least one row, and that each row has the fields of its form: `reasoning`, `preference`,
    `labelled`, `supervised` or `games`. Error messages begin with `where` and number rows from 1.

    Raises:
        DataError: a row does not have the form, or there are no rows.
    """
    if not rows:
        raise DataError(f"{where}: holds no row")
    for number, row in enumerate(rows, start=1):
        check_row(row, form, f"{where}: row {number}")


def _check_messages(messages: Any, where: str) -> None:
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where} must be a list of one message or more, got {_kind(messages)}")
    for number, message in enumerate(messages, start=1):
        here = f"{where}: message {number}"
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise DataError(f"{here} must be an object with a `role` and a `content` that is a text")
        if message.get("role") not in ROLES:
            raise DataError(f"{here} has the role {message.get('role')!r:.40}, it must be one of {', '.join(ROLES)}")
        _check_text(message["content"], here)


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = text[error.start : error.end]
        raise DataError(f"{where}: {bad!r} has no UTF-8 form: remove it from the text") from None


def _kind(value: Any) -> str:
    number = dict.fromkeys((int, float), "a number")
    names = {bool: "true or false", **number, list: "a list", dict: "an object", str: "a text"}
    return "null" if value is None else names.get(type(value), f"a value of type {type(value).__name__}")


def same(one: Sequence[Any], others: Sequence[Any]) -> list[int]:
    """Return the indices of the JSON values in `others` that are equal to some value in `one`. Values are compared by
    hash."""

    def key(value: Any) -> bytes:
        return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).digest()

    known = {key(value) for value in one}
    return [i for i, value in enumerate(others) if key(value) in known]


def asked(row: Mapping[str, Any]) -> Any:
    """Return the question of a row: its prompt, or its messages without the assistant's.

    A row of validation or test data overlaps with a row of training data if both have the same question.
    """
    if "messages" in row:
        return [message for message in row["messages"] if message["role"] != "assistant"]
    return row.get("prompt")


# --- sources ----------------------------------------------------------------------------------------------------------


def generate(task: Task, name: str, seed: int, n: int, form: str) -> list[Row]:
    """Return `n` rows that a task makes, drawn with the run's seed.

    If the form is `labelled`, each prompt has two rows, one with a desirable and one with an undesirable completion. In
    all other forms a prompt has one row. `name` is the task's name in error messages.

    Raises:
        EnvironmentFailed: the task raised an exception.
        DataError: the task's rows do not have the form.
    """
    with foreign(f"language.task: {name!r}: making rows"):
        made = n if form != "labelled" else -(-n // 2)
        rows = list(task.rows(rng.host(rng.run_key(seed), Purpose.BEHAVIOUR), made))
    check_rows(rows, form, f"language.task: {name!r}")
    return unpaired(rows)[:n] if form == "labelled" else rows


def read_jsonl(path: Path, form: str, check: Callable[[Row, str], None] | None = None) -> list[Row]:
    """Return the rows of a file with one JSON object a line; empty lines are skipped.

    Args:
        path: the file.
        form: the form of the rows: `reasoning`, `preference`, `labelled`, `supervised` or `games`.
        check: a function that is called with each row and its place (`file:line`), and may raise DataError.

    Raises:
        MissingInputError: the file does not exist.
        DataError: a line cannot be used; the message names the line.
    """
    if not path.is_file():
        if path.exists():
            raise DataError(f"{path}: is not a regular file")
        raise MissingInputError(f"{path}: is not there; correct the path")
    rows: list[Row] = []
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > MAX_LINE:
                    raise DataError(
                        f"{where}: is longer than {MAX_LINE} bytes: a line is one row, shorten or remove it"
                    )
                line = line.removeprefix(_BOM) if number == 1 else line
                if line.strip():
                    row = _parse(line.rstrip(b"\r\n"), where)
                    check_row(row, form, where)
                    if check is not None:
                        check(row, where)
                    rows.append(row)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not rows:
        raise DataError(f"{path}: holds no row: write one JSON object a line")
    return rows


def _parse(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode(), parse_constant=finite, parse_float=finite)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: is not UTF-8 at byte {error.start + 1}: save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not valid JSON ({first_line(error)}): a line is one JSON object") from None


def read_datasets(name: str, split: str, columns: Mapping[str, str], form: str, subset: str | None = None) -> list[Row]:
    """Return the rows of a split of a Hugging Face dataset: a local folder, or an id on the hub. No code of the dataset
    is run.

    Args:
        name: the folder or id.
        split: the split's name.
        columns: a mapping from field names to the dataset's columns, for those that differ.
        form: the form of the rows: `reasoning`, `preference`, `labelled`, `supervised` or `games`.
        subset: the configuration of the dataset; None for the default.

    Raises:
        MissingInputError: the package `datasets` is not installed, the dataset does not exist, or the hub cannot be
            reached.
        DataError: the dataset cannot be read, lacks a column, or its rows do not have the form.
    """
    need_package("datasets", "language", "fetch.source: datasets")
    where = f"fetch.datasets: {name}"
    with tempfile.TemporaryDirectory() as cache:
        rows = _rows(_table(name, split, subset, cache), columns, where)
    check_rows(rows, form, where)
    return rows


def _table(name: str, split: str, subset: str | None, cache: str) -> Any:
    """Read a folder of JSON, CSV or Parquet files, one that `save_to_disk` wrote, or a dataset of the hub."""
    import datasets

    folder = Path(name)
    if not folder.exists():
        _find_on_hub(name)
    with quiet(datasets.utils.logging):
        try:
            if not folder.exists():
                return datasets.load_dataset(name, subset, split=split)
            if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
                found = datasets.load_from_disk(str(folder))
                return found[split] if isinstance(found, dict) else found
            return datasets.load_dataset(str(folder), subset, split=split, cache_dir=cache)
        except Exception as error:
            raise DataError(
                f"fetch.datasets: {name}: its split {split!r} cannot be read ({first_line(error)}): correct split or "
                f"subset, or {'write it anew' if folder.exists() else 'take another dataset'}"
            ) from None


def _find_on_hub(name: str) -> None:
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise MissingInputError(f"fetch.datasets.name: {name} is no folder here, and no id of the hub; correct it")
    import datasets
    import huggingface_hub

    offline = datasets.config.HF_HUB_OFFLINE  # it then takes what was fetched before
    failed = None if offline else reach(lambda: huggingface_hub.HfApi().dataset_info(name, timeout=REACH_SECONDS / 2))
    if failed is not None:
        raise MissingInputError(
            f"fetch.datasets.name: {name} is no folder here, and the hub does not give it ({failed}): correct the "
            "name, or name a folder"
        )


def _rows(table: Any, columns: Mapping[str, str], where: str) -> list[Row]:
    """Return a table's rows under the names that fields have here, without what has no JSON form."""
    for column in columns.values():
        if column not in table.column_names:
            raise DataError(f"{where}: has no column {column!r}{suggestion(column, table.column_names)}")
    renamed = set(columns.values())
    names = {name: name for name in table.column_names if name not in renamed} | dict(columns)
    return [{ours: row[theirs] for ours, theirs in names.items() if _is_plain(row[theirs])} for row in table]


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


# --- files of evopipe's own -------------------------------------------------------------------------------------------


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as a JSONL file, atomically. Equal rows give equal bytes.

    Raises:
        DataError: a row cannot be written as JSON.
        DiskError: the file cannot be written.
    """
    write_bytes(path, [dump_json(row, f"{path}:{number}") for number, row in enumerate(rows, start=1)])


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file that `write_rows` wrote.

    Raises:
        MissingInputError: the file does not exist.
        DataError: the file is damaged.
    """
    lines = read_bytes(path).splitlines(keepends=False)
    rows = [parse_json(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: is no object: {RESTORE}")
    return rows
