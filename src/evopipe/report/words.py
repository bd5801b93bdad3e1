"""Numbers and names as the page writes them."""

from __future__ import annotations

import math
from typing import Any

from evopipe.report.lineage import Node
from evopipe.track.formats import clean as clean
from evopipe.track.formats import duration as duration
from evopipe.track.formats import number, score

# What a mutation kind is called, and what it does.
_KINDS = {
    "none": ("no mutation", "no mutation"),
    "architecture": ("architecture", "changes of the architecture"),
    "parameters": ("parameters", "noise on the parameters"),
    "activation": ("activation", "changes of the activation"),
    "rl_hp": ("hyper-parameter", "changes of a hyper-parameter"),
}


def figure(value: float) -> str:
    """Return a score with a true minus sign; a dash where it is not finite."""
    return score(value).replace("-", "−") if math.isfinite(value) else "–"


def signed(value: float) -> str:
    """Return a difference with its sign."""
    return f"+{figure(value)}" if value > 0 else figure(value)


def amount(value: float) -> str:
    """Return a hyper-parameter or a tick in few characters, with a true minus sign."""
    return number(value).replace("-", "−") if math.isfinite(value) else "–"


def value(setting: Any) -> str:
    """Return a parameter or a trait."""
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    if setting is None or setting == {}:
        return "none"
    return amount(setting) if isinstance(setting, float) else str(setting)


def share(value: float) -> str:
    """Return a share in per cent."""
    return f"{100 * value:.0f} %" if math.isfinite(value) else "–"


def thousands(value: float) -> str:
    """Return a count in few characters: 500, 20k, 1.2M."""
    sizes = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, letter = next((pair for pair in sizes if abs(value) >= pair[0]), (1.0, ""))
    return f"{value / size:.3g}{letter}".replace("-", "−")


def count(number: int, name: str) -> str:
    """Return "1 member", "8 members"."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def kind(name: str) -> str:
    """Return a mutation kind in words."""
    return _KINDS.get(name, (name,))[0]


def doing(name: str) -> str:
    """Return what a mutation kind does, in words."""
    return _KINDS.get(name, (name,))[-1]


def made(node: Node) -> str:
    """Return by which mutation a member was made, and what that changed."""
    name = kind(node.kind)
    return node.change if node.change.startswith(name) else f"{name}{f': {node.change}' if node.change else ''}"


def about(node: Node) -> str:
    """Return a member's tooltip."""
    born = "survived" if node.survived else made(node)
    if not node.parent:
        born = "first generation" + (f", {born}" if born != kind("none") else "")
    gain = f" ({signed(node.gain)} over its parent)" if math.isfinite(node.gain) else ""
    return "\n".join(
        (
            f"generation {node.key[0]}, slot {node.key[1]}, member {node.id}",
            born,
            "diverged" if node.diverged else f"fitness {figure(node.fitness)}{gain}",
            node.network,
        )
    )
