"""A search without environments: a real searcher, and trials whose scores are known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from evopipe import rng, searchers
from evopipe.mutations import NONE
from evopipe.rng import Purpose
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Living, Plan, Searcher, Trial
from evopipe.searchers.history import Born, Record, Scored


@dataclass(frozen=True)
class Course:
    """What a trial will score after each slice of its life, what scoring it costs, and whether the last score is
    confirmed. A trial that lives on after the last slice keeps its score."""

    scores: Sequence[float]
    evaluated: Sequence[int] = ()
    confirmed: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)

    def at(self, slices: int) -> tuple[float, bool]:
        """Return the score after so many slices, and whether it is confirmed."""
        return self.scores[min(slices, len(self.scores)) - 1], self.confirmed and slices >= len(self.scores)

    def cost(self, slices: int) -> int:
        """Return the steps of evaluation after so many slices."""
        return self.evaluated[min(slices, len(self.evaluated)) - 1] if self.evaluated else 0


class Search:
    """A run of a strategy: `generation` takes it one further, `reason` says why it is over.

    Args:
        strategy: its name.
        config: its settings.
        about: what it knows of its run.
        new: (number of the trial) → the course of a new trial.
        child: (the parent's course, its slices so far, the values changed) → the course of its child.
    """

    def __init__(
        self, strategy: str, config: Mapping[str, Any], about: About, new: Callable[[int], Course],
        child: Callable[[Course, int, Mapping[str, float]], Course] | None = None,
    ) -> None:  # fmt: skip
        module = searchers.get(strategy)
        self.about, self.new, self.child, self.renews = about, new, child or _like_its_parent, module.RENEWS
        self.searcher: Searcher = module.Search(module.Config.model_validate(dict(config)), about)
        self.courses = [new(slot) for slot in range(about.size)]
        self.slices = [0] * about.size
        self.members = [
            Living(slot, slot, None, course.values, 0, (), True) for slot, course in enumerate(self.courses)
        ]
        self.records = [Record(0, 0)]
        self.number, self.trials, self.next_id, self.training, self.evaluating = 0, about.size, about.size, 0, 0
        self.fates: list[Fate] = []
        self.reason = ""
        self._plan()

    @property
    def spent(self) -> int:
        return self.training + self.evaluating

    @property
    def history(self) -> History:
        return History(list(self.members), list(self.records), self.number, self.spent, self.trials)

    def _draw(self, generation: int) -> Draw:
        return partial(rng.host, rng.run_key(self.about.seed), Purpose.SELECT, generation)

    def _plan(self) -> None:
        plan = self.searcher.plan(self.history, self._draw(self.number + 1))
        if plan is None:
            self.reason = "max_steps"
        else:
            self.plan: Plan = plan

    def generation(self) -> None:
        """Let those whom the plan names live, and every slot have what was decided."""
        reached = False
        for slot in self.plan.active:
            member, steps = self.members[slot], min(self.plan.steps, self.about.life - self.members[slot].steps)
            self.slices[slot] += -(-steps // self.about.generation)
            score, confirmed = self.courses[slot].at(self.slices[slot])
            self.training += steps
            self.evaluating += self.courses[slot].cost(self.slices[slot])
            healthy = math.isfinite(score)
            lived = (*member.fitness, score if healthy else -math.inf)
            self.members[slot] = replace(member, steps=member.steps + steps, fitness=lived, healthy=healthy)
            reached |= confirmed
        self.number += 1
        living = [self.members[slot] for slot in sorted(self.plan.active)]
        scored = [Scored(m.slot, m.id, m.parent, 0, None, m.hyper, m.healthy, m.fitness[-1], m.steps) for m in living]
        self.records.append(Record(self.number, 0, tuple(scored)))
        over = not self.renews and min(member.steps for member in self.members) >= self.about.life
        if reached or over or (self.about.budget is not None and self.spent >= self.about.budget):
            self.reason = "target" if reached else "max_steps"
            return
        decided = self.searcher.step(self.history, self._draw(self.number))
        if decided is None:
            raise RuntimeError("the strategy has nobody to go on with")
        self.fates = list(decided)
        before = list(zip(self.members, self.courses, self.slices, strict=True))
        for slot, fate in enumerate(decided):
            self._become(slot, fate, before)
        self.records[-1] = replace(self.records[-1], children=tuple(map(self._born, decided, self.members)))
        self.next_id += self.about.size
        self._plan()

    def _become(self, slot: int, fate: Fate, before: Sequence[tuple[Living, Course, int]]) -> None:
        id = self.next_id + slot
        match fate:
            case Keep():
                return
            case Trial(values):
                self.courses[slot], self.slices[slot] = self.new(self.trials), 0
                self.members[slot] = Living(slot, id, None, {**self.courses[slot].values, **values}, 0, (), True)
                self.trials += 1
            case Child(of, change):
                parent, course, lived = before[of]
                values = {**parent.hyper, **(change if isinstance(change, Mapping) else {})}
                same = fate.survives and not isinstance(change, Mapping)
                self.courses[slot] = course if same else self.child(course, lived, values)
                self.slices[slot] = lived
                changed = {} if same else {"id": id, "parent": parent.id}
                self.members[slot] = replace(parent, slot=slot, hyper=values, **changed)

    def _born(self, fate: Fate, member: Living) -> Born:
        parent = {Trial: None, Keep: member.slot}.get(type(fate), getattr(fate, "of", None))
        return Born(member.slot, member.id, member.parent, parent, None, member.hyper, NONE, fate.why)

    def finish(self) -> str:
        """Take the run to its end; return why it ended."""
        while not self.reason:
            self.generation()
        return self.reason


def _like_its_parent(course: Course, slices: int, values: Mapping[str, float]) -> Course:
    return course
