"""A schedule, which searches nothing: hyper-parameters take given values at given steps.

It is how `evopipe replay` trains an elite's schedule of values from scratch: what a search found should be as good
again with other seeds (as the schedules of Jaderberg et al., 2017, were retrained in figure 5).

Paper: https://arxiv.org/abs/1711.09846
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pydantic import Field

from evopipe.errors import ParamsError
from evopipe.schema.declare import Problem, Schema
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Plan, Stateless

RENEWS = PAUSES = DRAWS = False


class ScheduledValues(Schema):
    """One change of hyper-parameters in a schedule: their values from a step of training on."""

    steps: int = Field(ge=1, le=10**12, description="environment steps of a member after which the values apply")
    values: dict[str, int | float] = Field(description="new values of hyper-parameters, by name")


class Config(Schema):
    """Settings of the strategy `schedule`: changes of hyper-parameters at known steps. All other values stay as
    configured."""

    changes: tuple[ScheduledValues, ...] = Field(
        (), strict=False, description="changes of hyper-parameters, in the order of their steps"
    )
    steps: int | None = Field(
        None, ge=1, le=10**12, description="environment steps that a member trains in all; null: `train.max_steps`"
    )


def problems(config: Config, about: About) -> Iterator[Problem]:
    """Yield a (path, sentence) pair for each setting in `config` that does not fit the run: the setting's path of keys,
    and what is wrong with it. `about` holds the facts about the run."""
    life = about.life if config.steps is None else config.steps
    if life > about.life:
        yield ("steps",), f"no member lives that long (train.max_steps: {about.life}); lower it"
    for place, (one, two) in enumerate(pairwise(config.changes), 1):
        if one.steps >= two.steps:
            yield ("changes", place, "steps"), f"must be more than the change before has ({one.steps}), got {two.steps}"
    for place, change in enumerate(config.changes):
        if change.steps >= life:
            yield ("changes", place, "steps"), f"a life ends at {life} steps: leave it out, or lower it"


class Search(Stateless):
    """The strategy `schedule`: members train with hyper-parameters that change at known steps; nothing is searched.

    It implements `contract.Searcher`; `evopipe replay` uses it.

    Args:
        config: the strategy's settings.
        about: what the strategy knows of the run from the start: slots, steps, searched ranges, budget and target.
    """

    def __init__(self, config: Config, about: About) -> None:
        self.config, self.about = config, about
        self.ends = [*(change.steps for change in config.changes), *([config.steps] if config.steps else [])]

    def plan(self, history: History, draw: Draw) -> Plan | None:
        """Plan the training of all members up to the next change of hyper-parameters or the end of the schedule. The
        plan never covers more than one generation.

        The result is None if the schedule has ended.

        Raises:
            ParamsError: a change names something that is no hyper-parameter of the algorithm, or one that must stay
                constant.
        """
        known = history.members[0].hyper
        for place, change in enumerate(self.config.changes):
            if strange := sorted(change.values.keys() - known.keys()):
                raise ParamsError(
                    f"search.schedule.changes.{place}.values.{strange[0]}: the algorithm has no such hyper-parameter "
                    f"that may change; it has {', '.join(sorted(known))}"
                )
        lived = history.members[0].steps
        if self.config.steps is not None and lived >= self.config.steps:
            return None
        ahead = [steps - lived for steps in self.ends if steps > lived]
        return Plan(tuple(range(self.about.size)), min([self.about.generation, *ahead]))

    def step(self, history: History, draw: Draw) -> list[Fate] | None:
        """Return one decision for each slot (place in the population).

        Each member gets the hyper-parameters that the schedule has for its step. A diverged member is replaced by a
        copy of the fittest. The result is None if all members diverged; the run then returns to an earlier generation.

        `history` is the run so far, and `draw` is not used.
        """
        fittest = max(history.members, key=lambda member: (member.healthy, member.score, -member.slot))
        if not fittest.healthy:
            return None
        found: list[Fate] = []
        for member in history.members:
            due = [change.values for change in self.config.changes if change.steps <= member.steps]
            now = {name: value for values in due for name, value in values.items()}
            if not member.healthy:
                found.append(Child(fittest.slot, now, "the one before diverged: a copy of the fittest"))
            elif any(member.hyper[name] != value for name, value in now.items()):
                found.append(Child(member.slot, now, f"the schedule from {member.steps} steps on"))
            else:
                found.append(Keep("the schedule changes nothing"))
        return found
