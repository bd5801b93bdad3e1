"""A search without learners: a strategy plays by scores that a function gives, and sees the history that a run's would
be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from evopipe import searchers
from evopipe.mutations import NONE
from evopipe.searchers.contract import About, Bound, Child, Fate, History, Keep, Living, Plan, Trial
from evopipe.searchers.history import Born, Record, Scored
from evopipe.searchers.propose import inside, random_values

SPACE = {
    "lr": Bound(1e-5, 1e-1, log=True),
    "batch_size": Bound(16, 512, log=True, whole=True),
    "learn_step": Bound(1, 8, whole=True),
    "entropy": Bound(0.0, 0.5),
}


def about(size: int = 8, **more: Any) -> About:
    return About(**{"size": size, "life": 600, "generation": 100, "space": SPACE, "seed": 5, **more})


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def living(slot: int, score: float, hyper: Mapping[str, float] | None = None, **more: Any) -> Living:
    """A member with one score, which lives in the slot of its id."""
    values = {"lr": 1e-3, "batch_size": 64, "learn_step": 2, "entropy": 0.1} if hyper is None else hyper
    known = {"id": slot, "parent": None, "steps": 100, "fitness": (score,), "healthy": math.isfinite(score)}
    return Living(slot=slot, hyper=values, **{**known, **more})


def history(scores: Sequence[float], generation: int = 1, records: Sequence[Record] = ()) -> History:
    """What a strategy sees after a generation in which members had these scores."""
    return History([living(slot, score) for slot, score in enumerate(scores)], records, generation, 0, len(scores))


def gains(by: Callable[[Mapping[str, float]], float]) -> Callable[[Living, int], float]:
    """A score that grows in each generation by what the member's values give."""
    return lambda member, steps: (member.fitness[-1] if member.fitness else 0.0) + by(member.hyper)


def off(values: Mapping[str, float]) -> float:
    """By how many decades lr is off 1e-2."""
    return abs(math.log10(values["lr"]) + 2)


@dataclass
class Game:
    """A strategy at play. `score(member, steps)` is that of a member after so many steps; −∞ if it diverges."""

    name: str
    score: Callable[[Living, int], float]
    about: About
    config: Any = None
    seed: int = 1
    members: list[Living] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    fates: list[list[Fate]] = field(default_factory=list)
    before: list[Living] = field(default_factory=list)  # the members that the last decision was about
    generation: int = 0
    spent: int = 0
    trials: int = 0
    next_id: int = 0

    def __post_init__(self) -> None:
        module = searchers.get(self.name)
        self.search = module.Search(self.config or module.Config(), self.about)
        size = self.trials = self.next_id = self.about.size
        values = [random_values(self.about.space, generator(1000 + slot)) for slot in range(size)]
        born = [Living(slot, slot, None, values[slot], 0, (), True) for slot in range(size)]
        self.members = born
        self.records.append(Record(0, 0, children=tuple(self._born(member, None, "") for member in born)))

    @property
    def history(self) -> History:
        return History(list(self.members), list(self.records), self.generation, self.spent, self.trials)

    def draw(self, generation: int) -> Callable[[], np.random.Generator]:
        return partial(np.random.default_rng, [self.seed, generation])

    def play(self, generations: int) -> Game:
        """Let so many generations pass; all go on as they were before one in which all diverged."""
        for _ in range(generations):
            plan = self.search.plan(self.history, self.draw(self.generation + 1))
            if plan is None:
                break
            back = list(self.members)
            self._live(plan)
            fates, self.before = self.search.step(self.history, self.draw(self.generation)), list(self.members)
            if fates is None:
                self.members, fates = back, [Keep("all diverged")] * len(back)
            self.fates.append(list(fates))
            self._carry_out(fates)
        return self

    def lives(self) -> Sequence[int]:
        """Who lives in the next generation."""
        plan = self.search.plan(self.history, self.draw(self.generation + 1))
        return [] if plan is None else plan.active

    def take_over(self, other: Game, state: Mapping[str, Any]) -> None:
        """Go on where another is, with the state of its strategy."""
        self.members, self.records = list(other.members), list(other.records)
        self.generation, self.spent, self.trials = other.generation, other.spent, other.trials
        self.next_id = other.next_id
        self.search.restore(state)

    def _live(self, plan: Plan) -> None:
        for slot in plan.active:
            member = self.members[slot]
            steps = member.steps + plan.steps
            score = self.score(member, steps)
            self.members[slot] = Living(
                slot, member.id, member.parent, member.hyper, steps, (*member.fitness, score), math.isfinite(score)
            )
            self.spent += plan.steps
        self.generation += 1
        scored = tuple(
            Scored(m.slot, m.id, m.parent, 0, cast(Any, None), m.hyper, m.healthy, m.fitness[-1], m.steps)
            for m in (self.members[slot] for slot in sorted(plan.active))
        )
        self.records.append(Record(self.generation, max(m.steps for m in self.members), scored))

    def _carry_out(self, fates: Sequence[Fate]) -> None:
        before, made = list(self.members), []
        for slot, fate in enumerate(fates):
            parent: int | None = slot
            if isinstance(fate, Trial):
                values = {**before[slot].hyper, **fate.values}
                self.members[slot] = Living(slot, self.next_id + slot, None, values, 0, (), True)
                self.trials, parent = self.trials + 1, -1
            elif isinstance(fate, Child):
                of, change = before[fate.of], fate.change if isinstance(fate.change, Mapping) else {}
                hyper, parent = {**of.hyper, **change}, fate.of
                self.members[slot] = Living(slot, self.next_id + slot, of.id, hyper, of.steps, of.fitness, of.healthy)
            made.append(self._born(self.members[slot], parent, fate.why))
        self.next_id += len(fates)
        last = self.records[-1]
        self.records[-1] = Record(last.generation, last.step, last.members, None, tuple(made))

    def _born(self, member: Living, parent_slot: int | None, why: str) -> Born:
        return Born(member.slot, member.id, member.parent, parent_slot, cast(Any, None), member.hyper, NONE, why)


def outside(fates: Sequence[Fate], space: Mapping[str, Bound] = SPACE) -> list[str]:
    """What of the values of new members does not lie in the space, or is not named there."""
    wrong = []
    for fate in fates:
        values = fate.values if isinstance(fate, Trial) else fate.change if isinstance(fate, Child) else None
        if isinstance(fate, Keep) or not isinstance(values, Mapping):
            continue
        for name, value in values.items():
            if name not in space or inside(space[name], value) != value:
                wrong.append(f"{name}: {value}")
            elif isinstance(value, int) is not space[name].whole:
                wrong.append(f"{name}: {value!r} is of another type")
    return wrong
