"""What is wrong with a mapping that should fit a schema, in sentences: pydantic's messages in plain words."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from evopipe.errors import did_you_mean

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a block of keys",
    "mapping_type": "a block of keys",
    "model_type": "a block of keys",
}
_PLAIN = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the path of keys to it, and a sentence that says what and what to do."""

    path: tuple[str | int, ...]
    sentence: str

    def __str__(self) -> str:
        steps = (step if str(step).isprintable() else repr(step) for step in self.path)
        return f"{'.'.join(map(str, steps))}: {self.sentence}" if self.path else self.sentence


def located(problems: Iterable[Problem]) -> ValidationError:
    """An error to raise inside a pydantic validator: it keeps each problem's own path below the validated value."""
    errors: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError("evopipe", "{sentence}", {"sentence": problem.sentence}),
            "loc": problem.path,
            "input": None,
        }
        for problem in problems
    ]
    return ValidationError.from_exception_data("evopipe", errors)


def explain(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """Turn a pydantic error into sentences.

    Args:
        error: what validating `data` raised.
        model: the block's schema.
        data: the raw block.
    """
    # The branches of a union report one error each, at paths with the branch's name appended: one place, one sentence.
    places: dict[tuple[str | int, ...], list[ErrorDetails]] = defaultdict(list)
    for item in error.errors(include_url=False):
        places[_place(item, data)].append(item)
    return [Problem(path, _sentence(path, items, model)) for path, items in places.items()]


def missing_keys(model: type[BaseModel], data: Mapping[str, Any]) -> Iterator[Problem]:
    """Every key of a block that `data` leaves to its default; those whose validator looks for itself are not told."""
    for name, field in model.model_fields.items():
        if name not in data and not field.is_required() and not field.validate_default:
            yield Problem((name,), _missing(field))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return what to say behind an unknown word: the nearest known one, or all."""
    known = list(known)
    return did_you_mean(word, known) or f", known are: {', '.join(known)}"


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the sentence of a key that is not known."""
    known = list(known)
    return f"unknown key{did_you_mean(key, known) or ': delete it, known here: ' + ', '.join(known)}"


def _missing(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    text = default if isinstance(default, str) else json.dumps(default, default=lambda block: block.model_dump())
    if isinstance(default, BaseModel):
        return f"missing block: add it, the defaults are {text}"
    return f"missing key (default {text}): add it"


def _place(item: ErrorDetails, data: Any) -> tuple[str | int, ...]:
    """The part of an error's path that exists in the data; a key that is missing is meant as it is."""
    loc = item["loc"]
    if item["type"] in ("missing", "evopipe"):
        return loc
    for depth, step in enumerate(loc):
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return loc[:depth]
    return loc


def _sentence(path: tuple[str | int, ...], items: list[ErrorDetails], model: type[BaseModel]) -> str:
    # Of a union's branches, the one that took the type and refused the value says most.
    telling = [item for item in items if item["type"] not in _EXPECTED and item["type"] != "literal_error"]
    if telling:
        return _one_sentence(telling[0], model)
    expected = list(dict.fromkeys(_EXPECTED.get(item["type"]) or str(item["ctx"]["expected"]) for item in items))
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    if field is not None and NoneType in get_args(field.annotation):
        expected.append("null")
    return f"expected {' or '.join(expected)}, got {_got(items[0]['input'])}{_hint(items)}"


def _one_sentence(item: ErrorDetails, model: type[BaseModel]) -> str:
    match item["type"]:
        case "extra_forbidden":
            return unknown_key(str(item["loc"][-1]), model.model_fields)
        case "missing":
            return "missing key: add it"
        case "value_error":
            return str(item["ctx"]["error"])
        case "evopipe":
            return item["msg"]
    message = re.sub(r"^\w+ should (be )?", lambda start: f"must {start[1] or ''}", item["msg"])
    for pydantics, plain in _PLAIN.items():
        message = message.replace(pydantics, plain)
    return f"{message[:1].lower()}{message[1:]}, got {_got(item['input'])}"


def _hint(items: list[ErrorDetails]) -> str:
    """What the value was probably meant to be."""
    value = items[0]["input"]
    if isinstance(value, float) and value.is_integer() and any(item["type"] == "int_type" for item in items):
        return f": write {int(value)}" if abs(value) < 2**63 else ""
    words = [word for item in items for word in str(item.get("ctx", {}).get("expected")).split("'")[1::2]]
    if not isinstance(value, str):
        return ""
    same = next((word for word in words if word.casefold() == value.casefold()), None)
    return f", did you mean {same!r}?" if same else did_you_mean(value, words)


def _got(value: Any) -> str:
    """A value as YAML may have it, cut short."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # not plain data, or a number that is too long to print
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}…"
