"""Writes plain data and blocks of the schema as YAML, with their descriptions as comments."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from io import StringIO
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

_WIDTH = 120
_INDENT = "  "


def dump_yaml(data: Any, on_one_line: bool = False) -> str:
    """Return plain data as YAML text, in block style or on one line; `read_yaml` reads the same values from it."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = on_one_line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue().removesuffix("...\n")


def block(name: str, values: BaseModel) -> str:
    """Return `values` as YAML text under the key `name`, indented by one level.

    The text can stand below the key `algos` if `name` is an algorithm, or below `search` if it is a search strategy.
    """
    return "\n".join((f"{_INDENT}{name}:", *entries(values, 2 * _INDENT))) + "\n"


def entries(values: BaseModel, indent: str = "", but: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines of a block, or of a whole params file, as YAML with the fields' descriptions as comments.

    Every line begins with `indent`. Keys in `but`, and optional blocks that have their defaults, are left out.
    """
    data = values.model_dump(mode="json")
    for name, field in type(values).model_fields.items():
        spare = field.validate_default and field.get_default(call_default_factory=True) == getattr(values, name)
        if name not in but and not spare:
            yield from _entry(values, name, field, data[name], indent)


def commented() -> YAML:
    """Return a ruamel.yaml object that preserves comments when it reads and writes YAML."""
    yaml = YAML()
    yaml.width = 4096
    yaml.representer.add_representer(type(None), lambda to, _: to.represent_scalar("tag:yaml.org,2002:null", "null"))
    return yaml


def completed(text: str, defaults: str) -> tuple[str, list[str]]:
    """Add keys that are missing in a YAML text, with their values from another YAML text, `defaults`.

    The result is the new text, with its comments, and the dotted names of the added keys.
    """
    yaml = commented()
    own, out = yaml.load(text), StringIO()
    added: list[str] = []
    _complete(own, yaml.load(defaults), "", added)
    yaml.dump(own, out)
    return out.getvalue(), added


def _complete(own: Any, defaults: Any, path: str, added: list[str]) -> None:
    """Put into a mapping what it lacks, block by block, and the names of these keys into `added`."""
    for key, value in defaults.items():
        if key not in own:
            own[key] = value
            own.fa.set_block_style()
            if key in defaults.ca.items:
                own.ca.items[key] = defaults.ca.items[key]
            added.append(f"{path}{key}")
        elif isinstance(value, dict) and value and isinstance(own[key], dict):
            _complete(own[key], value, f"{path}{key}.", added)


def _entry(values: BaseModel, name: str, field: FieldInfo, plain: Any, indent: str) -> Iterator[str]:
    below, start = getattr(values, name), f"{indent}{name}:"
    blocks = isinstance(below, BaseModel) or (isinstance(below, dict) and below)
    yield from _commented(start if blocks else f"{start} {_on_one_line(plain)}", _comment(field), indent)
    if isinstance(below, BaseModel):
        yield from entries(below, indent + _INDENT)
    elif blocks:
        yield from (f"{indent}{_INDENT}{key}: {_on_one_line(value)}" for key, value in plain.items())


def _on_one_line(value: Any) -> str:
    return dump_yaml(value, on_one_line=True).strip()


def _comment(field: FieldInfo) -> str:
    """What a key's description says, after the words it may be set to where that does not name them."""
    text = " ".join((field.description or "").split())
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    named = all(f"`{word}`" in text for word in words)
    return text if named else f"{' | '.join(map(str, words))}: {text}"


def _commented(line: str, text: str, indent: str) -> Iterator[str]:
    """A line with its comment behind it, or above where it would become too long."""
    if len(line) + len(f"  # {text}") <= _WIDTH:
        yield f"{line}  # {text}" if text else line
        return
    mark = f"{indent}# "
    yield from textwrap.wrap(text, _WIDTH, initial_indent=mark, subsequent_indent=mark)
    yield line
