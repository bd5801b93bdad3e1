"""Random search (Bergstra & Bengio, 2012): every trial draws its values from the space, and trains for its full length.

The members in all slots (places in the population) train side by side. With one slot, trials run one after the other.

Paper: https://www.jmlr.org/papers/v13/bergstra12a.html
"""

from __future__ import annotations

from evopipe.schema.declare import Schema
from evopipe.searchers.contract import About, Draw, Fate, History, Keep, Plan, Stateless
from evopipe.searchers.propose import Proposer

RENEWS, PAUSES, DRAWS = True, False, True


class Config(Schema):
    """Settings of the strategy `random` (random search): none, the block is empty."""


class Search(Stateless):
    """The strategy `random`: trials with randomly drawn hyper-parameters, each of which trains for its full length.

    It implements `contract.Searcher`.

    Args:
        config: the strategy's settings.
        about: what the strategy knows of the run from the start: slots, steps, searched ranges, budget and target.
    """

    def __init__(self, config: Config, about: About) -> None:
        self.about, self.proposer = about, Proposer(about)

    def plan(self, history: History, draw: Draw) -> Plan:
        """Plan one generation of training for all members."""
        return Plan(tuple(range(self.about.size)), self.about.generation)

    def step(self, history: History, draw: Draw) -> list[Fate]:
        """Replace each trial that has finished its training, or diverged, by a new trial; keep all others."""
        return [
            self.proposer.trial(
                history,
                draw,
                member.slot,
                "the one before had lived its life" if member.healthy else "the one before diverged",
            )
            if member.steps >= self.about.life or not member.healthy
            else Keep("goes on until its life is over")
            for member in history.members
        ]
