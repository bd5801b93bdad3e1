"""A block of a schema as YAML, its descriptions as comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from evopipe.storage.yamlio import flow

WIDTH = 120
INDENT = "  "


def block(name: str, values: BaseModel, depth: int = 0) -> str:
    """Return a block, ready for `params.yaml`.

    Args:
        name: its key.
        values: what it holds.
        depth: how many blocks it stands in.
    """
    indent = INDENT * depth
    return "\n".join((f"{indent}{name}:", *_entries(values, indent + INDENT))) + "\n"


def _entries(values: BaseModel, indent: str) -> Iterator[str]:
    data = values.model_dump(mode="json")
    for name, field in type(values).model_fields.items():
        below, plain, start = getattr(values, name), data[name], f"{indent}{name}:"
        blocks = isinstance(below, BaseModel) or (isinstance(below, dict) and below)
        yield from _commented(start if blocks else f"{start} {flow(plain)}", _comment(field), indent)
        if isinstance(below, BaseModel):
            yield from _entries(below, indent + INDENT)
        elif blocks:
            yield from (f"{indent}{INDENT}{key}: {flow(value)}" for key, value in plain.items())


def _comment(field: FieldInfo) -> str:
    """What a key's description says, after the words it may be set to where that does not name them."""
    text = " ".join((field.description or "").split())
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    named = all(f"`{word}`" in text for word in words)
    return text if named else f"{' | '.join(map(str, words))}: {text}"


def _commented(line: str, text: str, indent: str) -> Iterator[str]:
    """A line with its comment behind it, or above where it would become too long."""
    if len(line) + len(f"  # {text}") <= WIDTH:
        yield f"{line}  # {text}" if text else line
        return
    mark = f"{indent}# "
    yield from textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=mark)
    yield line
