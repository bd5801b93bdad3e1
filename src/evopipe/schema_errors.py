"""What is wrong with a mapping that should fit a schema, in sentences."""

from __future__ import annotations

import json
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from evopipe.errors import did_you_mean

Path = tuple[str | int, ...]

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
    "model_attributes_type": "a block of keys",
}
_BOUNDS = {
    "greater_than": ("must be above", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be below", "lt"),
    "less_than_equal": ("must be at most", "le"),
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the path of keys to it, and a sentence that says what and what to do."""

    path: Path
    sentence: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.sentence}" if self.path else self.sentence


def located(problems: Sequence[Problem], got: Any = None) -> ValidationError:
    """An error to raise inside a pydantic validator: it keeps each problem's own path below the validated value."""
    return ValidationError.from_exception_data(
        "evopipe",
        [
            InitErrorDetails(
                type=PydanticCustomError("evopipe", "{sentence}", {"sentence": problem.sentence}),
                loc=problem.path,
                input=got,
            )
            for problem in problems
        ],
    )


def explain(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """Turn a pydantic error into sentences.

    Args:
        error: what validating `data` raised.
        model: the schema; it supplies the known keys for suggestions.
        data: the raw mapping that was validated.
    """
    # The branches of a union report one error each, at paths with the branch's name appended: one place, one sentence.
    places: dict[Path, list[ErrorDetails]] = defaultdict(list)
    for item in error.errors(include_url=False):
        places[_place(item, data)].append(item)
    return [Problem(path, _sentence(path, items, model)) for path, items in places.items()]


def missing_keys(model: type[BaseModel], data: Mapping[str, Any], path: Path = ()) -> Iterator[Problem]:
    """Every key of the schema that `data` leaves to its default, at any depth."""
    for name, field in model.model_fields.items():
        here = (*path, name)
        if name not in data:
            yield Problem(here, missing_sentence(field))
            continue
        for below, block, value in _blocks_in(field.annotation, data[name], here):
            yield from missing_keys(block, value, below)


def missing_sentence(field: FieldInfo) -> str:
    """What to say of a key that is not there."""
    if field.is_required():
        return "missing key: add it"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return f"missing block: add it, the defaults are {_shown(default.model_dump(mode='json'))}"
    return f"missing key (default {_shown(default)}): add it"


def _shown(value: Any) -> str:
    """A value as one may write it in YAML."""
    return value if isinstance(value, str) else json.dumps(value, default=lambda block: block.model_dump(mode="json"))


def _place(item: ErrorDetails, data: Any) -> Path:
    """The part of an error's path that exists in the data (a missing key is one step beyond)."""
    loc = item["loc"]
    if item["type"] == "missing":
        return loc
    for depth, step in enumerate(loc):
        if not _holds(data, step):
            # A custom problem names a key that may not be there (a default): its path is meant as it is.
            return loc if item["type"] == "evopipe" else loc[:depth]
        data = data[step]
    return loc


def _holds(data: Any, step: str | int) -> bool:
    if isinstance(data, Mapping):
        return step in data
    return isinstance(data, list | tuple) and isinstance(step, int) and step < len(data)


def _sentence(path: Path, items: list[ErrorDetails], model: type[BaseModel]) -> str:
    # Of a union's branches, the one that took the type and refused the value says most.
    telling = [item for item in items if item["type"] not in _EXPECTED and item["type"] != "literal_error"]
    if telling:
        return _one_sentence(path, telling[0], model)
    expected = list(dict.fromkeys(_expected(item) for item in items))
    if _allows_null(_field_at(model, path)):
        expected.append("null")
    return f"expected {' or '.join(expected)}, got {_got(items[0]['input'])}{_hint(items)}"


def _one_sentence(path: Path, item: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context, value = item["type"], item.get("ctx", {}), item["input"]
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{words} {context[bound]:.10g}, got {_number(value)}"
    match kind:
        case "extra_forbidden":
            return _unknown_key(path, model)
        case "missing":
            field = _field_at(model, path)
            return missing_sentence(field) if field else "missing key: add it"
        case "value_error":
            return str(context["error"])
        case "finite_number":
            return f"must be a finite number, got {value}"
        case "too_short":
            return f"must have {context['min_length']} or more items, got {context['actual_length']}"
        case "too_long":
            return f"must have at most {context['max_length']} items, got {context['actual_length']}"
        case "string_too_short":
            return f"must have {context['min_length']} or more characters, got {_got(value)}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, got {len(value)}"
        case _:
            message = item["msg"]
            return message if kind == "evopipe" else f"{message[:1].lower()}{message[1:]}, got {_got(value)}"


def _unknown_key(path: Path, model: type[BaseModel]) -> str:
    owner = _block_at(model, path[:-1])
    known = list(owner.model_fields) if owner else []
    guess = did_you_mean(str(path[-1]), known)
    return f"unknown key{guess or ': delete it, known here: ' + ', '.join(known)}"


def _expected(item: ErrorDetails) -> str:
    return _EXPECTED.get(item["type"]) or str(item["ctx"]["expected"])


def _hint(items: list[ErrorDetails]) -> str:
    """What the value was probably meant to be."""
    value = items[0]["input"]
    kinds = {item["type"] for item in items}
    if "int_type" in kinds and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return f": write {int(value)}"
    if isinstance(value, str) and "literal_error" in kinds:
        allowed = [part for item in items if "expected" in item.get("ctx", {}) for part in _quoted(item)]
        same = [word for word in allowed if word.casefold() == value.casefold()]
        return f", did you mean {same[0]!r}?" if same else did_you_mean(value, allowed)
    return ""


def _quoted(item: ErrorDetails) -> list[str]:
    return str(item["ctx"]["expected"]).split("'")[1::2]


def _got(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return _number(value)
        case str():
            return f"the text {value if len(value) <= 40 else value[:40] + '…'!r}"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a block of keys"
        case _:
            return f"a value of type {type(value).__name__}"


def _number(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        # Python refuses to print numbers of several thousand digits.
        return str(value) if abs(value) < 10**40 else "a number of over 40 digits"
    return str(value)


def _allows_null(field: FieldInfo | None) -> bool:
    return field is not None and type(None) in get_args(field.annotation)


def _field_at(model: type[BaseModel], path: Path) -> FieldInfo | None:
    if not path:
        return None
    owner = _block_at(model, path[:-1])
    return owner.model_fields.get(str(path[-1])) if owner else None


def _block_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The schema of the block at `path`; None where it has none (free-form values)."""
    annotation: Any = model
    for step in path:
        block = _schema_in(annotation)
        if block is not None:
            field = block.model_fields.get(str(step))
            annotation = field.annotation if field else None
        else:
            annotation = _item_type(annotation)
    return _schema_in(annotation)


def _schema_in(annotation: Any) -> type[BaseModel] | None:
    """The schema that an annotation is, or has among its alternatives."""
    if isinstance(annotation, type) and not get_origin(annotation) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        return next((found for arg in get_args(annotation) if (found := _schema_in(arg))), None)
    return None


def _item_type(annotation: Any) -> Any:
    """The type of the values of a dictionary or the items of a list."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal or not arguments:
        return None
    return arguments[1] if get_origin(annotation) is dict else arguments[0]


def _blocks_in(annotation: Any, value: Any, path: Path) -> Iterator[tuple[Path, type[BaseModel], Mapping[str, Any]]]:
    """The blocks with a schema that a value holds: itself, or its entries."""
    block = _schema_in(annotation)
    if block is not None:
        if isinstance(value, Mapping):
            yield path, block, value
        return
    item = _schema_in(_item_type(annotation))
    if item is None:
        return
    entries: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, Mapping):
        entries = iter(value.items())
    elif isinstance(value, list | tuple):
        entries = iter(enumerate(value))
    for key, entry in entries:
        if isinstance(entry, Mapping):
            yield (*path, key), item, entry
