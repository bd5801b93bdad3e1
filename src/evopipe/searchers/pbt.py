"""Population based training (PBT; Jaderberg et al., 2017): after each generation, the worst members copy the best.

All members train all the time. A copy takes over weights and hyper-parameters, and explores from there.

*Exploit* is truncation selection: a member of the worst 20 % copies one drawn uniformly from the best 20 %. *Explore*
resamples each hyper-parameter from the space that the first values were drawn from, or multiplies it by 1.2 or 0.8.

Paper: https://arxiv.org/abs/1711.09846
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from evopipe.mutations.rl_hp import scaled
from evopipe.schema.declare import Evolve, Schema
from evopipe.searchers.contract import DRAWN, About, Bound, Child, Draw, Fate, History, Keep, Living, Plan, Stateless
from evopipe.searchers.propose import inside, random_values

if TYPE_CHECKING:
    import numpy as np

RENEWS, PAUSES, DRAWS = False, False, True


class Truncation(Schema):
    """Settings of truncation selection, in which the worst members copy the best."""

    fraction: float = Field(
        0.2,
        gt=0.0,
        le=0.5,
        description="share of the members, at least one, that is replaced in each generation by copies of equally many "
        "of the best",
    )


class Config(Truncation):
    """Settings of the strategy `pbt`, population based training with truncation selection (Jaderberg et al., 2017)."""

    explore: Literal["values", "mutation"] = Field(
        "values",
        description="change of a copied member: `values`, each searched hyper-parameter is resampled, or multiplied by "
        "`grow` or `shrink`, as in the paper; `mutation`, a mutation by the settings `evolution.mutation`",
    )
    resample: float = Field(
        0.25, ge=0.0, le=1.0, description="probability that a copy's hyper-parameter is drawn anew, not multiplied"
    )
    grow: float = Field(
        1.2, gt=1.0, le=100.0, description="factor that increases a copy's hyper-parameter, as likely as `shrink`"
    )
    shrink: float = Field(0.8, gt=0.0, lt=1.0, description="factor that decreases a copy's hyper-parameter")


class Search(Stateless):
    """The strategy `pbt`: after each generation the worst members copy the best, and change their hyper-parameters.

    It implements `contract.Searcher`; the rules are in the module's docstring.

    Args:
        config: the strategy's settings.
        about: what the strategy knows of the run from the start: slots, steps, searched ranges, budget and target.
    """

    def __init__(self, config: Config, about: About) -> None:
        self.config, self.about = config, about

    def plan(self, history: History, draw: Draw) -> Plan:
        """Plan one generation of training for all members."""
        return everyone(self.about)

    def step(self, history: History, draw: Draw) -> list[Fate] | None:
        """Replace the worst members by copies of the best, with changed hyper-parameters or a mutation; keep all
        others.

        Return one decision for each slot (place in the population). The result is None if all members diverged;
        the run then returns to an earlier generation.
        """
        chooser = draw()
        copied = exploit(history.scores(), self.config.fraction, chooser)
        if copied is None:
            return None
        found: list[Fate] = [Keep("not among the worst")] * self.about.size
        for slot, of in sorted(copied.items()):
            change: Mapping[str, float] | Literal["drawn"] = DRAWN
            if self.config.explore == "values":
                change = explore(self.config, self.about.space, history.members[of].hyper, chooser)
            found[slot] = Child(of, change, copies(history.members[slot]))
        return found


def everyone(about: About) -> Plan:
    """Return a plan in which all members train for one generation."""
    return Plan(tuple(range(about.size)), about.generation)


def copies(before: Living) -> str:
    """Return a text with the reason why the member `before` is replaced by a copy of one of the best members."""
    return f"a copy of one of the best; the one before {'was among the worst' if before.healthy else 'diverged'}"


def ranked(scores: Sequence[float], slots: Sequence[int]) -> list[int]:
    """Return the slots sorted by score, the best first. Of slots with equal scores the lower one comes first."""
    return sorted(slots, key=lambda slot: (-scores[slot], slot))


def exploit(scores: Sequence[float], fraction: float, draw: np.random.Generator) -> dict[int, int] | None:
    """Choose the members that are replaced, and the parent of each.

    The worst `fraction` of the members, and all members that diverged, are replaced. Each parent is drawn uniformly
    from the best `fraction`.

    Args:
        scores: the score of each slot's member; −∞ if the member diverged.
        fraction: the share of the members.
        draw: the random generator.

    Returns:
        A dict from the slot of each replaced member to the slot of its parent; None if all members diverged.
    """
    order = ranked(scores, range(len(scores)))
    healthy = [slot for slot in order if math.isfinite(scores[slot])]
    if not healthy:
        return None
    share = min(max(1, math.floor(fraction * len(order) + 1e-9)), len(order) // 2)
    worst = {*order[len(order) - share :], *order[len(healthy) :]}
    best = healthy[: max(share, 1)]
    return {slot: best[int(draw.integers(len(best)))] for slot in order if slot in worst}


def explore(
    config: Config, space: Mapping[str, Bound], hyper: Mapping[str, Any], draw: np.random.Generator
) -> dict[str, float]:
    """Return new values of all searched hyper-parameters, made from a parent's values.

    Each value is, independently of the others, drawn anew from its range or multiplied by a factor.

    Args:
        config: the strategy's settings, with the probability of a new draw and the factors.
        space: the range of each searched hyper-parameter.
        hyper: the parent's hyper-parameters by name.
        draw: the random generator.
    """
    anew, found = random_values(space, draw), {}
    for name, bound in sorted(space.items()):
        resample, grow = draw.random() < config.resample, bool(draw.random() < 0.5)
        value = perturbed(bound, hyper[name], config.grow, config.shrink, grow)
        stays = value == hyper[name]  # as 0 does, whatever it is multiplied by
        found[name] = anew[name] if resample or stays else value
    return found


def perturbed(bound: Bound, value: float, grow: float, shrink: float, up: bool) -> float:
    """Return a value multiplied by `grow` if `up`, else by `shrink`, and clipped to its bound.

    If that does not change the value, because it is at the end of its range, the other factor is used.
    """
    evolve, value = Evolve(min=bound.low, max=bound.high, grow=grow, shrink=shrink), inside(bound, value)
    first = scaled(value, evolve, up, bound.whole)
    return scaled(value, evolve, not up, bound.whole) if first == value else first
