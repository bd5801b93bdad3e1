"""`schema/read.py`: plain data with places, and a sentence for everything that is refused."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from evopipe.errors import MissingInputError, ParamsError
from evopipe.schema.read import MAX_BYTES, parse_yaml, read_yaml
from evopipe.schema.write import commented, dump_yaml


def refusal(text: str) -> str:
    with pytest.raises(ParamsError) as caught:
        parse_yaml(text, "p.yaml")
    assert caught.value.exit_code == 65
    return str(caught.value)


def test_values_read_as_dvc_reads_them() -> None:
    from dvc.utils.serialize import parse_yaml as dvc_parse

    text = "a: 1e-3\nb: [1, 2.5, {c: x}]\nd: yes\ne: ~\nf:\ng: 0o17\nh: 1_000\ni: -.5\nj: true\nk: 012\nl: '1'\n"
    data = parse_yaml(text, "p.yaml").data
    assert data == dvc_parse(text, "p.yaml")
    assert data["a"] == 0.001
    assert isinstance(data["a"], float)
    assert data["d"] == "yes"


def test_marks_give_line_and_column_of_keys_and_items() -> None:
    document = parse_yaml("# comment\na:\n  b: 1\n  c: [x, {d: 2}]\n", "p.yaml")
    assert document.mark(("a",)) == (2, 1)
    assert document.mark(("a", "b")) == (3, 3)
    assert document.mark(("a", "c", 1)) == (4, 10)
    assert document.mark(("a", "c", 1, "d")) == (4, 11)


def test_mark_of_an_absent_path_is_its_nearest_ancestor() -> None:
    document = parse_yaml("\n\n\n{a:\n  {b: 1, c: [x]}}\n", "p.yaml")
    assert document.mark(("a", "x", "y")) == (4, 2)
    assert document.mark(("a", "b", "y")) == (5, 4)
    assert document.mark(("a", "c", 1)) == (5, 10)
    assert document.mark(("z",)) == (1, 1)
    assert document.mark(()) == (1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml: the file is empty: write the parameters, or restore it"),
        ("# only a comment\n", "p.yaml: the file is empty: write the parameters, or restore it"),
        ("- a\n", "p.yaml:1:1: the file must hold a mapping of keys to values, such as `seed: 1`"),
        ("\nabc", "p.yaml:2:1: the file must hold a mapping of keys to values, such as `seed: 1`"),
        ("a:\n  b: 1\n  b: 2\n", "p.yaml:3:3: b: key given twice, first on line 2: delete one of the two"),
        ("a: &x 1\n", "p.yaml:1:4: anchors (&x) are not supported: delete it, write values out"),
        ("a: *x\n", "p.yaml:1:4: aliases (*x) are not supported: write the value out"),
        ("&x a: 1\n", "p.yaml:1:1: anchors (&x) are not supported: delete it, write values out"),
        ("a: !!binary aGk=\n", "p.yaml:1:4: tags (!!binary) are not supported: delete it"),
        ("a: !!python/object/apply:os.system [x]", "p.yaml:1:4: tags (!!python/object/apply:os.system) are not "),
        ("!!map\na: 1", "p.yaml:1:1: tags (!!map) are not supported: delete it"),
        ("a: ! x", "p.yaml:1:4: tags (!) are not supported: delete it"),
        ("<<: {a: 1}\n", "p.yaml:1:1: merge keys (<<) are not supported: write the keys out"),
        ("1: 2", "p.yaml:1:1: the key '1' is not a text: name it with a word, or put it in quotes"),
        ("true: 2", "p.yaml:1:1: the key 'true' is not a text: name it with a word, or put it in quotes"),
        ("? [a]\n: 1", "p.yaml:1:3: a key must be a text, not a list or a mapping: name it with a word"),
        ("a: .nan", "p.yaml:1:4: .nan is not a finite number: give one"),
        ("a: [1, -.INF]", "p.yaml:1:8: -.INF is not a finite number: give one"),
        ("a: 1e999", "p.yaml:1:4: 1e999 is not a finite number: give one"),
        ("a: 2026-01-01", "p.yaml:1:4: dates are not supported: put '2026-01-01' in quotes"),
        ("a: 0x_", "p.yaml:1:4: 0x_ looks like a number and is none: correct it, or put it in quotes"),
        ("a: 1\n---\nb: 2", "p.yaml:2:1: not valid YAML (expected a single document in the stream, but found "),
        ("%YAML 1.1\n---\na: 1", "p.yaml:2:1: a % directive is not supported: delete the line"),
        ("a: [1, 2", "p.yaml:1:9: not valid YAML (while parsing a flow sequence, expected ',' or ']'"),
        ("a:\n\t- 1", "p.yaml:2:1: not valid YAML (while scanning for the next token"),
        ("a: b: c", "p.yaml:1:5: not valid YAML (mapping values are not allowed here)"),
        ("a: *", "p.yaml:1:5: not valid YAML (while scanning an alias, expected alphabetic or numeric character, "),
        ("a: \x07", "p.yaml:1:4: character 0x7 is not allowed in YAML: delete it"),
        ('a: "\\UFFFFFFFF"', "p.yaml: not valid YAML ("),
        ('a: "\\0"', "p.yaml:1:4: the text holds a NUL or half a surrogate pair: delete the escape"),
        ('a: "\\ud800"', "p.yaml:1:4: the text holds a NUL or half a surrogate pair: delete the escape"),
    ],
)
def test_refusals_say_where_and_what_to_do(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_nesting_is_limited_to_twenty_levels() -> None:
    assert parse_yaml("a: " + "[" * 19 + "]" * 19, "p.yaml").data
    assert refusal("a: " + "[" * 20 + "]" * 20) == "p.yaml:1:23: nested deeper than 20 levels: flatten it"


def test_a_quoted_merge_sign_is_an_ordinary_key() -> None:
    assert parse_yaml("'<<': 1", "p.yaml").data == {"<<": 1}


def test_a_number_too_long_to_print_is_cut_in_the_message() -> None:
    assert refusal("a: " + "9" * 5000) == (
        "p.yaml:1:4: " + "9" * 40 + "… looks like a number and is none: correct it, or put it in quotes"
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{f'*{chr(97 + i)},' * 9}]\n" for i in range(20)),
        "[" * 900_000,
        "- " * 450_000,
        "".join(f"k{i}: {i}\n" for i in range(80_000)),
        "a: [" + "1," * 490_000 + "]",
    ],
    ids=["alias bomb", "brackets", "dashes", "many keys", "many items"],
)
@pytest.mark.thorough
def test_hostile_files_cost_little(text: str) -> None:
    start = time.process_time()
    refusal(text)
    assert time.process_time() - start < 5


def test_a_file_with_too_many_values_is_refused() -> None:
    assert refusal("a: [" + "1," * 10_000 + "]").endswith(": more than 10000 values: keep data out of this file")


def test_a_list_and_each_of_its_items_is_a_value_and_a_key_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evopipe.schema.read._MAX_VALUES", 5)
    assert parse_yaml("a: [1, 2, 3]\nb: 4\n", "x").data == {"a": [1, 2, 3], "b": 4}
    assert refusal("a: [1, 2, 3]\nb: 4\nc: 5\n").endswith(": more than 5 values: keep data out of this file")


@pytest.mark.thorough
def test_a_file_with_as_many_values_as_may_be_is_read() -> None:
    """Keys are none, a list is one itself."""
    assert len(parse_yaml("a: [" + "1," * 9_999 + "]", "p.yaml").data["a"]) == 9_999
    assert len(parse_yaml("".join(f"k{i}: 0\n" for i in range(5_100)), "p.yaml").data) == 5_100


def test_reading_a_file(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: \xc3\xa9\r\nb: 2\r\n")
    document = read_yaml(path)
    assert document.data == {"a": "é", "b": 2}
    assert document.mark(("b",)) == (2, 1)
    assert document.name == str(path)


def test_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingInputError) as caught:
        read_yaml("params.yaml")
    assert str(caught.value) == (
        f"params.yaml: there is no such file (in {tmp_path}): run where it is, or name it with --params"
    )
    assert caught.value.exit_code == 66


def test_a_path_through_a_file_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(MissingInputError, match=r"cannot be read \(Not a directory\): check its path and permissions"):
        read_yaml(tmp_path / "file" / "p.yaml")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"this is a folder: give the path of a YAML file$"):
        read_yaml(tmp_path)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ParamsError, match=r"this is not a regular file: give the path of a YAML file$"):
        read_yaml(tmp_path / "pipe")


def test_fifty_megabytes_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    start = time.perf_counter()
    with pytest.raises(ParamsError) as caught:
        read_yaml(path)
    assert time.perf_counter() - start < 0.2
    assert str(caught.value) == f"{path}: the file has 50.0 MB and the limit is 1 MB: keep data out of it"


def test_a_file_at_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("a: 1 #" + "x" * (MAX_BYTES - 6))
    assert read_yaml(path).data == {"a": 1}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a: 1\nb: \xff", ":2:4: byte 0xff is not UTF-8: save it as UTF-8"),
        ("a: é".encode("utf-16"), ":1:1: byte 0xff is not UTF-8: save it as UTF-8"),
        (b"a: 1\nb\0: 2", ":2:2: character 0x0 is not allowed in YAML: delete it"),
    ],
)
def test_bytes_that_are_no_text(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(raw)
    with pytest.raises(ParamsError) as caught:
        read_yaml(path)
    assert str(caught.value) == f"{path}{message}"


@pytest.mark.parametrize(
    "data",
    [
        {
            "a": 1e-5,
            "b": [1, {"c": None}],
            "d": "1e-3",
            "e": "yes",
            "f": True,
            "g": {},
            "h": [],
            "i": "",
            "j": "a: b\n",
        },
        {"z": 1, "a": "x" * 200, "ü": "é"},
    ],
)
def test_dumped_data_reads_back(data: dict[str, object]) -> None:
    back = parse_yaml(dump_yaml(data), "p.yaml").data
    assert back == data
    assert list(back) == list(data)


def test_dumped_scalars() -> None:
    assert dump_yaml(None).strip() == "null"
    assert dump_yaml(0.001).strip() == "0.001"
    assert dump_yaml(True).strip() == "true"


def test_a_long_value_stays_on_its_line_with_its_comment() -> None:
    text = f"task: {' '.join(['word'] * 60)}  # what members are asked\nempty: null\n"
    written, yaml = io.StringIO(), commented()
    yaml.dump(yaml.load(text), written)
    assert written.getvalue() == text
