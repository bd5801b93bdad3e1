"""Reading `params.yaml`: plain data, with the line and column of every key.

The parser is ruamel.yaml, as in DVC, so that evopipe and DVC agree on every value (`1e-3` is a number for both).
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from evopipe.errors import MissingInputError, ParamsError

MAX_BYTES = 1_000_000
_MAX_DEPTH = 20
_MAX_VALUES = 10_000  # about a second of parsing


@dataclass(frozen=True)
class _Document:
    """A parsed file."""

    name: str  # the path as the caller wrote it; errors begin with it
    data: dict[str, Any]
    root: Node

    def mark(self, path: tuple[str | int, ...]) -> tuple[int, int]:
        """Line and column (from 1) of the key or item at `path`, or of its nearest ancestor that is in the file."""
        node, place = self.root, (1, 1)
        for step in path:
            found = [(key, value) for key, value in _entries(node) if step in (key, getattr(key, "value", None))]
            if not found:
                break
            key, node = found[0]
            place = _place((node if isinstance(key, int) else key).start_mark)
        return place


def _entries(node: Node) -> list[tuple[Any, Node]]:
    """Keys (nodes) and values of a mapping, numbers and items of a list."""
    if isinstance(node, MappingNode):
        return list(node.value)
    return list(enumerate(node.value)) if isinstance(node, SequenceNode) else []


def read_yaml(path: str | os.PathLike[str]) -> _Document:
    """Read a YAML file that has one mapping.

    The result has the mapping as `data`; its method `mark` returns the line and column of a key.

    Raises:
        MissingInputError: there is no such file, or it may not be read.
        ParamsError: the path is no regular file; the file is over 1 MB, not UTF-8, of bad syntax, or no mapping; or it
            has a repeated key, a key that is no text, an anchor, alias, tag or merge key, several documents, a number
            that is not finite, more than 20 levels or more than 10 000 values.
    """
    name = os.fspath(path)
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):  # a pipe or a device could block or never end
            what = "a folder" if stat.S_ISDIR(info.st_mode) else "not a regular file"
            raise ParamsError(f"{name}: this is {what}: give the path of a YAML file")
        if info.st_size > MAX_BYTES:
            raise ParamsError(
                f"{name}: the file has {info.st_size / 1e6:.1f} MB and the limit is {MAX_BYTES / 1e6:.0f} MB: "
                "keep data out of it"
            )
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise MissingInputError(
            f"{name}: there is no such file (in {Path.cwd()}): run where it is, or name it with --params"
        ) from None
    except OSError as error:
        raise MissingInputError(f"{name}: cannot be read ({error.strerror}): check its path and permissions") from error
    except UnicodeDecodeError as error:
        line, column = _line_column(error.object[: error.start].decode("utf-8", "replace"))
        byte = error.object[error.start]
        raise ParamsError(f"{name}:{line}:{column}: byte 0x{byte:02x} is not UTF-8: save it as UTF-8") from None
    return parse_yaml(text, name)


def parse_yaml(text: str, name: str) -> _Document:
    """Parse a text that has one YAML mapping; the result is that of `read_yaml`.

    Raises:
        ParamsError: see `read_yaml`; the message begins with `name`.
    """
    data, root = _parsed(text, name)
    if root is None:
        raise ParamsError(f"{name}: the file is empty: write the parameters, or restore it")
    if not isinstance(data, dict):
        line, column = _place(root.start_mark)
        sentence = "the file must hold a mapping of keys to values, such as `seed: 1`"
        raise ParamsError(f"{name}:{line}:{column}: {sentence}")
    return _Document(name, data, root)


def parse_value(text: str, name: str) -> Any:
    """Parse a text that has any YAML value, and return the value; None for an empty text.

    Raises:
        ParamsError: see `read_yaml`; the message begins with `name`.
    """
    return _parsed(text, name)[0]


def _parsed(text: str, name: str) -> tuple[Any, Node | None]:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer, yaml.Constructor, yaml.max_depth = _Composer, _Constructor, _MAX_DEPTH
    try:
        root = yaml.compose(text)
        return (None if root is None else yaml.constructor.construct_document(root)), root
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = _place(mark) if mark else (1, 1)
        raise ParamsError(f"{name}:{line}:{column}: {_sentence(error)}") from None
    except ReaderError as error:
        line, column = _line_column(text[: error.position])
        sentence = f"character {error.character:#x} is not allowed in YAML: delete it"
        raise ParamsError(f"{name}:{line}:{column}: {sentence}") from None
    except Exception as error:  # ruamel.yaml raises whatever it stumbles over on some malformed texts
        raise ParamsError(f"{name}: not valid YAML ({error}): correct the file") from error


class _Refused(MarkedYAMLError):
    """YAML that would do, and that a params file may not hold."""

    def __init__(self, where: Any, sentence: str) -> None:
        super().__init__(problem=sentence, problem_mark=where.start_mark)


class _Composer(Composer):
    """Refuses what could grow, run or mislead at the event that brings it, before anything comes of it."""

    values = 0

    def compose_document(self) -> Any:
        start = self.parser.peek_event()
        if start.version or start.tags:
            raise _Refused(start, "a % directive is not supported: delete the line")
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        if isinstance(event, AliasEvent):
            raise _Refused(event, f"aliases (*{event.anchor}) are not supported: write the value out")
        if event.anchor is not None:
            raise _Refused(event, f"anchors (&{event.anchor}) are not supported: delete it, write values out")
        if event.ctag is not None:
            shown = str(event.ctag).replace("tag:yaml.org,2002:", "!!")
            raise _Refused(event, f"tags ({shown}) are not supported: delete it")
        self.values += index is not None  # a key has none
        if self.values > _MAX_VALUES:
            raise _Refused(event, f"more than {_MAX_VALUES} values: keep data out of this file")
        return super().compose_node(parent, index)


class _Constructor(SafeConstructor):
    """Refuses what no params file may hold of what YAML can say."""

    def flatten_mapping(self, node: Any) -> None:
        for key, _ in node.value:
            if _kind(key) == "merge":
                raise _Refused(key, "merge keys (<<) are not supported: write the keys out")

    def check_mapping_key(self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any) -> bool:
        if not isinstance(key_node, ScalarNode):
            raise _Refused(key_node, "a key must be a text, not a list or a mapping: name it with a word")
        if not isinstance(key, str):
            shown = f"the key {key_node.value!r} is not a text"
            raise _Refused(key_node, f"{shown}: name it with a word, or put it in quotes")
        if key in mapping:
            first = next(other for other, _ in node.value if other.value == key)
            line, _ = _place(first.start_mark)
            raise _Refused(key_node, f"{key}: key given twice, first on line {line}: delete one of the two")
        return True

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if not isinstance(node, ScalarNode):
            return super().construct_object(node, deep)
        text = node.value
        if _kind(node) == "timestamp":
            raise _Refused(node, f"dates are not supported: put {text!r} in quotes")
        if _kind(node) not in ("null", "bool", "int", "float"):
            # Escapes can smuggle in what no file name, JSON file or terminal takes.
            if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
                raise _Refused(node, "the text holds a NUL or half a surrogate pair: delete the escape")
            return text
        try:
            value = super().construct_object(node, deep)
        except Exception:
            shown = text if len(text) <= 40 else f"{text[:40]}…"
            sentence = f"{shown} looks like a number and is none: correct it, or put it in quotes"
            raise _Refused(node, sentence) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise _Refused(node, f"{text} is not a finite number: give one")
        return value


def _kind(node: Node) -> str:
    return str(node.tag).rpartition(":")[2]


def _sentence(error: MarkedYAMLError) -> str:
    if isinstance(error, _Refused):
        return str(error.problem)
    if isinstance(error, MaxDepthExceededError):
        return f"nested deeper than {_MAX_DEPTH} levels: flatten it"
    what = ", ".join(part for part in (error.context, error.problem) if part).replace("'\\x00'", "the end")
    return f"not valid YAML ({what}): correct the line, mind indents and quotes"


def _place(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _line_column(before: str) -> tuple[int, int]:
    """Line and column (from 1) of the character that follows `before`."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")
