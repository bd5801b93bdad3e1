"""A strategy for tests: who lives in which generation is said beforehand, and nobody ever changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from evopipe import searchers
from evopipe.core.member import Member
from evopipe.schema.declare import Schema
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Plan, Stateless, Trial
from populations import go_on, same

RENEWS, PAUSES, DRAWS = False, True, False


class Config(Schema):
    """Who lives."""

    order: tuple[tuple[int, ...], ...] = ()
    births: tuple[
        tuple[int, int, int], ...
    ] = ()  # after which generation a slot gets a mutated child of another; of −1: a trial


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
                found[slot] = Trial(why="as was said") if of < 0 else Child(of, why="as was said")
        return found


TURNS = ((0,), (0, 2), (1, 2), (1,), (0, 1))
"""Who of three lives in which generation: members of unlike ages, alone and beside each other."""


def lives(loop: Any) -> dict[int, list[Member]]:
    """Train a run to its end; return what each member was after each generation that it lived."""
    found: dict[int, list[Member]] = {slot: [] for slot in range(loop.clock.members)}
    while not loop.reason:
        lived, before = loop.active, loop.clock.generation
        go_on(loop)
        if loop.clock.generation > before:
            for member in loop.members:
                if member.slot in lived:
                    found[member.slot].append(member)
    return found


def check(waiting: Any, always: Any, alike: Callable[[Member, Member], bool] = same) -> None:
    """Compare the members of a run in turns with those of a run in which all live."""
    turns, whole = lives(waiting), lives(always)
    for slot, members in turns.items():
        assert len(members) == sum(slot in each for each in TURNS)
        for member, other in zip(members, whole[slot], strict=False):
            assert alike(member, other), f"slot {slot} after {len(other.fitness)} generations"
            assert member.fitness == (other.fitness if alike is same else pytest.approx(other.fitness, rel=1e-4))
            assert (member.id, member.key, member.arch) == (other.id, other.key, other.arch)


def offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `search.strategy: rota` name this file."""
    monkeypatch.setitem(sys.modules, "evopipe.searchers.rota", sys.modules[__name__])
    monkeypatch.setattr(searchers, "OWN", (*searchers.OWN, "rota"))
