"""Formats of numbers and names on the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from evopipe.formats import clean as clean
from evopipe.formats import duration as duration
from evopipe.formats import number, score

KINDS = {
    "none": "no mutation",
    "architecture": "architecture",
    "parameters": "parameters",
    "activation": "activation",
    "rl_hp": "hyper-parameter",
}
"""What mutation kinds are called, in the order in which they are shown."""


def template(name: str, line_ends: bool = False, **known: Any) -> Template:
    """Load the report's Jinja template in the file `name`. It escapes texts and removes their control characters.

    `known` are the variables and functions that the template can use. `line_ends` keeps the line break at the end of
    the file and of the files that it includes.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        extensions=["jinja2.ext.do"],
        finalize=lambda value: clean(value) if type(value) is str else value,
        keep_trailing_newline=line_ends,  # of files that a template includes, and its own
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals |= known
    return environment.get_template(name)


def figure(value: float, signed: bool = False) -> str:
    """Return a score as short text with a true minus sign; a dash if it is not finite.

    With `signed`, a positive score has a plus sign.
    """
    if not math.isfinite(value):
        return "–"
    return "+" * (signed and value > 0) + score(value).replace("-", "−")


def value(setting: Any) -> str:
    """Return a parameter, a trait or an axis label as short text, with a true minus sign for negative floats.

    Booleans become `yes` and `no`, None and an empty dict `none`, and floats that are not finite a dash.
    """
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    if setting is None or setting == {}:
        return "none"
    if isinstance(setting, float):
        return number(setting).replace("-", "−") if math.isfinite(setting) else "–"
    return str(setting)


def thousands(value: float) -> str:
    """Return a count as short text with a suffix for thousands, millions or billions: 500, 20k, 1.2M, 3G."""
    sizes = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, letter = next((pair for pair in sizes if abs(value) >= pair[0]), (1.0, ""))
    return f"{value / size:.4g}{letter}".replace("-", "−")
