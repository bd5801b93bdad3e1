"""A strategy for tests: who lives in which generation is said beforehand, and nobody ever changes."""

from __future__ import annotations

import sys

import pytest

from evopipe import searchers
from evopipe.schema.declare import Schema
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Plan, Stateless

RENEWS, PAUSES, DRAWS = False, True, False


class Config(Schema):
    """Who lives."""

    order: tuple[tuple[int, ...], ...] = ()
    births: tuple[tuple[int, int, int], ...] = ()  # after which generation a slot gets a mutated child of another


class Search(Stateless):
    """All live where nothing is said."""

    def __init__(self, config: Config, about: About) -> None:
        self.config, self.about = config, about

    def plan(self, history: History, draw: Draw) -> Plan | None:
        everybody = tuple(range(self.about.size))
        order = self.config.order
        if order and history.generation >= len(order):
            return None
        return Plan(order[history.generation] if order else everybody, self.about.generation)

    def step(self, history: History, draw: Draw) -> list[Fate]:
        found: list[Fate] = [Keep() for _ in history.members]
        for generation, slot, of in self.config.births:
            if generation == history.generation:
                found[slot] = Child(of, why="as was said")
        return found


def offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `search.strategy: rota` name this file."""
    monkeypatch.setitem(sys.modules, "evopipe.searchers.rota", sys.modules[__name__])
    monkeypatch.setattr(searchers, "OWN", (*searchers.OWN, "rota"))
