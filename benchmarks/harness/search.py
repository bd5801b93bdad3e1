"""Searches on one engine, counted in environment steps of every kind to a confirmed target: our strategies, and tuners
that train our learner trial by trial.

A trial of a tuner is a `Population` of one, which lives slice by slice, can wait, and goes on. All have the same
learner, target, slices, lives, evaluation (a race) and confirmation. Who is not there after as many steps as `LIVES`
full lives have is censored. Who is there is audited: that costs the contestant nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

import evopipe
from evopipe import searchers
from evopipe.errors import DivergedError
from evopipe.ops.statistics import mean_of_finite
from evopipe.params.load import parse_params
from evopipe.rng import Purpose
from evopipe.searchers import propose
from evopipe.searchers.contract import Bound
from harness import curves, tuners
from harness.curves import Task
from harness.tuners import Setting, Tuner

LIVES = 20
"""The budget of a run, in environment steps that make a full life."""


@dataclass(frozen=True)
class Ours:
    """A strategy of the package: `size` slots, the `first` trial configured or drawn, and who proposes the others."""

    strategy: str
    size: int
    first: str = "drawn"
    proposer: str = "random"
    settings: Mapping[str, Any] = field(default_factory=dict)

    told = property(lambda self: self.first == "configured")


@dataclass(frozen=True)
class Peer:
    """A tuner, and whether it is told the configured point."""

    make: Callable[[Setting], Tuner]
    told: bool = False


OURS: dict[str, Ours] = {
    "tournament": Ours("tournament", 4, "configured"),
    "prior": Ours("random", 1, "configured", "prior"),
    "random, configured": Ours("random", 1, "configured"),
    "halving, configured": Ours("halving", 8, "configured"),
    "growth, configured": Ours("growth", 8, "configured"),
    "random": Ours("random", 1),
    "pbt": Ours("pbt", 4),
    "pb2": Ours("pb2", 4),
    "mf_pbt": Ours("mf_pbt", 8),
    "halving": Ours("halving", 8),
    "growth": Ours("growth", 8),
}
PEERS: dict[str, Peer] = {
    "random search": Peer(tuners.random),
    "TPE + median": Peer(tuners.tpe),
    "ASHA": Peer(tuners.Asha),
    "ASHA, pruned": Peer(tuners.asha_pruned),
    "SMAC": Peer(tuners.smac),
    "DEHB": Peer(tuners.dehb),
    "random search, told": Peer(tuners.random, told=True),
    "TPE + median, told": Peer(tuners.tpe, told=True),
    "SMAC, told": Peer(tuners.smac, told=True),
}
CONTESTANTS: dict[str, Ours | Peer] = {**OURS, **PEERS}
COMPARED = ("tournament", "prior")
"""Whom the others are tested against: the strategy that is the default, and random search that believes the file."""


def _ranges(task: Task, kind: str) -> dict[str, Any]:
    """Return the ranges of the space as an algorithm's `evolve` block has them.

    The package draws by the logarithm where a range spans a factor of ten. The hard space has a clip of .01 to .5 that
    is drawn evenly: here it begins just above a tenth of its end.
    """
    own = {"grow": 1.2, "shrink": 0.8}
    found = {}
    for name, bound in curves.space(task, kind).items():
        even = not bound.log and bound.low > 0 and bound.high / bound.low >= propose.LOG_FROM
        low = round(1.002 * bound.high / propose.LOG_FROM, 6) if even else bound.low
        found[name] = {"min": float(low), "max": float(bound.high), **own}
    return found


def space(task: Task, kind: str) -> dict[str, Bound]:
    """Return the space that everybody searches."""
    whole = {name for name, bound in curves.space(task, kind).items() if bound.whole}
    ranges = _ranges(task, kind).items()
    return {name: propose.bound(each["min"], each["max"], name in whole) for name, each in ranges}


@dataclass(frozen=True)
class Outcome:
    """What a run came to: environment steps of every kind and of training alone, whether the target was confirmed
    within the budget, how many trials were begun, processor seconds of this process, and the winner's audit."""

    steps: int
    training: int
    solved: bool
    trials: int
    seconds: float
    audit: Audit | None = None

    def to_json(self) -> dict[str, Any]:
        audit = self.audit and [round(each, 2) for each in self.audit]
        return {**asdict(self), "seconds": round(self.seconds, 1), "audit": audit}


class Audit(NamedTuple):
    """The winner's mean return over all episodes of the confirmation, however many were played, and over as many
    others."""

    all: float
    others: float


def cost_of(population: evopipe.Population) -> tuple[int, int, Audit | None]:
    """Return the steps that a run took, of every kind and of training, and the audit of its winner; None if it has not
    reached the target."""
    clock = population._run.clock
    return clock.spent, clock.env_steps, audit(population) if population.reason == "target" else None


def audit(population: evopipe.Population) -> Audit:
    """Let a run's champion play them."""
    run = population._run
    assert run.champion
    seeds = run.spec.seeds(Purpose.CONFIRM, 2 * curves.CONFIRM)
    played = run.regime.evaluate(run.spec.form_alone(run.champion.member), seeds, lambda: False).returns[0]
    return Audit(*(mean_of_finite(each) for each in np.split(played, 2)))


def run(name: str, task: Task, kind: str, seed: int, lives: int = LIVES, known: Known | None = None) -> Outcome:
    """Let a contestant search once. `known` keeps the trials of tuners for others of the same task."""
    contestant, began = CONTESTANTS[name], time.process_time()
    if isinstance(contestant, Ours):
        steps, training, winner, trials = _ours(contestant, task, kind, seed, lives)
    else:
        steps, training, winner, trials = _tuned(contestant, task, kind, seed, lives, {} if known is None else known)
    solved = winner is not None and steps <= lives * task.life
    return Outcome(steps, training, solved, trials, time.process_time() - began, winner)


# --- our strategies ---------------------------------------------------------------------------------------------------


def params_of(ours: Ours, task: Task, kind: str, seed: int, lives: int = LIVES) -> Any:
    """Return the parameters of a run. Strategies that begin no new trials live on until the budget is spent. Every
    member has a memory of its own, as a tuner's trials have."""
    budget = lives * task.life
    data = curves.params_of(task, {}, seed).model_dump(mode="json")
    algo = data["train"]["algo"]
    data["population"]["size"] = ours.size
    data["algos"][algo]["evolve"] = _ranges(task, kind)
    data["train"]["replay"]["sharing"] = "own"
    if not searchers.get(ours.strategy).RENEWS:
        data["train"]["max_steps"] = budget // ours.size
    data["search"] |= {
        "strategy": ours.strategy, "budget": budget, "first": ours.first, "proposer": ours.proposer,
        ours.strategy: dict(ours.settings),
    }  # fmt: skip
    if ours.strategy == "tournament":
        del data["search"]["tournament"]
    return parse_params(data)


def _ours(ours: Ours, task: Task, kind: str, seed: int, lives: int) -> tuple[int, int, Audit | None, int]:
    with evopipe.Population(params_of(ours, task, kind, seed, lives)) as population:
        try:
            population.train()
        except DivergedError:
            return lives * task.life, population._run.clock.env_steps, None, _trials(population)
        return *cost_of(population), _trials(population)


def _trials(population: evopipe.Population) -> int:
    """Return how many trials lived: members without a parent."""
    return len({each.id for record in population.lineage for each in record.members if each.parent is None})


# --- tuners -----------------------------------------------------------------------------------------------------------


class Lived(NamedTuple):
    """A trial after a slice: its score, environment steps so far of every kind and of training, its audit once the
    target is confirmed, and whether its life is over."""

    score: float
    spent: int = 0
    training: int = 0
    winner: Audit | None = None
    over: bool = False


Known = dict[tuple[tuple[tuple[str, float], ...], int], list[Lived]]
"""What trials of these values and this seed came to, slice by slice."""


class Trial:
    """A trial that is trained slice by slice.

    Tuners of one seed begin with the same draws, and equal values and seeds give equal bits: what is `known` of such a
    trial counts in full but is not trained again.
    """

    def __init__(self, task: Task, values: Mapping[str, float], seed: int, known: Known | None = None) -> None:
        self._params, self._population, self._slices = curves.params_of(task, values, seed), None, 0
        self._lives = {} if known is None else known
        self._known = self._lives.setdefault((tuple(sorted(values.items())), seed), [])
        self.slices, self.now = 0, Lived(-math.inf)

    def slice(self) -> None:
        """Train and score it for one slice more."""
        self.slices += 1
        while len(self._known) < self.slices:
            lived = self._train()
            if self._slices > len(self._known):
                self._known.append(lived)
        self.now = self._known[self.slices - 1]

    def _train(self) -> Lived:
        if self._population is None:
            self._population = evopipe.Population(self._params)
        population, healthy, score = self._population, False, -math.inf
        self._slices += 1
        try:
            (record,) = population.train(generations=1)
        except DivergedError:
            pass
        else:
            healthy = record.members[0].healthy
            score = record.members[0].fitness if healthy else score
        return Lived(score, *cost_of(population), bool(population.reason) or not healthy)

    def close(self) -> None:
        if self._population is not None:
            self._population.close()


def _tuned(
    peer: Peer, task: Task, kind: str, seed: int, lives: int, known: Known
) -> tuple[int, int, Audit | None, int]:
    bounds = space(task, kind)
    told = curves.configured(task, bounds) if peer.told else None
    with ExitStack() as held:
        tuner = peer.make(Setting(bounds, task.slices, seed, lives, told))
        held.callback(tuner.close)
        return _lives(tuner, task, seed, lives * task.life, held, known)


def _lives(
    tuner: Tuner, task: Task, seed: int, budget: int, held: ExitStack, known: Known
) -> tuple[int, int, Audit | None, int]:
    """Train what a tuner asks for until a score is confirmed or the budget is spent; return steps, those of training,
    the winner's audit, and how many trials were begun."""
    trials: dict[int, Trial] = {}  # those that may go on
    begun: dict[int, Lived] = {}
    while True:
        asked = tuner.ask()
        if asked.number not in trials:
            if not tuner.keeps:
                for old in trials.values():
                    old.close()
                trials.clear()
            trials[asked.number] = Trial(task, asked.values, 10_000 * seed + asked.number, known)
            held.callback(trials[asked.number].close)
        trial = trials[asked.number]
        while trial.slices < asked.slices and not trial.now.over:
            trial.slice()
            begun[asked.number] = trial.now
            spent = sum(each.spent for each in begun.values())
            if trial.now.winner or spent >= budget:
                return spent, sum(each.training for each in begun.values()), trial.now.winner, len(begun)
        tuner.tell(trial.now.score)
