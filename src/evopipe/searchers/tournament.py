"""Tournament selection with elitism (Miller & Goldberg, 1995).

A slot's parent is the fittest of some members drawn at random; the fittest of all survives in slot 0. All members
train all the time.

Paper: https://content.wolfram.com/sites/13/2018/02/09-3-2.pdf
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evopipe.schema.evolution import TournamentConfig
from evopipe.searchers.contract import DRAWN, About, Child, Draw, Fate, History, Plan, Stateless

if TYPE_CHECKING:
    import numpy as np

Config = TournamentConfig
"""Its block is `evolution.tournament`, beside what mutates."""
RENEWS = PAUSES = DRAWS = False


class Search(Stateless):
    """The strategy `tournament`: each slot gets a mutated child of the fittest of some members drawn at random.

    It implements `contract.Searcher`.

    Args:
        config: the strategy's settings.
        about: what the strategy knows of the run from the start: slots, steps, searched ranges, budget and target.
    """

    def __init__(self, config: TournamentConfig, about: About) -> None:
        self.config, self.about = config, about

    def plan(self, history: History, draw: Draw) -> Plan:
        """Plan one generation of training for all members, and draw the members of each tournament beforehand.

        If evaluation is a race, a member stops playing once its rank can change no decision. The race therefore has to
        know which members will be in the same tournament.
        """
        about = self.about
        met = draws(self.config, about.size, draw())[self.config.elitism :]
        return Plan(tuple(range(about.size)), about.generation, met.tolist())

    def step(self, history: History, draw: Draw) -> list[Fate] | None:
        """Give every slot a mutated child of its tournament's winner; with elitism, slot 0 gets the fittest member.

        Return one decision for each slot (place in the population). The result is None if no member has a finite
        fitness; the run then returns to an earlier generation.
        """
        import numpy as np

        window = self.config.window
        fitness = np.array([windowed(m.fitness, window) if m.healthy else -np.inf for m in history.members])
        return fates(self.config, fitness, draw(), self.about.mutate_elite)


@dataclass(frozen=True, slots=True)
class Selection:
    """The result of tournaments.

    Attributes:
        parents: the index of each slot's parent.
        elite: the index of the fittest member; None if no member is healthy.
    """

    parents: tuple[int, ...]
    elite: int | None


def fates(
    cfg: TournamentConfig, fitness: np.ndarray, rng: np.random.Generator, mutate_elite: bool
) -> list[Fate] | None:
    """Return the decision which member each slot (place in the population) gets next, by tournament selection.

    The result is None if no fitness is finite. With elitism, slot 0 gets the fittest member.

    Args:
        cfg: the settings of the tournament.
        fitness: `[P]`, the members' fitness.
        rng: the random generator.
        mutate_elite: whether the fittest member in slot 0 is mutated too. Without elitism this has no effect.
    """
    selected = tournament(cfg, fitness, rng)
    if selected.elite is None:
        return None
    won = f"won a tournament of {cfg.size}" if cfg.size else "nothing is selected"
    found: list[Fate] = [Child(parent, DRAWN, won) for parent in selected.parents]
    if cfg.elitism:
        found[0] = Child(selected.elite, DRAWN if mutate_elite else None, "the fittest", survives=True)
    return found


def windowed(fitness: Sequence[float], window: int) -> float:
    """Return the mean of a member's last `window` evaluations; −∞ if there are none, or the mean is not finite."""
    last = fitness[-window:]
    mean = sum(last) / len(last) if last else -float("inf")
    return mean if abs(mean) != float("inf") and mean == mean else -float("inf")


def draws(cfg: TournamentConfig, members: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the members of each slot's tournament at random, with replacement.

    The result has their indices as int64 `[P, size]`, each row ascending; `size` is the tournament size.

    Args:
        cfg: the settings of the tournament, with its size.
        members: P, the number of members.
        rng: the random generator.
    """
    import numpy as np

    return np.sort(rng.integers(0, members, (members, cfg.size)), axis=1)


def tournament(cfg: TournamentConfig, fitness: np.ndarray, rng: np.random.Generator) -> Selection:
    """Choose a parent for every slot (place in the population) by tournaments.

    Only members with a finite fitness win a tournament. Of equal members the one with the lower index wins. If a
    tournament has no member with a finite fitness, the fittest of the population wins it. If the tournament size is 0,
    there are no tournaments: each member with a finite fitness is its own parent, and the fittest replaces the others.

    With elitism, the fittest is always the parent of slot 0. If no member of the population has a finite fitness, each
    is its own parent.

    Args:
        cfg: the settings of the tournament.
        fitness: `[P]`, the members' fitness.
        rng: the random generator.
    """
    import numpy as np

    score = np.where(np.isfinite(fitness), fitness, -np.inf)
    if not np.isfinite(score.max()):
        return Selection(tuple(range(len(score))), None)
    elite = int(score.argmax())
    if cfg.size == 0:  # no tournament: everyone goes on but those who must not
        own = [slot if np.isfinite(each) else elite for slot, each in enumerate(score)]
        return Selection((elite, *own[1:]) if cfg.elitism else tuple(own), elite)
    drawn = draws(cfg, len(score), rng)
    winners = drawn[np.arange(len(score)), score[drawn].argmax(axis=1)]
    winners = np.where(np.isfinite(score[winners]), winners, elite)
    if cfg.elitism:
        winners[0] = elite
    return Selection(tuple(int(w) for w in winners), elite)
