"""Asynchronous successive halving (ASHA; Li et al., 2020): the best trials at each rung train on.

Rungs are numbers of steps that grow by a factor η; the best 1/η of the trials at a rung go on to the next. No trial
waits for a rung to be full.

Whoever may live next is Algorithm 2 of the paper: from the highest rung down, the best trial that is among the best
⌊n / η⌋ of the n that have reached a rung and that was not promoted yet; where there is none, a new trial. A trial that
is not promoted keeps its state, and goes on from there when the rung has grown and it is among the best.

Paper: https://arxiv.org/abs/1810.05934
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from evopipe.schema.declare import Problem, Schema
from evopipe.searchers.contract import About, Draw, Fate, History, Keep, Living, Plan
from evopipe.searchers.propose import Proposer

RENEWS, PAUSES, DRAWS = True, True, True


class Config(Schema):
    """Settings of the strategy `halving`, asynchronous successive halving (ASHA; Li et al., 2020)."""

    eta: int = Field(
        3, ge=2, le=100, description="η: the best 1/η of a rung's trials go on to the next rung, at η times the steps"
    )
    rung: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description="environment steps at which trials are compared first; null: `train.max_steps` / η^k, with the "
        "largest k for which this is at least `train.evo_steps`",
    )
    width: int = Field(
        1, ge=1, le=4096, description="members that train at a time, at most `population.size`; others wait"
    )


def problems(config: Config, about: About) -> Iterator[Problem]:
    """Yield a (path, sentence) pair for each setting in `config` that does not fit the run: the setting's path of keys,
    and what is wrong with it. `about` holds the facts about the run."""
    if config.width > about.size:
        yield ("width",), f"there are only {about.size} members (population.size); lower it, or raise population.size"
    if config.rung is not None and config.rung > about.life:
        yield ("rung",), f"no trial lives that long (train.max_steps: {about.life}); lower it"


def rungs(config: Config, life: int, generation: int) -> list[int]:
    """Return the environment steps of each rung, ascending: the ages at which trials are compared.

    All rungs but the last are whole numbers of generations.

    Args:
        config: the strategy's settings.
        life: environment steps of a full training, which are the last rung.
        generation: environment steps of a generation.
    """
    whole, first = -(-life // generation), (config.rung or 0) / generation
    if config.rung is None:
        first = whole
        while first >= config.eta:
            first /= config.eta
    found = []
    while first < whole:
        found.append(math.ceil(first) * generation)
        first *= config.eta
    return sorted({steps for steps in found if steps < life} | {life})


class Search:
    """The strategy `halving`: asynchronous successive halving (ASHA), in which the best trials of a rung train on.

    It implements `contract.Searcher`; the rules are in the module's docstring.

    Args:
        config: the strategy's settings.
        about: what the strategy knows of the run from the start: slots, steps, searched ranges, budget and target.
    """

    def __init__(self, config: Config, about: About) -> None:
        self.config, self.about, self.proposer = config, about, Proposer(about)
        self.rungs = rungs(config, about.life, about.generation)
        self.active = list(range(min(config.width, about.size)))  # slots whose members are on their way to a rung

    def state(self) -> dict[str, Any]:
        return {"active": self.active}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.active = list(state["active"])

    def plan(self, history: History, draw: Draw) -> Plan:
        """Plan one generation of training for the members that now train towards their next rung.

        A rung is a number of environment steps at which trials are compared.
        """
        return Plan(tuple(self.active), self.about.generation)

    def step(self, history: History, draw: Draw) -> list[Fate]:
        """Choose a successor for each training member that reached its next rung or diverged. Keep all others.

        The first choice is a waiting member that can be promoted, see `Ladder.promotable`. If there is none, the
        successor is a member that has not begun to train. If there is none of these either, it is a new trial, which
        replaces the member that comes first in the order of `Ladder.standing`.
        """
        ladder = Ladder(history, self.rungs)
        found = history.waiting()
        going = [slot for slot in self.active if ladder.on_its_way(history.members[slot])]
        for slot in going:
            found[slot] = Keep("on its way to the next rung")
        for _ in range(len(self.active) - len(going)):
            waiting = [member for member in history.members if member.slot not in going]
            slot, fate = self._next(history, ladder, waiting, draw)
            found[slot] = fate
            going.append(slot)
        self.active = sorted(going)
        return found

    def _next(self, history: History, ladder: Ladder, waiting: Sequence[Living], draw: Draw) -> tuple[int, Fate]:
        """Return the slot of the next one to live, and what becomes of it."""
        best = ladder.promotable(waiting, self.config.eta)
        if best is not None:
            steps, n = self.rungs[ladder.level(best) - 1], len(ladder.reached[ladder.level(best) - 1])
            return best.slot, Keep(f"promoted: among the best {n // self.config.eta} of {n} at {steps} steps")
        untouched = next((member.slot for member in waiting if member.id not in ladder.curves), None)
        if untouched is not None:
            return untouched, Keep("begins: nobody could be promoted")
        worst = min(waiting, key=ladder.standing)
        was = f"was the worst at {worst.steps} steps" if worst.healthy else "diverged"
        return worst.slot, self.proposer.trial(
            history, draw, worst.slot, f"nobody could be promoted; the last one {was}"
        )


class Ladder:
    """The scores of all trials of a run at the rungs that they reached, including trials that were replaced.

    A trial is the training of one member from initial weights. A rung is a number of environment steps at which trials
    are compared. A diverged trial counts as the worst of the rung that it was about to reach.

    Args:
        history: the run so far.
        rungs: the environment steps of each rung, ascending.
    """

    def __init__(self, history: History, rungs: Sequence[int]) -> None:
        self.rungs, self.curves = rungs, history.curves()
        self.reached: list[dict[int, float]] = [{} for _ in rungs]  # scores by id
        for id, curve in self.curves.items():
            for rung, steps in zip(self.reached, rungs, strict=True):
                if (at := next((score for lived, score in curve if lived >= steps), None)) is not None:
                    rung[id] = at
            level = self._level(curve[-1][0])
            if curve[-1][1] == -math.inf and level < len(rungs):
                self.reached[level].setdefault(id, -math.inf)

    def _level(self, steps: int) -> int:
        return sum(steps >= rung for rung in self.rungs)

    def level(self, member: Living) -> int:
        """Return the number of rungs that a member has reached."""
        return self._level(member.steps)

    def on_its_way(self, member: Living) -> bool:
        """Return whether a member has not diverged and is still between two rungs.

        A member is between two rungs if it reached none in the last generation in which it trained. The method must be
        called only for a member that has trained.
        """
        curve = self.curves[member.id]
        return member.healthy and self.level(member) == (self._level(curve[-2][0]) if len(curve) > 1 else 0)

    def promotable(self, waiting: Sequence[Living], eta: int) -> Living | None:
        """Return the waiting member that is to train on, up to its next rung; None if there is none.

        A member can be promoted if it has not diverged, and if its score at the last rung that it reached is among the
        best 1/`eta` of that rung. All trials that reached the rung are compared. If several members can be promoted,
        those on the highest rung come first, and among these the one with the best score.

        Args:
            waiting: the members that do not train at present.
            eta: the share of trials that are promoted is 1/`eta`.
        """
        here = {member.id: member for member in waiting if member.healthy}
        for level in range(len(self.rungs) - 1, 0, -1):
            scores = self.reached[level - 1]
            best = sorted(scores, key=lambda id: (-scores[id], id))[: len(scores) // eta]
            for id in best:
                if id in here and self.level(here[id]) == level and math.isfinite(scores[id]):
                    return here[id]
        return None

    def standing(self, member: Living) -> tuple[int, float]:
        """Return a member's sort key in the order in which members are replaced, the first to be replaced first.

        Diverged members come first. Then come the members of the lowest rung, the worst score first, and so on upwards.
        """
        level = self.level(member)
        return (level, self.reached[level - 1].get(member.id, -math.inf)) if member.healthy else (-1, 0.0)
