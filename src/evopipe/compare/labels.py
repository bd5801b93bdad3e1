"""Short labels of configurations: the parameters that differ, and a legend of what was shortened."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from evopipe.formats import clean, number, tails

_WIDEST = 44  # characters of a label; what a terminal of 120 columns and a picture have room for
_LONGEST = 28  # characters of one parameter in a label that is cut

_Settings = Mapping[str, Any]


def differing(settings: Sequence[_Settings]) -> list[str]:
    """Return the dotted keys of the parameters that all configurations `settings` have, but with different values.

    A key that some configurations lack, such as a parameter of another algorithm, is left out.
    """
    return [key for key in _unlike(settings) if all(key in each for each in settings)]


def short(keys: Sequence[str]) -> dict[str, str]:
    """Return a short name of each dotted key, by key: its last words, as few as tell the keys apart.

    A parameter of an algorithm has at least one word, such as `lr`. Any other parameter has at least two, such as
    `population.size`.
    """
    return tails(keys, lambda key: 1 if key.startswith("algos.") else 2)


def labels(settings: Sequence[_Settings], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Label each configuration by the parameters in which it differs from others.

    Args:
        settings: the parameters of each configuration, by dotted key.
        names: where each configuration's first run is. The name is added to labels that are otherwise equal.

    Returns:
        A label for each configuration, and the legend as a list of sentences. A label that is too long is cut. It then
        begins with the configuration's number, and the legend has all its parameters.
    """
    keys = _unlike(settings)
    found = [{key: each[key] for key in keys if key in each} for each in settings]
    if not keys:
        keys = ["env.id", "train.algo"]
        found = [{key: each.get(key) for key in keys} for each in settings]
    words = short(keys)
    parts = [[f"{words[key]}={_text(value)}" for key, value in each.items()] for each in found]
    parts = [[*each, f"of {name}"] if parts.count(each) > 1 else each for each, name in zip(parts, names, strict=True)]
    shortened = ", ".join(f"{words[key]} is {key}" for key in keys if words[key] != key)
    short_labels, legend = [], [f"in short: {shortened}"] * bool(shortened)
    for index, (each, full) in enumerate(zip(parts, found, strict=True), 1):
        label = " ".join(each)
        if len(label) > _WIDEST:
            label = _cut(each, index)
            told = ", ".join(f"{key}={_text(value)}" for key, value in full.items())
            legend.append(f"configuration {index}: {told}")
        short_labels.append(label)
    return short_labels, legend


def _unlike(settings: Sequence[_Settings]) -> list[str]:
    """Return the keys whose values differ among the configurations that have them."""
    seen: dict[str, list[Any]] = {}
    for each in settings:
        for key, value in each.items():
            seen.setdefault(key, []).append(value)
    return [key for key, values in seen.items() if any(value != values[0] for value in values)]


def _cut(parts: Sequence[str], index: int) -> str:
    """Return a label with its configuration's number, without its last parameters and the ends of long values."""
    parts = [part if len(part) <= _LONGEST else part[: _LONGEST - 1] + "…" for part in parts]
    tried = [" ".join([f"{index}:", *parts[:n], *["…"] * (n < len(parts))]) for n in range(len(parts) + 1)]
    return max((text for text in tried if len(text) <= _WIDEST), key=len)


def _text(value: Any) -> str:
    return clean(number(value) if isinstance(value, float) else "null" if value is None else str(value))


def wrapped(sentences: Sequence[str], width: int) -> list[str]:
    """Return a legend as lines of at most `width` characters, unless a word is longer."""
    kept = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": "  "}
    return [line for each in sentences for line in textwrap.wrap(each, width, **kept)]  # type: ignore[arg-type]
