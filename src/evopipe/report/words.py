"""Numbers and names as the page writes them."""

from __future__ import annotations

import math

from evopipe.report.read import Node, Run
from evopipe.track.formats import duration as duration
from evopipe.track.formats import number, score

KINDS = {
    "none": "no mutation",
    "architecture": "architecture",
    "parameters": "parameters",
    "activation": "activation",
    "rl_hp": "hyper-parameter",
}
DOING = {
    "none": "no mutation",
    "architecture": "changes of the architecture",
    "parameters": "noise on the parameters",
    "activation": "changes of the activation",
    "rl_hp": "changes of a hyper-parameter",
}
ENDINGS = {
    "target": "because a confirmed member had reached the target",
    "max_steps": "because all steps had been taken",
}


def figure(value: float) -> str:
    """Return a score with a true minus sign."""
    return score(value).replace("-", "−") if math.isfinite(value) else "–"


def signed(value: float) -> str:
    """Return a difference with its sign."""
    return f"+{figure(value)}" if value > 0 else figure(value)


def amount(value: float) -> str:
    """Return a hyper-parameter or a tick in few characters, with a true minus sign."""
    return number(value).replace("-", "−") if math.isfinite(value) else "–"


def share(value: float) -> str:
    """Return a share in per cent."""
    return f"{100 * value:.0f} %" if math.isfinite(value) else "–"


def thousands(value: float) -> str:
    """Return a count in few characters: 500, 20k, 1.2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def ending(run: Run) -> str:
    """Return why the run ended, in words that follow "Training ended"."""
    reason = str(run.summary["reason"])
    return ENDINGS.get(reason, f"({reason})")


def doing(name: str) -> str:
    """Return what a mutation kind does, in words."""
    return DOING.get(name, name)


def kind(name: str) -> str:
    """Return a mutation kind in words."""
    return KINDS.get(name, name)


def made(node: Node) -> str:
    """Return by which mutation a member was made, and what that changed."""
    name = kind(node.kind)
    return node.change if node.change.startswith(name) else f"{name}{f': {node.change}' if node.change else ''}"


def about(node: Node) -> str:
    """Return a member's tooltip."""
    generation, slot = node.key
    born = "survived" if node.survived else made(node)
    fitness = f"fitness {figure(node.fitness)}" if math.isfinite(node.fitness) else "diverged"
    gain = f" ({signed(node.gain)} over its parent)" if math.isfinite(node.gain) else ""
    return "\n".join(
        (
            f"generation {generation}, slot {slot}, member {node.id}",
            born if node.parent else f"first generation{'' if born == KINDS['none'] else f', {born}'}",
            f"{fitness}{gain}",
            node.network,
        )
    )


def shortened(text: str, length: int) -> str:
    """Return a text of at most that many characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
