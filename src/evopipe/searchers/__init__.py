"""The search strategies: one file each, found by its name; see `contract`."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from evopipe import plugins
from evopipe.errors import ParamsError

_PARTS = ("apply", "contract", "history", "outside", "propose")
"""Modules of this folder that are no strategy."""
OWN = tuple(sorted(found.name for found in iter_modules([str(Path(__file__).parent)]) if found.name not in _PARTS))
"""Evopipe's own."""
KEY = "search.strategy"
PACKAGES = {"tpe": ("optuna",), "gp": ("optuna", "scipy")}
"""What proposers compute with, see `propose`."""


def names() -> list[str]:
    """Return the names of all search strategies: evopipe's own, then those of other installed packages."""
    return [*OWN, *plugins.names(plugins.SEARCHERS, OWN)]


def plugin(name: str) -> plugins.Plugin | None:
    """Return the entry point of a search strategy from another package; None if the strategy is evopipe's own or
    unknown."""
    return plugins.find(plugins.SEARCHERS, name, KEY, OWN)


def packages(search: Any) -> tuple[str, ...]:
    """Return the names of other packages, such as Optuna, that choose hyper-parameters in a search with these settings.

    `search` is the block `search` of the parameters.
    """
    strategy = get(search.strategy)
    proposed: tuple[str, ...] = PACKAGES.get(search.proposer, ()) if strategy.RENEWS else ()
    return (*getattr(strategy, "PACKAGES", ()), *proposed)


@cache
def get(name: str) -> Any:
    """Import and return the module of the search strategy with this name.

    Raises:
        ParamsError: there is no strategy of this name, two packages offer it, or its module lacks a required name (see
            `contract`).
    """
    outside = plugin(name)
    if outside is None and name not in OWN:
        raise ParamsError(f"{KEY}: there is no strategy {name!r}; there are {', '.join(names())}")
    module = outside.load(KEY) if outside else importlib.import_module(f"{__name__}.{name}")
    lacking = [part for part in ("Config", "Search", "RENEWS", "PAUSES", "DRAWS") if not hasattr(module, part)]
    if lacking:
        raise ParamsError(f"{KEY}: {outside} does not define {', '.join(lacking)}: every search strategy must")
    return module
