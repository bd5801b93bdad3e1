"""Multiple-frequencies population based training (MF-PBT; Doulazmi et al., 2025).

Sub-populations evolve every δ generations, each with a δ of its own: one that evolves often is quick, and one that
evolves seldom is not greedy.

When a sub-population evolves, its members are ranked and divided into quarters. The last quarter become copies of the
first, rank by rank, and explore as in `pbt`, without resampling. The third quarter takes in migrants, the best members
of all other sub-populations, each if it is better than the member whose place it takes. Migration is asymmetric: with a
migrant come its weights, but its values only if its sub-population evolves less often; from one that evolves more
often, whose values may be greedy, the newcomer has those of the best member at home. All others go on.

Ours alone: a member that diverged is replaced after any generation, by a copy of the best at home that explores; where
nobody at home is healthy, of the best elsewhere. A sub-population of the paper has a multiple of 4 members; we round
down.

Paper: https://arxiv.org/abs/2506.03225
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from evopipe.schema.declare import Problem, Schema
from evopipe.searchers.contract import About, Child, Draw, Fate, History, Keep, Plan, Stateless
from evopipe.searchers.pbt import everyone, perturbed, ranked
from evopipe.searchers.propose import inside

RENEWS, PAUSES, DRAWS = False, False, True
_FEWEST = 4  # members of a sub-population, which has quarters


def _ascending(frequencies: tuple[int, ...]) -> tuple[int, ...]:
    if any(one >= next for one, next in itertools.pairwise(frequencies)):
        raise ValueError(f"each must be more than the one before, got {', '.join(map(str, frequencies))}")
    return frequencies


class Config(Schema):
    """Settings of the strategy `mf_pbt`, multiple-frequencies population based training (Doulazmi et al., 2025)."""

    frequencies: Annotated[
        tuple[Annotated[int, Field(ge=1, le=10**6)], ...],
        BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
        AfterValidator(_ascending),
    ] = Field(
        (1, 4),
        min_length=1,
        max_length=64,
        description="generations between two evolutions of each sub-population, ascending; each number stands for one "
        "sub-population, an equal share of `population.size`, at least 4 members",
    )
    grow: float = Field(
        1.25, gt=1.0, le=100.0, description="factor that increases a copy's hyper-parameter, as likely as `shrink`"
    )
    shrink: float = Field(0.8, gt=0.0, lt=1.0, description="factor that decreases a copy's hyper-parameter")


def problems(config: Config, about: About) -> Iterator[Problem]:
    """Yield a (path, sentence) pair for each setting in `config` that does not fit the run: the setting's path of keys,
    and what is wrong with it. `about` holds the facts about the run."""
    least = _FEWEST * len(config.frequencies)
    if about.size < least:
        parts = f"{len(config.frequencies)} sub-populations of at least {_FEWEST} members are {least}"
        yield ("frequencies",), f"{parts}, there are {about.size} (population.size): raise it, or name fewer"


def sub_populations(size: int, number: int) -> list[range]:
    """Divide a population into `number` sub-populations, whose sizes differ by at most one.

    A sub-population is a range of adjacent slots (places in the population). `size` is the number of all slots.
    """
    ends = [size * i // number for i in range(number + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


class Search(Stateless):
    """The strategy `mf_pbt`: sub-populations that evolve at different frequencies, with migration between them.

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
        """Evolve each sub-population whose frequency divides the generation's number. Replace diverged members in every
        sub-population.

        Return one decision for each slot (place in the population). The result is None if all members diverged;
        the run then returns to an earlier generation.
        """
        scores, chooser = history.scores(), draw()
        order = [slot for slot in ranked(scores, range(self.about.size)) if math.isfinite(scores[slot])]
        if not order:
            return None
        found: list[Fate] = []
        homes = sub_populations(self.about.size, len(self.config.frequencies))
        every = {slot: each for home, each in zip(homes, self.config.frequencies, strict=True) for slot in home}
        for home in homes:
            here = [slot for slot in order if slot in home]
            abroad = [slot for slot in order if slot not in home]
            fates: dict[int, Fate] = {}
            if history.generation % every[home[0]] == 0:
                fates = self._evolved(history, ranked(scores, home), here, abroad, every, chooser)
            best = (here or abroad)[0]
            for slot in home:
                kept: Fate = Keep(
                    f"no other takes its place; its sub-population evolves every {every[slot]} generations"
                )
                if not math.isfinite(scores[slot]) and slot not in fates:
                    kept = self._copy(history, best, "the one before diverged", chooser)
                found.append(fates.get(slot, kept))
        return found

    def _evolved(
        self,
        history: History,
        home: Sequence[int],
        here: Sequence[int],
        abroad: Sequence[int],
        every: dict[int, int],
        draw: np.random.Generator,
    ) -> dict[int, Fate]:
        """Return what becomes of those slots of a sub-population that get other members.

        Args:
            history: of the run.
            home: its slots, the best first.
            here, abroad: the slots of healthy members, the best first, of it and of all others.
            every: how often the sub-population of each slot evolves.
            draw: decides between factors.
        """
        quarter, scores, fates = len(home) // 4, history.scores(), dict[int, Fate]()
        for best, slot in zip(here[:quarter], home[-quarter:], strict=False):
            fates[slot] = self._copy(history, best, "the one before was in the last quarter", draw)
        migrants = iter(abroad)
        migrant = next(migrants, None)
        for slot in home[-2 * quarter : -quarter]:
            if migrant is None or scores[migrant] <= scores[slot]:
                continue
            steadier = every[migrant] > every[slot] or not here
            values = self._values(history, migrant if steadier else here[0])
            whose = "its values" if steadier else "the values of the best at home"
            fates[slot] = Child(migrant, values, f"a migrant from slot {migrant} with {whose}")
            migrant = next(migrants, None)
        return fates

    def _copy(self, history: History, best: int, before: str, draw: np.random.Generator) -> Child:
        grow, shrink = self.config.grow, self.config.shrink
        values = {
            name: perturbed(self.about.space[name], value, grow, shrink, bool(draw.random() < 0.5))
            for name, value in self._values(history, best).items()
        }
        return Child(best, values, f"a copy of one of the best; {before}")

    def _values(self, history: History, slot: int) -> dict[str, float]:
        hyper = history.members[slot].hyper
        return {name: inside(bound, hyper[name]) for name, bound in sorted(self.about.space.items())}
