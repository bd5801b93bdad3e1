"""Growth on demand: one member trains at a time, and a new one begins if the present ones promise too little.

A decision is made after every slice. By turns the next slice goes

- to the trial that is projected to reach the target first; but if that is longer than all that was lived so far, to one
  more: a new draw and a child of the leader by turns;
- to the oldest trial that has not lived its full life, so that a curve that is flat for long is never starved, and the
  search takes about twice as long as serial search at most.

A projection is the gap to the target over the mean gain of the last `window` slices, of the best score so far: single
scores are noisy. Whoever was scored once only is given the benefit of the doubt. Without a target the gap is to a score
above the best one by a tenth of the range of all scores so far. Losers wait with their state, and are looked at again
whenever the next slice is given.

The parts are known: a portfolio that favours who improves fastest (FIRE PBT, Dalibard & Jaderberg, 2021), and freezing
and thawing by what a curve promises (Swersky, Snoek & Adams, 2014, https://arxiv.org/abs/1406.3896).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from evopipe.mutations.rl_hp import scaled
from evopipe.schema.declare import Evolve, Problem, Schema
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Living, Plan
from evopipe.searchers.propose import Proposer

RENEWS, PAUSES, DRAWS = True, True, True
_BETTER = 0.1  # of the range of scores, by which the best one is to be beaten where there is no target


class Config(Schema):
    """Settings of the strategy `growth`: one member trains at a time, and new trials begin on demand."""

    slice: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description="environment steps of a slice (training between two decisions); null: `train.evo_steps`",
    )
    window: int = Field(
        3, ge=1, le=10**4, description="latest slices whose mean gain in score predicts a trial's next gains"
    )
    factor: float = Field(
        1.5,
        gt=1.0,
        le=100.0,
        description="factor by which a child's hyper-parameter is its parent's multiplied or divided, with equal "
        "probability, within its range",
    )


def problems(config: Config, about: About) -> Iterator[Problem]:
    """Yield a (path, sentence) pair for each setting in `config` that does not fit the run: the setting's path of keys,
    and what is wrong with it. `about` holds the facts about the run."""
    if config.slice is not None and about.budget is not None and config.slice > about.budget:
        yield ("slice",), f"the run ends before (search.budget: {about.budget}); lower it, or raise search.budget"


class Search:
    """The strategy `growth`: one member trains at a time, and new trials begin on demand.

    A new member begins if, by the trends of their scores, the members so far would not reach the target score soon. It
    has initial weights (a new trial), or is a child of the member that is projected to reach the target first. The
    class implements `contract.Searcher`; the rules are in the module's docstring.

    Args:
        config: the strategy's settings.
        about: what the strategy knows of the run from the start: slots, steps, searched ranges, budget and target.
    """

    def __init__(self, config: Config, about: About) -> None:
        self.config, self.about, self.proposer = config, about, Proposer(about)
        self.active, self.slices, self.grown = 0, 0, 0  # the slot that lives, slices so far, trials after the first

    def state(self) -> dict[str, Any]:
        return {"active": self.active, "slices": self.slices, "grown": self.grown}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.active, self.slices, self.grown = state["active"], state["slices"], state["grown"]

    def plan(self, history: History, draw: Draw) -> Plan:
        """Plan the next slice, the environment steps between two decisions: one member trains, all others wait."""
        return Plan((self.active,), self.config.slice or self.about.generation)

    def step(self, history: History, draw: Draw) -> list[Fate]:
        """Return one decision for each slot (place in the population), and choose the slot that trains next.

        The slot keeps its member, gets a new trial, or gets a child of the leader. The leader is the member that is
        projected to reach the target first. A new trial or child goes to a slot whose member has never trained. If
        there is none, it replaces a member that diverged or has finished its training. All other members are kept.

        `history` is the run so far. `draw` returns a random generator.
        """
        self.slices += 1
        found = history.waiting()
        self.active, found[self.active] = self._next(history, draw)
        return found

    def _next(self, history: History, draw: Draw) -> tuple[int, Fate]:
        """Return the slot that lives next, and what becomes of it."""
        curves, life = history.curves(), self.about.life
        going = [member for member in history.members if member.id in curves and member.healthy and member.steps < life]
        if going and self.slices % 2:
            return min(going, key=lambda member: member.id).slot, Keep("the oldest that has not lived its life")
        goal = self._goal(curves)
        far = {member.slot: projection(member.fitness, goal, self.config.window) for member in going}
        leader = min(going, key=lambda member: (far[member.slot], -member.score, member.id), default=None)
        if leader is not None and far[leader.slot] <= self.slices:
            return leader.slot, Keep(f"projected to be there first, after {far[leader.slot]:.1f} slices")
        free = self._free(history, curves)
        if leader is not None and not free:
            return leader.slot, Keep("leads, and there is no slot for one more")
        self.grown += 1
        if leader is None or self.grown % 2:
            return self._trial(history, curves, free[0], draw)
        why = "nobody is projected to be there soon: a child of the leader"
        return free[-1], Child(leader.slot, self._other_values(leader, draw), why)

    def _goal(self, curves: Mapping[int, Sequence[tuple[int, float]]]) -> float:
        """Return the score that is to be reached: the target, or one that is clearly better than all so far."""
        if self.about.target is not None:
            return self.about.target
        scores = [score for curve in curves.values() for _, score in curve if math.isfinite(score)]
        return max(scores) + _BETTER * (max(scores) - min(scores)) if scores else 0.0

    def _free(self, history: History, curves: Mapping[int, Any]) -> list[int]:
        """Return slots that can have one more trial: untouched ones; else one whose member cannot go on, a diverged one
        before those that have lived their life, the worst of these first."""
        untouched = [member.slot for member in history.members if member.id not in curves]
        over = [member for member in history.members if not member.healthy or member.steps >= self.about.life]
        return untouched or [member.slot for member in sorted(over, key=lambda member: member.score)[:1]]

    def _trial(self, history: History, curves: Mapping[int, Any], slot: int, draw: Draw) -> tuple[int, Fate]:
        why = "nobody is projected to be there soon: a new trial"
        untouched = history.members[slot].id not in curves
        return slot, Keep(why) if untouched else self.proposer.trial(history, draw, slot, why)

    def _other_values(self, parent: Living, draw: Draw) -> dict[str, float]:
        """Return a child's values: each its parent's times the factor or over it, the other where a bound forbids."""
        factor, values, generator = self.config.factor, {}, draw()
        for name, bound in sorted(self.about.space.items()):
            evolve = Evolve(min=bound.low, max=bound.high, grow=factor, shrink=1 / factor)
            up, old = bool(generator.random() < 0.5), parent.hyper[name]
            tried = (scaled(old, evolve, way, bound.whole) for way in (up, not up))
            values[name] = next((new for new in tried if new != old), old)
        return values


def projection(scores: Sequence[float], goal: float, window: int) -> float:
    """Return how many more slices a trial needs to reach the goal, by linear extrapolation of its best score so far.

    A trial is the training of one member from new weights. A slice is its training between two decisions. `scores`
    has one score for each slice so far. The future gain per slice is assumed to be the mean gain of the last `window`
    slices. The result is 0 if the goal was reached or if there is only one score. It is infinite if there was no gain.
    """
    last = list(itertools.accumulate(scores, max))[-window - 1 :]
    gap = goal - last[-1]
    if gap <= 0 or len(last) == 1:
        return 0.0
    gain = (last[-1] - last[0]) / (len(last) - 1)
    return gap / gain if gain > 0 else math.inf
