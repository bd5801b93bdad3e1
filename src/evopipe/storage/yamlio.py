"""Reading `params.yaml`: plain data with the line and column of every key, and nothing that could surprise.

The parser is ruamel.yaml, DVC's own, so that evopipe and DVC never disagree on a value (`1e-3` is a number for both).
Data is built straight from the parser's events: an alias, a tag or a nesting too deep is refused at the event that
brings it, before anything grows from it.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError

from evopipe.errors import MissingInputError, ParamsError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 10_000  # about a second of parsing

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A parsed file.

    Attributes:
        name: the path as the caller wrote it; errors begin with it.
        data: mappings, lists, texts, numbers, booleans and None.
        marks: line and column (from 1) of every mapping's key and every list's item, by its path of keys.
    """

    name: str
    data: dict[str, Any]
    marks: Mapping[KeyPath, tuple[int, int]]

    def mark(self, path: KeyPath) -> tuple[int, int]:
        """Line and column (from 1) of `path`, or of its nearest ancestor that is in the file."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, (1, 1))


def read_yaml(path: str | os.PathLike[str]) -> Document:
    """Read one YAML mapping.

    Raises:
        MissingInputError: the file is not there or may not be read.
        ParamsError: it cannot be used: not a file, over 1 MB, not UTF-8, not a mapping, bad syntax, a key given twice
            or not a text, an anchor, alias, tag or merge key, several documents, a number that is not finite, or a
            nesting deeper than 20, or more than 10 000 values.
    """
    name = os.fspath(path)
    return parse_yaml(_decode(_read_bytes(Path(path), name), name), name)


def parse_yaml(text: str, name: str) -> Document:
    """Parse one YAML mapping from `text`; errors begin with `name`. See `read_yaml`."""
    return _Builder(text, name).document()


def dump_yaml(data: Any) -> str:
    """Render plain data as YAML that `read_yaml` reads back to the same values."""
    return _dumped(data, on_one_line=False)


def flow(value: Any) -> str:
    """Render plain data as YAML on one line."""
    return _dumped(value, on_one_line=True).strip()


def _dumped(data: Any, on_one_line: bool) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = on_one_line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue().removesuffix("...\n")


def _read_bytes(path: Path, name: str) -> bytes:
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise ParamsError(f"{name}: this is a folder: give the path of a YAML file")
        # A pipe or a device could block or never end.
        if not stat.S_ISREG(info.st_mode):
            raise ParamsError(f"{name}: this is not a regular file: give the path of a YAML file")
        if info.st_size > MAX_BYTES:
            raise ParamsError(
                f"{name}: the file has {info.st_size / 1e6:.1f} MB and the limit is {MAX_BYTES / 1e6:.0f} MB: "
                "keep data out of it"
            )
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise MissingInputError(
            f"{name}: there is no such file (in {Path.cwd()}): run where it is, or name it with --params"
        ) from None
    except OSError as error:
        raise MissingInputError(f"{name}: cannot be read ({error.strerror}): check its path and permissions") from error


def _decode(raw: bytes, name: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8", "replace")
        _refuse(name, _line_column(before), f"byte 0x{error.object[error.start]:02x} is not UTF-8: save it as UTF-8")
    nul = text.find("\0")
    if nul >= 0:
        _refuse(name, _line_column(text[:nul]), "a NUL byte: the file is damaged or not text, write it anew")
    return text


def _line_column(before: str) -> tuple[int, int]:
    """Line and column (from 1) of the character that follows `before`."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _refuse(name: str, mark: tuple[int, int], sentence: str) -> NoReturn:
    raise ParamsError(f"{name}:{mark[0]}:{mark[1]}: {sentence}")


class _Builder:
    """Builds a `Document` from the parser's events."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._text = text
        self._yaml = YAML(typ="safe", pure=True)
        self._events = self._safe_events()
        self._marks: dict[KeyPath, tuple[int, int]] = {}

    def document(self) -> Document:
        next(self._events)  # the stream's start
        start = next(self._events)
        if isinstance(start, StreamEndEvent):
            raise ParamsError(f"{self._name}: the file is empty: write the parameters, or restore it")
        assert isinstance(start, DocumentStartEvent)
        if start.version or start.tags:
            self._refuse(start, "a % directive is not supported: delete the line")
        top = next(self._events)
        if not isinstance(top, MappingStartEvent):
            self._check_node(top)
            self._refuse(top, "the file must hold a mapping of keys to values, such as `seed: 1`")
        data = self._mapping(top, ())
        next(self._events)  # the document's end
        rest = next(self._events)
        if not isinstance(rest, StreamEndEvent):
            self._refuse(rest, "a second document begins here: keep one, delete the `---` line and what follows")
        return Document(self._name, data, self._marks)

    def _safe_events(self) -> Iterator[Event]:
        """The parser's events; whatever it raises on malformed text becomes a sentence with line and column."""
        try:
            yield from self._yaml.parse(self._text)
        except ParamsError:
            raise
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            what = ", ".join(part for part in (error.context, error.problem) if part).replace("'\\x00'", "the end")
            _refuse(self._name, place, f"not valid YAML ({what}): correct the line, mind indents and quotes")
        except ReaderError as error:
            place = _line_column(self._text[: error.position])
            _refuse(self._name, place, f"character {error.character:#x} is not allowed in YAML: delete it")
        except (YAMLError, ValueError, OverflowError, IndexError, KeyError, TypeError, AttributeError) as error:
            raise ParamsError(f"{self._name}: not valid YAML ({error}): correct the file") from error

    def _node(self, event: Event, path: KeyPath) -> Any:
        self._check_node(event)
        if isinstance(event, ScalarEvent):
            return self._scalar(event)
        if len(path) > MAX_DEPTH - 1:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels: flatten it")
        if isinstance(event, SequenceStartEvent):
            return self._sequence(path)
        return self._mapping(event, path)

    def _mapping(self, start: Event, path: KeyPath) -> dict[str, Any]:
        self._check_node(start)
        data: dict[str, Any] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event)
            here = (*path, key)
            if key in data:
                first = self._marks[here][0]
                self._refuse(event, f"{_dotted(here)}: key given twice, first on line {first}: delete one of the two")
            self._note(event, here)
            data[key] = self._node(next(self._events), here)
        return data

    def _sequence(self, path: KeyPath) -> list[Any]:
        data: list[Any] = []
        while not isinstance(event := next(self._events), CollectionEndEvent):
            here = (*path, len(data))
            self._note(event, here)
            data.append(self._node(event, here))
        return data

    def _note(self, event: Event, path: KeyPath) -> None:
        if len(self._marks) >= MAX_VALUES:
            self._refuse(event, f"more than {MAX_VALUES} values: keep data out of this file")
        self._marks[path] = _place(event)

    def _key(self, event: Event) -> str:
        self._check_node(event)
        if not isinstance(event, ScalarEvent):
            self._refuse(event, "a key must be a text, not a list or a mapping: name it with a word")
        if event.value == "<<" and event.implicit[0]:
            self._refuse(event, "merge keys (<<) are not supported: write the keys out")
        key = self._scalar(event)
        if not isinstance(key, str):
            self._refuse(event, f"the key {event.value!r} is not a text: name it with a word, or put it in quotes")
        return key

    def _scalar(self, event: ScalarEvent) -> Any:
        tag = self._yaml.resolver.resolve(ScalarNode, event.value, event.implicit)
        kind = str(tag).rpartition(":")[2]
        if kind == "timestamp":
            self._refuse(event, f"dates are not supported: put {event.value!r} in quotes")
        if kind not in ("null", "bool", "int", "float"):
            return self._checked_text(event)
        try:
            value = self._yaml.constructor.construct_object(
                ScalarNode(tag, event.value, start_mark=event.start_mark, end_mark=event.end_mark)
            )
        except (YAMLError, ValueError, IndexError):
            shown = event.value if len(event.value) <= 40 else f"{event.value[:40]}…"
            self._refuse(event, f"{shown} looks like a number and is none: correct it, or put it in quotes")
        if isinstance(value, float) and not math.isfinite(value):
            self._refuse(event, f"{event.value} is not a finite number: give one")
        return value

    def _checked_text(self, event: ScalarEvent) -> str:
        text: str = event.value
        # Escapes can smuggle in what no file name, JSON file or terminal takes.
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            self._refuse(event, "the text holds a NUL or half a surrogate pair: delete the escape")
        return text

    def _check_node(self, event: Event) -> None:
        if isinstance(event, AliasEvent):
            self._refuse(event, f"aliases (*{event.anchor}) are not supported: write the value out")
        assert isinstance(event, NodeEvent)
        if event.anchor is not None:
            self._refuse(event, f"anchors (&{event.anchor}) are not supported: delete it, write values out")
        tag = getattr(event, "ctag", None)
        if tag is not None:
            shown = str(tag).replace("tag:yaml.org,2002:", "!!")
            self._refuse(event, f"tags ({shown}) are not supported: delete it")

    def _refuse(self, event: Event, sentence: str) -> NoReturn:
        _refuse(self._name, _place(event), sentence)


def _place(event: Event) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))
