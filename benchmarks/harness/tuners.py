"""Tuners that train our learner trial by trial: each says which trial lives until which slice, and hears its score."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from evopipe.searchers.contract import Bound
from evopipe.searchers.propose import random_values
from harness import venvs

CONTESTANTS = Path(__file__).parents[1] / "contestants"


@dataclass(frozen=True)
class Ask:
    """Trial `number`, with these values, is to have lived so many slices."""

    number: int
    values: Mapping[str, float]
    slices: int


@dataclass(frozen=True)
class Setting:
    """What a tuner knows: the space, a full life in slices, its seed, and the configured point if it is told it."""

    space: Mapping[str, Bound]
    slices: int
    seed: int
    lives: int
    told: Mapping[str, float] | None = None


class Tuner(Protocol):
    """Ask and tell. `keeps` says whether it may take a trial up again that it left."""

    keeps: bool

    def ask(self) -> Ask: ...

    def tell(self, score: float) -> None:
        """Hear what was asked for: the trial's last score, −∞ if it diverged."""

    def close(self) -> None: ...


class Study:
    """Optuna: a sampler, and a pruner that is asked after every slice."""

    keeps = False

    def __init__(self, setting: Setting, sampler: Any, pruner: Any) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._states, self._slices = optuna.trial.TrialState, setting.slices
        self._study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        if setting.told is not None:
            self._study.enqueue_trial(dict(setting.told))
        self._space = {name: _distribution(bound) for name, bound in sorted(setting.space.items())}
        self._trial: Any = None
        self._lived = 0

    def ask(self) -> Ask:
        if self._trial is None:
            self._trial, self._lived = self._study.ask(self._space), 0
        return Ask(self._trial.number, self._trial.params, self._lived + 1)

    def tell(self, score: float) -> None:
        self._lived += 1
        if not math.isfinite(score):
            self._end(state=self._states.PRUNED)
            return
        self._trial.report(score, self._lived)
        if self._lived >= self._slices:
            self._end(score)
        elif self._trial.should_prune():
            self._end(state=self._states.PRUNED)

    def _end(self, score: float | None = None, state: Any = None) -> None:
        self._study.tell(self._trial, score, state)
        self._trial = None

    def close(self) -> None:
        """Do nothing."""


def _distribution(bound: Bound) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    if bound.whole:
        return IntDistribution(math.ceil(bound.low), math.floor(bound.high), log=bound.log)
    return FloatDistribution(bound.low, bound.high, log=bound.log)


def random(setting: Setting) -> Tuner:
    """Random search: every trial lives its life."""
    import optuna

    return Study(setting, optuna.samplers.RandomSampler(seed=setting.seed), optuna.pruners.NopPruner())


def tpe(setting: Setting) -> Tuner:
    """TPE with the median pruner, both as they are by default."""
    import optuna

    return Study(setting, optuna.samplers.TPESampler(seed=setting.seed), optuna.pruners.MedianPruner())


def asha_pruned(setting: Setting) -> Tuner:
    """Optuna's asynchronous successive halving over random search: a trial that is left is lost."""
    import optuna

    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return Study(setting, optuna.samplers.RandomSampler(seed=setting.seed), pruner)


class Asha:
    """ASHA as published (Li et al., 2020, algorithm 2, https://arxiv.org/abs/1810.05934), by one worker: promotions,
    from the highest rung down, of trials that wait; else a new one."""

    keeps = True
    eta = 4

    def __init__(self, setting: Setting) -> None:
        self._space, self._draw = setting.space, np.random.default_rng(setting.seed)
        self.rungs = _rungs(setting.slices, self.eta)
        self._scores: list[dict[int, float]] = [{} for _ in self.rungs]
        self._values: list[dict[str, float]] = []
        self._asked = (0, 0)

    def ask(self) -> Ask:
        number, rung = self._asked = self._next()
        if number == len(self._values):
            self._values.append(random_values(self._space, self._draw))
        return Ask(number, self._values[number], self.rungs[rung])

    def _next(self) -> tuple[int, int]:
        """Return whom to train up to which rung."""
        for rung in reversed(range(len(self.rungs) - 1)):
            scores = self._scores[rung]
            best = sorted(scores, key=lambda number: (-scores[number], number))[: len(scores) // self.eta]
            waiting = [n for n in best if n not in self._scores[rung + 1] and math.isfinite(scores[n])]
            if waiting:
                return waiting[0], rung + 1
        return len(self._values), 0

    def tell(self, score: float) -> None:
        number, rung = self._asked
        self._scores[rung][number] = score

    def close(self) -> None:
        """Do nothing."""


def _rungs(slices: int, eta: int) -> list[int]:
    """Return the slices at which trials are compared: a full life, and a share of `eta` of the rung above each, as long
    as that is a slice."""
    rungs = [slices]
    while rungs[0] >= eta:
        rungs.insert(0, -(-rungs[0] // eta))
    return rungs


class Child:
    """A tuner in an environment of its own, see `contestants/tuner.py`. It asks for configurations; one that it asks
    for again goes on from where it was, which multi-fidelity tuners allow and which spares steps."""

    keeps = True

    def __init__(self, setting: Setting, name: str) -> None:
        space = {key: asdict(bound) for key, bound in setting.space.items()}
        about = {
            "space": space, "slices": setting.slices, "seed": setting.seed, "told": setting.told,
            "first": max(1, setting.lives // 4),
        }  # fmt: skip
        command = [str(venvs.python_of("tuners")), str(CONTESTANTS / "tuner.py"), name, json.dumps(about)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self._numbers: dict[str, int] = {}
        self._worst, self._slices = math.inf, setting.slices

    def ask(self) -> Ask:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the tuner ended by itself, with exit status {self._process.wait()}")
        asked = json.loads(line)
        number = self._numbers.setdefault(json.dumps(asked["values"], sort_keys=True), len(self._numbers))
        return Ask(number, asked["values"], min(self._slices, math.ceil(asked["slices"] - 1e-6)))

    def tell(self, score: float) -> None:
        """Tell a score; the worst one so far for a trial that diverged, as its surrogate cannot have −∞."""
        finite = math.isfinite(score)
        self._worst = min(self._worst, score) if finite else self._worst
        said = score if finite else (self._worst if math.isfinite(self._worst) else -1e6)
        assert self._process.stdin
        print(json.dumps({"score": said}), file=self._process.stdin, flush=True)

    def close(self) -> None:
        """End its process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        self._process.terminate()
        self._process.wait()


def smac(setting: Setting) -> Tuner:
    return Child(setting, "smac")


def dehb(setting: Setting) -> Tuner:
    return Child(setting, "dehb")
