"""Defaults of public functions, classes and methods: what a script gets that does not say it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evopipe
from evopipe.compat import agilerl, rllm

TABLE = Path(__file__).with_name("defaults.json")


def test_defaults_are_those_of_the_table() -> None:
    """A default that is changed on purpose is changed in the table too: see what `made` of this file gives."""
    assert json.loads(TABLE.read_text()) == made()


def made() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for module in (evopipe, agilerl, rllm):
        for name in sorted(module.__all__):
            for path, called in _callables(name, getattr(module, name)):
                own = _defaults(called)
                if own and str(getattr(called, "__module__", "")).startswith("evopipe"):
                    found[path] = own
            if own := getattr(getattr(module, name), "DEFAULTS", None):  # of an algorithm's class
                found[f"{name}.DEFAULTS"] = {key: _told(value) for key, value in sorted(own.items())}
    return found


def _callables(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    if inspect.isfunction(found):
        yield name, found
    elif inspect.isclass(found):
        if "__init__" in vars(found):
            yield name, found.__init__
        for method, value in sorted(vars(found).items()):
            plain = getattr(value, "__func__", value)
            if inspect.isfunction(plain) and not method.startswith("_"):
                yield f"{name}.{method}", plain


def _defaults(called: Any) -> dict[str, Any]:
    """Flags, numbers and texts as they are, all else by its name or its text; without those that are None."""
    given = {name: each.default for name, each in inspect.signature(called).parameters.items()}
    told = {name: value for name, value in given.items() if value not in (inspect.Parameter.empty, None)}
    return {name: _told(value) for name, value in told.items()}


def _told(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else getattr(value, "__name__", repr(value))
