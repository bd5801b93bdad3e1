"""The means to declare a block of `params.yaml`, and the error messages for data that does not fit it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Self, TypeAlias, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from evopipe.errors import ParamsError, UsageError, did_you_mean, suggestion
from evopipe.schema import spellings
from evopipe.types import Spaces

MAX_PROBLEMS = 50  # that a message has
_Model = TypeVar("_Model", bound=BaseModel)
COMPLETE = "complete"
"""The context of a validation in which every key must be given."""

Problem: TypeAlias = "tuple[tuple[str | int, ...], str]"
"""One thing that is wrong: the keys to it, and a sentence that says what and what to do."""

# Pydantic's words, and those of people who write YAML.
_WORDS = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid dictionary": "a block of keys",
}


class Schema(BaseModel):
    """The base class of every block of `params.yaml`.

    A block is immutable and strictly typed; unknown keys, NaN and infinity are errors.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True, defer_build=True)

    @classmethod
    def unknown_keys(cls, names: list[str]) -> list[Problem]:
        """Return a (key, sentence) pair for each of the keys `names`, which are in the data but are not fields of the
        block.

        This method is called only for a block that may have further keys (`extra="allow"`).
        """
        return [((name,), unknown_key(name, cls.model_fields)) for name in names]

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Put into sentences what is wrong with a block."""
        problems = list(_missing_keys(cls, data)) if info.context == COMPLETE and isinstance(data, Mapping) else []
        if cls.model_config.get("extra") == "allow" and isinstance(data, Mapping):
            problems += cls.unknown_keys([str(name) for name in data if name not in cls.model_fields])
        try:
            made = handler(data)
        except ValidationError as error:
            raise located([*problems, *explain(error, cls, data)]) from None
        if problems:
            raise located(problems)
        return made


class Evolve(Schema):
    """Settings for the mutation of one hyper-parameter.
    A mutation multiplies it by `grow` or `shrink`, then clips it to `[min, max]`."""

    min: float = Field(description="smallest value that a mutation may give the hyper-parameter")
    max: float = Field(description="largest value that a mutation may give the hyper-parameter")
    grow: float = Field(1.2, gt=1.0, description="factor of a mutation that increases the hyper-parameter")
    shrink: float = Field(0.8, gt=0.0, lt=1.0, description="factor of a mutation that decreases the hyper-parameter")

    @model_validator(mode="after")
    def _ordered(self) -> Evolve:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


def ordered(*names: str) -> Any:
    """Return a pydantic validator for a block, which checks `min_NAME` ≤ `max_NAME` for each of the given names."""

    def check(block: Any) -> Any:
        for name in names:
            low, high = getattr(block, f"min_{name}"), getattr(block, f"max_{name}")
            if low > high:
                raise ValueError(f"min_{name} ({low}) is above max_{name} ({high})")
        return block

    return model_validator(mode="after")(check)


def left_out(*names: str) -> Any:
    """Return a pydantic serializer for a block, which leaves out those of the fields `names` that have their defaults.

    So a new field can be added to a block: as long as it has its default, the block is written and hashed as before.
    """

    def serialize(self: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        defaults = {name: type(self).model_fields[name].get_default(call_default_factory=True) for name in names}
        return {
            name: value for name, value in found.items() if name not in names or getattr(self, name) != defaults[name]
        }

    return model_serializer(mode="wrap")(serialize)


def unknown_key(name: str, known: Collection[str]) -> str:
    """Return an error message about the key `name`, which a block does not have.

    The message suggests the key that was probably meant, or lists the block's keys, `known`.
    """
    return f"unknown key{spellings.here(name, known) or suggestion(name, known)}"


def some_mass(block: Any) -> Any:
    """Check that at least one weight of a block of mutation probabilities is positive, and return the block.

    Raises:
        ValueError: all weights are 0.
    """
    if not any(dict(block).values()):
        raise ValueError("all mutation probabilities are 0: give at least one kind a positive weight")
    return block


def hyper(
    default: Any = ..., *, doc: str, unit: str = "", raising: str = "", evolvable: bool = False, **bounds: Any
) -> Any:
    """Declare one hyper-parameter of an algorithm, as a field of its `Config`.

    Args:
        default: the default value; without one, the result is for use in `Annotated`.
        doc: a description of the hyper-parameter.
        unit: its unit.
        raising: the effect of a higher value.
        evolvable: whether mutation may change the value; the algorithm then reads it as a tensor `[P]`.
        bounds: bounds of the value, as pydantic's `Field` takes them, such as `ge=0`.
    """
    extra: dict[str, Any] = {"unit": unit, "raising": raising, "evolvable": evolvable}
    return Field(default, description=doc, json_schema_extra=extra, **bounds)


def evolvable(schema: type[BaseModel]) -> list[str]:
    """Return the names of the hyper-parameters that `hyper` declared evolvable, in the order of the schema."""
    extras = {name: field.json_schema_extra for name, field in schema.model_fields.items()}
    return [name for name, extra in extras.items() if isinstance(extra, dict) and extra.get("evolvable")]


def _filled(default: Any, given: Any) -> Any:
    """Return a block with the keys of `default` that it leaves out, in blocks within it, too."""
    if not isinstance(default, Schema) or not isinstance(given, Mapping):
        return given
    own = {name: getattr(default, name) for name in type(default).model_fields}
    return {**own, **{name: _filled(own.get(name), value) for name, value in given.items()}}


class AlgoConfig(Schema):
    """The base class of every algorithm's `Config`: the algorithm's hyper-parameters, with the environment's spaces."""

    _spaces: Spaces | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _fill_blocks(cls, data: Any, info: ValidationInfo) -> Any:
        """Give keys that a block within leaves out this algorithm's own defaults; a file must be complete."""
        if info.context == COMPLETE or not isinstance(data, Mapping):
            return data
        own = {name: field.default for name, field in cls.model_fields.items() if isinstance(field.default, Schema)}
        return {name: _filled(own[name], given) if name in own else given for name, given in data.items()}

    @property
    def spaces(self) -> Spaces:
        """The spaces of the environment for which the configuration is used. The method `at` sets the spaces."""
        private = self.__pydantic_private__  # read at every update: pydantic's own way there takes five times as long
        spaces: Spaces | None = private["_spaces"] if private else None
        if spaces is None:
            raise RuntimeError("this configuration knows no environment: use cfg.at(spaces)")
        return spaces

    def at(self, spaces: Spaces) -> Self:
        """Return a copy of this configuration for an environment with these spaces."""
        config = self.model_copy()
        config._spaces = spaces
        return config


# --- what is wrong with a block ---------------------------------------------------------------------------------------


def located(problems: Iterable[Problem]) -> ValidationError:
    """Return a pydantic error with these (key, sentence) pairs, to be raised inside a validator.

    A key is a path relative to the value that is validated.
    """
    lines: list[InitErrorDetails] = [
        {"type": PydanticCustomError("evopipe", "{said}", {"said": said}), "loc": path, "input": None}
        for path, said in problems
    ]
    return ValidationError.from_exception_data("evopipe", lines)


def parsed(schema: type[_Model], data: Any, begin: str = "") -> _Model:
    """Validate data against the schema of a block, and return the block.

    Raises:
        ParamsError: the data does not fit; the message has a line for each problem, and each line begins with `begin`.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        found = explain(error, schema, data)
    raise refusal(begin + line_of(*problem) for problem in found)


def line_of(keys: tuple[str | int, ...], sentence: str) -> str:
    """Return a problem as one line `key: sentence`, with the dotted key made of `keys`."""
    shown = (str(key) if str(key).isprintable() else repr(key) for key in keys)
    return ": ".join(filter(None, (".".join(shown), sentence)))


def refusal(problems: Iterable[str]) -> ParamsError:
    """Return one `ParamsError` for several problems, one line each. Of hundreds of problems only the first are
    shown."""
    lines = list(problems)
    more = [f"… and {len(lines) - MAX_PROBLEMS} more"] if len(lines) > MAX_PROBLEMS else []
    return ParamsError("\n".join(lines[:MAX_PROBLEMS] + more))


def explain(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """Convert pydantic's error about a block to (key, sentence) pairs, one for each wrong place.

    `model` is the block's schema, and `data` is the raw data that does not fit it.
    """
    # The branches of a union report one error each, at paths with the branch's name appended: one place, one sentence.
    places: dict[tuple[str | int, ...], list[ErrorDetails]] = defaultdict(list)
    for item in error.errors(include_url=False):
        places[_place(item, data)].append(item)
    return [(path, _sentence(path, items, model)) for path, items in places.items()]


def _missing_keys(model: type[BaseModel], data: Mapping[str, Any]) -> Iterator[Problem]:
    """Tell every key that a block leaves to its default, but for those whose validator looks for itself."""
    for name, field in model.model_fields.items():
        if name not in data and not field.is_required() and not field.validate_default:
            default = field.get_default(call_default_factory=True)
            text = default if isinstance(default, str) else json.dumps(default, default=lambda it: it.model_dump())
            whole = f"missing block: add it, the defaults are {text}"
            yield (name,), whole if isinstance(default, BaseModel) else f"missing key (default {text}): add it"


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
    first = items[0]
    match first["type"]:
        case "extra_forbidden":
            return unknown_key(str(path[-1]), model.model_fields)
        case "missing":
            return "missing key: add it"
        case "value_error":
            return str(first["ctx"]["error"])
        case "evopipe":
            return first["msg"]
    wanted = dict.fromkeys(_plain(item["msg"]) for item in items)
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    if field is not None and NoneType in get_args(field.annotation):
        wanted["null"] = None
    verb = "must be" if " should be " in first["msg"] else "must"
    return f"{verb} {' or '.join(wanted)}, got {_shown(first['input'])}{_hint(items)}"


def _plain(message: str) -> str:
    """What stands behind pydantic's `Input should be`, in plain words."""
    message = re.sub(r"^\w+ should (be )?| or instance of \w+$| after validation.*", "", message)
    for pydantics, plain in _WORDS.items():
        message = message.replace(pydantics, plain)
    return message


def _hint(items: list[ErrorDetails]) -> str:
    """What the value was probably meant to be."""
    value = items[0]["input"]
    if isinstance(value, float) and value.is_integer() and any(item["type"] == "int_type" for item in items):
        return f": write {int(value)}" if abs(value) < 2**63 else ""
    if not isinstance(value, str):
        return ""
    words = [word for item in items for word in str(item.get("ctx", {}).get("expected")).split("'")[1::2]]
    return did_you_mean(value, words)


def _shown(value: Any) -> str:
    """A value as YAML may have it, cut short."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # not plain data, or a number that is too long to print
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}…"


def value_at(settings: Schema, path: str) -> Any:
    """Return the value at a dotted key of the settings, as JSON data.

    Raises:
        UsageError: the key does not exist.
    """
    value: Any = settings.model_dump(mode="json")
    for step in path.split("."):
        if isinstance(value, list):
            value = {str(number): item for number, item in enumerate(value)}
        known = value if isinstance(value, dict) else {}
        if step not in known:
            guess = suggestion(step, known) if known else ", there are no keys there"
            raise UsageError(f"params show: no key {step!r} in {path}{guess}")
        value = known[step]
    return value
